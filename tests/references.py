"""The references of docstrings, comments and pages exist: files, headings, rules, names, commands.

A name in two backticks in a docstring or comment is one of: a name that the code of its own package uses; a function,
class, field, constant, module or package of the repository; a word of Python, or something that Python has.
``module.name`` is in that module. After "see" stands a module, or a function or class, not a mere variable.
"""

import ast
import builtins
import io
import keyword
import os
import re
import sys
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("spool", "xa", "recovery", "forwarder", "scripts", "bench")
_TEXTS = {tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}
_OF_OTHERS = {"ext4_sync_parent", "f_type", "mapPartitions", "ROUTING"}  # Linux's, Spark's and Tuxedo's names
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_NAME = re.compile(r"[A-Za-z_]\w*(?:\.\w+)*(?:\(\))?")


@dataclass
class Module:
    """The comments, strings, names and definitions of one module."""

    path: Path
    texts: list[tuple[int, str]] = field(default_factory=list)  # comments and strings, by their first lines
    used: set[str] = field(default_factory=set)  # every name in its code, and every string that is one
    defined: set[str] = field(default_factory=set)  # functions, methods and classes
    fields: set[str] = field(default_factory=set)  # attributes, fields of classes, constants

    @property
    def where(self) -> str:
        return str(self.path.relative_to(ROOT))

    def places(self, pattern: "re.Pattern[str]") -> Iterator[tuple[str, "re.Match[str]"]]:
        """(``file:line``, match) in its comments and strings."""
        for line, text in self.texts:
            for match in pattern.finditer(text):
                yield f"{self.where}:{line + text.count(chr(10), 0, match.start())}", match


@cache
def modules() -> list[Module]:
    return [_read(path) for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]


def _read(path: Path) -> Module:
    text, module = path.read_text(), Module(path)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in _TEXTS:
            module.texts.append((token.start[0], token.string))
        elif token.type == tokenize.NAME:
            module.used.add(token.string)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, _DEFINITIONS):
            module.defined.add(node.name)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            module.used.add(node.value)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            module.fields.add(node.target.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            module.fields.add(node.attr)
        elif isinstance(node, ast.Assign):
            module.fields |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return module


@cache
def definitions(name: str) -> set[str]:
    """Functions and classes of a file of the repository; methods as ``Class.method``."""

    def under(node: ast.AST, before: str) -> Iterator[str]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, _DEFINITIONS):
                yield before + child.name
                if isinstance(child, ast.ClassDef):
                    yield from under(child, f"{before}{child.name}.")
            elif isinstance(child, ast.If | ast.Try):
                yield from under(child, before)

    return set(under(ast.parse((ROOT / name).read_text()), ""))


# -- names in two backticks --------------------------------------------------------------------------------------------


def unknown_names() -> list[str]:
    """``file:line: name`` of each that is nothing here."""
    return [
        f"{where}: ``{match[2]}``"
        for module in modules()
        for where, match in module.places(re.compile(r"(\bsee )?``([^`\n]+)``"))
        if _NAME.fullmatch(match[2]) and not _is_known(match[2].removesuffix("()"), module, bool(match[1]))
    ]


def _is_known(name: str, module: Module, is_reference: bool) -> bool:
    first, _, rest = name.rpartition(".")
    if rest in _of_python() or name in _files() or name in _OF_OTHERS:
        return True
    if first:
        begin, owner = first.partition(".")[0], first.rpartition(".")[2]
        if begin in sys.stdlib_module_names:
            return True
        owners = [found for found in modules() if found.path.stem == owner]
        if owners and begin not in module.used:
            return any(rest in found.defined | found.fields for found in owners) or rest in _stems()
        return (begin in module.used or begin in _named()) and (rest in _named() or rest in _fields())
    if is_reference:
        return name in _named()
    return name in _named() or name in _fields() or name in _used_beside(module.path.parent)


def unknown_words(words: Iterable[str]) -> list[str]:
    """Return the names in backticks on a page that no module has. (File names with an ending do not count.)"""
    known = _named() | _fields() | {name for module in modules() for name in module.used}
    names = [word.removesuffix("()") for word in words if _NAME.fullmatch(word)]
    return [name for name in names if name.rpartition(".")[2] not in known | {"md", "py", "toml"}]


@cache
def _used_beside(directory: Path) -> set[str]:
    return {name for module in modules() if module.path.parent == directory for name in module.used}


@cache
def _of_python() -> set[str]:
    return {*keyword.kwlist, *dir(builtins), *dir(os), *sys.stdlib_module_names}


@cache
def _files() -> set[str]:
    """Names of files that a space, or this repository, has."""
    return {path.name for path in ROOT.iterdir()} | {"space.toml"}


@cache
def _defined() -> set[str]:
    return {name for module in modules() for name in module.defined}


@cache
def _named() -> set[str]:
    return _defined() | _stems()


@cache
def _fields() -> set[str]:
    return {name for module in modules() for name in module.fields}


@cache
def _stems() -> set[str]:
    return {part for module in modules() for part in module.path.relative_to(ROOT).with_suffix("").parts}


# -- files, headings, rules --------------------------------------------------------------------------------------------

_PATH = re.compile(r"(?<![\w/.-])(?:docs|tests|spool|xa|forwarder|recovery|scripts|bench)/[\w/-]+(?:\.\w+)?(?<!-)")
_HEADING = re.compile(r'docs/(\w[\w-]*\.md)(?:`|``)?(?:,|:)?\s+(?:#\s+)?"([^"]+)"')
_RULE = re.compile(r"\b[Rr]ules? (\d+(?:(?:, | and | to )\d+)*)")


def pages() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@cache
def sources() -> list[Module]:
    """Pages and modules, with those of the tests, as whole texts."""
    paths = [path for package in (*PACKAGES, "tests") for path in sorted((ROOT / package).rglob("*.py"))]
    return [Module(path, [(1, path.read_text())]) for path in [*pages(), *paths]]


def missing_files() -> list[str]:
    """``file:line: path`` of each that is not in the repository; of a path without a suffix, a module may be meant.

    The tests of the mutation testing name sites that they make up.
    """
    return [
        f"{where}: {match[0]}"
        for source in sources()
        if "tests/mutation" not in source.where
        for where, match in source.places(_PATH)
        if not any((ROOT / f"{match[0]}{suffix}").exists() for suffix in ("", ".py"))
    ]


def missing_headings() -> list[str]:
    """``file:line: page, heading`` of each page of docs that has no such heading."""
    return [
        f'{where}: docs/{match[1]}, "{match[2]}"'
        for source in sources()
        for where, match in source.places(_HEADING)
        if " ".join(match[2].split()) not in headings(match[1])
    ]


@cache
def headings(page: str) -> set[str]:
    return set(re.findall(r"^#+ (.*)", (ROOT / "docs" / page).read_text(), re.MULTILINE))


def rules() -> dict[int, str]:
    """The numbered rules of docs/architecture.md, by their numbers."""
    found = re.findall(r"^- \*\*Rule (\d+)\*\*: (.*)", (ROOT / "docs" / "architecture.md").read_text(), re.M)
    return {int(number): text for number, text in found}


def missing_rules() -> list[str]:
    """``file:line: rule`` of each that docs/architecture.md does not have."""
    return [
        f"{where}: {match[0]}"
        for source in sources()
        for where, match in source.places(_RULE)
        if not {int(number) for number in re.findall(r"\d+", match[1])} <= set(rules())
    ]
