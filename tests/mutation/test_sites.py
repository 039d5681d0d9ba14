"""The list of calls is complete and every mutant is a program; running them is ``scripts/mutate``'s."""

import ast

import pytest

from tests.mutation.memory import noticed, unnoticeable
from tests.mutation.sites import Site, all_sites, sites_of
from tests.mutation.trial import ROOT
from tests.strides import Stride


def test_a_call_is_left_out_as_if_it_had_been_made() -> None:
    source = """def f(store):
    if store.shared.numbers.try_lock(7):
        store.files.disk.flush(h)
        return settle_all(store, d)
"""
    first, second, third = sites_of(source, "spool/x.py")
    assert first.name == "spool/x.py f: store.shared.numbers.try_lock(7)"
    assert "if (not store.shared.numbers._held.setdefault(7)):" in first.left_out(source)
    assert "\n        None\n" in second.left_out(source)
    assert "return store.shared.counters.read()" in third.left_out(source)


@pytest.fixture(scope="module")
def sites() -> list[Site]:
    return list(all_sites(ROOT))


def test_every_site_is_found_once_and_every_mutant_is_a_program(sites: list[Site], stride: Stride, record_property):
    assert len({site.name for site in sites}) == len(sites) > 80
    tried = sites[:: stride(7)]
    sources = {path: (ROOT / path).read_text() for path in {site.path for site in tried}}
    as_they_are = {path: ast.dump(ast.parse(source)) for path, source in sources.items()}
    for site in tried:
        assert ast.dump(ast.parse(site.left_out(sources[site.path]))) != as_they_are[site.path], site.name
    record_property("mutation sites", len(sites))


def test_a_comparison_is_left_out_as_if_it_had_agreed() -> None:
    (one,) = sites_of("def f(a):\n    if crc32(a) != a.checksum or not a:\n        raise E\n", "spool/x.py")
    assert "if ((crc32(a), a.checksum), False)[1] or not a:" in one.left_out(
        "def f(a):\n    if crc32(a) != a.checksum or not a:\n        raise E\n"
    )


def test_the_recorded_calls_exist(sites: list[Site]) -> None:
    names = {site.name for site in sites}
    assert set(unnoticeable()) <= names
    assert set(noticed()) <= names - unnoticeable().keys()
