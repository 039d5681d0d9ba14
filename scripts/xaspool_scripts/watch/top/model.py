"""The state of ``spool-admin top``, and the effect of keys, samples and sizes on it. Pure: no clock, no terminal.

Each function returns a new state. The order of the rows is computed when a sample, the order or the filter changes,
not for each picture.
"""

import enum
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from spool.watch.health import Rates
from xaspool_scripts.watch.top import keys
from xaspool_scripts.watch.top.figures import (
    SORTABLE,
    Counts,
    Row,
    Sample,
    durations,
    findings,
    make_rows,
    ordered,
    queue_rates,
)
from xaspool_scripts.watch.top.pages import (
    HELP,
    WARNING,
    Line,
    queue_page,
)
from xaspool_scripts.watch.top.texts import folded

SHORTEST_SECONDS, LONGEST_SECONDS = 0.1, 3_600.0
_MOST_TYPED = 64
_HISTORY = 30  # samples over which latencies are counted
_MOST_FINDINGS = 10  # that the header shows
_MOST_ERROR_LINES = 2
_FIXED_LINES = 5  # three lines of the header, the heading of the list, and the last line


class View(enum.Enum):
    QUEUES = "queues"
    QUEUE = "queue"
    HELP = "help"


_SORT_KEYS = {
    "!": "trouble", "N": "ready", "A": "age", "R": "rate", "F": "fail/s", "C": "claimed", "D": "doubt", "B": "bytes",
}  # fmt: skip


class Prompt(enum.Enum):
    """The text that the user is typing."""

    FILTER = "filter"
    INTERVAL = "interval in seconds"


@dataclass(frozen=True)
class State:
    """All that a picture depends on.

    sample: the last one. rates, rows, findings: computed from it and the one before; ``rows`` has the filtered queues
        in their order, ``every`` all queues by name.
    history: the histograms of the last samples, the oldest first.
    now: the time of the picture, in seconds since the epoch.
    error: the reason why the last reading failed. warning: the last warning of the engine.
    selected: the name of the selected queue; None for the first queue, whichever that is.
    cursor: the index of the selected queue. place: the first visible line of another view.
    opened: the name of the queue that is shown in detail.
    helped: the view to which the help returns.
    """

    width: int = 80
    height: int = 24
    interval: float = 2.0
    is_published: bool = False
    sample: Sample | None = None
    rates: dict[str, Rates] = field(default_factory=dict)
    every: dict[str, Row] = field(default_factory=dict)
    rows: tuple[Row, ...] = ()
    findings: tuple[str, ...] = ()
    history: tuple[Counts, ...] = ()
    now: float = 0.0
    error: str = ""
    warning: str = ""
    view: View = View.QUEUES
    helped: View = View.QUEUES
    sort: str = SORTABLE[0]
    is_reversed: bool = False
    filter: str = ""
    prompt: Prompt | None = None
    typed: str = ""
    remark: str = ""
    selected: str | None = None
    cursor: int = 0
    place: int = 0
    opened: str = ""
    is_paused: bool = False
    is_ended: bool = False
    redraws: int = 0


# -- samples, sizes, errors --------------------------------------------------------------------------------------------


def sampled(state: State, sample: Sample, now: float) -> State:
    """Return the state with a new sample. A published snapshot that has not changed keeps the rates."""
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
            history=state.history if is_same else (*state.history, durations(sample.metrics.counts))[-_HISTORY:],
            now=now,
            error="",
        )
    )


def failed(state: State, error: str, now: float) -> State:
    """Return the state after a reading that failed. The figures of the last sample remain."""
    return _clamped(replace(state, error=error, now=now))


def resized(state: State, width: int, height: int) -> State:
    return _clamped(replace(state, width=max(1, width), height=max(1, height)))


def _ordered(state: State) -> State:
    """Filter and sort the rows again."""
    wanted = state.filter.lower()
    kept = [row for row in state.every.values() if wanted in row.name.lower()]
    return _clamped(replace(state, rows=tuple(ordered(kept, state.sort, is_reversed=state.is_reversed))))


def _clamped(state: State) -> State:
    """Return the state with the selection and the place within their lists. A selected queue remains selected."""
    cursor = 0
    if state.selected is not None:
        names = [row.name for row in state.rows]
        cursor = names.index(state.selected) if state.selected in names else min(state.cursor, len(names) - 1)
    cursor = max(0, cursor)
    return replace(state, cursor=cursor, place=max(0, min(state.place, _last_place(state))))


# -- views -------------------------------------------------------------------------------------------------------------


def shown_findings(state: State) -> list[str]:
    """Return the sentences of the header: errors of the reading first, and as many as a third of the picture has room
    for."""
    every = _error(state)[:_MOST_ERROR_LINES]
    every += state.findings
    every += [f"Warning: {state.warning}"] if state.warning else []
    most = max(1, min(_MOST_FINDINGS, (state.height - _FIXED_LINES) // 3))
    if len(every) > most:
        return [*every[: most - 1], f"{every[most - 1]} And {len(every) - most} more: see top --once."]
    return every


def _error(state: State) -> list[str]:
    """Return the error of the last reading as lines, because its text may begin with a long path."""
    return folded(f"The space cannot be read: {state.error}", max(20, state.width - 2)) if state.error else []


def body_height(state: State) -> int:
    """Return the number of lines between the header and the last line, without the heading of a list."""
    return max(1, state.height - _FIXED_LINES - len(shown_findings(state)))


def page(state: State) -> list[Line]:
    """Return all lines of the view, which is not QUEUES."""
    if state.view is View.HELP:
        return list(HELP)
    if state.sample is None:
        return [Line(part, WARNING) for part in _error(state)]
    return queue_page(state.sample.metrics, state.every, state.opened, state.now)


def _last_place(state: State) -> int:
    """Return the greatest place in the view."""
    return 0 if state.view is View.QUEUES else len(page(state)) - body_height(state)


# -- keys --------------------------------------------------------------------------------------------------------------


def pressed(state: State, key: str) -> State:
    """Return the state after a key. A key without a meaning changes nothing."""
    state = replace(state, remark="")
    if key == "f10":
        return replace(state, is_ended=True)
    if state.prompt is not None:
        return _typed(state, state.prompt, key)
    if key in _MOVES:
        return _moved(state, key)
    if key in _SORT_KEYS:
        return _sorted_by(state, _SORT_KEYS[key])
    act = _ACTIONS.get(key)
    return act(state) if act is not None else state


def _viewed(state: State, view: View) -> State:
    """Show another view from its beginning."""
    return _clamped(replace(state, view=view, place=0))


def _sorted_by(state: State, sort: str) -> State:
    return _ordered(replace(state, sort=sort, is_reversed=False))


def _next_sort(state: State, step: int) -> State:
    return _sorted_by(state, SORTABLE[(SORTABLE.index(state.sort) + step) % len(SORTABLE)])


def _help(state: State) -> State:
    if state.view is View.HELP:
        return _viewed(state, state.helped)
    return _viewed(replace(state, helped=state.view), View.HELP)


def _back(state: State) -> State:
    """Return to the view behind this one. In the list of queues, remove the filter."""
    if state.view is View.QUEUES:
        return _ordered(replace(state, filter=""))
    return _viewed(state, state.helped if state.view is View.HELP else View.QUEUES)


def _enter(state: State) -> State:
    """Show the selected queue in detail."""
    if state.view is View.QUEUES and state.rows:
        name = state.rows[state.cursor].name
        return _viewed(replace(state, opened=name, selected=name), View.QUEUE)
    return _help(state) if state.view is View.HELP else state


def _ask_filter(state: State) -> State:
    return _viewed(replace(state, prompt=Prompt.FILTER, typed=state.filter), View.QUEUES)


_ACTIONS: dict[str, Callable[[State], State]] = {
    "q": lambda state: replace(state, is_ended=True),
    "h": _help, "?": _help, "f1": _help,
    " ": lambda state: replace(state, is_paused=not state.is_paused),
    "p": lambda state: replace(state, is_paused=not state.is_paused),
    "s": lambda state: replace(state, prompt=Prompt.INTERVAL, typed=""),
    "d": lambda state: replace(state, prompt=Prompt.INTERVAL, typed=""),
    "/": _ask_filter, "\\": _ask_filter, "f4": _ask_filter,
    "<": lambda state: _next_sort(state, -1), ",": lambda state: _next_sort(state, -1),
    ">": lambda state: _next_sort(state, 1), ".": lambda state: _next_sort(state, 1),
    "f6": lambda state: _next_sort(state, 1),
    "I": lambda state: _ordered(replace(state, is_reversed=not state.is_reversed)),
    keys.ENTER: _enter,
    keys.ESCAPE: _back, keys.BACKSPACE: _back, keys.LEFT: _back,
    keys.REDRAW: lambda state: replace(state, redraws=state.redraws + 1),
}  # fmt: skip

_MOVES = {
    keys.UP: -1, "k": -1, keys.DOWN: 1, "j": 1, keys.PAGE_UP: None, keys.PAGE_DOWN: None, keys.HOME: None,
    keys.END: None,
}  # fmt: skip


def _moved(state: State, key: str) -> State:
    """Move the selection, or the page."""
    step = _MOVES[key]
    if step is None:
        far = len(state.rows) + _last_place(state) + 1
        several = body_height(state)
        step = {keys.PAGE_UP: -several, keys.PAGE_DOWN: several, keys.HOME: -far, keys.END: far}[key]
    if state.view is not View.QUEUES:
        return _clamped(replace(state, place=state.place + step))
    if not state.rows:
        return state
    cursor = max(0, min(len(state.rows) - 1, state.cursor + step))
    # At the first row the selection follows the order: the worst queue is then always in sight.
    return replace(state, cursor=cursor, selected=state.rows[cursor].name if cursor else None)


def _typed(state: State, prompt: Prompt, key: str) -> State:
    """Change the typed text. A filter takes effect with each character."""
    typed = state.typed
    if key == keys.ENTER:
        return _finished(state, prompt)
    if key == keys.ESCAPE:
        state = replace(state, prompt=None, typed="")
        return _ordered(replace(state, filter="")) if prompt is Prompt.FILTER else state
    if key in (keys.UP, keys.DOWN, keys.PAGE_UP, keys.PAGE_DOWN):
        return _moved(state, key)
    if key == keys.BACKSPACE:
        typed = typed[:-1]
    elif key == keys.CLEAR:
        typed = ""
    elif len(key) == 1:
        typed = (typed + key)[:_MOST_TYPED]
    state = replace(state, typed=typed)
    return _ordered(replace(state, filter=typed)) if prompt is Prompt.FILTER else state


def _finished(state: State, prompt: Prompt) -> State:
    state, typed = replace(state, prompt=None, typed=""), state.typed.strip()
    if prompt is Prompt.FILTER or not typed:
        return state
    try:
        seconds = float(typed.removesuffix("s"))
    except ValueError:
        seconds = -1.0
    if not SHORTEST_SECONDS <= seconds <= LONGEST_SECONDS:
        return replace(state, remark=f"the interval is {SHORTEST_SECONDS:g} to {LONGEST_SECONDS:,.0f} seconds")
    return replace(state, interval=seconds)
