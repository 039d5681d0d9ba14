"""Objects that the end of a ``with`` block closes."""

from typing import Self


class Closing:
    """An object that works with ``with``, and is closed at the end of the block."""

    def _check_open(self) -> None:
        """Raise an error if the object is closed, and cannot be used any more."""

    def close(self) -> None:
        """Close the object. A second call does nothing."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        self._check_open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
