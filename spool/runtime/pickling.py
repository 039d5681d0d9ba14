"""Refuse to pickle or copy objects that belong to one process."""

from typing import NoReturn, SupportsIndex


def refuse_pickling(self: object, protocol: SupportsIndex) -> NoReturn:
    """Raise TypeError, as Python does for locks and files. A class has this function as its ``__reduce_ex__``."""
    raise TypeError(
        f"{type(self).__name__} has locks, files or connections of this process, and cannot be pickled or copied: pass "
        "the path or the address of the space, and call spool.open or spool.connect in each process"
    )
