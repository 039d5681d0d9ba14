"""Figures and states for the tests of ``spool-admin top``."""

import spool
from spool.admin.findings import Kind
from tests.watch.samples import NOW, metrics, queue_stats, transaction
from xaspool_scripts.watch.top.model import Model, pressed, sampled
from xaspool_scripts.watch.top.queue_rows import Sample
from xaspool_scripts.watch.top.view import picture

HOSTILE = "\x1b[2J\x1b]0;owned\x07[red]\r\n\u202egnp.exe\u200f\x9b31m茶茶\U0001f600\u0301" + "x" * 3_000


def seen(given: spool.SpaceMetrics, state: Model | None = None, moment: float = 1.0) -> Model:
    return sampled(state or Model(), Sample(given, moment), NOW)


def texts(state: Model) -> list[str]:
    return [line.plain for line in picture(state)]


def typed(state: Model, *keys: str) -> Model:
    for key in keys:
        state = pressed(state, key)
    return state


def hostile() -> spool.SpaceMetrics:
    """Return metrics in which every text is hostile."""
    finding = spool.Finding(kind=Kind.DAMAGED, name=HOSTILE, detail=HOSTILE)
    return metrics(
        space=f"/{HOSTILE}",
        queues={HOSTILE: queue_stats(ready=1, in_doubt=1), "[red]orders[/red]": queue_stats(ready=10**30)},
        references={HOSTILE: spool.QueueReferences(HOSTILE, HOSTILE, HOSTILE)},
        transactions=(
            transaction(xid=HOSTILE, program=HOSTILE, takes={HOSTILE: 1}, state="in doubt"),
            transaction(xid=None, pid=None, program=None, since=None, takes={}),
            transaction(since=-1e300),
        ),
        in_doubt=1,
        decisions={HOSTILE: "committed"},
        quarantine=(finding,),
        quarantined=1,
        processes=(HOSTILE,),
        counts={
            ("outcomes", HOSTILE, HOSTILE, HOSTILE): 1, ("outcomes",): 1, ("commit_seconds", HOSTILE): 3,
            ("commit_seconds",): 1, ("commit_seconds", "nan"): 2,
        },
        states={("route", HOSTILE, HOSTILE): 1, ("route_down", HOSTILE, HOSTILE): 1, ("route",): 1},
    )  # fmt: skip
