"""Find the messages in an HL7 v2 file with one message, several messages, or batches (HL7 v2, chapter 2).

A file has the structure ``[FHS] { [BHS] { MSH … } [BTS] } [FTS]``, and each MSH begins a message. A trailer may have a
count: BTS-1 counts the messages of a batch, and FTS-1 counts the batches of a file. If a count is wrong or a trailer is
missing, the file may be incomplete, so no message of the file is accepted.
"""

import re

_SEGMENT = re.compile(r"[A-Z][A-Z0-9]{2}(?![A-Za-z0-9 ]).*", re.DOTALL)
_HEADERS = {"FHS": "FTS", "BHS": "BTS"}


def messages_of(text: str) -> list[str]:
    """Return the messages in order, with CR at the end of each segment. ValueError if the file is malformed."""
    found: list[list[str]] = []
    opened: list[str] = []  # the headers whose trailers have not yet come
    batches = in_batch = 0
    ended = is_in_message = False
    for segment in _segments(text):
        name = segment[:3]
        if ended:
            raise ValueError(f"{name} follows the end of the file (FTS)")
        if name in _HEADERS:
            if name in opened or (name == "FHS" and (found or opened or batches)):
                raise ValueError(f"{name} is out of place")
            opened.append(name)
            batches, in_batch = batches + (name == "BHS"), 0
        elif name in _HEADERS.values():
            if not opened or _HEADERS[opened[-1]] != name:
                raise ValueError(f"{name} is out of place")
            opened.pop()
            ended = name == "FTS"
            _check_count(segment, max(batches, bool(found)) if ended else in_batch)
        elif name == "MSH":
            found.append([segment])
            in_batch += 1
        elif not is_in_message:
            raise ValueError(f"{name} does not belong to a message: MSH begins a message")
        else:
            found[-1].append(segment)
        is_in_message = name == "MSH" or (is_in_message and name not in {*_HEADERS, *_HEADERS.values()})
    if opened:
        raise ValueError(f"it has {opened[-1]} without {_HEADERS[opened[-1]]}: the end of the file may be missing")
    if not found and not batches and not ended:
        raise ValueError("it has no MSH")
    return ["".join(f"{segment}\r" for segment in segments) for segments in found]


def _segments(text: str) -> list[str]:
    """Return the segments. A segment ends with CR; LF, CR LF and the frames of MLLP are also accepted."""
    segments = [line for line in re.split("[\r\n\x0b\x1c]+", text) if line.strip()]
    for segment in segments:
        if _SEGMENT.fullmatch(segment) is None:
            raise ValueError(f"{segment[:40]!r} is no segment")
    return segments


def _check_count(trailer: str, counted: int) -> None:
    """Raise ValueError if a trailer's first field has a count, and the count is wrong."""
    told = trailer[4:].split(trailer[3])[0].strip() if len(trailer) > 3 else ""
    if told and (not told.isdecimal() or int(told) != counted):
        what = "messages" if trailer.startswith("BTS") else "batches"
        raise ValueError(f"{trailer[:3]} counts {told[:20]} {what}, and there are {counted}")
