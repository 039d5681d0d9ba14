"""Signatures, decorators and comments from the source text, where each version of Python has the same text."""

import ast
import inspect
import re
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

Function = ast.FunctionDef | ast.AsyncFunctionDef
Definition = Function | ast.ClassDef
_LONGEST_LINE = 110
_EMPTY = inspect.Parameter.empty


@cache
def tree(module: str) -> ast.Module:
    file = import_module(module).__file__
    assert file is not None
    return ast.parse(Path(file).read_text(encoding="utf-8"))


@cache
def lines(module: str) -> list[str]:
    file = import_module(module).__file__
    assert file is not None
    return Path(file).read_text(encoding="utf-8").splitlines()


def _children(node: ast.AST) -> list[ast.AST]:
    """Return the statements of a module or class, with those within ``if`` and ``try``."""
    found: list[ast.AST] = []
    for child in ast.iter_child_nodes(node):
        found += [child, *_children(child)] if isinstance(child, ast.If | ast.Try) else [child]
    return found


@cache
def definition(module: str, qualname: str) -> Definition | None:
    """Return the definition of a function or class; None if another function made it."""
    node: ast.AST = tree(module)
    for name in qualname.split("."):
        for child in _children(node):
            if isinstance(child, Definition) and child.name == name:
                node = child
                break
        else:
            return None
    return node if isinstance(node, Definition) else None


def function_of(made: Any) -> Function | None:
    """Return the definition of a function, of the function that a decorator wraps, or of a fixture of pytest."""
    made = inspect.unwrap(getattr(made, "__func__", made))
    node = definition(made.__module__, made.__qualname__) if getattr(made, "__qualname__", "") else None
    if node is None and hasattr(made, "__name__"):
        node = definition(made.__module__, made.__name__)
    return node if isinstance(node, Function) else None


def decorators(node: Definition) -> set[str]:
    return {ast.unparse(one).partition("(")[0].rpartition(".")[2] for one in node.decorator_list}


class _Unquoted(ast.NodeTransformer):
    """Replaces the types that are written as texts."""

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        return self.visit(ast.parse(node.value, mode="eval").body) if isinstance(node.value, str) else node

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        return node if ast.unparse(node.value).endswith("Literal") else self.generic_visit(node)


def type_text(annotation: ast.expr | None) -> str:
    """Return the text of a type; "" if there is no annotation."""
    if annotation is None:
        return ""
    text: str = ast.unparse(_Unquoted().visit(ast.parse(ast.unparse(annotation), mode="eval")))
    return text.replace("'", '"')


def default_text(default: ast.expr, value: Any = _EMPTY) -> str:
    """Return the text of a default. A name of the module is replaced by its value, if that is a plain one."""
    is_name = isinstance(default, ast.Name | ast.Attribute) and not ast.unparse(default).startswith("TM")  # X/Open's
    if is_name and isinstance(value, int | float | str | bool | tuple):
        return repr(value).replace("'", '"')
    return ast.unparse(default).replace("'", '"')


@dataclass(frozen=True)
class Attribute:
    """An annotated name of a class. ``comment``: the comment at the end of its line."""

    name: str
    type: str
    default: str | None
    comment: str


def attributes(cls: type) -> list[Attribute]:
    """Return the public names with a type, or a constant value, in the body of a class."""
    node = definition(cls.__module__, cls.__qualname__)
    found: list[Attribute] = []
    for child in node.body if isinstance(node, ast.ClassDef) else ():
        if isinstance(child, ast.AnnAssign) and isinstance(child.target, ast.Name):
            name, annotation, default = child.target.id, type_text(child.annotation), child.value
        elif isinstance(child, ast.Assign) and isinstance(child.targets[0], ast.Name):
            if not isinstance(child.value, ast.Constant):
                continue
            name, annotation, default = child.targets[0].id, "", child.value
        else:
            continue
        if not name.startswith("_"):
            shown = None if default is None else _field_default(cls, name, default)
            found.append(Attribute(name, annotation, shown, _comment(cls.__module__, child)))
    return found


def _field_default(cls: type, name: str, default: ast.expr) -> str | None:
    if not isinstance(default, ast.Call):
        return default_text(default, getattr(cls, name, _EMPTY))
    made: Any = getattr(cls, "__dataclass_fields__", {}).get(name)
    if made is None:
        return None  # a property that a function makes
    if callable(made.default_factory):
        return repr(made.default_factory())
    return repr(made.default).replace("'", '"') if isinstance(made.default, int | float | str | tuple | None) else None


def _comment(module: str, node: ast.stmt) -> str:
    line = lines(module)[(node.end_lineno or node.lineno) - 1].encode()  # the columns of a node count bytes
    end = line[node.end_col_offset or 0 :].decode().strip()
    return end[1:].strip() if end.startswith("#") and not end.startswith(("# type:", "# fmt:", "# noqa")) else ""


def set_in_init(cls: type) -> dict[str, str]:
    """Return the types of the public attributes that ``__init__`` sets, by name.

    An attribute that is no argument, and has no word in the docstrings, is for the library itself.
    """
    node = definition(cls.__module__, f"{cls.__qualname__}.__init__")
    found: dict[str, str] = {}
    if node is None:
        return found
    assert isinstance(node, Function)
    arguments = {one.arg: type_text(one.annotation) for one in [*node.args.args, *node.args.kwonlyargs]}
    if node.args.vararg is not None:
        arguments[node.args.vararg.arg] = f"tuple[{type_text(node.args.vararg.annotation)}, ...]"
    told = re.findall(r"\b[a-z]\w*", f"{cls.__doc__} {ast.get_docstring(node)} {ast.unparse(node.args)}")
    for child in ast.walk(node):
        pairs: list[tuple[ast.expr, str]] = []
        if isinstance(child, ast.AnnAssign):
            pairs = [(child.target, type_text(child.annotation))]
        elif isinstance(child, ast.Assign):
            for target in child.targets:
                targets, values = getattr(target, "elts", [target]), getattr(child.value, "elts", [child.value])
                known = values if len(values) == len(targets) else [child.value] * len(targets)
                told_of = [arguments.get(ast.unparse(value), "") for value in known]
                pairs += zip(targets, told_of, strict=True)
        for target, annotation in pairs:
            if isinstance(target, ast.Attribute) and ast.unparse(target.value) == "self" and target.attr in told:
                found[target.attr] = found.get(target.attr) or annotation
    return found


def signature(name: str, node: Function, made: Any, *, is_method: bool, is_async: bool = False) -> str:
    """Return the signature of a function, in one line or with one line for each parameter."""
    values = _values(made)
    arguments = node.args
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(positional) - len(arguments.defaults)) + list(arguments.defaults)
    parts: list[str] = []
    for place, (one, default) in enumerate(zip(positional, defaults, strict=True)):
        if not (place == 0 and is_method):
            parts.append(_parameter(one, default, values))
        if place + 1 == len(arguments.posonlyargs) and parts:
            parts.append("/")
    if arguments.vararg is not None:
        parts.append(f"*{_parameter(arguments.vararg, None, values)}")
    elif arguments.kwonlyargs:
        parts.append("*")
    for one, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        parts.append(_parameter(one, default, values))
    if arguments.kwarg is not None:
        parts.append(f"**{_parameter(arguments.kwarg, None, values)}")
    begin = "async " if is_async or isinstance(node, ast.AsyncFunctionDef) else ""
    returns = type_text(node.returns)
    result = f" -> {returns}" if returns and node.name != "__init__" else ""
    return laid_out(f"{begin}{name}", parts, result)


def laid_out(name: str, parts: list[str], result: str = "") -> str:
    line = f"{name}({', '.join(parts)}){result}"
    if len(line) <= _LONGEST_LINE:
        return line
    return "\n".join([f"{name}(", *(f"    {part}," for part in parts), f"){result}"])


def _values(made: Any) -> dict[str, Any]:
    """Return the values of the defaults by the names of the parameters."""
    try:
        found = inspect.signature(inspect.unwrap(getattr(made, "__func__", made)))
    except (TypeError, ValueError):
        return {}
    return {name: one.default for name, one in found.parameters.items()}


def _parameter(one: ast.arg, default: ast.expr | None, values: dict[str, Any]) -> str:
    annotation = type_text(one.annotation)
    text = f"{one.arg}: {annotation}" if annotation else one.arg
    if default is None:
        return text
    sign = " = " if annotation else "="
    return f"{text}{sign}{default_text(default, values.get(one.arg, _EMPTY))}"


def unpacked(node: Function) -> str:
    """Return the name of the class of options that ``**options`` names, or ""."""
    text = type_text(node.args.kwarg.annotation) if node.args.kwarg else ""
    return text.removeprefix("Unpack[").removesuffix("]") if text.startswith("Unpack[") else ""
