"""Q15: rules choose the space. Q16: a space as one file, and back."""

import io
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import spool
import xa
from spool.admin.findings import Kind
from spool.maintenance.compaction import Compactor
from spool.routing import NoRoute, Route, Router
from tests import door
from tests.branches import voting
from tests.clocks import MovedClock, timed
from tests.compaction import small_compactions
from tests.features.conftest import drained, seen
from tests.machine import NO_FILES, Machine
from tests.meanwhile import Processes, commit, prepare
from tests.simdisk import SimulatedDisk
from tests.spaces import fail_one


@pytest.fixture
def spaces(tmp_path: Path) -> dict[str, str]:
    found = {}
    for name in ("low", "high", "special", "rest"):
        found[name] = str(tmp_path / name)
        with spool.create(found[name]) as space:
            space.create_queue("q")
    return found


def _bodies(path: str) -> list[Any]:
    with spool.open(path) as space:
        return seen(space, "q")


def test_q15_ranges_of_a_field_or_header_choose_the_space_and_the_first_match_wins(spaces: dict[str, str]) -> None:
    routes = [
        Route(spaces["special"], values=("M1", 7)),
        Route(spaces["low"], low="A", high="M"),
        Route(spaces["high"], low="N"),
        Route(spaces["low"], high=10),
        Route(spaces["high"], low=10.5),
    ]
    where = {"A": "low", "M": "low", "M1": "special", "N": "high", "z": "high", 7: "special", 10: "low", 11: "high"}
    with Router(routes, field="customer.region") as router:
        for value, name in where.items():
            body = {"customer": {"region": value}}
            assert router.space_for(body) == spaces[name], value
            router.put("q", body, priority=60)
        assert router.space_for('{"customer": {"region": "B"}}') == spaces["low"]
        for body in ({"customer": {"region": 10.2}}, {"customer": 1}, b"no map", {"customer": {"region": True}}, 5):
            with pytest.raises(NoRoute, match=r"'customer\.region'"):
                router.put("q", body)
    assert [body["customer"]["region"] for body in _bodies(spaces["special"])] == ["M1", 7]
    with Router([Route(spaces["low"], values=("eu",))], header="region", default=spaces["rest"]) as router:
        router.put("q", "in", headers={"region": "eu"})
        router.put("q", "out")
    assert _bodies(spaces["rest"]) == ["out"]


def test_q15_rules_come_from_a_file(spaces: dict[str, str], tmp_path: Path) -> None:
    file = tmp_path / "routes.toml"
    file.write_text(
        f'header = "region"\ndefault = "{spaces["rest"]}"\n'
        f'[[routes]]\nfrom = "A"\nto = "M"\nspace = "{spaces["low"]}"\n'
        f'[[routes]]\nvalues = ["X"]\nspace = "{spaces["special"]}"\n'
    )
    with Router.load(file) as router:
        found = [router.space_for("", {"region": region}) for region in ("B", "X", "Z")]
    assert found == [spaces["low"], spaces["special"], spaces["rest"]]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("routes = [", "routes.toml"),
        ("colour = 1", "there is no option 'colour'; there are field, header, default, routes"),
        ("", "name one of them"),
        ('field = "a"\nheader = "b"', "name one of them"),
        ("field = 1", "field is a text, not 1"),
        ('field = "a"\n[[routes]]\nvalues = ["x"]', "route 1: space is missing"),
        ('field = "a"\n[[routes]]\nspace = "s"', "route 1: give values, or from and to"),
        ('field = "a"\n[[routes]]\nspace = "s"\nfrom = [1]', "route 1: from is a text or a number"),
        ('field = "a"\nroutes = [1]', "route 1: a route is a table"),
    ],
)
def test_q15_wrong_rules_are_named(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "routes.toml").write_text(text)
    with pytest.raises(spool.InvalidArgument) as raised:
        Router.load(tmp_path / "routes.toml")
    assert says in str(raised.value)
    assert "routes.toml" in str(raised.value)


# -- Q16 ---------------------------------------------------------------------------------------------------------------


def _furnish(path: Path, clock: MovedClock) -> spool.Space:
    """A space with something of everything."""
    space = spool.create(timed(path, clock))
    space.create_queue("errors")
    space.create_queue("q", order="priority", retries=5, error_queue="errors", out_of_order=("before",))
    ids = space.put_many("q", [b"one", "two", {"three": 3}], headers={"a": "b"}, correlation_id="c")
    space.put("q", "before", before=ids[1])
    space.put("q", "later", delay=1000)
    space.put("q", "gone soon", time_to_live=500, deduplication_key="k")
    for n in range(20):
        space.put("q", n, priority=10)
    fail_one(space, "q")
    with small_compactions():
        sum(Compactor(door.store(space)).steps())
    with voting(xa.ResourceManager(space), _XID):
        space.put("q", "in doubt")
    return space


_XID = xa.Xid(1, b"global", b"branch")


def _described(space: spool.Space) -> list[dict[str, Any]]:
    found = [message.as_dict() for queue in sorted(space.queues()) for message in space.browse(queue)]
    return [{**fields, "headers": dict(fields["headers"])} for fields in found]


def _counts(space: spool.Space) -> dict[str, spool.QueueStats]:
    return {queue: replace(stats, oldest_age=None) for queue, stats in space.stats().items()}


@pytest.mark.parametrize("how", ["export", "compressed", "copy"])
def test_q16_everything_but_claims_goes_along(tmp_path: Path, clock: MovedClock, how: str) -> None:
    first = _furnish(tmp_path / "first", clock)
    described, queues, stats = _described(first), first.queues(), _counts(first)
    if how == "copy":
        first.close()
        shutil.copytree(tmp_path / "first", tmp_path / "second")
        second = spool.open(timed(tmp_path / "second", clock))
    else:
        held = first.transaction()
        held.get("q")
        file = io.BytesIO()
        report = first.export(file, compress=how == "compressed")
        assert report.files > 5
        expected = {queue: counts.ready + counts.delayed + counts.claimed for queue, counts in stats.items()}
        assert report.messages == expected
        first.close()
        file.seek(0)
        second = spool.import_space(timed(tmp_path / "second", clock), file)
    with second:
        assert _described(second) == described
        assert (second.queues(), _counts(second)) == (queues, stats)
        assert second.put("q", "again", deduplication_key="k") == next(
            fields["id"] for fields in described if fields["body"] == "gone soon"
        )
        xa.ResourceManager(second).commit(_XID, xa.TMNOFLAGS)
        assert "in doubt" in drained(second, "q")
        assert second.check() == []


def test_q16_others_go_on_while_a_space_is_exported(tmp_path: Path, clock: MovedClock) -> None:
    space = _furnish(tmp_path / "first", clock)
    file = io.BytesIO()
    at_begin = _described(space)

    def meanwhile(progress: Any) -> None:
        if progress.files == 1:
            xa.ResourceManager(space).commit(_XID, xa.TMNOFLAGS)
            space.get_many("q", 10)
            space.put("q", "new")
            door.reclaim_behind(space)

    done = []

    def noted(progress: Any) -> None:
        done.append(progress.files)
        meanwhile(progress)

    space.export(file, progress=noted)
    assert done == [*range(1, len(done) + 1)]
    space.close()
    file.seek(0)
    with spool.import_space(timed(tmp_path / "second", clock), file) as second:
        assert _described(second) == at_begin
        assert second.stats("q").in_doubt == 1
        assert [finding.kind for finding in second.check()] == [Kind.IN_DOUBT]


def test_q16_a_branch_that_is_decided_while_a_space_is_exported_goes_along_in_doubt() -> None:
    processes, file = Processes(), io.BytesIO()
    space = processes.space()
    prepare(space)
    exporting, disk = processes.open()
    disk.before("open", lambda: commit(space), "prepared/")
    exporting.export(file)
    assert not disk.waits_for("open")
    file.seek(0)
    target = Machine(NO_FILES)
    with spool.import_space(SimulatedDisk(target), file) as second:
        assert (second.stats("orders").in_doubt, second.stats("orders").ready) == (1, 0)
        commit(second)
        assert seen(second, "orders") == ["new"]


def test_q16_the_settings_of_an_export_are_of_the_same_moment() -> None:
    processes, file = Processes(), io.BytesIO()
    space = processes.space()
    space.create_queue("gone")
    space.put("gone", "there")
    exporting, disk = processes.open()
    disk.before("names", lambda: (space.get("gone"), space.delete_queue("gone")), "quarantine")
    exporting.export(file)
    assert "gone" not in space.queues()
    file.seek(0)
    target = Machine(NO_FILES)
    with spool.import_space(SimulatedDisk(target), file) as second:
        assert seen(second, "gone") == ["there"]


def test_q16_an_export_holds_whole_commits_and_nothing_that_is_under_way() -> None:
    processes, file = Processes(), io.BytesIO()
    exporting = processes.space()
    doomed, dying = processes.open()
    dying.dies_before("make_durable", lambda: doomed.put("orders", "never acknowledged"), "committed")
    exporting.export(file)
    page = door.counters(exporting)
    assert page.published == page.issued == processes.newest()


def test_q16_an_export_counts_messages_that_other_processes_have_put() -> None:
    processes, file = Processes(), io.BytesIO()
    exporting, other = processes.space(), processes.space()
    other.put_many("orders", [1, 2, 3])
    assert exporting.export(file).messages == {"orders": 3}


def test_q16_nothing_is_imported_over_anything(tmp_path: Path) -> None:
    with spool.create(tmp_path / "space") as space:
        file = io.BytesIO()
        space.export(file)
    os.mkdir(tmp_path / "mine")
    (tmp_path / "mine" / "file").touch()
    for taken in ("space", "mine"):
        file.seek(0)
        with pytest.raises(spool.SpaceExists):
            spool.import_space(tmp_path / taken, file)
    assert os.listdir(tmp_path / "mine") == ["file"]
