"""An explicit-state model checker: every order of steps, every kill and every power cut, breadth first.

A process is a generator that yields one :class:`~tests.protocol.machine.Operation` at a time and receives its result.
Between two yields a process has a *place*: the line at which each of its generators stands, and their local variables.
Two histories that lead to the same place and the same state are one case, so the number of cases stays finite.
Breadth-first order makes a trace of a violation the shortest one.

A program must therefore keep all that it knows in local variables:

- a ``for`` loop runs over a local variable whose elements differ, so that the loop variable tells how far it is;
- no value of one ``yield`` waits in an expression for another ``yield``;
- a mutable local is a dataclass, a dict, a list or a set, which the checker compares by value.
"""

import time
from collections import deque
from collections.abc import Callable, Collection, Generator, Hashable, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, NamedTuple, TypeVar

from tests.protocol.machine import Await, Context, File, Machine, Note, Operation, State, Survivor, Violation, survivors

T = TypeVar("T")
Steps = Generator[Operation, Any, T]
Program = Callable[[], Steps[None]]


class Process(NamedTuple):
    name: str
    program: Program


class Fault(NamedTuple):
    """A broken promise, and the shortest history that leads to it: a line for each step."""

    broken: str
    trace: list[str]

    def __str__(self) -> str:
        return "\n    ".join((self.broken, *self.trace))


class Result(NamedTuple):
    states: int
    fault: Fault | None


class Checks(NamedTuple):
    """Checks besides the promises that the processes note. Each function raises :class:`Violation`.

    ``after_cut(files, record)``: for every disk that a power cut can leave at any moment.
    ``at_end(state, alive)``: where no process has a step left.
    """

    after_cut: Callable[[dict[str, Any], dict[Any, Any]], None] | None = None
    at_end: Callable[[State, tuple[bool, ...]], None] | None = None


class Faults(NamedTuple):
    """Faults of a run: the largest number of kills (of the processes ``killable``, or of any) and of power cuts.

    After a power cut only the processes ``after_cut`` begin; shared memory is kept or lost, each is tried.
    """

    kills: int = 0
    killable: Collection[str] | None = None
    cuts: int = 0
    after_cut: Collection[str] = ()


_PLAIN = Machine()
_NO_FAULTS = Faults()
_NO_CHECKS = Checks()
_DEAD = -1
_FINISHED = object()


class _Places:
    """The places of one process, and the step from each place with each result. Each is computed once."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._histories: list[tuple[Any, ...]] = []
        self._numbers: dict[Hashable, int] = {}
        self._steps: dict[tuple[int, Hashable], int] = {}
        self.operations: list[Operation | None] = []
        self.start = self._place(())

    def after(self, place: int, result: Any) -> int:
        step = (place, _by_value(result))
        if step not in self._steps:
            self._steps[step] = self._place((*self._histories[place], result))
        return self._steps[step]

    def _place(self, history: tuple[Any, ...]) -> int:
        """Run the program again with the results of ``history``: a generator cannot be copied."""
        steps = self._program()
        operation: Operation | None = None
        key: Hashable = _FINISHED
        try:
            operation = next(steps)
            for result in history:
                operation = steps.send(result)
            key = _frames(steps)
        except StopIteration:
            operation = None
        number = self._numbers.setdefault(key, len(self.operations))
        if number == len(self.operations):
            self.operations.append(operation)
            self._histories.append(history)
        elif type(self.operations[number]) is not type(operation):
            raise AssertionError(f"a program keeps something outside of its local variables: {operation}")
        return number


def _frames(steps: Any) -> Hashable:
    frames = []
    while steps is not None and hasattr(steps, "gi_frame"):
        frame = steps.gi_frame
        variables = sorted(frame.f_locals.items())
        known = tuple((name, _by_value(value)) for name, value in variables if not hasattr(value, "gi_frame"))
        frames.append((steps.gi_code.co_qualname, frame.f_lasti, known))
        steps = steps.gi_yieldfrom
    return tuple(frames)


def _by_value(value: Any) -> Hashable:
    if is_dataclass(value) and not isinstance(value, type):
        return (type(value).__name__, *(_by_value(getattr(value, field.name)) for field in fields(value)))
    if isinstance(value, dict):
        return ("dict", *sorted((repr(key), _by_value(entry)) for key, entry in value.items()))
    if isinstance(value, (set, frozenset)):
        return ("set", *sorted(map(repr, value)))
    if isinstance(value, (list, tuple)):
        return (type(value).__name__, *map(_by_value, value))
    return getattr(value, "__qualname__", "function") if callable(value) else value


class _Case(NamedTuple):
    """The machine, the place of each process, and the faults that are left."""

    state: State
    places: tuple[int, ...]
    kills: int
    cuts: int


class _Successor(NamedTuple):
    case: _Case
    line: str
    faultless: bool
    """No kill and no power cut: the step that the processes take by themselves."""


class Limit(Exception):
    """The check takes longer, or more states, than it may."""


class _Search:
    def __init__(self, processes: Sequence[Process], machine: Machine, faults: Faults, checks: Checks) -> None:
        self.names = [process.name for process in processes]
        self.places = [_Places(process.program) for process in processes]
        self.machine = machine
        self.faults = faults
        self.checks = checks
        self._checked: set[Hashable] = set()

    def operation(self, case: _Case, process: int) -> Operation | None:
        place = case.places[process]
        return None if place == _DEAD else self.places[process].operations[place]

    def waits_to_begin(self, case: _Case, process: int) -> bool:
        begins = case.places[process] == self.places[process].start
        return begins and isinstance(self.operation(case, process), Await)

    def alive(self, case: _Case) -> tuple[bool, ...]:
        return tuple(self.operation(case, process) is not None for process in range(len(self.names)))

    def begin(self, state: State) -> _Case:
        case = _Case(state, tuple(places.start for places in self.places), self.faults.kills, self.faults.cuts)
        return self._noted(case)

    def _noted(self, case: _Case) -> _Case:
        """Processes note what they promised in the same instant as the step before."""
        for process in range(len(self.names)):
            while isinstance(operation := self.operation(case, process), Note):
                ((state, result),) = operation.outcomes(case.state, Context(process, self.alive(case), self.machine))
                case = self._moved(case, process, state, result)
        return case

    def _moved(self, case: _Case, process: int, state: State, result: Any) -> _Case:
        place = self.places[process].after(case.places[process], result)
        places = (*case.places[:process], place, *case.places[process + 1 :])
        return case._replace(state=state, places=places)

    def check_cuts(self, case: _Case) -> None:
        """Every disk that a power cut can leave now; each state of the disk is checked once."""
        state = case.state
        disk = (state.names, state.files, state.durable, state.unflushed, state.record)
        if self.checks.after_cut is None or not self.machine.power or disk in self._checked:
            return
        self._checked.add(disk)
        for survivor in survivors(state, self.machine):
            try:
                self.checks.after_cut(survivor.files(), state.noted())
            except Violation as violation:
                raise _Broken(str(violation), f"POWER CUT leaves {_disk(survivor)}") from None

    def steps(self, case: _Case) -> list[_Successor]:
        """Every step of every process, without faults."""
        found = []
        alive = self.alive(case)
        for process, name in enumerate(self.names):
            if (operation := self.operation(case, process)) is None:
                continue
            line = f"{name}: {operation}"
            try:
                for state, result in operation.outcomes(case.state, Context(process, alive, self.machine)):
                    line = f"{name}: {operation} -> {result}"
                    found.append(_Successor(self._noted(self._moved(case, process, state, result)), line, True))
            except Violation as violation:
                raise _Broken(str(violation), line) from None
        return found

    def failures(self, case: _Case) -> list[_Successor]:
        """Every kill and every power cut that may still happen."""
        found = []
        for process, name in enumerate(self.names):
            operation = self.operation(case, process)
            killable = self.faults.killable is None or name in self.faults.killable
            if case.kills and killable and operation is not None and not self.waits_to_begin(case, process):
                state = _without_holds(case.state.unlocked(process), process)
                places = (*case.places[:process], _DEAD, *case.places[process + 1 :])
                killed = case._replace(state=state, places=places, kills=case.kills - 1)
                found.append(_Successor(killed, f"{name}: KILLED before {operation}", False))
        if case.cuts:
            found += self._power_cuts(case)
        return found

    def _power_cuts(self, case: _Case) -> list[_Successor]:
        found = []
        for survivor in survivors(case.state, self.machine):
            files = list(case.state.files)
            for file, content in survivor.contents:
                files[file] = File(content, content)
            for kept in (False, True):
                state = State(
                    survivor.names,
                    tuple(files),
                    survivor.names,
                    memory=case.state.memory if kept else frozenset(),
                    record=_without_holds(case.state).record,
                ).note("power cut")
                places = tuple(
                    place if name in self.faults.after_cut and place == automaton.start else _DEAD
                    for name, place, automaton in zip(self.names, case.places, self.places, strict=True)
                )
                line = f"POWER CUT leaves {_disk(survivor)}, shared memory {'kept' if kept else 'lost'}"
                found.append(_Successor(case._replace(state=state, places=places, cuts=case.cuts - 1), line, False))
        return found

    def blocked(self, case: _Case) -> list[str]:
        """The processes that wait for ever in a case without steps."""
        alive = self.alive(case)
        waiting = [p for p in range(len(self.names)) if alive[p] and not self.waits_to_begin(case, p)]
        return [f"{self.names[process]} at {self.operation(case, process)}" for process in waiting]


class _Broken(Exception):
    """A violation, and the line that the trace ends with."""


def _without_holds(state: State, process: int | None = None) -> State:
    """A message that a dead process was given is held by no process: its lock went with the process."""

    def is_hold(key: Any) -> bool:
        return isinstance(key, tuple) and key[0] == "holds" and process in (None, key[1])

    return state._replace(record=frozenset(entry for entry in state.record if not is_hold(entry[0])))


def _disk(survivor: Survivor) -> str:
    return ", ".join(f"{name}: {content}" for name, content in survivor.files().items())


def check(
    processes: Sequence[Process],
    state: State,
    machine: Machine = _PLAIN,
    faults: Faults = _NO_FAULTS,
    checks: Checks = _NO_CHECKS,
    most_states: int = 3_000_000,
    seconds: float = 600,
) -> Result:
    """Every history of ``processes`` from ``state``; the result has the first violation, or None.

    Besides broken promises, a violation is: processes that wait for each other for ever, and a case from which no
    history without further faults comes to an end.
    """
    search = _Search(processes, machine, faults, checks)
    first = search.begin(state)
    numbers = {first: 0}
    origins: list[tuple[int, str]] = [(-1, "")]
    predecessors: list[list[int]] = [[]]
    ended = []
    queue = deque([first])
    deadline = time.monotonic() + seconds

    def fault(broken: str, number: int, *last: str) -> Result:
        lines = list(last)
        while number > 0:
            number, line = origins[number]
            lines.insert(0, line)
        return Result(len(numbers), Fault(broken, lines))

    while queue:
        case = queue.popleft()
        number = numbers[case]
        if len(numbers) > most_states or time.monotonic() > deadline:
            raise Limit(f"{len(numbers):,} states, and more to come")
        try:
            search.check_cuts(case)
            if not (steps := search.steps(case)):
                if blocked := search.blocked(case):
                    return fault(f"blocked for ever: {', '.join(blocked)}", number)
                ended.append(number)
                if checks.at_end is not None:
                    checks.at_end(case.state, search.alive(case))
        except _Broken as broken:
            return fault(broken.args[0], number, broken.args[1])
        except Violation as violation:
            return fault(str(violation), number)
        for successor in steps + search.failures(case):
            later = numbers.setdefault(successor.case, len(numbers))
            if later == len(origins):
                origins.append((number, successor.line))
                predecessors.append([])
                queue.append(successor.case)
            if successor.faultless:
                predecessors[later].append(number)
    stuck = set(range(len(numbers))) - _leading_to(ended, predecessors)
    return (
        fault("no history without further faults comes to an end", min(stuck)) if stuck else Result(len(numbers), None)
    )


def _leading_to(ended: list[int], predecessors: list[list[int]]) -> set[int]:
    found = set(ended)
    stack = list(ended)
    while stack:
        for number in predecessors[stack.pop()]:
            if number not in found:
                found.add(number)
                stack.append(number)
    return found
