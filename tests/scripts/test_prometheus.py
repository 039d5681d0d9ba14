"""Every metric of the table is in the text for Prometheus, and no hostile label value breaks the text."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

import spool
import xa
from spool.admin.findings import Finding, Kind
from spool.watch.figures import OpenTransaction
from tests.reference_pages import metrics
from tests.scripts.conftest import prepare
from tests.scripts.exporters import KINDS, fail_a_task, parsed, report_everything, value
from xaspool_scripts.watch import prometheus
from xaspool_scripts.watch.prometheus import METRICS, MOST_CHARACTERS, Collection, text_of

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"


def text_with(metrics: spool.SpaceMetrics, **fields: object) -> bytes:
    """Return the text of metrics with other values of some fields."""
    return text_of(Collection(metrics.space, replace(metrics, **fields)))  # type: ignore[arg-type]


# -- the table ---------------------------------------------------------------------------------------------------------


def test_every_metric_of_the_table_has_a_sample_in_a_space_that_has_everything(path: Path) -> None:
    prepare(path, xa.Xid(7, b"g", b"b"))
    with spool.open(path) as space:
        space.change_queue("orders", error_queue="errors", retries=1)
        space.put_many("orders", [b"x"] * 3)
        space.engine.register_subscription("seen", ("orders",), 3600.0)
        (path / "quarantine" / "order.json").touch()
        fail_a_task(space)
        with space.transaction() as transaction:
            transaction.get("orders")
            report_everything(space.engine.meters)
            found = space.metrics()
    finding = Finding(Kind.ROLLED_BACK, "active/1", "a branch whose owner died", "rolled back")
    found = replace(found, recovery=spool.RecoveryRecord(1_700_000_000.0, 0.5, (finding, finding)))
    samples = parsed(text_of(Collection(found.space, found, seconds=0.25)))
    assert all(math.isfinite(number) for values in samples.values() for number in values.values())
    assert {name for name in KINDS if name not in samples and f"{name}_count" not in samples} == set()
    for name, labels, number in (
        ("xaspool_up", {}, 1),
        ("xaspool_collection_duration_seconds", {}, 0.25),
        ("xaspool_queue_messages", {"queue": "orders", "state": "ready"}, 2),
        ("xaspool_queue_messages", {"queue": "orders", "state": "claimed"}, 1),
        ("xaspool_queue_messages", {"queue": "orders", "state": "in_doubt"}, 1),
        ("xaspool_queue_enqueued_total", {"queue": "orders"}, 3),
        ("xaspool_queue_role", {"queue": "errors", "role": "error"}, 1),
        ("xaspool_transactions", {"state": "claimed"}, 1),
        ("xaspool_transactions", {"state": "in_doubt"}, 1),
        ("xaspool_quarantined_files", {"kind": "damaged"}, 0),
        ("xaspool_quarantined_files", {"kind": "other"}, 1),
        ("xaspool_subscription_unread_messages", {"subscription": "seen"}, 0),
        ("xaspool_outcomes_total", {"program": "worker", "queue": "orders", "effect": "delivered"}, 5),
        (
            "xaspool_service_calls_total",
            {"queue": "orders", "service": "http://localhost/a", "result": "failed"}, 2,
        ),
        ("xaspool_route_up", {"queue": "orders", "service": "http://localhost/a"}, 1),
        ("xaspool_route_up", {"queue": "orders", "service": "http://localhost/b"}, 0),
        ("xaspool_workers", {"queue": "orders"}, 4),
        ("xaspool_service_duration_seconds_count", {"queue": "orders"}, 2),
        ("xaspool_service_duration_seconds_sum", {"queue": "orders"}, 0.25 + 7.0),
        ("xaspool_service_duration_seconds_bucket", {"queue": "orders", "le": "0.1"}, 0),
        ("xaspool_service_duration_seconds_bucket", {"queue": "orders", "le": "0.25"}, 1),
        ("xaspool_service_duration_seconds_bucket", {"queue": "orders", "le": "5"}, 1),
        ("xaspool_service_duration_seconds_bucket", {"queue": "orders", "le": "+Inf"}, 2),
        ("xaspool_recovery_timestamp_seconds", {}, 1_700_000_000.0),
        ("xaspool_recovery_findings", {"kind": "rolled back"}, 2),
    ):  # fmt: skip
        assert samples[name][frozenset(labels.items())] == pytest.approx(number), (name, labels)


def test_names_kinds_and_units_follow_the_conventions_of_prometheus() -> None:
    assert len({metric.name for metric in METRICS}) == len(METRICS)
    for metric in METRICS:
        assert metric.name.startswith("xaspool_")
        assert metric.name.endswith("_total") == (metric.kind == "counter"), metric.name
        assert metric.kind != "histogram" or metric.name.endswith("_seconds"), metric.name
        assert not {"le", "space", "job", "instance"} & set(metric.labels), metric.name
        assert metric.help.endswith("."), metric.name


def test_the_page_has_the_table_of_all_metrics() -> None:
    assert metrics.with_table(PAGE.read_text()) == PAGE.read_text(), "run scripts/reference"


# -- hostile values ----------------------------------------------------------------------------------------------------

HOSTILE = (
    'a "quoted" name', "two\nlines", "\x1b[31mred\x1b[0m", "back\\slash", "tab\there", "nul\0", "‮reversed",
    "\ud800", "ü€🙂", "", 'x"} 1\nxaspool_up{a="', "\r", "x" * 100_000, "\x1b" * 100_000,
)  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: ascii(text[:20]))
def test_no_label_value_breaks_the_text(figures: spool.SpaceMetrics, text: str) -> None:
    held = OpenTransaction("claimed", text, 1, text, 0.0, {"orders": 1})
    subscription = spool.SubscriptionState(("orders",), 1, 1, 1.0, 1, 1)
    found = text_with(
        figures,
        space=text,
        transactions=(held,),
        subscriptions={text: subscription},
        counts={("outcomes", text, text, text): 1, ("rounds", text): 1},
        states={("route", "orders", text): 1, ("destination", "orders", text): 1},
    )
    samples = parsed(found)
    assert samples["xaspool_up"] == {frozenset(): 1}
    shown = {label for values in samples.values() for labels in values for _, label in labels}
    assert all(label.isprintable() and len(label) <= MOST_CHARACTERS for label in shown)
    assert len(found) < 50_000


def test_long_values_with_the_same_beginning_remain_different(figures: spool.SpaceMetrics) -> None:
    counts = {("rounds", "x" * 300 + end): 1 for end in "ab"}
    assert len(parsed(text_with(figures, counts=counts))["xaspool_rounds_total"]) == 2


def test_values_that_become_equal_are_added(figures: spool.SpaceMetrics) -> None:
    counts = {("rounds", "\n"): 1, ("rounds", r"\n"): 2}
    assert value(text_with(figures, counts=counts), "xaspool_rounds_total", queue=r"\n") == 3
    durations = {("service_seconds", queue, "1"): 1 for queue in ("\n", r"\n")}
    count = value(text_with(figures, counts=durations), "xaspool_service_duration_seconds_count", queue=r"\n")
    assert count == 2


def test_a_metric_has_at_most_two_thousand_label_sets(figures: spool.SpaceMetrics) -> None:
    counts = {("rounds", f"q{number:05}"): 1 for number in reversed(range(3000))}
    text = text_with(figures, counts=counts)
    found = parsed(text)["xaspool_rounds_total"]
    assert value(text, "xaspool_omitted_label_sets") == 1000
    assert value(text_with(figures), "xaspool_omitted_label_sets") == 0
    assert len(found) == 2000
    assert frozenset({("queue", "q00000")}) in found
    assert frozenset({("queue", "q02999")}) not in found


def test_meters_of_a_damaged_file_are_left_out(figures: spool.SpaceMetrics) -> None:
    counts = {
        ("rounds",): 1, ("rounds", "a", "b"): 1, ("rounds", "orders"): -5, ("compactions",): -(2**63),
        ("commit_seconds", "nan"): 3, ("commit_seconds", "-1"): 3, ("commit_seconds", "soon"): 3,
        ("commit_seconds", "0.5"): -3, ("commit_seconds", "total"): -1, ("commit_seconds", "9"): 1, ("",): 1,
    }  # fmt: skip
    states = {("route", "orders"): 1, ("route", "orders", "http://localhost"): -1, ("workers",): 1}
    found = parsed(text_with(figures, counts=counts, states=states))
    assert found["xaspool_rounds_total"] == {frozenset({("queue", "orders")}): 0}
    assert found["xaspool_compactions_total"] == {frozenset(): 0}
    assert found["xaspool_commit_duration_seconds_count"] == {frozenset(): 1}
    assert found["xaspool_commit_duration_seconds_sum"] == {frozenset(): 0}
    assert not {"xaspool_route_up", "xaspool_workers"} & found.keys()


def test_the_transactions_of_a_stopped_space_have_no_samples(figures: spool.SpaceMetrics) -> None:
    """They are not known, so no alert may take them for decided."""
    found = parsed(text_with(replace(figures, is_stopped=True)))
    assert not {"xaspool_transactions", "xaspool_transaction_oldest_age_seconds"} & found.keys()


@pytest.mark.parametrize(
    ("service", "shown"),
    [
        ("http://user:word@host:80/path?key=word#word", "http://host:80/path"),
        ("https://word@host/@me", "https://host/@me"),
        ("http://a@b@host/", "http://host/"),
        ("http://user:word/word@host/", "http://…"),
        ("http://user:word?@host/", "http://…"),
        ("http://[::1]:80/x", "http://[::1]:80/x"),
        ("kafka://a:9092,b:9092/topic?sasl.password=word", "kafka://a:9092,b:9092/topic"),
        ("http:word", "http:…"),
        (" http://user:word@host", " http:…"),
        ("exec:/bin/send --password word", "exec:/bin/send"),
        ("exec:", "exec:"),
        ("python:shop.services:bill", "python:shop.services:bill"),
        ("file:/out?x", "file:/out?x"),
        ("queue:bills@/other", "queue:bills@/other"),
        ("queue:bills@spool://user:word@host/x", "queue:bills@spool://host/x"),
        ("orders", "orders"),
    ],
)
def test_a_service_is_shown_without_secrets(figures: spool.SpaceMetrics, service: str, shown: str) -> None:
    assert prometheus.without_secrets(service) == shown
    found = text_with(figures, states={("route", "orders", service): 1, ("route_down", "orders", service): 1})
    assert b"word" not in found
    assert value(found, "xaspool_route_up", queue="orders", service=shown) == 0


def test_a_route_that_is_down_for_one_password_is_down(figures: spool.SpaceMetrics) -> None:
    states = {("route", "q", "http://a:b@host"): 1, ("route", "q", "http://c:d@host"): 1}
    states[("route_down", "q", "http://a:b@host")] = 1
    assert value(text_with(figures, states=states), "xaspool_route_up", queue="q", service="http://host") == 0
