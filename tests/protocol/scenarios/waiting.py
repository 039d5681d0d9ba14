"""Calls that wait for the head of a queue: a commit wakes one call, and polls find the messages of lost wake-ups."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.protocol.checker import Process, Steps
from tests.protocol.machine import Ask, Choose, Context, Load, Operation, Outcomes, State, Store, TryLock, Unlock, start
from tests.protocol.rules import Rules
from tests.protocol.scenario import Case, Scenario, Setting


def _sleepers(state: State, *names: str) -> State:
    return state._replace(memory=frozenset({**dict(state.memory), "sleepers": names}.items()))


def _is_over(state: State, alive: tuple[bool, ...]) -> bool:
    """Return whether the gets are over: m was taken, or P died before it had put m."""
    return state.cell("m") == "taken" or not (state.cell("m") or alive[0])


@dataclass(frozen=True)
class Call(Operation):
    """One of the following system calls."""

    function: Callable[..., Outcomes]
    arguments: tuple[Any, ...]

    def outcomes(self, state: State, context: Context) -> Outcomes:
        return self.function(state, context, *self.arguments)


def sleep(state: State, context: Context, name: str, kept: int) -> Outcomes:
    """Begin to sleep on the word "time" if it is unchanged (futex(2)); return whether it was."""
    unchanged = state.cell("time") == kept
    return [(_sleepers(state, *state.cell("sleepers"), name) if unchanged else state, unchanged)]


def slept(state: State, context: Context, name: str, polls: bool) -> Outcomes:
    """End a sleep; return whether a process woke this one. Time ends the sleep of a call that polls, or whose get is
    over."""
    rest = [sleeper for sleeper in state.cell("sleepers") if sleeper != name]
    if len(rest) == len(state.cell("sleepers")):
        return [(state, True)]
    return [(_sleepers(state, *rest), False)] if polls or _is_over(state, context.alive) else []


def wake(state: State, context: Context) -> Outcomes:
    """Wake the call that has slept longest; return whether any slept. A dead process does not sleep."""
    asleep = [name for name in state.cell("sleepers") if context.alive["PAB".index(name)]]
    return [(_sleepers(state, *asleep[1:]), bool(asleep))]


def waiting(rules: Rules, polls: bool = True, ages: bool = True, kept: str = "first", even: str = "woken") -> Case:
    """P puts m, while A and B wait for a message until m has been taken.

    ``polls``: the calls also search when their time is over. ``ages``: a poll of another process counts for a while
    only. ``kept``: a call reads the time first, or after its last search. ``even``: the time becomes even only if the
    kernel has woken a call.
    """

    def put() -> Steps[None]:
        yield Store("m", "free")
        if (yield Load("mark")):
            yield Store("time", 1)
            woken = yield Call(wake, ())
            if woken or even == "always":
                yield Store("time", 2)

    def search() -> Steps[bool]:
        if (yield Load("m")) == "free" and (yield TryLock("claim m")):
            if (yield Load("m")) == "free":
                yield Store("m", "taken")
            yield Unlock("claim m")
        return bool((yield Ask(_is_over)))

    def poll() -> Steps[bool]:
        fresh = (yield Load("poll")) != 0
        if fresh and ages:
            fresh = yield Choose((True, False))
        ended = (yield Ask(_is_over)) if fresh else (yield from search())
        if not fresh and not ended:
            yield Store("poll", 1)
        return ended

    def call(name: str) -> Callable[[], Steps[None]]:
        def program() -> Steps[None]:
            yield Store("mark", 1)
            time = (yield Load("time")) if kept == "first" else None
            ended = yield from search()
            if time is None:
                time = yield Load("time")
            while not ended:
                asleep = yield Call(sleep, (name, time))
                woken = (yield Call(slept, (name, polls))) if asleep else False
                before, time = time, (yield Load("time"))
                woken = woken or (time != before and time % 2 == 1)
                del asleep, before
                if woken:
                    ended = yield from search()
                elif polls:
                    ended = yield from poll()
                else:
                    ended = yield Ask(_is_over)

        return program

    return Case([Process("P", put), Process("A", call("A")), Process("B", call("B"))], start({}, {"sleepers": ()}))


_UNPOLLED = {"polls": False}

SCENARIOS = (
    Scenario(
        "waiting",
        "a put wakes one of two waiting calls",
        (),
        waiting,
        (Setting(options=_UNPOLLED), Setting(1), Setting(2, long=True)),
        {
            "blocked for ever": {
                "no call polls": Setting(1, options=_UNPOLLED),
                "the time is read after the last search": Setting(options={**_UNPOLLED, "kept": "later"}),
                "the time is even although no call was woken": Setting(options={**_UNPOLLED, "even": "always"}),
            },
            "comes to an end": {"a poll counts for ever": Setting(1, options={"ages": False})},
        },
    ),
)
