"""docs/reference-python.md: the public names of the packages, and the types that their calls return."""

import ast
import enum
import inspect
import re
from collections.abc import Container, Iterator, Mapping
from functools import cached_property
from importlib import import_module
from types import ModuleType, UnionType
from typing import Any, get_args, is_typeddict

from tests.reference_pages import source
from tests.reference_pages.markdown import BACK, GENERATED, Docstring, block, code, inline, item, joined, slug, wrapped

OWN = ("spool", "xa", "forwarder")
ERRORS_PAGE = "reference-errors.md"

MODULES = ("spool", "spool.aio", "spool.mirrors", "spool.testing", "xa", "xa.dbapi", "xa.zope", "forwarder")
NAMES: Mapping[str, tuple[str, ...]] = {
    "spool.testing": ("temporary_space", "spool_space"),
    "xa.dbapi": ("Connection", "TwoPhaseXid"),
}
"""The names of the modules without ``__all__``."""

OF_VALUES: Mapping[str, str] = {
    "spool.JOIN": "The default of `transaction`: the call is part of the caller's transaction, if there is one.",
    "forwarder.Event": "An event of a forwarder, as the callback `on_event` gets it.",
    "forwarder.Outcome": "The outcome of a call of a service.",
}
"""The descriptions of the names that can have no docstring."""


def names(module: str) -> tuple[str, ...]:
    return NAMES.get(module) or tuple(import_module(module).__all__)


def has_docstring(made: Any) -> bool:
    """Return whether a function, class, property or method has a docstring that Python did not make."""
    doc = made.__doc__
    return bool(doc and doc.strip()) and not (isinstance(made, type) and doc.startswith(f"{made.__name__}("))


def is_error(made: Any) -> bool:
    """Return whether docs/reference-errors.md has this class."""
    return isinstance(made, type) and issubclass(made, Exception) and made.__module__ in ("spool.errors", "xa.codes")


def page() -> str:
    seen: dict[int, str] = {}
    parts = [
        "# Reference: Python",
        wrapped("The public names of `spool`, `xa` and `forwarder` for programmers, with signatures and docstrings. "
                f"The [guide](guide.md) explains their use. {BACK} {GENERATED}"),
        wrapped("A function with `async` is a coroutine. `**options: Unpack[PutOptions]` stands for keyword arguments "
                "with the names and types of `PutOptions`."),
    ]  # fmt: skip
    for module in MODULES:
        parts += [f"## {module}", *_of_module(module, seen)]
    return joined(parts) + "\n"


def _of_module(module: str, seen: dict[int, str]) -> Iterator[str]:
    found = import_module(module)
    yield from Docstring(found.__doc__ or "").paragraphs
    entries, errors = [], []
    for name in names(module):
        made, heading = getattr(found, name), f"{module}.{name}"
        if isinstance(made, ModuleType):
            entries.append((2, heading, wrapped(f"The module [{code(heading)}](#{slug(heading)}).")))
        elif is_error(made):
            errors.append(_error(module, name, made))
        elif id(made) in seen:
            other = seen[id(made)]
            entries.append((1, heading, f"The same as [{code(other)}](#{slug(other)})."))
        else:
            seen[id(made)] = heading
            kind = int(isinstance(made, type | UnionType | enum.Enum))
            entries.append((kind, heading, joined(list(entry(heading, made)))))
    for _, heading, text in sorted(entries, key=lambda one: one[:2]):  # functions first
        if heading in MODULES:
            yield text
        else:
            yield joined([f"### {heading}", text])
    if errors:
        yield joined([f"### Errors of {module}", "\n".join(errors)])
    if module == "xa":
        yield joined(["### Flags of xa", *_flags(found)])


def _error(module: str, name: str, made: type) -> str:
    target = f"{ERRORS_PAGE}#{slug(f'{module}.{name}')}"
    text = " ".join(inspect.cleandoc(made.__doc__ or "").partition("\n\n")[0].split())
    return wrapped(f"- [{code(f'{module}.{name}')}]({target}): {inline(text)}")


def _flags(module: ModuleType) -> Iterator[str]:
    yield wrapped(f"The flags of X/Open's calls. [The errors]({ERRORS_PAGE}#codes-of-xaxaerror) have the return codes.")
    flags = {name: value for name, value in vars(module).items() if re.fullmatch("TM[A-Z]+", name)}
    yield "\n".join(f"- `xa.{name}` = `0x{value:08x}`" for name, value in flags.items())


def entry(heading: str, made: Any) -> Iterator[str]:
    """Yield the paragraphs about a public name."""
    name = heading.rpartition(".")[2]
    if isinstance(made, UnionType):
        yield block(" | ".join(one.__name__ for one in get_args(made)))
        yield OF_VALUES[heading]
        yield "\n".join(map(_alternative, get_args(made)))
    elif isinstance(made, type):
        yield from of_class(heading, made)
    elif isinstance(made, enum.Enum):
        yield OF_VALUES[heading]
    else:
        yield from _of_function(name, made, made, is_method=False)


def _alternative(made: type) -> str:
    """Return an item about one class of an alias."""
    shown = ", ".join(f"`{one.name}: {one.type}`" for one in source.attributes(made))
    text = " ".join(inspect.cleandoc(made.__doc__ or "").partition("\n\n")[0].split())
    return item(made.__name__, f"{inline(text)}{f' Fields: {shown}.' if shown else ''}")


def of_class(heading: str, cls: type, *, inherited: bool = True, without: Container[str] = ()) -> Iterator[str]:
    """Yield the paragraphs about a class, its attributes and its methods.

    ``inherited``: whether the members of the bases follow. ``without``: members that are left out.
    """
    found = {name: made for name, made in members(cls, inherited=inherited) if name not in without}
    described = {name for name, made in found.items() if not _is_function(made)}
    doc = Docstring(cls.__doc__ or "" if has_docstring(cls) else "", frozenset(described))
    yield block("\n".join([_head(heading, cls), *_constructor(cls)]))
    yield from doc.paragraphs
    if "__init__" in vars(cls) and not getattr(cls, "__dataclass_fields__", None):
        yield from Docstring(vars(cls)["__init__"].__doc__ or "").paragraphs
    yield _statements(cls)
    shown = [_attribute(cls, name, made, doc.fields.get(name, "")) for name, made in found.items() if name in described]
    if shown:
        yield "**Keys**:" if is_typeddict(cls) else "**Attributes**:"
        yield "\n".join(shown)
    for name, made in found.items():
        if _is_function(made):
            yield f"#### {method_heading(heading, name)}"
            yield from _of_function(name, made, getattr(cls, name), is_method=True)


def method_heading(heading: str, name: str) -> str:
    """Return the heading of a method. Without the first word, Space.metrics would have the anchor of SpaceMetrics."""
    return f"Method {heading}.{name}"


def _head(heading: str, cls: type) -> str:
    if is_typeddict(cls):
        return f"class {heading}(TypedDict, total=False)"
    bases = ", ".join(base_name(base) for base in cls.__bases__ if base is not object)
    return f"class {heading}({bases})" if bases else f"class {heading}"


def base_name(base: type) -> str:
    """Return the name of a base class as a programmer writes it."""
    if base is tuple or base.__name__.startswith("_"):
        return "NamedTuple" if issubclass(base, tuple) else base.__name__
    module = base.__module__.removeprefix("_")  # queue.Empty is of the module _queue
    return base.__name__ if module in ("builtins", "typing") or _is_own(base) else f"{module}.{base.__name__}"


def _is_own(cls: type) -> bool:
    return cls.__module__.partition(".")[0] in OWN


def _constructor(cls: type) -> list[str]:
    """Return the signature of a class; nothing for a class that programs do not call."""
    if is_typeddict(cls) or issubclass(cls, enum.Enum) or getattr(cls, "_is_protocol", False):
        return []
    for one in filter(_is_own, cls.__mro__):
        for name in ("__init__", "__new__"):
            node = source.definition(one.__module__, f"{one.__qualname__}.{name}")
            if isinstance(node, source.Function):
                node.returns = None
                return [source.signature(cls.__name__, node, getattr(one, name), is_method=True)]
        if hasattr(one, "__dataclass_fields__") or hasattr(one, "_fields"):
            allowed = set(getattr(one, "__dataclass_fields__", getattr(one, "_fields", ())))
            owners = reversed([each for each in one.__mro__ if _is_own(each)])
            fields = [each for owner in owners for each in source.attributes(owner) if each.name in allowed]
            return [source.laid_out(cls.__name__, [f"{each.name}: {_kind(each)}" for each in fields])]
    return []


def _kind(each: source.Attribute) -> str:
    """Return the type of an attribute, and its default, if any. The page of the settings has a long default."""
    default = "…" if each.default is not None and len(each.default) > 80 else each.default
    return each.type if default is None else f"{each.type} = {default}".strip()


def _statements(cls: type) -> str:
    uses = [text for name, text in (("__enter__", "`with`"), ("__aenter__", "`async with`")) if hasattr(cls, name)]
    return f"An object of this class works with {' and '.join(uses)}." if uses else ""


def members(cls: type, *, inherited: bool = True) -> Iterator[tuple[str, Any]]:
    """Yield the public members of a class, and those of its bases that are ours: methods, properties, attributes."""
    seen: set[str] = set()
    for one in filter(_is_own, cls.__mro__ if inherited else (cls,)):
        found = {each.name: each for each in source.attributes(one)}
        for name, made in vars(one).items():
            if name == "__call__" or not name.startswith("_"):
                is_member = _is_function(made) or isinstance(made, property | cached_property | enum.Enum)
                if is_member and not (is_typeddict(cls) or isinstance(made, type)):
                    found[name] = made
        for name, type_ in source.set_in_init(one).items():
            found.setdefault(name, source.Attribute(name, type_, None, ""))
        yield from ((name, made) for name, made in found.items() if name not in seen)
        seen |= set(found)


def _is_function(made: Any) -> bool:
    return inspect.isfunction(made) or isinstance(made, classmethod | staticmethod)


def _attribute(cls: type, name: str, made: Any, described: str) -> str:
    if isinstance(made, source.Attribute):
        slots = vars(cls).get("__slots__")
        doc = slots.get(name) if isinstance(slots, dict) else None
        kind, text = _kind(made), doc or made.comment
    elif isinstance(made, enum.Enum):
        [text] = [each.comment for each in source.attributes(cls) if each.name == name]
        kind = f'= "{made.value}"'
    else:
        function = made.fget if isinstance(made, property) else made.func
        node, text = source.function_of(function), made.__doc__ or ""
        kind = source.type_text(node.returns) if node else _annotation(cls, name)
    shown = f"`{name}` ({code(kind)})" if kind else f"`{name}`"
    text = described or inline(text)
    return wrapped(f"- {shown}: {text}" if text else f"- {shown}")


def _annotation(cls: type, name: str) -> str:
    """Return the type of a property that a function makes; the body of the class has this type."""
    found = [each.type for one in cls.__mro__ if _is_own(one) for each in source.attributes(one) if each.name == name]
    return re.sub(r"^Final\[(.*)\]$", r"\1", "".join(found[:1]))


def _of_function(name: str, made: Any, called: Any, *, is_method: bool) -> Iterator[str]:
    node = source.function_of(made)
    assert node is not None, name
    kinds = source.decorators(node)
    is_async = inspect.iscoroutinefunction(called)
    is_bound = is_method and "staticmethod" not in kinds
    prefix = "classmethod " if "classmethod" in kinds else "staticmethod " if "staticmethod" in kinds else ""
    yield block(prefix + source.signature(name, node, made, is_method=is_bound, is_async=is_async))
    notes = []
    if kinds & {"contextmanager", "asynccontextmanager"}:
        notes.append(f"A context manager: `{'async ' if 'asynccontextmanager' in kinds else ''}with`.")
    if "fixture" in kinds:
        notes.append("A fixture of pytest.")
    if (options := source.unpacked(node)) and options in names("spool"):
        notes.append(f"Options: [`{options}`](#{slug(f'spool.{options}')}).")
    yield " ".join(notes)
    yield from Docstring(doc_of(made)).paragraphs


def doc_of(made: Any) -> str:
    """Return the docstring of a function; that of a fixture of pytest is the wrapped function's."""
    made = getattr(made, "__func__", made)
    node = None if inspect.isfunction(made) else source.function_of(made)
    return (ast.get_docstring(node) if node else made.__doc__) or ""
