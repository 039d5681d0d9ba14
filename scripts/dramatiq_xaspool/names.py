"""The texts of Dramatiq's messages as a space allows them."""

from hashlib import sha256

_LONGEST = 255  # characters: a space allows no longer correlation id


def short_text(text: object) -> str:
    """Return the correlation id or the header for a text of a caller.

    A text that a space does not allow, e.g. one of 300 characters, gets a hash, so that different texts remain
    different.
    """
    text = str(text)
    written = text.encode("utf-8", "backslashreplace").decode()
    if text == written and 0 < len(text) <= _LONGEST:
        return text
    return f"{written[:200]}-{sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()[:16]}"
