"""The reference pages are those that scripts/reference writes, and they leave nothing out."""

import re
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cached_property
from importlib import import_module

import pytest

import spool
import xa
from tests import test_docs
from tests.reference_pages import DOCS, PAGES, commands, errors, python_api, source

WRITE = "the page is not up to date: run scripts/reference"


def text(page: str) -> str:
    return (DOCS / page).read_text(encoding="utf-8")


def section(page: str, heading: str) -> str:
    """Return the text below a heading, up to the next heading of any level."""
    found = re.search(rf"^#+ {re.escape(heading)}\n(.*?)(?=^#+ |\Z)", text(page), re.MULTILINE | re.DOTALL)
    assert found, f"{page} has no heading {heading}: {WRITE}"
    return found[1]


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="the texts were compared on Python 3.11 to 3.13 only")
@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_the_generated_text(page: str) -> None:
    generated = PAGES[page]()
    if text(page) != generated:  # (a comparison of such long texts by pytest takes minutes)
        pairs = enumerate(zip(text(page).splitlines(), generated.splitlines(), strict=False), 1)
        first = next(((n, old, new) for n, (old, new) in pairs if old != new), "the end")
        pytest.fail(f"docs/{page}: {WRITE}. The first difference: {first}")


@pytest.mark.parametrize("page", PAGES)
def test_a_page_has_no_path_or_address_of_this_machine(page: str) -> None:
    assert str(DOCS.parent) not in text(page)
    assert sys.prefix not in text(page)
    assert not re.search(r"\bat 0x[0-9a-f]{6,}|<(function|class|object) ", text(page))


@pytest.mark.parametrize("page", PAGES)
def test_a_page_begins_with_its_subject_and_leads_back(page: str) -> None:
    heading, paragraph, *_ = text(page).split("\n\n")
    assert heading.startswith("# Reference")
    assert "](README.md)" in paragraph
    assert f"]({page})" in text("README.md")


@pytest.mark.parametrize("page", PAGES)
def test_the_headings_of_a_page_have_different_anchors(page: str) -> None:
    slugs = Counter(re.sub(r"[^\w -]", "", line.lower()) for line in re.findall(r"^#+ (.*)", text(page), re.MULTILINE))
    assert not {slug for slug, times in slugs.items() if times > 1}


@pytest.mark.parametrize("page", PAGES)
def test_only_tables_and_code_have_long_lines(page: str) -> None:
    prose = re.sub(r"^```.*?^```$", "", text(page), flags=re.MULTILINE | re.DOTALL)
    assert not [line for line in prose.splitlines() if len(line) > 120 and not line.startswith("|") and " " in line]


# -- Python ------------------------------------------------------------------------------------------------------------


def public() -> Iterator[tuple[str, object]]:
    for module in python_api.MODULES:
        for name in python_api.names(module):
            yield f"{module}.{name}", getattr(import_module(module), name)


def test_the_names_are_those_of_the_packages() -> None:
    names = {name for name, _ in public()}
    for module in ("spool", "spool.aio", "xa", "xa.zope", "forwarder"):
        assert {f"{module}.{name}" for name in import_module(module).__all__} <= names
    assert {"spool.testing.temporary_space", "spool.testing.spool_space", "spool.mirrors.begin"} <= names


def test_each_public_name_has_an_entry_with_its_members() -> None:
    for name, made in public():
        _expect_entry(name, made)


def _expect_entry(name: str, made: object) -> None:
    page = "reference-errors.md" if python_api.is_error(made) else "reference-python.md"
    if name in python_api.MODULES:
        assert f"## {name}\n" in text(page), name
        return
    entry = section(page, name)
    if page == "reference-errors.md":
        assert f"- [`{name}`]({page}#" in text("reference-python.md")
    if "The same as [" in entry or not isinstance(made, type):
        return
    for member, kind in python_api.members(made, inherited=page != "reference-errors.md"):
        if callable(getattr(made, member, None)) and not isinstance(kind, source.Attribute):
            assert f"{member}(" in section(page, python_api.method_heading(name, member))
        elif member != "diagnostic":
            assert f"- `{member}`" in entry, member


def test_a_class_has_each_public_attribute_that_python_finds() -> None:
    """The members come from the source text, so an attribute that is made in another way would be missing."""
    for name, made in public():
        if isinstance(made, type):
            known = dict(python_api.members(made))
            foreign = {attribute for base in made.__mro__ if base.__module__.split(".")[0] not in python_api.OWN
                       for attribute in vars(base)}  # fmt: skip
            for attribute in set(dir(made)) - foreign:
                is_class = isinstance(getattr(made, attribute), type)
                assert attribute in known or attribute.startswith("_") or is_class, f"{name}.{attribute}"


def test_each_public_name_and_its_members_have_docstrings() -> None:
    for name, made in public():
        if name in python_api.OF_VALUES:
            continue
        assert python_api.has_docstring(made), name
        for member, kind in python_api.members(made) if isinstance(made, type) else ():
            if isinstance(kind, property | cached_property):
                assert kind.__doc__, (name, member)
            elif not isinstance(kind, source.Attribute) and callable(getattr(made, member)):
                assert python_api.doc_of(kind), (name, member)


# -- commands ----------------------------------------------------------------------------------------------------------


def test_every_program_is_there() -> None:
    assert set(test_docs.PROGRAMS) == {path for path in commands.paths() if " " not in path}


# -- errors, settings --------------------------------------------------------------------------------------------------


def test_every_error_has_an_entry_and_a_diagnostic() -> None:
    page = "reference-errors.md"
    public = {name for name in spool.__all__ if isinstance(made := getattr(spool, name), type) and
              issubclass(made, spool.SpoolError)}  # fmt: skip
    assert {f"spool.{name}" for name in public} <= set(errors.of_spool())
    assert {"xa.XAError", "xa.dbapi.OperationalError"} <= set(errors.of_xa())
    for name, made in {**errors.of_spool(), **errors.of_xa()}.items():
        assert f"class {name}(" in section(page, name)
        assert made.__doc__
    for name, made in errors.of_spool().items():
        assert issubclass(made, spool.SpoolError)
        row = rf"^\| \[`{name}`\]\(.*\) \| .* \| `{made.diagnostic}` \|$"
        assert re.search(row, text(page), re.MULTILINE)


def test_every_code_of_x_open_is_there() -> None:
    names = {name: value for name, value in vars(xa).items() if re.match("XA_|XAER_", name)}
    assert len(names) >= 25
    codes = section("reference-errors.md", "Codes of xa.XAError")
    for name, value in names.items():
        assert f"- `{name}` = `{value}`" in codes
