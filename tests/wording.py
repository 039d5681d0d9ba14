"""``python -m tests.wording``: sentences that speak of a process, a thread or a caller as if it were a person.

The subject of a sentence is a thing: the caller, the leader thread, the reader process. Only people are "who".
"""

import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("spool", "xa", "recovery", "forwarder", "scripts", "bench")
PEOPLE = r"(?:user|administrator|operator|owner|person|people|reader|newcomer|engineer|author|developer|colleague)s?"
_PERSONS = re.compile(
    r"(?<![\w-])(?:who|whoever|whom|somebody|someone|nobody|anybody|everybody"
    r"|he|him|his|himself|she|her|hers|herself)(?![\w'])",
    re.IGNORECASE,
)
_OF_PEOPLE = re.compile(rf"\b{PEOPLE},?\s+(?:#\s+)?(?:to\s+|of\s+|with\s+|for\s+)?(?:who|whom)\b", re.IGNORECASE)
_QUOTED = re.compile(r"`[^`\n]*`|\{[^{}\n]*\}|nobody:nogroup|User=nobody")
_TEXTS = {tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}


def texts(file: Path) -> Iterator[tuple[int, str]]:
    """(line, text): a page as a whole, of a module its comments and strings."""
    text = file.read_text()
    if file.suffix != ".py":
        yield 1, text
        return
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in _TEXTS:
            yield token.start[0], token.string


def found(file: Path) -> list[str]:
    """``file:line: the words around`` of each place."""
    places = []
    for line, text in texts(file):
        kept = _OF_PEOPLE.sub(lambda match: re.sub(r"\S", "x", match[0]), _QUOTED.sub(lambda m: "x" * len(m[0]), text))
        for match in _PERSONS.finditer(kept):
            around = text[max(0, match.start() - 45) : match.end() + 35].split("\n")
            number = line + text.count("\n", 0, match.start())
            places.append(f"{file.relative_to(ROOT)}:{number}: {' '.join(' '.join(around).split())}")
    return places


def files() -> list[Path]:
    modules = [module for package in PACKAGES for module in sorted((ROOT / package).rglob("*.py"))]
    return [*modules, ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]


def main() -> None:
    places = [place for file in files() for place in found(file)]
    for place in places:
        print(place)
    folders = Counter("/".join(place.split(":")[0].split("/")[:2]) for place in places)
    for folder, count in sorted(folders.items()):
        print(f"{count:5} {folder}", file=sys.stderr)
    print(f"{len(places):5} in all", file=sys.stderr)


if __name__ == "__main__":
    main()
