"""Convert the bytes that a terminal sends to keys.

A printable key is represented by its character. Any other key has a name, e.g. ``enter`` or ``page down``. An unknown
sequence gives no key. So a part of a sequence, e.g. from a mouse or a paste, is never taken for a command.
"""

import re

ENTER, ESCAPE, BACKSPACE = "enter", "escape", "backspace"
UP, DOWN = "up", "down"
PAGE_UP, PAGE_DOWN, HOME, END = "page up", "page down", "home", "end"
REDRAW = "redraw"  # Ctrl-L

ESCAPE_SECONDS = 0.1  # if no byte follows ESC for this time, the user pressed the Escape key

_KEYS = {
    b"\r": ENTER, b"\n": ENTER, b"\x7f": BACKSPACE, b"\x08": BACKSPACE, b"\x0c": REDRAW, b"\x1b\x1b": ESCAPE,
    b"\x1b[A": UP, b"\x1bOA": UP, b"\x1b[B": DOWN, b"\x1bOB": DOWN, b"\x1b[5~": PAGE_UP, b"\x1b[6~": PAGE_DOWN,
    b"\x1b[H": HOME, b"\x1bOH": HOME, b"\x1b[1~": HOME, b"\x1b[7~": HOME,
    b"\x1b[F": END, b"\x1bOF": END, b"\x1b[4~": END, b"\x1b[8~": END,
    b"\x1bOP": "f1", b"\x1b[11~": "f1", b"\x1b[[A": "f1", b"\x1bOS": "f4", b"\x1b[14~": "f4", b"\x1b[[D": "f4",
    b"\x1b[17~": "f6", b"\x1b[21~": "f10",
}  # fmt: skip
# A byte, or a whole sequence. A sequence also ends at another ESC.
_WHOLE = re.compile(rb"[^\x1b]|\x1b(?:\[\[.|\[(?!\[)[ -?]*(?:[^ -?\x1b]|(?=\x1b))|O.|[^\[O])", re.DOTALL)


class Decoder:
    """Turns the bytes of a terminal into keys. A sequence may arrive in pieces."""

    def __init__(self) -> None:
        self._pending = b""  # the beginning of a sequence

    @property
    def is_waiting(self) -> bool:
        """Whether a sequence has begun. If no byte follows, the caller has to call ``finish``."""
        return bool(self._pending)

    def feed(self, data: bytes) -> list[str]:
        """Return the keys that these bytes complete."""
        data, keys, place = self._pending + data, [], 0
        while found := _WHOLE.match(data, place):
            place = found.end()
            key = _KEYS.get(found[0], found[0].decode("ascii", "ignore"))
            keys += [key] if key.isprintable() and key else []
        self._pending = data[place:]
        return keys

    def finish(self) -> list[str]:
        """Return the Escape key if ESC is the only byte so far. Forget an incomplete sequence."""
        keys = [ESCAPE] if self._pending == b"\x1b" else []
        self._pending = b""
        return keys
