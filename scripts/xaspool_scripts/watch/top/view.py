"""The picture of ``spool-admin top``: the lines of header, view and keys, as texts of rich.

Each text has only printable characters, and rich interprets no markup in the text, so a name cannot change the picture.
Each problem has a sign and a word in addition to its colour. Only the visible rows are written.
"""

import io
import os
import time

from rich.console import Console
from rich.text import Text

from spool.watch.histograms import Histogram
from spool.watch.units import size
from xaspool_scripts.terminal.wording import plural
from xaspool_scripts.watch.top.details import HEADING, WARNING
from xaspool_scripts.watch.top.model import FILTER, Model, body_height, page, shown_findings
from xaspool_scripts.watch.top.queue_rows import COLUMNS, NAME, RATE, Column, TopRow, quantiles, total_rates
from xaspool_scripts.watch.top.texts import cut, fit, milliseconds, number, old, rate

_TITLE, _SELECTED, _DIM = "bold underline", "reverse", "dim"
_PROGRAM = "spool-admin top  "
_WIDE, _NARROW = 70, 60  # columns: narrower terminals lack the interval, and then the program's name
_SHORTEST_NAME = 12
_LEAST_NAME = 4  # the columns of a name if a very narrow terminal shows only one other column
_GAP = 1
# The columns in the order of importance: a narrow terminal omits the last columns first.
_IMPORTANCE = ("ready", "trouble", "age", "in/s", "out/s", "doubt", "fail/s", "claimed", "delayed", "bytes")
_KEYS = "h help  / filter  <> sort  enter details  p pause  q quit"


def picture(state: Model) -> list[Text]:
    """Return one line for each line of the terminal."""
    lines = [*header(state), *(_queues(state) if state.is_list else _page(state))]
    lines += [Text()] * (state.height - 1 - len(lines))
    return [*lines[: state.height - 1], _last_line(state)]


def plain_picture(state: Model) -> str:
    """Return the header, all troubles and all queues as plain text."""
    widest = max((len(row.name) for row in state.rows), default=_SHORTEST_NAME)
    width = sum(_GAP + column.width for column in COLUMNS) + 2 + max(_SHORTEST_NAME, widest)
    rows = [_row(row, COLUMNS, width, "") for row in state.rows]
    wide = [*header(state, is_live=False), _heading(state, COLUMNS, width), *rows]
    return "".join(f"{line.plain.rstrip()}\n" for line in wide)


# -- the header --------------------------------------------------------------------------------------------------------


def header(state: Model, *, is_live: bool = True) -> list[Text]:
    """Return three lines of figures, and the troubles in words. Return all troubles unless ``is_live``."""
    said = shown_findings(state) if is_live else state.findings
    troubles = [Text(cut(f"! {text}", state.width), WARNING) for text in said]
    return [_title(state, is_live), *_figures(state), *troubles]


def _title(state: Model, is_live: bool) -> Text:
    """Return the space's state and path. A narrow terminal cuts the path, and then the end of the line."""
    begin = "" if state.width < _NARROW else _PROGRAM
    path = state.sample.metrics.space if state.sample is not None else ""
    standing, is_broken = _standing(state)
    end = f"  every {state.interval:.3g} s" if is_live and state.width >= _WIDE else ""
    end += "  published" if state.is_published else ""
    middle = ("  PAUSED" if state.is_paused else "") + _time(state)
    room = max(_SHORTEST_NAME, state.width - len(f"{begin}{standing}{middle}  {end}"))
    path = path if len(path) <= room else f"…{path[1 - room :]}"
    return Text.assemble(
        (begin, _DIM), (standing, WARNING if is_broken else ""), middle, "  ", (cut(path, room), HEADING), end
    )


def _standing(state: Model) -> tuple[str, bool]:
    """Return the space's state in one word, and whether a person has to act."""
    if state.error:
        return "UNREADABLE", True
    if state.sample is None:
        return "no figures yet", False
    return ("STOPPED", True) if state.sample.metrics.is_stopped else ("running", False)


def _time(state: Model) -> str:
    """Return the time of the figures, or the age of the figures if it is unusual or no newer figures can be read."""
    if state.sample is None:
        return ""
    at = state.sample.metrics.at
    if state.error or state.now - at > 2 * state.interval + 1:
        return f"  figures of {old(state.now - at)} ago"
    return time.strftime("  %H:%M:%S", time.localtime(at))


def _figures(state: Model) -> list[Text]:
    if state.sample is None:
        return [Text(), Text()]
    metrics, total = state.sample.metrics, total_rates(state.rates)
    every = metrics.queues.values()
    in_doubt = sum(each.in_doubt for each in every)
    counts = [
        f"ready {number(sum(each.ready for each in every))}",
        f"claimed {number(sum(each.claimed for each in every))}",
        f"in doubt {number(in_doubt)} {'message' if in_doubt == 1 else 'messages'}",
        f"failed ever {number(sum(each.failed for each in every))}",
        f"free {size(metrics.free_bytes)}",
        plural(len(metrics.queues), "queue"),
        plural(len(metrics.processes), "process", "processes"),
    ]
    speeds = [f"put/s {rate(total.enqueued)}", f"get/s {rate(total.dequeued)}", f"fail/s {rate(total.failed)}"]
    for label in ("commit", "flush"):
        now, before = (each.get((f"{label}_seconds",), Histogram()) for each in (state.history[-1], state.history[0]))
        speeds.append(f"{label} {milliseconds(*quantiles(now, before))}")
    speeds.append("(p50/p99)")
    return [Text(_joined(counts, state.width)), Text(_joined(speeds, state.width))]


def _joined(parts: list[str], width: int) -> str:
    """Return the first parts that fit into the width."""
    line = parts[0]
    for part in parts[1:]:
        if len(line) + 2 + len(part) > width:
            break
        line += f"  {part}"
    return line


# -- the queues --------------------------------------------------------------------------------------------------------


def _visible_columns(width: int) -> tuple[Column, ...]:
    """Return the columns that fit. First the name is narrowed, then the least important columns are omitted."""
    columns = list(COLUMNS)
    for least in reversed(_IMPORTANCE):
        shortest = _SHORTEST_NAME if len(columns) > 1 else _LEAST_NAME
        if 2 + shortest + sum(_GAP + each.width for each in columns) <= width:
            break
        columns = [each for each in columns if each.name != least]
    return tuple(columns)


def _queues(state: Model) -> list[Text]:
    columns, height = _visible_columns(state.width), body_height(state)
    first = max(0, min(state.cursor - height // 2, len(state.rows) - height))
    lines = [_heading(state, columns, state.width)]
    for place, row in enumerate(state.rows[first : first + height], first):
        lines.append(_row(row, columns, state.width, _SELECTED if place == state.cursor else ""))
    if not state.rows:
        lines.append(Text(_no_rows(state), _DIM))
    return lines


def _no_rows(state: Model) -> str:
    if state.sample is None:
        return "  no figures yet" if state.error else "  reading the space"
    return "  no queue has this text in its name" if state.filter else "  the space has no queues"


def _heading(state: Model, columns: tuple[Column, ...], width: int) -> Text:
    """Return the names of the columns. A sign marks the column by which the rows are sorted."""
    sign = "↑" if state.is_reversed else "↓"

    def title(column: Column) -> str:
        is_marked = state.sort == column.name or (state.sort == RATE.name and column.name in ("in/s", "out/s"))
        return f"{column.name}{sign}" if is_marked else column.name

    name = fit(title(NAME), _name_width(columns, width))
    cells = [fit(title(each), each.width, right=each.name != "trouble") for each in columns]
    return Text(" ".join([f"  {name}", *cells]), _TITLE)


def _name_width(columns: tuple[Column, ...], width: int) -> int:
    return max(1, width - 2 - sum(_GAP + each.width for each in columns))


def _row(row: TopRow, columns: tuple[Column, ...], width: int, style: str) -> Text:
    name = fit(row.name, _name_width(columns, width))
    cells = [fit(each.text(row), each.width, right=each.name != "trouble") for each in columns]
    text = Text(" ".join([f"{'!' if row.troubles else ' '} {name}", *cells]), style)
    if row.troubles and not style:
        word = _GAP + COLUMNS[0].width if COLUMNS[0] in columns else 0
        text.stylize(WARNING, 0, 2 + len(name) + word)
    return text


# -- the other views ---------------------------------------------------------------------------------------------------


def _page(state: Model) -> list[Text]:
    every, first = page(state), state.place
    shown = every[first : first + body_height(state)]
    for line in shown:
        line.truncate(state.width, overflow="ellipsis")
    last = first + len(shown)
    more = f"  ({last} of {len(every)} lines)" if last < len(every) or first else ""
    return [Text(fit(("help" if state.is_help else "queue") + more, state.width), _TITLE), *shown]


def _last_line(state: Model) -> Text:
    if state.prompt:
        hint = "enter keeps, escape shows all" if state.prompt == FILTER else "enter changes, escape cancels"
        return Text(f"{state.prompt}: {state.typed}_   ({hint})", HEADING)
    if state.remark:
        return Text(state.remark, WARNING)
    begin = "" if state.is_list else "esc back  "
    if state.is_list and state.filter:
        begin = f"filter {state.filter}: {len(state.rows):,} of {len(state.every):,} queues  "
    return Text.assemble((begin, HEADING), (_KEYS, _DIM))


# -- bytes for the terminal --------------------------------------------------------------------------------------------


class Painter:
    """Turns pictures into bytes for the terminal. A line that has not changed is not drawn again."""

    def __init__(self, encoding: str) -> None:
        self._console = Console(
            file=io.StringIO(), force_terminal=True, markup=False, emoji=False, highlight=False, legacy_windows=False,
            no_color="NO_COLOR" in os.environ,
        )  # fmt: skip
        self._encoding = encoding
        self._drawn: list[Text] = []
        self._basis: tuple[int, ...] = ()

    def paint(self, state: Model) -> bytes:
        lines, basis = picture(state), (state.width, state.height, state.redraws)
        if basis != self._basis:
            self._drawn, self._basis = [], basis
        out = [] if self._drawn else ["\x1b[2J"]
        for place, line in enumerate(lines):
            if place >= len(self._drawn) or line != self._drawn[place]:
                # Clear the line before the write, because clearing it afterwards would erase the last column of a full
                # line.
                out.append(f"\x1b[{place + 1};1H\x1b[K{self._styled(line, state.width)}\x1b[0m")
        self._drawn = lines
        return "".join(out).encode(self._encoding, "replace")

    def _styled(self, line: Text, width: int) -> str:
        line = line.copy()
        line.truncate(width, overflow="crop")
        with self._console.capture() as captured:
            self._console.print(line, end="", soft_wrap=True)
        return captured.get()
