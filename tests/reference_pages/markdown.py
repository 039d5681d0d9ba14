"""Markdown from docstrings and help texts, for readers of rendered pages and for readers in a terminal."""

import inspect
import re
import textwrap
from collections.abc import Callable, Sequence

WIDTH = 120
BACK = "Back to [the documentation](README.md)."
GENERATED = "`scripts/reference` generates this page from the code, so change the code instead of the page."

_SPAN = re.compile(r"(`[^`\n]+`|\[[^\]\n]+\]\([^)\n]+\))")
_SECTION = re.compile(r"(Args|Raises|Returns|Yields)(, [^:]+)?:")
_FIELD = re.compile(r"([a-z_]\w*(?:, [a-z_]\w*)*): (.*)")
_ERROR = re.compile(r"([A-Z]\w+(?:, [A-Z]\w+)*(?:, or [^:]+)?): (.*)")
_BULLET = re.compile(r"[*-] (.*)")
_OPTION = re.compile(r"(?<![\w-])(--[a-z][a-z-]*[a-z])")
_CODE = re.compile(r"(`[^`]*`)")
_TITLES = {"Args": "Arguments"}
_TIE = "\x00"  # a space at which no line ends


def slug(heading: str) -> str:
    """Return the anchor of a heading, as GitHub makes it."""
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def code(text: str) -> str:
    return f"`{' '.join(text.split())}`"


def wrapped(text: str, indent: str = "") -> str:
    """Return a paragraph, or an item of a list that begins with ``- ``, in lines of at most 120 characters."""
    text = _SPAN.sub(lambda span: span[0].replace(" ", _TIE), " ".join(text.split()))
    text = re.sub(
        r" (?=(?:[-+*>#=]+|\d+[.)]) )", _TIE, text
    )  # a line that begins so is a list, a quotation or a heading
    rest = f"{indent}  " if text.startswith("- ") else indent
    lines = textwrap.wrap(
        text, WIDTH, initial_indent=indent, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False
    )
    return "\n".join(lines).replace(_TIE, " ")


def inline(text: str) -> str:
    """Return the prose of a docstring or help text as Markdown."""
    text = re.sub(r":\w+:(?=`)", "", " ".join(text.split())).replace("``", "`")
    text = re.sub(r"`?\bdocs/([\w-]+)\.md\b`?", r"[\1](\1.md)", text)
    return "".join(part if part.startswith("`") else _prose(part) for part in _CODE.split(text))


def _prose(text: str) -> str:
    """Return a text without backticks: options become code, and marks of Markdown, except *emphasis*, are escaped."""
    text = re.sub(r"(\d+\*\*\d+)", r"`\1`", _OPTION.sub(r"`\1`", text))
    return "".join(
        part if part.startswith(("`", "*")) else re.sub(r"([*<]|(?<!\w)_(?=\w))", r"\\\1", part)
        for part in re.split(r"(`[^`]*`|(?<![\w*])\*[a-z][\w ]*\*(?![\w*]))", text)
    )


def block(text: str) -> str:
    return f"```text\n{textwrap.dedent(text).strip()}\n```"


def item(name: str, text: str) -> str:
    """Return an item of a list about a name, or about several names with commas."""
    names = ", ".join(code(one) if one.isidentifier() else one for one in name.split(", "))
    return wrapped(f"- {names}: {text}" if text else f"- {names}")


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


class Docstring:
    """The parts of a docstring: the paragraphs, and the descriptions of fields (``name: text``) by name."""

    def __init__(self, text: str, fields: frozenset[str] = frozenset()) -> None:
        """``fields``: the names whose descriptions are not part of the paragraphs."""
        self.fields: dict[str, str] = {}
        self.paragraphs: list[str] = []
        for lines in _blocks(inspect.cleandoc(text)):
            self._add(lines, fields)

    def _add(self, lines: list[str], fields: frozenset[str]) -> None:
        if section := _SECTION.fullmatch(lines[0]):
            title = f"**{_TITLES.get(section[1], section[1])}**{section[2] or ''}:"
            items = _items(textwrap.dedent("\n".join(lines[1:])).splitlines(), section[1] == "Raises")
            self.paragraphs += [title, "\n".join(items)]
            return
        if all(line.startswith("    ") for line in lines):
            first = _FIELD.match(lines[0].strip())
            if first and set(first[1].split(", ")) <= fields:
                self._add(textwrap.dedent("\n".join(lines)).splitlines(), fields)
                return
            self.paragraphs.append(block("\n".join(lines)))
            return
        told: list[str] = []
        for entry in _entries(lines):
            rest = []  # (one line may describe several fields, also after a sentence)
            for part in re.split(r"(?<=[.\"]) (?=[a-z_]+: )", entry):
                found = _FIELD.match(part)
                if found and set(found[1].split(", ")) <= fields:
                    self.fields.update(dict.fromkeys(found[1].split(", "), inline(found[2])))
                else:
                    rest.append(part)
            text = " ".join(rest)
            if (found := _FIELD.match(text)) is not None:
                told.append(item(found[1], inline(found[2])))
            elif bullet := _BULLET.match(text):
                told.append(wrapped(f"- {inline(bullet[1])}"))
            elif text not in ("", "::"):
                told.append(wrapped(inline(re.sub("::$", ":", text))))
        for text in told:
            if text.startswith("- ") and self.paragraphs and text is not told[0] and self.paragraphs[-1][:2] == "- ":
                self.paragraphs[-1] += f"\n{text}"
            else:
                self.paragraphs.append(text)


def _blocks(text: str) -> list[list[str]]:
    """Return the lines of each part between empty lines. A section has its further paragraphs."""
    blocks: list[list[str]] = []
    for part in re.split(r"\n\s*\n", text):
        lines = part.splitlines()
        if blocks and _SECTION.fullmatch(blocks[-1][0]) and all(line.startswith("    ") for line in lines):
            blocks[-1] += lines
        elif (place := next((i for i, line in enumerate(lines) if i and _SECTION.fullmatch(line)), 0)) > 0:
            blocks += [lines[:place], lines[place:]]
        else:
            blocks.append(lines)
    return [lines for lines in blocks if lines and lines != [""]]


def _entries(lines: list[str]) -> list[str]:
    """Return the paragraph, or each field and each bullet with its further lines, as one line each."""
    entries: list[str] = []
    for line in lines:
        begins = _FIELD.match(line) or _BULLET.match(line)
        if not entries or begins:
            entries.append(line)
        else:
            entries[-1] += f" {line.strip()}"
    return entries


def _items(lines: list[str], of_errors: bool) -> list[str]:
    """Return the items of a section; a section without names is one item."""
    entries: list[str] = []
    pattern = _ERROR if of_errors else _FIELD
    for line in lines:
        if not entries or pattern.match(line) or re.match(r"\*+\w+: ", line):
            entries.append(line.strip())
        else:
            entries[-1] += f" {line.strip()}"
    found = [(pattern.match(entry), entry) for entry in entries if entry]
    return [item(match[1], inline(match[2])) if match else wrapped(f"- {inline(entry)}") for match, entry in found]


def help_text(text: str, example: Callable[[str], str] = block) -> str:
    """Return the help text of a command. A paragraph that begins with ``\\b`` keeps its lines."""
    paragraphs: list[str] = []
    for part in re.split(r"\n\s*\n", inspect.cleandoc(text)):
        if not part.startswith("\b"):
            paragraphs.append(wrapped(inline(part)))
            continue
        title, _, rest = part.partition("\n")[2].partition("\n")
        paragraphs += [inline(title), example(rest)] if rest else [inline(title)]
    return "\n\n".join(paragraphs)


def joined(parts: Sequence[str]) -> str:
    """Return a page, or a part of a page, of its non-empty parts."""
    return "\n\n".join(part for part in parts if part)
