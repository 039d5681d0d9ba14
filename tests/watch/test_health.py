"""X13: the verdict on the health of a space, and its views: top, the console and the metrics for Prometheus agree."""

import os
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("markupsafe")
pytest.importorskip("prometheus_client")

import spool
from spool.admin.findings import Kind
from spool.watch.health import Cause, Rates, Trouble, queue_causes, rates_between, troubles
from spool.watch.sentences import sentence, told
from spool.watch.units import size
from tests.meanwhile import prepare
from tests.scripts.conftest import flip
from tests.scripts.exporters import parsed
from tests.scripts.top_samples import seen, texts
from tests.watch.samples import NOW, metrics, queue_stats, transaction
from xaspool_console import troubles as console
from xaspool_console.samples import Samples
from xaspool_scripts.watch.prometheus import Collection, text_of
from xaspool_scripts.watch.top.model import Model
from xaspool_scripts.watch.top.queue_rows import findings as of_top

DAY = 86_400.0
DOWN = ("route_down", "orders", "http://shop")
FILE = spool.Finding(Kind.QUARANTINED, "quarantine/x", "", reason="too-large")
DAMAGED = replace(FILE, kind=Kind.DAMAGED)
STRAY = replace(FILE, reason="foreign")
UNREAD = replace(DAMAGED, name="committed/x")


def recovery(age: float, *others: spool.Finding) -> spool.RecoveryRecord:
    return spool.RecoveryRecord(NOW - age, 0.5, (FILE, *others) if others else (FILE, FILE))


def queues(**given: spool.QueueStats) -> spool.SpaceMetrics:
    return metrics(queues={"errors": queue_stats(), "orders": queue_stats(), **given})


CASES: Mapping[str, tuple[spool.SpaceMetrics, list[str]]] = {
    "a space without trouble": (metrics(), []),
    "a stopped space": (metrics(is_stopped=True), [
        "The space is stopped: a flush failed, and no process can commit. End all its programs, check the disk, and "
        "run spool-recover."]),
    "old published metrics": (metrics(at=NOW - 60), [
        "The published metrics are 1 min old: no process has the space open, or it hangs."]),
    "published metrics of the last seconds": (metrics(at=NOW - 29), []),
    "a full disk in a space without messages": (metrics(free_bytes=0), [
        "The disk is full: free space on it, e.g. with spool-admin queue purge, which works without room."]),
    "no free inode": (metrics(free_inodes=0), [
        "The disk is full: free space on it, e.g. with spool-admin queue purge, which works without room."]),
    "few inodes": (metrics(free_inodes=999), ["The disk has only 999 inodes free."]),
    "a disk with less than twice the bodies": (replace(queues(orders=queue_stats(bytes=100)), free_bytes=150), [
        "The disk has 150 B free, less than twice the bodies of all messages."]),
    "damage, and a refused file": (metrics(quarantined=2, damaged=1, quarantine=(FILE, DAMAGED)), [
        "1 damaged file in quarantine had acknowledged messages.", "1 refused file is in quarantine."]),
    "a file that no intake refused": (metrics(quarantined=2, quarantine=(FILE, STRAY)), [
        "2 files in quarantine had no acknowledged messages."]),
    "files that published metrics do not list": (metrics(quarantined=2), [
        "2 files in quarantine had no acknowledged messages."]),
    "a transaction in doubt": (metrics(in_doubt=1, transactions=(
        transaction(state="in doubt", since=NOW - 420), transaction(since=NOW - 9_000))), [
        "1 transaction is in doubt; the oldest was prepared 7 min ago."]),
    "a decision without an acknowledgement": (metrics(decisions={"7.aa.bb": "committed"}), [
        "No coordinator has acknowledged 1 decision of an administrator yet."]),
    "a service that is down": (replace(queues(orders=queue_stats(ready=2, delayed=1)), states={DOWN: 1}), [
        "The service http://shop of queue orders is down; 3 messages wait."]),
    "a service that was down": (metrics(states={DOWN: 0}), []),
    "an error queue that does not exist": (metrics(queues={"orders": queue_stats()}), [
        "Queue orders has the error queue errors, which does not exist: create it. Until then, messages that have "
        "failed for good remain in queue orders."]),
    "ready messages of an error queue": (queues(errors=queue_stats(ready=1)), [
        "Error queue errors has 1 failed message."]),
    "delayed messages of an error queue": (queues(errors=queue_stats(delayed=2)), [
        "Error queue errors has 2 failed messages."]),
    "messages that a worker of an error queue handles": (queues(errors=queue_stats(claimed=2)), []),
    "a late queue": (queues(orders=queue_stats(ready=1, oldest_age=301.0)), [
        "The oldest message of queue orders has waited for 5 min."]),
    "an old message of an error queue": (queues(errors=queue_stats(ready=1, oldest_age=DAY)), [
        "Error queue errors has 1 failed message."]),
    "an old message of a state queue": (
        metrics(queues={"results": queue_stats(ready=1, oldest_age=DAY)}, roles={"results": "state"}), []),
    "the recovery of an hour ago": (metrics(recovery=recovery(3_600)), ["A recovery 1 h ago had 2 findings."]),
    "the recovery of the day before yesterday": (metrics(recovery=recovery(2 * DAY)), []),
    "damage that a recovery found long ago": (metrics(recovery=recovery(2 * DAY, UNREAD)), [
        "A recovery 2 d ago found 1 damaged file, which nobody has repaired."]),
}  # fmt: skip


@pytest.mark.parametrize(("found", "sentences"), CASES.values(), ids=CASES)
def test_top_the_console_and_the_metrics_have_one_verdict(
    found: spool.SpaceMetrics, sentences: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.time", lambda: NOW)
    verdict = troubles(found, NOW, {})
    assert [sentence(each, str) for each in verdict] == sentences
    in_top = of_top(found, {}, NOW)
    expected = [said.removesuffix(".") for said in sentences]
    assert [said.removesuffix(".").partition(": spool-admin ")[0] for said in in_top] == expected
    in_console = console.findings(Samples(lambda: found, lambda: 0.0).snapshot())
    assert [each.sentence for each in in_console] == sentences
    assert [each.level == "bad" for each in in_console] == [each.cause.is_bad for each in verdict]
    counted = parsed(text_of(Collection(found.space, found)))["xaspool_troubles"]
    expected = {each.cause.replace(" ", "_") for each in verdict}
    assert {dict(labels)["cause"] for labels, count in counted.items() if count} == expected


@pytest.mark.parametrize(("found", "sentences"), CASES.values(), ids=CASES)
def test_top_and_the_console_mark_the_same_queues(found: spool.SpaceMetrics, sentences: list[str]) -> None:
    marked = {row.name for row in seen(found).rows if row.troubles}
    assert marked == set(queue_causes(found, {})) == set(Samples(lambda: found, lambda: 0.0).snapshot().causes)


@pytest.mark.parametrize("by_hand", [False, True])
@pytest.mark.parametrize("damage", [Path.unlink, lambda file: os.truncate(file, 60)], ids=["missing", "torn"])
def test_damage_that_a_recovery_found_is_a_trouble_until_it_ends(
    path: Path, damage: Callable[[Path], object], by_hand: bool
) -> None:
    with spool.create(path) as space:
        space.create_queue("orders")
        space.put("orders", "lost")
    file = max((path / "committed").iterdir())
    whole = file.read_bytes()
    damage(file)
    with spool.open(path) as space:
        found = troubles(space.metrics(), time.time(), {})
        assert by_hand or space.check(repair=True)
    if by_hand:
        file.write_bytes(whole)
    with spool.open(path) as space:
        found += troubles(space.metrics(), time.time(), {})
    assert [each.cause for each in found if each.cause.is_bad] == [
        Cause.UNREADABLE,
        *([] if by_hand else [Cause.DAMAGE]),
    ]


@pytest.mark.parametrize("beside", [False, True])
def test_a_damaged_vote_is_damage_also_beside_other_processes(path: Path, beside: bool) -> None:
    with spool.create(path) as space:
        space.create_queue("orders")
        prepare(space)
    with ExitStack() as living:
        if beside:
            living.enter_context(spool.open(path))
        flip(next((path / "prepared").iterdir()), 100)
        assert living.enter_context(spool.open(path)).metrics().damaged == 1


def test_messages_that_fail_now_are_trouble_until_the_rate_is_zero() -> None:
    was, now = queues(), queues(orders=queue_stats(failed=3))
    state = seen(now, seen(was, moment=1.0), moment=2.0)
    assert "! Messages of queue orders fail for good now." in texts(state)
    assert seen(now, state, moment=3.0).findings == ()
    given, clock = [was], [0.0]
    samples = Samples(lambda: given[0], lambda: clock[0])
    assert samples.snapshot().causes == {}
    given[0], clock[0] = replace(now, at=NOW + 2), 2.0
    assert samples.snapshot().causes == {"orders": (Cause.FAILING,)}


def test_the_bad_troubles_come_first_and_the_worst_before_the_others() -> None:
    given = {
        "late": queue_stats(ready=1, oldest_age=301.0), "later": queue_stats(ready=1, oldest_age=999.0),
        "errors": queue_stats(ready=2), "more-errors": queue_stats(delayed=9), "orders": queue_stats(in_doubt=1),
    }  # fmt: skip
    roles = {name: "error" if "errors" in name else "work" for name in given}
    found = metrics(queues=given, roles=roles, is_stopped=True, in_doubt=1, quarantined=1, states={DOWN: 1})
    assert [(each.cause, each.queue) for each in troubles(found, NOW, {})] == [
        (Cause.STOPPED, ""), (Cause.IN_DOUBT, ""), (Cause.ROUTE_DOWN, "orders"), (Cause.ERRORS, "more-errors"),
        (Cause.ERRORS, "errors"), (Cause.QUARANTINE, ""), (Cause.LATE, "later"), (Cause.LATE, "late"),
    ]  # fmt: skip
    assert queue_causes(found, {})["orders"] == (Cause.IN_DOUBT, Cause.ROUTE_DOWN)


def test_of_many_troubles_with_one_cause_ten_are_told_and_the_others_counted() -> None:
    many = [Trouble(Cause.ERRORS, f"errors-{n}", count=1) for n in range(13)]
    said = [text for _, text in told([*many, Trouble(Cause.DISK_FULL)], str)]
    assert len(said) == 12
    assert said[10] == "3 more troubles of the same cause."


def test_a_rate_is_a_difference_and_never_negative() -> None:
    was, now = queue_stats(enqueued=100, dequeued=50, failed=4), queue_stats(enqueued=150, dequeued=20, failed=5)
    assert rates_between(was, now, 10.0) == Rates(5.0, 0.0, 0.1)


def test_the_console_links_each_trouble_to_its_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time", lambda: NOW)
    given = queues(errors=queue_stats(ready=1), orders=queue_stats(ready=1, oldest_age=999.0))
    found = replace(given, in_doubt=1, quarantined=1, free_bytes=0)
    links = [each.link for each in console.findings(Samples(lambda: found, lambda: 0.0).snapshot())]
    assert links == ["/activity#disk", "/transactions", "/queues/errors", "/quarantine", "/queues/orders"]


def test_the_header_of_top_shows_a_trouble_of_an_error_queue_with_delayed_messages() -> None:
    shown = texts(seen(queues(errors=queue_stats(delayed=2)), Model(width=100)))
    assert "! Error queue errors has 2 failed messages." in shown
    assert any(line.startswith("! errors") for line in shown)


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1_000, "1.0 kB"), (1_500, "1.5 kB"), (10**10, "10 GB"), (10**22, "10000 EB")],
)
def test_sizes_have_units(count: int, text: str) -> None:
    assert size(count) == text
