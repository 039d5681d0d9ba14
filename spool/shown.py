"""How values stand in texts for people: shortened."""

import reprlib

_MOST = 80


class _Short(reprlib.Repr):
    """The middle of what is long is left out."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = self.maxlong = _MOST
        self.maxlist = self.maxtuple = self.maxset = self.maxfrozenset = self.maxdict = self.maxdeque = 6
        self.maxlevel = 3

    def repr_bytes(self, value: bytes, level: int) -> str:
        return self._ends(value)

    def repr_bytearray(self, value: bytearray, level: int) -> str:
        return self._ends(value)

    def _ends(self, value: bytes | bytearray) -> str:
        half = _MOST // 2
        return repr(value) if len(value) <= _MOST else f"{value[:half]!r}...{value[-half:]!r}"


_short = _Short()


def shown(value: object, most: int = 4 * _MOST) -> str:
    """``repr`` of any value, of at most ``most`` characters."""
    return shortened(_short.repr(value), most)


def shortened(text: str, most: int = 4 * _MOST) -> str:
    """The text, of at most ``most`` characters."""
    return text if len(text) <= most else f"{text[: most - 3]}..."
