"""The state of ``spool-admin top``, and its changes by keys, samples and sizes. No clock and no terminal are used.

Each function returns a new state. The rows are sorted when a sample, the order or the filter changes, and not for each
picture.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from rich.cells import chop_cells
from rich.text import Text

from spool.watch.health import Rates
from spool.watch.histograms import Histogram, Key, histograms
from xaspool_scripts.watch.top import keys
from xaspool_scripts.watch.top.details import HELP, WARNING, queue_page
from xaspool_scripts.watch.top.queue_rows import SORTABLE, Sample, TopRow, findings, make_rows, ordered, queue_rates
from xaspool_scripts.watch.top.texts import clean

SHORTEST_SECONDS, LONGEST_SECONDS = 0.1, 3_600.0
FILTER, INTERVAL = "filter", "interval in seconds"  # the texts that a user can type
_MOST_TYPED = 64
_HISTORY = 30  # the number of samples from which latencies are computed
_MOST_FINDINGS = 10  # the most findings that the header shows
_MOST_ERROR_LINES = 2
_FIXED_LINES = 5  # three header lines, the heading of the list, and the last line
_SORT_KEYS = {
    "!": "trouble", "N": "ready", "A": "age", "R": "rate", "F": "fail/s", "C": "claimed", "D": "doubt", "B": "bytes",
}  # fmt: skip


@dataclass(frozen=True)
class Model:
    """The data on which a picture depends.

    sample: the last sample. rates, rows, findings: computed from the last two samples. ``rows`` has the filtered queues
        in their order; ``every`` has all queues by name.
    history: the histograms of the last samples, the oldest first.
    now: the time of the picture, in seconds since the epoch.
    error: the reason why the last read failed. warning: the last warning of the engine.
    prompt: FILTER, INTERVAL or "". typed: the text so far. remark: the reason why the text was refused.
    selected: the name of the selected queue; None means the queue that is first at the time.
    cursor: the index of the selected queue.
    opened: the name of the queue whose details are shown, or "". is_help: whether the keys are shown.
    place: the first visible line of the details or the keys.
    """

    width: int = 80
    height: int = 24
    interval: float = 2.0
    is_published: bool = False
    sample: Sample | None = None
    rates: dict[str, Rates] = field(default_factory=dict)
    every: dict[str, TopRow] = field(default_factory=dict)
    rows: tuple[TopRow, ...] = ()
    findings: tuple[str, ...] = ()
    history: tuple[Mapping[Key, Histogram], ...] = ()
    now: float = 0.0
    error: str = ""
    warning: str = ""
    sort: str = SORTABLE[0]
    is_reversed: bool = False
    filter: str = ""
    prompt: str = ""
    typed: str = ""
    remark: str = ""
    selected: str | None = None
    cursor: int = 0
    opened: str = ""
    is_help: bool = False
    place: int = 0
    is_paused: bool = False
    is_ended: bool = False
    redraws: int = 0

    @property
    def is_list(self) -> bool:
        return not (self.opened or self.is_help)


# -- samples, sizes, errors --------------------------------------------------------------------------------------------


def sampled(state: Model, sample: Sample, now: float) -> Model:
    """Return the state with a new sample. If a published snapshot has not changed, the rates are kept."""
    is_same = state.sample is not None and sample.moment <= state.sample.moment
    rates = state.rates if is_same else queue_rates(sample, state.sample)
    rows = make_rows(sample.metrics, rates)
    return _ordered(
        replace(
            state,
            sample=sample,
            rates=rates,
            every={row.name: row for row in rows},
            findings=tuple(findings(sample.metrics, rates, now)),
            history=state.history if is_same else (*state.history, histograms(sample.metrics.counts))[-_HISTORY:],
            now=now,
            error="",
        )
    )


def failed(state: Model, error: str, now: float) -> Model:
    """Return the state after a failed read. The figures of the last sample remain."""
    return _clamped(replace(state, error=error, now=now))


def resized(state: Model, width: int, height: int) -> Model:
    return _clamped(replace(state, width=max(1, width), height=max(1, height)))


def _ordered(state: Model) -> Model:
    """Filter and sort the rows again."""
    wanted = state.filter.lower()
    kept = [row for row in state.every.values() if wanted in row.name.lower()]
    return _clamped(replace(state, rows=tuple(ordered(kept, state.sort, is_reversed=state.is_reversed))))


def _clamped(state: Model) -> Model:
    """Return the state with selection and place moved into their lists. A selected queue remains selected."""
    cursor = 0
    if state.selected is not None:
        names = [row.name for row in state.rows]
        cursor = names.index(state.selected) if state.selected in names else min(state.cursor, len(names) - 1)
    last_place = 0 if state.is_list else len(page(state)) - body_height(state)
    return replace(state, cursor=max(0, cursor), place=max(0, min(state.place, last_place)))


# -- contents ----------------------------------------------------------------------------------------------------------


def shown_findings(state: Model) -> list[str]:
    """Return the sentences of the header, with read errors first, and with at most a third of the picture's lines."""
    every = [*_error(state)[:_MOST_ERROR_LINES], *state.findings]
    every += [f"Warning: {state.warning}"] if state.warning else []
    most = max(1, min(_MOST_FINDINGS, (state.height - _FIXED_LINES) // 3))
    if len(every) > most:
        return [*every[: most - 1], f"{every[most - 1]} And {len(every) - most} more: see top --once."]
    return every


def _error(state: Model) -> list[str]:
    """Return the error of the last read as several lines, because the text may begin with a long path."""
    text = clean(f"The space cannot be read: {state.error}")
    return chop_cells(text, max(20, state.width - 2)) if state.error else []


def body_height(state: Model) -> int:
    """Return the number of lines between the header and the last line, without the heading of a list."""
    return max(1, state.height - _FIXED_LINES - len(shown_findings(state)))


def page(state: Model) -> list[Text]:
    """Return all lines of the keys or of the details."""
    if state.is_help:
        return [Text(line) for line in HELP.splitlines()]
    if state.sample is None:
        return [Text(part, WARNING) for part in _error(state)]
    return queue_page(state.sample.metrics, state.every, state.opened, state.now)


# -- keys --------------------------------------------------------------------------------------------------------------


def pressed(state: Model, key: str) -> Model:
    """Return the state after a key. A key without a meaning changes nothing."""
    state = replace(state, remark="")
    if key == "f10":
        return replace(state, is_ended=True)
    if state.prompt:
        return _typed(state, key)
    if key in _MOVES:
        return _moved(state, key)
    if key in _SORT_KEYS:
        return _sorted_by(state, _SORT_KEYS[key])
    act = _ACTIONS.get(key)
    return act(state) if act is not None else state


def _sorted_by(state: Model, sort: str) -> Model:
    return _ordered(replace(state, sort=sort, is_reversed=False))


def _next_sort(state: Model, step: int) -> Model:
    return _sorted_by(state, SORTABLE[(SORTABLE.index(state.sort) + step) % len(SORTABLE)])


def _help(state: Model) -> Model:
    return _clamped(replace(state, is_help=not state.is_help, place=0))


def _back(state: Model) -> Model:
    """Return from the keys or the details. In the list of queues, remove the filter."""
    if state.is_help:
        return _help(state)
    return replace(state, opened="", place=0) if state.opened else _ordered(replace(state, filter=""))


def _enter(state: Model) -> Model:
    """Show the selected queue in detail."""
    if state.is_list and state.rows:
        name = state.rows[state.cursor].name
        return _clamped(replace(state, opened=name, selected=name))
    return _help(state) if state.is_help else state


def _pause(state: Model) -> Model:
    return replace(state, is_paused=not state.is_paused)


def _ask_filter(state: Model) -> Model:
    return replace(state, prompt=FILTER, typed=state.filter, opened="", is_help=False, place=0)


def _ask_interval(state: Model) -> Model:
    return replace(state, prompt=INTERVAL, typed="")


_ACTIONS: dict[str, Callable[[Model], Model]] = {
    "q": lambda state: replace(state, is_ended=True),
    "h": _help, "?": _help, "f1": _help,
    " ": _pause, "p": _pause,
    "s": _ask_interval, "d": _ask_interval,
    "/": _ask_filter, "f4": _ask_filter,
    "<": lambda state: _next_sort(state, -1),
    ">": lambda state: _next_sort(state, 1), "f6": lambda state: _next_sort(state, 1),
    "I": lambda state: _ordered(replace(state, is_reversed=not state.is_reversed)),
    keys.ENTER: _enter,
    keys.ESCAPE: _back, keys.BACKSPACE: _back,
    keys.REDRAW: lambda state: replace(state, redraws=state.redraws + 1),
}  # fmt: skip

_FAR = 10**9
# For each key, the number of lines and the number of pages.
_MOVES = {
    keys.UP: (-1, 0), "k": (-1, 0), keys.DOWN: (1, 0), "j": (1, 0), keys.PAGE_UP: (0, -1), keys.PAGE_DOWN: (0, 1),
    keys.HOME: (-_FAR, 0), keys.END: (_FAR, 0),
}  # fmt: skip


def _moved(state: Model, key: str) -> Model:
    """Move the selection, or the page."""
    lines, pages = _MOVES[key]
    step = lines + pages * body_height(state)
    if not state.is_list:
        return _clamped(replace(state, place=state.place + step))
    cursor = max(0, min(len(state.rows) - 1, state.cursor + step))
    # At the first row, the selection follows the order, so the worst queue is always visible.
    return replace(state, cursor=cursor, selected=state.rows[cursor].name if cursor else None)


def _typed(state: Model, key: str) -> Model:
    """Change the typed text. A filter takes effect with each character."""
    typed = state.typed
    if key == keys.ENTER:
        return _finished(state)
    if key == keys.ESCAPE:
        kept = "" if state.prompt == FILTER else state.filter
        return _ordered(replace(state, prompt="", filter=kept))
    if key == keys.BACKSPACE:
        typed = typed[:-1]
    elif len(key) == 1:
        typed = (typed + key)[:_MOST_TYPED]
    return _ordered(replace(state, typed=typed, filter=typed if state.prompt == FILTER else state.filter))


def _finished(state: Model) -> Model:
    typed, is_interval, state = state.typed.strip(), state.prompt == INTERVAL, replace(state, prompt="")
    if not is_interval or not typed:
        return state
    try:
        seconds = float(typed.removesuffix("s"))
    except ValueError:
        seconds = -1.0
    if not SHORTEST_SECONDS <= seconds <= LONGEST_SECONDS:
        return replace(state, remark=f"the interval is {SHORTEST_SECONDS:g} to {LONGEST_SECONDS:,.0f} seconds")
    return replace(state, interval=seconds)
