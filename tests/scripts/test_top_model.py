"""X13: the figures, states, keys and pictures of ``spool-admin top``, without a terminal."""

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

import spool
from spool.watch.histograms import Histogram, histograms
from tests.scripts.top_samples import HOSTILE, hostile, seen, texts, typed
from tests.watch.samples import NOW, metrics, queue_stats, transaction
from xaspool_scripts.watch.top import command, keys
from xaspool_scripts.watch.top.keys import Decoder
from xaspool_scripts.watch.top.model import FILTER, Model, body_height, failed, page, pressed, resized
from xaspool_scripts.watch.top.queue_rows import SORTABLE, Sample, findings, make_rows, ordered, quantiles, queue_rates
from xaspool_scripts.watch.top.texts import cut, fit, number, rate
from xaspool_scripts.watch.top.view import Painter, picture, plain_picture

# -- figures -----------------------------------------------------------------------------------------------------------


def test_rates_are_differences_of_two_samples_by_their_time() -> None:
    old = Sample(metrics(queues={"orders": queue_stats(enqueued=100, dequeued=50, failed=4)}), 10.0)
    new = Sample(
        metrics(queues={"orders": queue_stats(enqueued=150, dequeued=70, failed=5), "new": queue_stats()}), 20.0
    )
    rates = queue_rates(new, old)
    assert rates["orders"] == (5.0, 2.0, 0.1)
    assert "new" not in rates
    assert queue_rates(new, None) == queue_rates(new, new) == {}


def test_a_queue_that_was_created_again_has_no_negative_rate() -> None:
    old = Sample(metrics(queues={"orders": queue_stats(enqueued=100)}), 10.0)
    new = Sample(metrics(queues={"orders": queue_stats(enqueued=1)}), 20.0)
    assert queue_rates(new, old)["orders"].enqueued == 0


def test_the_same_published_snapshot_keeps_the_rates() -> None:
    state = seen(metrics(queues={"orders": queue_stats(enqueued=0)}), moment=1.0)
    later = metrics(queues={"orders": queue_stats(enqueued=10)})
    state = seen(later, state, moment=3.0)
    assert state.rates["orders"].enqueued == 5
    assert seen(later, state, moment=3.0).rates == state.rates


def test_latencies_are_those_since_the_oldest_sample_and_all_if_nothing_happened_since() -> None:
    def counted(**numbers: int) -> Histogram:
        labels = {"half": "0.0005", "five": "0.005", "inf": "inf", "total": "total"}
        counts = {("flush_seconds", labels[name]): number for name, number in numbers.items()}
        return histograms(counts)["flush_seconds",]

    before = counted(half=1_000, total=10**9)
    assert quantiles(before, before) == (0.0005, 0.0005)
    assert quantiles(counted(half=1_000, five=99, inf=1, total=10**12), before) == (0.005, 0.005)
    assert quantiles(counted(half=1_000, five=90, inf=10), before) == (0.005, float("inf"))
    assert quantiles(Histogram(), Histogram()) == (None, None)


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
        is_stopped=True, damaged=1, quarantined=3, in_doubt=1, free_bytes=10, at=NOW - 60,
        queues={"errors": queue_stats(ready=2), "orders": queue_stats(bytes=100)},
        decisions={"7.aa.bb": "committed"},
    )  # fmt: skip
    said = findings(found, {}, NOW)
    assert "1 damaged file in quarantine had acknowledged messages: spool-admin quarantine list" in said
    assert "1 transaction is in doubt: spool-admin transaction list" in said
    shown = texts(seen(found, Model(width=200, height=40)))
    assert "STOPPED" in shown[0]
    assert [line.removeprefix("! ") for line in shown[3 : 3 + len(said)]] == said
    low = texts(seen(found, Model(width=200, height=14)))
    assert low[5].endswith(f"And {len(said) - 3} more: see top --once.")
    assert findings(metrics(), {}, NOW) == []


def test_an_error_of_the_space_is_shown_with_the_last_figures() -> None:
    state = failed(seen(metrics()), "the space has stopped", NOW + 60)
    shown = texts(state)
    assert "cannot be read: the space has stopped" in shown[3]
    assert shown[0].startswith("spool-admin top  UNREADABLE  figures of 1 min ago  /var/spool/shop")
    assert any("orders" in line for line in shown)
    assert "cannot be read" not in "".join(texts(seen(metrics(), state, moment=2.0)))
    assert texts(resized(state, 20, 24))[0].startswith("UNREADABLE  ")
    assert "running" in texts(seen(metrics(), state, 3.0))[0]
    nothing = texts(failed(Model(), "no published metrics", NOW))
    assert nothing[0].startswith("spool-admin top  UNREADABLE")
    assert "cannot be read" in nothing[3]


def test_the_header_counts_messages_in_doubt_and_failures() -> None:
    shown = texts(seen(metrics(queues={"orders": queue_stats(in_doubt=4, failed=5)})))
    assert "in doubt 4 messages  failed ever 5  free 1.0 TB" in shown[1]
    assert "in doubt 1 message  " in texts(seen(metrics(queues={"orders": queue_stats(in_doubt=1)})))[1]


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0, "0"), (99_999, "99,999"), (100_000, "100k"), (1_234_567, "1.2M"), (10**30, "1000000000000E")],
)
def test_numbers_are_short(value: int, shown: str) -> None:
    assert number(value) == shown


def test_rates_have_their_forms() -> None:
    assert [rate(each) for each in (None, 0.0, 0.04, 1.26, 12.6)] == ["-", "0", "<0.1", "1.3", "13"]


# -- hostile texts -----------------------------------------------------------------------------------------------------


@given(st.text(max_size=80), st.integers(1, 40))
def test_a_text_is_cut_to_its_columns_and_printable(text: str, width: int) -> None:
    for shown in (cut(text, width), fit(text, width)):
        assert shown.isprintable()
        assert cell_len(shown) <= width
    assert cell_len(fit(text, width)) == width


def test_characters_without_a_width_do_not_make_a_long_text() -> None:
    assert len(cut("a" + "\u0301" * 10**6, 10)) < 200


@pytest.mark.parametrize("width", [20, 80, 200])
def test_hostile_values_are_printable_and_cut_in_every_view(width: int) -> None:
    found = hostile()
    state = resized(seen(found, seen(found), moment=2.0), width, 60)
    views = [typed(state, *keys) for keys in ((), ("enter",), ("down", "enter"), ("h",))]
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
        (b"q/\xff\xc3\xa9j", ["q", "/", "j"]), (b"\r\n\x7f\x08\t\x0c", ["enter"] * 2 + ["backspace"] * 2 + ["redraw"]),
        (b"\x1b[A\x1b[B\x1bOA\x1bOB", ["up", "down", "up", "down"]), (b"\x1b[5~\x1b[6~", ["page up", "page down"]),
        (b"\x1b[H\x1b[F\x1b[1~\x1b[4~\x1bOH", ["home", "end", "home", "end", "home"]),
        (b"\x1bOP\x1b[11~\x1b[[A", ["f1"] * 3), (b"\x1bOS\x1b[14~\x1b[[D", ["f4"] * 3),
        (b"\x1b[17~\x1b[21~", ["f6", "f10"]), (b"\x1b\x1bq\x1bq", ["escape", "q"]),
        (b"\x1b[200~\x1b[<0;1;1M\x1b[9;9;9z\x00\x1b[12\x1b[A", ["up"]),
    ],
)  # fmt: skip
def test_keys_are_decoded_also_byte_by_byte(sent: bytes, keys: list[str]) -> None:
    assert Decoder().feed(sent) == keys
    decoder = Decoder()
    assert [key for byte in sent for key in decoder.feed(bytes((byte,)))] == keys


def test_escape_is_a_key_if_nothing_follows() -> None:
    decoder = Decoder()
    assert (decoder.feed(b"\x1b"), decoder.is_waiting) == ([], True)
    assert (decoder.finish(), decoder.is_waiting) == (["escape"], False)
    assert (decoder.feed(b"\x1b["), decoder.finish()) == ([], [])


@given(st.lists(st.binary(max_size=50) | st.sampled_from([b"\x1b", b"\x1b[", b"\x1bO", b"\xc3", b"~"]), max_size=20))
def test_any_bytes_are_decoded_without_an_error(pieces: list[bytes]) -> None:
    decoder = Decoder()
    for piece in pieces:
        for key in decoder.feed(piece):
            assert len(key) == 1 or key in NAMED, key
            assert key.isprintable()
    assert set(decoder.finish()) <= {"escape"}


NAMED = {value for name, value in vars(keys).items() if name.isupper() and isinstance(value, str)}
NAMED |= {"f1", "f4", "f6", "f10"}
KEYS = st.sampled_from(sorted({*NAMED, *"qhpsdINARFCDB!/<>kj? 0123456789."}))


def samples() -> list[spool.SpaceMetrics]:
    many = {f"q{n}": queue_stats(ready=n, oldest_age=float(n)) for n in range(50)}
    return [metrics(), metrics(queues={}), metrics(queues=many, transactions=(transaction(),) * 30), hostile()]


# Views, moves and filters are frequent, because most errors need several of them.
FREQUENT = st.sampled_from(["h", "f6", "/", "enter", "escape", "end", "down", "down", "page down", "1"])
STEPS = st.lists(
    FREQUENT | FREQUENT | KEYS | st.sampled_from(samples()) | st.tuples(st.integers(0, 200), st.integers(0, 60))
    | st.just(OSError("gone")),
    min_size=10, max_size=50,
)  # fmt: skip


@settings(max_examples=70, deadline=None)
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


def check_valid(state: Model) -> None:
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
    assert (state.prompt, state.is_ended, state.rows) == (FILTER, False, ())
    state = typed(state, "backspace", "enter")
    assert [row.name for row in state.rows] == ["errors", "orders"]
    state = typed(state, "f4", "backspace", "backspace", "o", "r", "d", "enter")
    assert [row.name for row in state.rows] == ["orders"]
    assert "filter ord: 1 of 2 queues" in texts(state)[-1]
    assert len(typed(state, "escape").rows) == 2
    assert len(typed(state, "/", "escape").rows) == 2


def test_the_order_is_chosen_by_keys() -> None:
    state = seen(metrics())
    assert [typed(state, key).sort for key in "!NARFCDB"] == [
        "trouble", "ready", "age", "rate", "fail/s", "claimed", "doubt", "bytes",
    ]  # fmt: skip
    assert (typed(state, ">").sort, typed(state, "<").sort) == (SORTABLE[1], SORTABLE[-1])
    assert typed(state, "f6").sort == SORTABLE[1]
    assert typed(state, "I").is_reversed
    assert not typed(state, "I", "A").is_reversed


def test_an_interval_is_typed_and_checked() -> None:
    state = seen(metrics())
    assert typed(state, "s", "0", ".", "5", "enter").interval == 0.5
    assert typed(state, "d", "9", "escape").interval == state.interval
    for wrong in ("0", "nan", "1e9", "x", "-1"):
        after = typed(state, "s", *wrong, "enter")
        assert after.interval == state.interval
        assert "0.1 to 3,600 seconds" in texts(after)[-1]


def test_views_open_and_return() -> None:
    state = seen(metrics())
    assert [typed(state, *keys).is_help for keys in ("h", "?", ("f1", "h"))] == [True, True, False]
    assert typed(state, "enter", "h", "escape").opened == "errors"
    assert typed(state, "enter", "escape").is_list
    gone = seen(metrics(queues={}), typed(state, "enter"), 2.0)
    assert "does not exist any more" in "\n".join(texts(gone))
    for key in ("q", "f10"):
        assert typed(state, "enter", key).is_ended


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
    assert texts(resized(seen(replace(found, is_stopped=True)), 20, 10))[0].startswith("STOPPED  ")


@pytest.mark.parametrize("width", [20, 40, 80, 120, 200])
def test_the_state_is_before_the_path_and_the_header_fits(width: int) -> None:
    found = metrics(space=f"/{'x' * 300}/shop")
    for one in (seen(found), failed(seen(found), "gone", NOW + 100), typed(seen(found, Model(is_published=True)), "p")):
        title, *figures = texts(resized(one, width, 24))[:3]
        assert re.match("(spool-admin top  )?(running|UNREADABLE)  ", title)
        assert all(len(line) <= width for line in figures)
        if width > 40:
            assert len(title) <= width
            assert "xx/shop" in title


def test_the_orders_of_the_command_are_those_of_the_figures() -> None:
    assert command.SORTS == SORTABLE


def test_only_changed_lines_are_drawn_and_all_after_a_new_size() -> None:
    painter, state = Painter("utf-8"), seen(metrics())
    assert painter.paint(state).startswith(b"\x1b[2J")
    assert painter.paint(state) == b""
    assert painter.paint(pressed(state, "/")).count(b";1H") == 1
    assert painter.paint(pressed(state, "redraw")).startswith(b"\x1b[2J")
    assert painter.paint(resized(state, 81, 24)).startswith(b"\x1b[2J")
