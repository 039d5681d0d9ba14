"""The keys of a terminal: the mode in which each key arrives at once, and the decoding of the bytes that keys send.

A printable key is its character. Any other key has a name, e.g. ``enter`` or ``page down``. Unknown sequences give no
key, so a pasted text or a mouse cannot type commands by parts of their sequences.
"""

import codecs
import re
import termios
from contextlib import suppress

ENTER, ESCAPE, BACKSPACE = "enter", "escape", "backspace"
UP, DOWN, LEFT, RIGHT = "up", "down", "left", "right"
PAGE_UP, PAGE_DOWN, HOME, END = "page up", "page down", "home", "end"
CLEAR, REDRAW = "clear", "redraw"  # Ctrl-U and Ctrl-L

ESCAPE_SECONDS = 0.1  # if no byte follows ESC for this time, the user pressed the Escape key

_ESC, _MOST_SEQUENCE = 0x1B, 32
_CONTROLS = {
    0x0D: ENTER, 0x0A: ENTER, 0x7F: BACKSPACE, 0x08: BACKSPACE, 0x15: CLEAR, 0x0C: REDRAW,
    0x10: UP, 0x0E: DOWN, 0x06: PAGE_DOWN, 0x02: PAGE_UP, 0x01: HOME, 0x05: END,
}  # fmt: skip
# The last byte of a sequence, without and with parameters.
_LETTERS = {
    "A": UP, "B": DOWN, "C": RIGHT, "D": LEFT, "H": HOME, "F": END, "M": ENTER,
    "P": "f1", "Q": "f2", "R": "f3", "S": "f4",
}  # fmt: skip
# The first parameter of a sequence that ends with a tilde.
_NUMBERS = {
    1: HOME, 7: HOME, 4: END, 8: END, 5: PAGE_UP, 6: PAGE_DOWN,
    **{number: f"f{number - 10}" for number in range(11, 16)},
    **{number: f"f{number - 11}" for number in range(17, 22)},
}  # fmt: skip
_LINUX_CONSOLE = {letter: f"f{number}" for number, letter in enumerate("ABCDE", 1)}  # after ESC [ [
_FINISHED = re.compile(rb"\x1b(?:\[(?:\[.|(?!\[)[0-?]*[ -/]*[@-~])|O.|[^\[O])", re.DOTALL)
_SEQUENCE = re.compile(rb"\x1b(?:\[|O)([0-?]*)([@-~])")


class Decoder:
    """Turns the bytes of a terminal into keys. Sequences and characters may arrive in pieces."""

    def __init__(self) -> None:
        self._pending = b""  # the beginning of a sequence
        self._characters = codecs.getincrementaldecoder("utf-8")("ignore")

    @property
    def is_waiting(self) -> bool:
        """Whether a sequence has begun, so that ``finish`` has to be called if no byte follows."""
        return bool(self._pending)

    def feed(self, data: bytes) -> list[str]:
        """Return the keys that these bytes complete."""
        data, self._pending, keys = self._pending + data, b"", []
        place = 0
        while place < len(data):
            if data[place] != _ESC:
                keys += self._key_of(data[place])
                place += 1
                continue
            found = _FINISHED.match(data, place)
            if found is None and len(data) - place < _MOST_SEQUENCE:
                self._pending = data[place:]
                break
            keys += _key_of_sequence(found[0]) if found else []
            place = found.end() if found else place + _MOST_SEQUENCE
        return keys

    def finish(self) -> list[str]:
        """Return the Escape key if the bytes so far were only this key. Forget an incomplete sequence."""
        keys = [ESCAPE] if self._pending == b"\x1b" else []
        self._pending = b""
        return keys

    def _key_of(self, byte: int) -> list[str]:
        if byte in _CONTROLS:
            return [_CONTROLS[byte]]
        return [character for character in self._characters.decode(bytes((byte,))) if character.isprintable()]


def _key_of_sequence(data: bytes) -> list[str]:
    """Return the key of a finished sequence, or no key."""
    if data == b"\x1b\x1b":
        return [ESCAPE]
    if data.startswith(b"\x1b[["):
        key = _LINUX_CONSOLE.get(chr(data[3]))
    elif (found := _SEQUENCE.fullmatch(data)) is None:
        key = None
    elif found[2] == b"~":
        number = found[1].split(b";")[0]
        key = _NUMBERS.get(int(number)) if number.isdigit() else None
    elif data.startswith(b"\x1b[M") or found[1].startswith(b"<"):
        key = None  # a mouse
    else:
        key = _LETTERS.get(found[2].decode("ascii"))
    return [] if key is None else [key]


class KeyMode:
    """The mode of a terminal in which each key arrives at once and is not printed. ``leave`` restores the former mode.

    Ctrl-C and Ctrl-Z remain signals. Ctrl-S does not stop the output, because the program could not end then.
    """

    def __init__(self, handle: int) -> None:
        """Raises termios.error if the handle is no terminal."""
        self._handle = handle
        self._before = termios.tcgetattr(handle)

    def enter(self) -> None:
        mode = termios.tcgetattr(self._handle)
        mode[0] &= ~(termios.IXON | termios.ICRNL | termios.INLCR)
        mode[3] &= ~(termios.ICANON | termios.ECHO | termios.IEXTEN)
        mode[6][termios.VMIN], mode[6][termios.VTIME] = 1, 0
        termios.tcsetattr(self._handle, termios.TCSADRAIN, mode)

    def leave(self) -> None:
        """Restore the former mode, if the terminal still exists."""
        with suppress(termios.error):  # (without a wait for the output, which a closed connection does not take)
            termios.tcflush(self._handle, termios.TCIFLUSH)
            termios.tcsetattr(self._handle, termios.TCSANOW, self._before)
