"""spool-admin top: its figures and states, and the program on a terminal.

The terminal is a pseudo-terminal whose screen the tests keep: a program that writes any sequence besides its own few
fails the test.
"""

import fcntl
import grp
import json
import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

import spool
import xa
from spool.admin.findings import Kind
from spool.admin.published import publish
from tests.scripts.conftest import Run, execute, one_line
from xaspool_scripts import admin_top, top_keys
from xaspool_scripts.top_figures import SORTABLE, Sample, findings, make_rows, ordered, quantiles, queue_rates
from xaspool_scripts.top_keys import Decoder
from xaspool_scripts.top_model import Prompt, State, View, body_height, failed, page, pressed, resized, sampled
from xaspool_scripts.top_texts import cut, fit, folded, number, rate, size
from xaspool_scripts.top_view import Painter, picture, plain_picture

NOW = 1_000_000.0
HOSTILE = "\x1b[2J\x1b]0;owned\x07[red]\r\n\u202egnp.exe\u200f\x9b31m茶茶\U0001f600\u0301" + "x" * 3_000


# -- samples -----------------------------------------------------------------------------------------------------------


def queue_stats(**given: Any) -> spool.QueueStats:
    zero = dict.fromkeys(
        ("ready", "delayed", "claimed", "in_doubt", "bytes", "enqueued", "dequeued", "failed", "expired", "deleted",
         "quarantined"), 0,
    )  # fmt: skip
    return spool.QueueStats(**{**zero, "oldest_age": None, **given})


def metrics(**given: Any) -> spool.SpaceMetrics:
    """Return the metrics of a space without trouble, except for the given fields."""
    queues = given.get("queues", {"errors": queue_stats(), "orders": queue_stats()})
    base: dict[str, Any] = {
        "space": "/var/spool/shop", "at": NOW, "is_stopped": False, "commits": 7, "unflushed": 0, "queues": queues,
        "roles": {name: spool.QueueRole("errors" if name == "orders" else None) for name in queues},
        "transactions": (), "in_doubt": 0, "decisions": {}, "subscriptions": {}, "quarantine": (), "quarantined": 0,
        "damaged": 0, "recovery": None, "processes": ("process 1 (python)",), "folders": {}, "free_bytes": 10**12,
        "free_inodes": None, "counts": {}, "states": {},
    }  # fmt: skip
    return spool.SpaceMetrics(**{**base, **given})


def seen(given: spool.SpaceMetrics, state: State | None = None, moment: float = 1.0) -> State:
    return sampled(state or State(), Sample(given, moment), NOW)


def texts(state: State) -> list[str]:
    return [line.plain for line in picture(state)]


def transaction(**given: Any) -> spool.OpenTransaction:
    base = {
        "state": "claimed",
        "xid": "7.aa.bb",
        "pid": 17,
        "program": "worker",
        "since": NOW - 60,
        "takes": {"orders": 2},
    }
    return spool.OpenTransaction(**{**base, **given})  # type: ignore[arg-type]


def typed(state: State, *keys: str) -> State:
    for key in keys:
        state = pressed(state, key)
    return state


def hostile() -> spool.SpaceMetrics:
    """Return metrics in which every text is hostile."""
    finding = spool.Finding(kind=Kind.DAMAGED, name=HOSTILE, detail=HOSTILE)
    return metrics(
        space=f"/{HOSTILE}",
        queues={HOSTILE: queue_stats(ready=1, in_doubt=1), "[red]orders[/red]": queue_stats(ready=10**30)},
        roles={HOSTILE: spool.QueueRole(HOSTILE, HOSTILE, HOSTILE)},
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


# -- figures -----------------------------------------------------------------------------------------------------------


def test_rates_are_differences_of_two_samples_by_their_time() -> None:
    old = Sample(metrics(queues={"orders": queue_stats(enqueued=100, dequeued=50, failed=4)}), 10.0)
    new = Sample(
        metrics(queues={"orders": queue_stats(enqueued=150, dequeued=70, failed=5), "new": queue_stats()}), 20.0
    )
    rates = queue_rates(new, old)
    assert (rates["orders"].put, rates["orders"].taken, rates["orders"].failed) == (5.0, 2.0, 0.1)
    assert "new" not in rates
    assert queue_rates(new, None) == queue_rates(new, new) == {}


def test_a_queue_that_was_created_again_has_no_negative_rate() -> None:
    old = Sample(metrics(queues={"orders": queue_stats(enqueued=100)}), 10.0)
    new = Sample(metrics(queues={"orders": queue_stats(enqueued=1)}), 20.0)
    assert queue_rates(new, old)["orders"].put == 0


def test_the_same_published_snapshot_keeps_the_rates() -> None:
    state = seen(metrics(queues={"orders": queue_stats(enqueued=0)}), moment=1.0)
    later = metrics(queues={"orders": queue_stats(enqueued=10)})
    state = seen(later, state, moment=3.0)
    assert state.rates["orders"].put == 5
    assert seen(later, state, moment=3.0).rates == state.rates


def test_latencies_are_those_since_the_oldest_sample_and_all_if_nothing_happened_since() -> None:
    def counts(**numbers: int) -> dict[tuple[str, ...], int]:
        labels = {"half": "0.0005", "five": "0.005", "inf": "inf", "total": "total"}
        return {("flush_seconds", labels[name]): number for name, number in numbers.items()}

    before = counts(half=1_000, total=10**9)
    assert quantiles(counts(half=1_000, total=10**9), before, "flush_seconds") == (0.0005, 0.0005)
    assert quantiles(counts(half=1_000, five=99, inf=1, total=10**12), before, "flush_seconds") == (0.005, 0.005)
    assert quantiles(counts(half=1_000, five=90, inf=10), before, "flush_seconds") == (0.005, float("inf"))
    assert quantiles(counts(), {}, "flush_seconds") == (None, None)


def test_trouble_comes_first_the_worst_before_the_others() -> None:
    found = metrics(
        queues={
            "big": queue_stats(ready=10**6, oldest_age=1.0), "late": queue_stats(ready=1, oldest_age=301.0),
            "errors": queue_stats(ready=2, oldest_age=9_999.0), "doubt": queue_stats(in_doubt=1),
            "orders": queue_stats(), "down": queue_stats(), "damaged": queue_stats(quarantined=1),
        },
        states={("route_down", "down", "http://x"): 1, ("route_down", "orders", "http://x"): 0},
    )  # fmt: skip
    rows = ordered(make_rows(found, {}), "trouble", is_reversed=False)
    assert [row.name for row in rows] == ["damaged", "doubt", "down", "errors", "late", "big", "orders"]
    lines = [line for line in texts(seen(found)) if line.startswith("! ") and "  " in line]
    assert [line.split()[1] for line in lines] == ["damaged", "doubt", "down", "errors", "late"]
    assert all(row.troubles[0] in line for row, line in zip(rows, lines, strict=False))


@pytest.mark.parametrize("sort", SORTABLE)
def test_every_order_can_be_reversed(sort: str) -> None:
    stats = [queue_stats(ready=n, claimed=n, in_doubt=n, delayed=n, bytes=n, oldest_age=float(n)) for n in range(3)]
    new = metrics(queues={f"q{n}": replace(each, enqueued=n, dequeued=n, failed=n) for n, each in enumerate(stats)})
    old = metrics(queues={f"q{n}": each for n, each in enumerate(stats)})
    rows = make_rows(new, queue_rates(Sample(new, 2.0), Sample(old, 1.0)))
    names = [row.name for row in ordered(rows, sort, is_reversed=False)]
    assert names == (["q0", "q1", "q2"] if sort == "queue" else ["q2", "q1", "q0"])
    assert [row.name for row in ordered(rows, sort, is_reversed=True)] == names[::-1]


def test_the_header_says_the_troubles_in_words() -> None:
    found = metrics(
        is_stopped=True, damaged=1, quarantined=3, in_doubt=1, free_bytes=10, free_inodes=5, at=NOW - 60,
        queues={"errors": queue_stats(ready=2), "orders": queue_stats(bytes=100, oldest_age=700.0)},
        transactions=(transaction(state="in doubt", since=NOW - 7_200),),
        states={("route_down", "orders", "http://shop"): 1},
    )  # fmt: skip
    said = "\n".join(findings(found, make_rows(found, {}), NOW, is_published=True))
    for words in (
        "STOPPED", "1 min old", "1 file in quarantine", "1 transaction in doubt, the oldest for 2 h",
        "http://shop of queue orders is down", "error queue errors has 2 messages", "has waited for 11 min",
        "10 B free", "5 inodes", "2 other files",
    ):  # fmt: skip
        assert words in said
    shown = texts(seen(found, State(width=200, height=40)))
    assert "STOPPED" in shown[0]
    assert "And" in shown[5]
    assert "more: key r" in shown[5]
    assert findings(metrics(), make_rows(metrics(), {}), NOW, is_published=True) == []


def test_an_error_of_the_space_is_shown_with_the_last_figures() -> None:
    state = failed(seen(metrics()), "the space has stopped", NOW + 60)
    shown = texts(state)
    assert "cannot be read: the space has stopped" in shown[3]
    assert shown[0].startswith("spool-admin top  UNREADABLE  figures of 1 min ago  /var/spool/shop")
    assert any("orders" in line for line in shown)
    assert "cannot be read" not in "".join(texts(seen(metrics(), state, moment=2.0)))
    nothing = texts(failed(State(), "no published metrics", NOW))
    assert nothing[0].startswith("spool-admin top  UNREADABLE")
    assert "cannot be read" in nothing[3]


def test_figures_that_cannot_be_read_again_have_their_age_at_once() -> None:
    state = failed(seen(metrics()), "the directory is gone", NOW + 2)
    assert "UNREADABLE  figures of 2 s ago" in texts(state)[0]
    assert texts(resized(state, 20, 24))[0] == "UNREADABLE  2 s ago"
    assert "running" in texts(seen(metrics(), state, 3.0))[0]


def test_the_header_says_what_is_counted() -> None:
    shown = texts(seen(metrics(queues={"orders": queue_stats(in_doubt=4, failed=5)})))
    assert "in doubt 4 messages  failed ever 5  free 1.0 TB" in shown[1]
    assert "in doubt 1 message  " in texts(seen(metrics(queues={"orders": queue_stats(in_doubt=1)})))[1]


def test_decisions_that_no_coordinator_has_acknowledged_are_a_finding() -> None:
    found = metrics(decisions={"7.aa.bb": "committed", "7.aa.cc": "rolled back"})
    (said,) = findings(found, [], NOW, is_published=False)
    assert said.startswith("No coordinator has acknowledged 2 decisions of an administrator yet")


@pytest.mark.parametrize(
    ("reasons", "damaged", "said"),
    [
        (["refused", "refused"], 0, "2 refused files in"), (["refused", "foreign"], 0, "2 files in"),
        (["refused", "foreign"], 1, "2 other files in"),
    ],
)  # fmt: skip
def test_files_in_quarantine_are_named_by_their_kind(reasons: list[str], damaged: int, said: str) -> None:
    files = tuple(spool.Finding(Kind.QUARANTINED, "quarantine/x", "", reason=reason) for reason in reasons)
    found = metrics(quarantine=files, quarantined=len(files) + damaged, damaged=damaged)
    assert findings(found, [], NOW, is_published=False)[-1].startswith(said)


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0, "0"), (99_999, "99,999"), (100_000, "100k"), (1_234_567, "1.2M"), (10**30, "1000000000000E")],
)
def test_numbers_are_short(value: int, shown: str) -> None:
    assert number(value) == shown


def test_rates_and_sizes_have_their_forms() -> None:
    assert [rate(each) for each in (None, 0.0, 0.04, 1.26, 12.6)] == ["-", "0", "<0.1", "1.3", "13"]
    assert [size(each) for each in (0, 999, 1_000, 1_500, 10**10)] == ["0 B", "999 B", "1.0 kB", "1.5 kB", "10 GB"]


# -- hostile texts -----------------------------------------------------------------------------------------------------


@given(st.text(max_size=80), st.integers(0, 40))
def test_a_text_is_cut_to_its_columns_and_printable(text: str, width: int) -> None:
    for shown in (cut(text, width), fit(text, width)):
        assert shown.isprintable()
        assert sum(map(cell_len, shown)) <= width
    assert sum(map(cell_len, fit(text, width))) == width
    lines = folded(text, max(2, width))
    assert all(line.isprintable() and sum(map(cell_len, line)) <= max(2, width) for line in lines)


def test_characters_without_a_width_do_not_make_a_long_text() -> None:
    assert len(cut("a" + "\u0301" * 10**6, 10)) < 200


@pytest.mark.parametrize("width", [20, 80, 200])
def test_hostile_values_are_printable_and_cut_in_every_view(width: int) -> None:
    found = hostile()
    state = resized(seen(found, seen(found), moment=2.0), width, 60)
    views = [typed(state, *keys) for keys in ((), ("t",), ("t", "enter"), ("f",), ("r",), ("enter",), ("h",), ("f6",))]
    for each in [*views, replace(state, error=HOSTILE, warning=HOSTILE), replace(state, filter="gnp")]:
        for line in picture(each):
            assert line.plain.isprintable(), line
        drawn = Painter("utf-8").paint(each).decode()
        assert re.sub(r"\x1b\[(?:2J|\d+;1H|K|[\d;]*m)", "", drawn).isprintable()
        for line in re.split(r"\x1b\[\d+;1H", re.sub(r"\x1b\[(?:2J|K|[\d;]*m)", "", drawn)):
            assert cell_len(line) <= width
    assert "[red]orders[/red]" in "".join(texts(resized(state, 200, 60)))
    assert plain_picture(state).replace("\n", "").isprintable()


# -- keys --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sent", "keys"),
    [
        (b"q/", ["q", "/"]), (b"\r\x7f\t\x15\x0c", ["enter", "backspace", "tab", "clear", "redraw"]),
        (b"\x1b[A\x1b[B\x1bOC\x1bOD", ["up", "down", "right", "left"]),
        (b"\x1b[1;5A\x1b[5~\x1b[6~", ["up", "page up", "page down"]),
        (b"\x1b[H\x1b[F\x1b[1~\x1b[4~\x1bOH", ["home", "end", "home", "end", "home"]),
        (b"\x1bOP\x1b[11~\x1b[[A", ["f1"] * 3), (b"\x1bOS\x1b[14~\x1b[[D", ["f4"] * 3),
        (b"\x1b[17~\x1b[21~", ["f6", "f10"]),
        ("é茶".encode(), ["é", "茶"]), (b"\xff\xfe", []), (b"\x1b\x1bq", ["escape", "q"]),
        (b"\x1b[200~\x1b[<0;1;1M\x1b[9;9;9z\x00", []), (b"\x1b[" + b"1" * 100, ["1"] * 70),
    ],
)  # fmt: skip
def test_keys_are_decoded_also_byte_by_byte(sent: bytes, keys: list[str]) -> None:
    assert Decoder().feed(sent) == keys
    decoder = Decoder()
    assert [key for byte in sent for key in decoder.feed(bytes((byte,)))] == keys


def test_escape_is_a_key_if_nothing_follows() -> None:
    decoder = Decoder()
    assert (decoder.feed(b"\x1b"), decoder.is_waiting, decoder.finish(), decoder.is_waiting) == (
        [],
        True,
        ["escape"],
        False,
    )
    assert (decoder.feed(b"\x1b["), decoder.finish()) == ([], [])


@given(st.lists(st.binary(max_size=50) | st.sampled_from([b"\x1b", b"\x1b[", b"\x1bO", b"\xc3", b"~"]), max_size=20))
def test_any_bytes_are_decoded_without_an_error_and_without_a_store(pieces: list[bytes]) -> None:
    decoder = Decoder()
    for piece in pieces:
        for key in decoder.feed(piece):
            assert len(key) == 1 or key in NAMED, key
            assert key.isprintable()
        assert len(decoder._pending) < 64
    assert set(decoder.finish()) <= {"escape"}


NAMED = {value for name, value in vars(top_keys).items() if name.isupper() and isinstance(value, str)}
NAMED |= {f"f{number}" for number in range(1, 11)}
KEYS = st.sampled_from(sorted({*NAMED, *"qhpsdtfrINARFCDB!/<>kj?,.\\ 0123456789xé"}))


def samples() -> list[spool.SpaceMetrics]:
    many = {f"q{n}": queue_stats(ready=n, oldest_age=float(n)) for n in range(50)}
    return [metrics(), metrics(queues={}), metrics(queues=many, transactions=(transaction(),) * 30), hostile()]


# Views, moves and filters are frequent, because most errors need several of them.
FREQUENT = st.sampled_from(["t", "f", "r", "h", "f6", "/", "enter", "escape", "end", "down", "down", "page down", "1"])
STEPS = st.lists(
    FREQUENT | FREQUENT | KEYS | st.sampled_from(samples()) | st.tuples(st.integers(0, 200), st.integers(0, 60))
    | st.just(OSError("gone")),
    min_size=10, max_size=50,
)  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(samples()), STEPS)
def test_any_keys_samples_and_sizes_leave_a_valid_state(first: spool.SpaceMetrics, steps: list[Any]) -> None:
    state, moment = seen(first), 1.0
    for step in steps:
        if isinstance(step, str):
            state = pressed(state, step)
        elif isinstance(step, tuple):
            state = resized(state, *step)
        elif isinstance(step, OSError):
            state = failed(state, str(step), NOW)
        else:
            moment += 1
            state = seen(step, state, moment)
        check_valid(state)


def check_valid(state: State) -> None:
    assert 0 <= state.cursor <= max(0, len(state.rows) - 1)
    assert state.place == 0 or state.place < len(page(state))
    assert state.sort in SORTABLE
    assert 0.1 <= state.interval <= 3_600
    assert len(state.typed) <= 64
    lines = picture(state)
    assert len(lines) == state.height
    assert all(line.plain.isprintable() for line in lines)


def test_the_selection_follows_its_queue_and_at_the_first_row_the_order() -> None:
    state = typed(seen(metrics(queues={"a": queue_stats(ready=3), "b": queue_stats(ready=2)})), "N")
    changed = metrics(queues={"a": queue_stats(ready=3), "b": queue_stats(ready=9)})
    assert seen(changed, state, 2.0).rows[0].name == "b"
    assert seen(changed, state, 2.0).cursor == 0
    moved = pressed(state, "down")
    assert moved.selected == "b"
    assert seen(changed, moved, 2.0).cursor == 0
    assert seen(metrics(queues={"a": queue_stats()}), moved, 2.0).cursor == 0


def test_keys_move_the_selection_and_only_visible_rows_are_written() -> None:
    state = resized(seen(metrics(queues={f"q{n:04}": queue_stats() for n in range(1_000)})), 80, 24)
    assert len(texts(state)) == 24
    state = typed(state, "j", "down", "k")
    assert state.cursor == 1
    state = typed(state, "page down", "page down")
    assert state.cursor == 1 + 2 * body_height(state)
    assert any("q0039" in line for line in texts(state))
    assert typed(state, "end").cursor == 999
    assert typed(state, "end", "home").cursor == 0
    assert typed(state, "home", "up").cursor == 0


def test_a_filter_takes_effect_as_it_is_typed_and_escape_shows_all() -> None:
    state = typed(seen(metrics()), "/", "O", "R", "q")
    assert (state.prompt, state.is_ended, state.rows) == (Prompt.FILTER, False, ())
    state = typed(state, "backspace", "enter")
    assert [row.name for row in state.rows] == ["errors", "orders"]
    state = typed(state, "f4", "clear", "o", "r", "d", "enter")
    assert [row.name for row in state.rows] == ["orders"]
    assert "filter ord: 1 of 2 queues" in texts(state)[-1]
    assert len(typed(state, "escape").rows) == 2
    assert len(typed(state, "/", "escape").rows) == 2


def test_the_order_is_chosen_by_keys_and_in_a_list() -> None:
    state = seen(metrics())
    assert [typed(state, key).sort for key in "!NARFCDB"] == [
        "trouble", "ready", "age", "rate", "fail/s", "claimed", "doubt", "bytes",
    ]  # fmt: skip
    assert (typed(state, ">").sort, typed(state, "<").sort) == (SORTABLE[1], SORTABLE[-1])
    listed = typed(state, "f6")
    assert listed.view is View.SORT
    assert "* trouble" in "\n".join(texts(listed))
    chosen = typed(listed, "down", "down", "enter")
    assert (chosen.view, chosen.sort) == (View.QUEUES, SORTABLE[2])
    assert typed(listed, "escape").sort == "trouble"
    assert typed(chosen, "I").is_reversed
    assert not typed(chosen, "I", "A").is_reversed


def test_an_interval_is_typed_and_checked() -> None:
    state = seen(metrics())
    assert typed(state, "s", "0", ".", "5", "enter").interval == 0.5
    assert typed(state, "d", "9", "escape").interval == state.interval
    for wrong in ("0", "nan", "1e9", "x", "-1"):
        after = typed(state, "s", *wrong, "enter")
        assert after.interval == state.interval
        assert "0.1 to 3,600 seconds" in texts(after)[-1]


def test_views_open_and_return() -> None:
    state = seen(metrics(transactions=(transaction(), transaction(state="in doubt", xid="7.cc.dd"))))
    assert [typed(state, key).view for key in "tfrh?"] == [
        View.TRANSACTIONS, View.FLOWS, View.RECOVERY, View.HELP, View.HELP,
    ]  # fmt: skip
    assert typed(state, "t", "t").view is typed(state, "t", "escape").view is View.QUEUES
    assert typed(state, "enter", "h", "escape").view is View.QUEUE
    assert typed(state, "tab", "tab", "tab", "tab").view is View.QUEUES
    detail = typed(state, "t", "down", "enter")
    assert "7.cc.dd" in "\n".join(texts(detail))
    ended = seen(metrics(), detail, 2.0)
    assert "has ended" in "\n".join(texts(ended))
    gone = seen(metrics(queues={}), typed(state, "enter"), 2.0)
    assert "does not exist any more" in "\n".join(texts(gone))
    for key in ("q", "f10"):
        assert typed(state, "t", "enter", key).is_ended


def test_the_details_of_a_queue_have_its_roles_routes_and_holders() -> None:
    state = seen(
        metrics(
            transactions=(transaction(),), states={("route", "orders", "http://shop"): 1},
            counts={("outcomes", "forwarder", "orders", "delivered"): 12},
        )
    )  # fmt: skip
    shown = "\n".join(line.plain for line in picture(resized(typed(state, "j", "enter"), 100, 60)))
    for words in ("Queue orders", "error queue          errors", "http://shop", "delivered", "17 worker", "7.aa.bb"):
        assert words in shown
    errors = "\n".join(line.plain for line in picture(resized(typed(state, "enter"), 100, 60)))
    assert re.search("is error queue of +orders", errors)


def test_pause_is_shown_and_ends() -> None:
    state = seen(metrics())
    assert "PAUSED" in texts(typed(state, " "))[0]
    assert "PAUSED" not in texts(typed(state, "p", " "))[0]


@pytest.mark.parametrize("height", [1, 2, 6, 24])
def test_a_narrow_terminal_keeps_the_names_and_troubles(height: int) -> None:
    found = metrics(queues={"errors": queue_stats(ready=5), "orders": queue_stats()})
    shown = texts(resized(seen(found), 40, height))
    assert len(shown) == height
    if height > 6:
        assert any(re.match("! errors +errors +5 ", line) for line in shown)


@pytest.mark.parametrize(
    ("width", "columns"),
    [
        (86, "trouble ready age in/s out/s fail/s claimed doubt delayed"),
        (80, "trouble ready age in/s out/s fail/s claimed doubt"), (70, "trouble ready age in/s out/s fail/s doubt"),
        (60, "trouble ready age in/s out/s doubt"), (40, "trouble ready age"), (32, "trouble ready"), (20, "ready"),
        (13, "ready"), (12, ""),
    ],
)  # fmt: skip
def test_only_columns_that_fit_whole_are_shown(width: int, columns: str) -> None:
    found = metrics(queues={"replies": queue_stats(in_doubt=4, ready=7), "orders": queue_stats()})
    shown = texts(resized(typed(seen(found), "A"), width, 24))
    place = next(place for place, line in enumerate(shown) if line.startswith("  q"))
    assert [word.rstrip("↓") for word in shown[place].split()][1:] == columns.split()
    row = next(line for line in shown[place:] if line.startswith("! r"))
    assert len(shown[place]) == len(row) == width
    if columns.endswith("doubt"):
        assert row.endswith(" 4")


def test_a_terminal_of_20_columns_has_the_state_the_signs_and_the_ready_messages() -> None:
    found = metrics(queues={"a-queue-with-a-long-name": queue_stats(ready=70, oldest_age=500.0)})
    shown = texts(resized(seen(found), 20, 10))
    assert shown[0].startswith("running  ")
    assert shown[1] == "ready 70  claimed 0"
    assert "! a-queue-wi…     70" in shown
    stopped = texts(resized(seen(replace(found, is_stopped=True)), 20, 10))
    assert stopped[0].startswith("STOPPED  ")


@pytest.mark.parametrize("width", [20, 40, 80, 120, 200])
def test_the_state_is_before_the_path_and_the_header_fits(width: int) -> None:
    found = metrics(space=f"/{'x' * 300}/shop")
    for state in (
        seen(found),
        failed(seen(found), "gone", NOW + 100),
        typed(seen(found, State(is_published=True)), "p"),
    ):
        title, *figures = texts(resized(state, width, 24))[:3]
        assert re.match("(spool-admin top  )?(running|UNREADABLE)  ", title)
        assert all(len(line) <= width for line in figures)
        if width > 40:
            assert len(title) <= width
            assert "xx/shop" in title


def test_the_orders_of_the_command_are_those_of_the_figures() -> None:
    assert admin_top.SORTS == SORTABLE


def test_only_changed_lines_are_drawn_and_all_after_a_new_size() -> None:
    painter, state = Painter("utf-8"), seen(metrics())
    assert painter.paint(state).startswith(b"\x1b[2J")
    assert painter.paint(state) == b""
    assert painter.paint(pressed(state, "/")).count(b";1H") == 1
    assert painter.paint(pressed(state, "redraw")).startswith(b"\x1b[2J")
    assert painter.paint(resized(state, 81, 24)).startswith(b"\x1b[2J")


# -- one picture -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [["--once"], []])
def test_without_a_terminal_one_picture_is_printed(run: Run, path: Path, words: list[str]) -> None:
    with spool.open(path) as space:
        space.change_queue("orders", error_queue="errors")
        space.put("errors", b"x")
        done = run("top", *words)
    assert (done.code, done.err) == (0, "")
    assert "\x1b" not in done.text
    assert "! The error queue errors has 1 message." in done.text
    assert "every" not in done.text
    assert re.search(r"^! errors +errors +1 ", done.text, re.MULTILINE)
    assert re.search(r"^  orders +0 ", done.text, re.MULTILINE)


def test_one_picture_has_all_queues_with_whole_names_in_the_chosen_order(run: Run, path: Path) -> None:
    with spool.open(path) as space:
        for number in range(60):
            space.create_queue(f"{'q' * 100}{number:02}")
        done = run("top", "--once", "--sort", "queue")
    names = re.findall(r"^  (\w+) +0 ", done.text, re.MULTILINE)
    assert len(names) == 62
    assert names == sorted(names)


def test_one_picture_has_all_troubles() -> None:
    state = seen(metrics(queues={f"errors-{n}": queue_stats(ready=1) for n in range(9)}, roles={
        f"orders-{n}": spool.QueueRole(f"errors-{n}") for n in range(9)
    }))  # fmt: skip
    assert plain_picture(state).count("! The error queue") == 9
    assert "more: key r" not in plain_picture(state)


@pytest.mark.parametrize("words", ["metrics", "top --once", "top --once --json", "top"])
def test_a_closed_standard_output_is_one_line(path: Path, words: str) -> None:
    code = "from xaspool_scripts.start import admin; admin()"
    command = [sys.executable, "-c", code, "-s", str(path), *words.split()]
    done = subprocess.run(["sh", "-c", '"$@" >&-', "sh", *command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "spool-admin: standard output is closed\n")


@pytest.mark.parametrize("words", [["--once"], []])
def test_json_is_one_object_with_the_figures(run: Run, path: Path, words: list[str]) -> None:
    with spool.open(path) as space:
        space.put("orders", b"x")
        (found,) = run("top", *words, "--json").objects
    assert found["queues"]["orders"]["ready"] == 1
    assert found["roles"]["orders"]["error_queue"] is None
    assert all(isinstance(each["key"], list) and isinstance(each["value"], int) for each in found["counts"])
    assert found["space"] == str(path)


def test_published_metrics_are_shown_and_an_error_without_them(run: Run, path: Path) -> None:
    done = run("top", "--published", "--once")
    assert (done.code, done.out) == (1, b"")
    one_line(done, "publishes no metrics")


def test_wrong_usage_is_one_line(run: Run) -> None:
    assert run("top", "--sort", "nothing").code == run("top", "--interval", "0").code == 2


# -- on a terminal -----------------------------------------------------------------------------------------------------

DEADLINE_SECONDS = 20.0
_SEQUENCE = re.compile(r"\x1b\[(\?|)([\d;]*)([a-zA-Z])|([^\x1b]+)|(\x1b)")


class Screen:
    """The screen of a terminal, from the few sequences that the program writes. Another sequence is an error.

    columns: the width. After a full line, the cursor remains on the last column, and K clears that column.
    """

    def __init__(self) -> None:
        self.columns = 80
        self.lines: dict[int, str] = {}
        self.modes: set[str] = set()
        self.row = 1
        self.colours = False

    def feed(self, data: str) -> None:
        for is_mode, numbers, letter, text, other in _SEQUENCE.findall(data):
            assert not other, data
            if text:
                self.lines[self.row] = self.lines.get(self.row, "") + text
            elif is_mode:
                {"h": self.modes.add, "l": self.modes.discard}[letter](numbers)
            elif letter == "H":
                self.row = int(numbers.split(";")[0])
                self.lines[self.row] = ""
            elif letter == "J":
                self.lines = {}
            elif letter == "K":
                line = self.lines.get(self.row, "")
                self.lines[self.row] = line[:-1] if cell_len(line) >= self.columns else line
            else:
                assert letter == "m", data
                self.colours |= any(30 <= int(each) <= 49 for each in re.findall(r"\d+", numbers))

    @property
    def text(self) -> str:
        return "\n".join(line.rstrip() for _, line in sorted(self.lines.items()))


class Terminal:
    """``spool-admin top`` as the session of a pseudo-terminal."""

    def __init__(self, path: Path, *words: str, size: tuple[int, int] = (24, 80), **environment: str) -> None:
        self.ours, theirs = pty.openpty()
        self.theirs = os.dup(theirs)
        self.screen, self.raw, self._kept = Screen(), b"", ""
        self.resize(*size)
        self.before = termios.tcgetattr(self.theirs)
        code = "from xaspool_scripts.start import admin; admin()"
        command = [sys.executable, "-c", code, "-s", str(path), "top", "--interval", "0.1", *words]
        known = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
        self.process = subprocess.Popen(
            command, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
            env={**known, "TERM": "xterm-256color", "LC_ALL": "C.UTF-8", **environment},
        )  # fmt: skip
        os.close(theirs)

    def resize(self, lines: int, columns: int) -> None:
        fcntl.ioctl(self.theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.screen.columns = columns

    def send(self, keys: bytes) -> None:
        os.write(self.ours, keys)

    def read(self, seconds: float) -> None:
        """Read the output that arrives within this time."""
        if select.select([self.ours], [], [], seconds)[0]:
            try:
                data = os.read(self.ours, 65_536)
            except OSError:
                return  # the program has ended
            self.raw += data
            self._kept += data.decode("utf-8", "ignore")
            whole = self._kept.rfind("\x1b") if re.search(r"\x1b\[?[?\d;]*$", self._kept) else len(self._kept)
            self.screen.feed(self._kept[:whole])
            self._kept = self._kept[whole:]

    def until(self, is_so: Callable[[str], object]) -> str:
        """Read until the screen is as wanted; return its text."""
        end = time.monotonic() + DEADLINE_SECONDS
        while not is_so(self.screen.text):
            assert time.monotonic() < end, self.screen.text
            assert self.process.poll() is None, self.screen.text
            self.read(0.1)
        return self.screen.text

    def shows(self, *words: str) -> str:
        return self.until(lambda text: all(word in text for word in words))

    def end(self) -> int:
        """Read until the program has ended; return its exit code."""
        end = time.monotonic() + DEADLINE_SECONDS
        while self.process.poll() is None:
            assert time.monotonic() < end, self.screen.text
            self.read(0.05)
        while select.select([self.ours], [], [], 0)[0]:
            self.read(0)
        return self.process.returncode

    def check_restored(self) -> None:
        """The terminal is as before: its attributes, its screen, its cursor, and the wrapping of lines."""
        assert termios.tcgetattr(self.theirs) == self.before
        assert self.screen.modes == {"25", "7"}

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for handle in (self.ours, self.theirs):
            try:
                os.close(handle)
            except OSError:
                pass  # the test has closed it


@contextmanager
def terminal(path: Path, *words: str, **given: Any) -> Iterator[Terminal]:
    shown = Terminal(path, *words, **given)
    try:
        yield shown
    finally:
        shown.close()


@pytest.fixture
def busy(path: Path) -> Iterator[spool.Space]:
    """The space with a stuck error queue, a transaction that holds a message, and one in doubt."""
    with spool.open(path) as space:
        space.change_queue("orders", error_queue="errors")
        space.create_queue("replies")
        space.put_many("orders", [b"1", b"2", b"3"])
        space.put("errors", b"x")
        manager = xa.ResourceManager(space)
        xid = xa.Xid(7, b"gone", b"1")
        manager.start(xid)
        space.put("replies", b"x")
        manager.end(xid)
        manager.prepare(xid)
        held = space.transaction(timeout=None)
        held.get("orders")
        yield space
        held.rollback()


def test_a_view_of_a_space_and_its_keys(path: Path, busy: spool.Space) -> None:
    with terminal(path, size=(40, 100)) as shown:
        text = shown.shows("error queue errors has 1 message", "1 transaction in doubt", "orders")
        assert "1049" in shown.screen.modes
        assert text.index("! replies") < text.index("! errors") < text.index("  orders")
        assert re.search(r"^  orders +2 ", text, re.MULTILINE)
        assert len(text.splitlines()) == 40
        busy.put_many("orders", [b"x"] * 5)
        shown.until(lambda text: re.search(r"^  orders +7 ", text, re.MULTILINE))

        shown.send(b"/ord")
        shown.until(lambda text: "filter: ord" in text and "! errors" not in text)
        shown.send(b"\x1b")
        shown.shows("! errors")
        shown.send(b"N")
        shown.until(lambda text: "ready↓" in text and text.index("  orders") < text.index("! errors"))
        shown.send(b"\x1b[B\r")
        shown.shows("Queue errors", "is error queue of    orders")
        shown.send(b"\x1b")
        shown.shows("ready↓")
        shown.send(b"t")
        shown.shows("in doubt", "claimed", f"{os.getpid()} ")
        shown.send(b"\r")
        shown.shows("Transaction, in doubt", "spool-admin transaction commit")
        shown.send(b"r")
        shown.shows("Processes with the space open")
        shown.send(b"f")
        shown.shows("Outcomes of calls")
        shown.send(b"\x1bOP")
        shown.shows("change the interval")
        shown.send(b"q")
        assert shown.end() == 0
        shown.check_restored()


def test_the_last_column_is_whole(path: Path, busy: spool.Space) -> None:
    with terminal(path, size=(24, 80)) as shown:
        text = shown.shows("! replies", "orders")
        (heading,) = (line for line in text.splitlines() if line.startswith("  queue"))
        (row,) = (line for line in text.splitlines() if line.startswith("! replies"))
        assert heading.endswith(" doubt")
        assert row.endswith(" 1")
        assert len(heading) == len(row) == 80


def test_a_deleted_space_is_unreadable_and_the_last_figures_have_their_age(path: Path) -> None:
    with terminal(path, size=(24, 100)) as shown:
        shown.shows("orders", "running")
        shutil.rmtree(path)
        text = shown.until(lambda text: re.search("UNREADABLE  figures of [1-9] s ago", text))
        assert "cannot be read" in text
        assert "  orders" in text
        shown.send(b"q")
        assert shown.end() == 0
        shown.check_restored()


def test_a_pause_keeps_the_picture(path: Path, busy: spool.Space) -> None:
    with terminal(path, size=(40, 100)) as shown:
        shown.shows("orders")
        shown.send(b"p")
        shown.shows("PAUSED")
        busy.put("errors", b"y")
        shown.send(b"h")
        assert "has 1 message" in shown.shows("change the interval")
        shown.send(b"hp")
        shown.shows("errors has 2 messages")


def test_a_new_size_is_a_new_picture(path: Path) -> None:
    with terminal(path) as shown:
        shown.shows("orders", "doubt")
        shown.resize(10, 130)
        text = shown.shows("orders", "doubt", "delayed", "bytes")
        assert len(text.splitlines()) == 10
        shown.resize(5, 20)
        shown.until(lambda text: len(text.splitlines()) == 5 and max(map(len, text.splitlines())) <= 20)
        shown.send(b"\x1b[21~")
        assert shown.end() == 0
        shown.check_restored()


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 0), (signal.SIGHUP, 0), (signal.SIGINT, 130)], ids=["TERM", "HUP", "INT"]
)
def test_a_signal_restores_the_terminal(path: Path, number: signal.Signals, code: int) -> None:
    with terminal(path) as shown:
        shown.shows("orders")
        assert termios.tcgetattr(shown.theirs) != shown.before
        shown.process.send_signal(number)
        assert shown.end() == code
        shown.check_restored()


def test_ctrl_c_restores_the_terminal(path: Path) -> None:
    with terminal(path) as shown:
        shown.shows("orders")
        shown.send(b"\x03")
        assert shown.end() == 130
        shown.check_restored()


def test_a_closed_terminal_ends_the_program(path: Path) -> None:
    with terminal(path) as shown:
        shown.shows("orders")
        os.close(shown.ours)
        os.close(shown.theirs)
        assert shown.process.wait(DEADLINE_SECONDS) in (0, -signal.SIGHUP)


def test_a_terminal_that_takes_no_output_does_not_keep_the_program(path: Path) -> None:
    with spool.open(path) as space:
        for number in range(200):
            space.create_queue(f"more-{number}")
    with terminal(path, size=(200, 500)) as shown:
        shown.until(lambda text: len(text.splitlines()) == 200)
        shown.send(b"\x0c")  # a picture that nobody reads, and that no buffer of a terminal holds
        assert select.select([shown.ours], [], [], DEADLINE_SECONDS)[0]
        shown.process.send_signal(signal.SIGTERM)
        assert shown.process.wait(DEADLINE_SECONDS) == 0
        assert termios.tcgetattr(shown.theirs) == shown.before


def test_ctrl_z_gives_the_terminal_back_until_the_program_goes_on(path: Path) -> None:
    with terminal(path) as shown:
        shown.shows("orders")
        shown.process.send_signal(signal.SIGTSTP)
        end = time.monotonic() + DEADLINE_SECONDS
        # Without a shell, the process group is an orphan, and the kernel does not stop it: it goes on at once.
        while shown.raw.count(b"\x1b[?1049h") < 2:
            assert time.monotonic() < end
            shown.read(0.1)
        assert shown.raw.count(b"\x1b[?1049l") == 1
        shown.shows("orders")
        shown.send(b"q")
        assert shown.end() == 0
        shown.check_restored()


def test_a_bug_restores_the_terminal_and_is_one_line(path: Path) -> None:
    with terminal(path) as shown:
        code = (
            "import xaspool_scripts.top_model as model; from xaspool_scripts.start import admin\n"
            "def broken(*_): raise ZeroDivisionError('division by zero')\n"
            "model.pressed = broken\nadmin()"
        )
        shown.process.kill()
        shown.end()
        theirs = os.dup(shown.theirs)
        command = [sys.executable, "-c", code, "-s", str(path), "top"]
        shown.before = termios.tcgetattr(shown.theirs)
        shown.process = subprocess.Popen(
            command, stdin=theirs, stdout=theirs, stderr=theirs, env={**os.environ, "TERM": "xterm"}
        )
        os.close(theirs)
        shown.screen.modes = {"25", "7"}
        termios.tcsetattr(shown.theirs, termios.TCSANOW, shown.before)
        shown.shows("orders")
        shown.send(b"j")
        assert shown.end() == 1
        assert termios.tcgetattr(shown.theirs) == shown.before
        assert "1049" not in shown.screen.modes
        assert b"please report" in shown.raw


@pytest.mark.parametrize("colour", [True, False])
def test_no_color_is_honoured_and_troubles_have_signs(path: Path, busy: spool.Space, colour: bool) -> None:
    with terminal(path, **({} if colour else {"NO_COLOR": "1"})) as shown:
        shown.shows("! errors")
        assert shown.screen.colours is colour


def test_a_hostile_space_controls_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    evil = "\x1b[31m\x1b]0;owned\x07\x9b2J\u202e[red]"
    path = tmp_path / f"space {evil}\n"
    monkeypatch.setattr(sys, "argv", [f"{evil}worker"])
    with spool.create(path) as space:
        space.create_queue("orders")
        space.put_many("orders", [b"1", b"2"])
        (path / "quarantine" / f"{evil}.json").touch()
        for state in ("route", "route_down"):
            space._store.meters.change(state, "orders", f"http://{evil}", by=1)
        space._store.meters.add("outcomes", evil, "orders", evil)
        with space.transaction() as held:
            held.get("orders")
            with terminal(path, size=(40, 120)) as shown:
                shown.shows("orders", "route down", "\\x1b[31m")
                for key, word in (
                    (b"t", "claimed"),
                    (b"\r", "program"),
                    (b"f", "DOWN"),
                    (b"r", "json"),
                    (b"h", "quit"),
                ):
                    shown.send(key)
                    shown.shows(word)
                shown.send(b"q")
                assert shown.end() == 0
                shown.check_restored()
            for injected in (b"\x1b[31m\x1b]", b"\x1b]0;", b"\x07", b"\xc2\x9b", "\u202e".encode()):
                assert injected not in shown.raw
            assert b"[red]" in shown.raw


def test_a_space_that_stops_is_said_and_the_view_goes_on(path: Path) -> None:
    with spool.open(path) as space, terminal(path, size=(24, 120)) as shown:
        shown.shows("orders", "running")
        space._store.shared.counters.stop()
        shown.until(lambda text: "STOPPED" in text or "cannot be read" in text)
        shown.send(b"h")
        shown.shows("change the interval")
        shown.send(b"q")
        assert shown.end() == 0
        shown.check_restored()


def test_missing_published_metrics_are_said_and_the_view_goes_on(path: Path) -> None:
    with terminal(path, "--published", size=(24, 120)) as shown:
        shown.shows("cannot be read", "set monitor_group")
        shown.send(b"q")
        assert shown.end() == 0
        shown.check_restored()


def test_published_metrics_are_shown_with_their_age(path: Path) -> None:
    group = grp.getgrgid(os.getgid()).gr_name
    with spool.open(path) as space:
        space.put_many("orders", [b"x"] * 3)
        publish(space._store.files.disk, replace(space.metrics(), at=time.time() - 60), group)
    with terminal(path, "--published", size=(24, 120)) as shown:
        text = shown.shows("published", "The published metrics are 1 min old")
        assert re.search(r"^  orders +3 ", text, re.MULTILINE)


def test_a_dumb_terminal_gets_one_picture(path: Path) -> None:
    with terminal(path, TERM="dumb") as shown:
        assert shown.end() == 0
        assert b"\x1b" not in shown.raw
        assert b"orders" in shown.raw


def test_output_to_a_pipe_is_one_picture(path: Path) -> None:
    done = execute("spool-admin", "-s", path, "top")
    assert (done.code, done.err) == (0, "")
    assert "orders" in done.text
    assert json.loads(execute("spool-admin", "-s", path, "top", "--once", "--json").text)["space"] == str(path)
