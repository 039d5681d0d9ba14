"""An exception of an application that has no text."""


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("it cannot be said")
