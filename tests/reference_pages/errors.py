"""docs/reference-errors.md: every class of errors of the engine and of xa."""

import pkgutil
from collections.abc import Iterator
from importlib import import_module

import spool.errors
import xa
import xa.codes
from tests.reference_pages.markdown import BACK, GENERATED, code, joined, slug, table, wrapped
from tests.reference_pages.python_api import base_name, of_class


def of_spool() -> dict[str, type[Exception]]:
    """Return the classes by heading, each after its bases."""
    return {_heading(made): made for made in _classes("spool.errors")}


def of_xa() -> dict[str, type[Exception]]:
    modules = sorted(found.name for found in pkgutil.walk_packages(xa.__path__, "xa."))
    return {_heading(made): made for module in modules for made in _classes(module)}


def _classes(module: str) -> list[type[Exception]]:
    return [
        made
        for name, made in vars(import_module(module)).items()
        if isinstance(made, type) and issubclass(made, Exception) and made.__module__ == module and name[0] != "_"
    ]


def _heading(made: type) -> str:
    module = "spool" if made.__name__ in spool.__all__ and made.__module__ == "spool.errors" else made.__module__
    return f"{'xa' if made.__name__ in xa.__all__ else module}.{made.__name__}"


def page() -> str:
    engine, others = of_spool(), of_xa()
    return joined([
        "# Reference: errors",
        wrapped("Every class of errors that the engine and `xa` raise, with its bases. [Operations]"
                f"(operations.md#errors) names the action for each error. {BACK} {GENERATED}"),
        wrapped("An `except` clause with one of the bases, e.g. `LookupError`, catches the error, too. The attribute "
                "`diagnostic` is the name of the same condition in Tuxedo /Q. A class also has the attributes and "
                "methods of its bases."),
        table(["error", "bases", "diagnostic"], list(_rows(engine))),
        "## Errors of the engine",
        *_entries(engine),
        "## Errors of xa",
        *_entries(others),
        "## Codes of xa.XAError",
        wrapped("`xa.XAError.code` is one of X/Open's return codes. Each name is a name of `xa`, too. The codes from "
                "`XA_RBBASE` to `XA_RBEND` say that the branch was rolled back."),
        "\n".join(f"- `{name}` = `{value}`" for name, value in codes().items()),
    ]) + "\n"  # fmt: skip


def codes() -> dict[str, int]:
    """Return X/Open's return codes by name."""
    return {name: value for name, value in vars(xa.codes).items() if name.startswith(("XA_", "XAER_"))}


def _rows(found: dict[str, type[Exception]]) -> Iterator[list[str]]:
    for heading, made in found.items():
        bases = ", ".join(code(base_name(base)) for base in made.__bases__)
        yield [f"[{code(heading)}](#{slug(heading)})", bases, code(getattr(made, "diagnostic", ""))]


def _entries(found: dict[str, type[Exception]]) -> Iterator[str]:
    for heading, made in found.items():
        yield f"### {heading}"
        first, *others = of_class(heading, made, inherited=False, without=("diagnostic",))
        yield first
        if hasattr(made, "diagnostic"):
            yield f"**Diagnostic**: {code(made.diagnostic)}"
        yield from others
