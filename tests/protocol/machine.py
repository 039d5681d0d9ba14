"""The machine of the model: names, files, locks and shared memory, and the system calls that change them.

A state is immutable. An operation maps a state to its possible outcomes: each is a new state and the value that the
call returns. An operation without an outcome blocks.
"""

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple

TORN = ("torn",)
"""The content of a file of which a power cut left only a part."""

Names = frozenset[tuple[str, int]]
"""Every name, with the index of its file in ``State.files``."""


class Violation(Exception):
    """The protocol broke a promise; the text says which one."""


class File(NamedTuple):
    """A file: the content that processes read, and the content of the last flush."""

    content: Any
    flushed: Any


class Change(NamedTuple):
    """A change of one name that is not durable: the name leads to ``file``, or is removed (None)."""

    name: str
    file: int | None


class State(NamedTuple):
    """The machine at one moment. ``record`` is no part of the machine: it notes what callers were promised."""

    names: Names
    files: tuple[File, ...]
    durable: Names
    """The names as of the last flush."""
    unflushed: tuple[Any, ...] = ()
    """Since then: with a journal the names after each change, without a journal each change."""
    locks: frozenset[tuple[str, int, bool]] = frozenset()
    """Name, process, and whether the lock is shared."""
    memory: frozenset[tuple[str, Any]] = frozenset()
    record: frozenset[tuple[Any, Any]] = frozenset()

    def content(self, name: str) -> Any:
        """The content of the file ``name``; None if the name does not exist."""
        index = dict(self.names).get(name)
        return None if index is None else self.files[index].content

    def has(self, name: str) -> bool:
        return any(name == other for other, _ in self.names)

    def cell(self, name: str) -> Any:
        """A cell of shared memory; 0 if nothing was stored there."""
        return dict(self.memory).get(name, 0)

    def noted(self) -> dict[Any, Any]:
        return dict(self.record)

    def note(self, key: Hashable, value: Any = True) -> "State":
        return self._replace(record=frozenset({**dict(self.record), key: value}.items()))

    def unlocked(self, process: int, name: str | None = None) -> "State":
        """Without the process's lock on ``name``, or without any of its locks."""
        kept = frozenset(lock for lock in self.locks if lock[1] != process or name not in (None, lock[0]))
        return self._replace(locks=kept)


class Machine(NamedTuple):
    """The kind of machine that a setting checks.

    ``power``: power cuts are possible, so the state tracks which content and names are durable.
    ``journal``: a journal keeps changes of names in their order (ext4, xfs, btrfs). Without a journal, each change
    since the last flush of the directory survives or is lost independently of the others.
    """

    power: bool = False
    journal: bool = True


class Context(NamedTuple):
    """The context of an operation, besides the state: the calling process, the live processes, the machine."""

    process: int
    alive: tuple[bool, ...]
    machine: Machine


Outcomes = list[tuple[State, Any]]
Condition = Callable[[State, tuple[bool, ...]], Any]


def start(
    files: Mapping[str, Any], memory: Mapping[str, Any] | None = None, record: Mapping[Any, Any] | None = None
) -> State:
    """A state in which all ``files`` are durable."""
    names = frozenset((name, index) for index, name in enumerate(files))
    return State(
        names,
        tuple(File(content, content) for content in files.values()),
        names,
        memory=frozenset((memory or {}).items()),
        record=frozenset((record or {}).items()),
    )


class Operation:
    """One atomic step of a process."""

    def outcomes(self, state: State, context: Context) -> Outcomes:
        raise NotImplementedError

    def __str__(self) -> str:
        words = [type(self).__name__]
        for name, value in vars(self).items():
            if isinstance(value, bool):
                words += [name] if value else []
            else:
                words.append(value.__name__ if callable(value) else str(value))
        return " ".join(words)


def _rename(state: State, context: Context, names: dict[str, int], *changes: Change) -> State:
    changed = frozenset(names.items())
    if not context.machine.power:
        return state._replace(names=changed)
    later = (changed,) if context.machine.journal else changes
    return state._replace(names=changed, unflushed=state.unflushed + later)


def _flush(state: State, context: Context, file: int | None, names: bool) -> State:
    if not context.machine.power:
        return state
    if file is not None:
        files = list(state.files)
        files[file] = File(files[file].content, files[file].content)
        state = state._replace(files=tuple(files))
    return state._replace(durable=state.names, unflushed=()) if names else state


@dataclass(frozen=True)
class Read(Operation):
    """The content of a file by its name; None if the name does not exist."""

    name: str

    def outcomes(self, state: State, context: Context) -> Outcomes:
        return [(state, state.content(self.name))]


@dataclass(frozen=True)
class Open(Operation):
    """A descriptor for a file: it leads to the same file after renames. None if the name does not exist."""

    name: str

    def outcomes(self, state: State, context: Context) -> Outcomes:
        return [(state, dict(state.names).get(self.name))]


@dataclass(frozen=True)
class Exists(Operation):
    name: str

    def outcomes(self, state: State, context: Context) -> Outcomes:
        return [(state, state.has(self.name))]


@dataclass(frozen=True)
class List(Operation):
    """The names that begin with a directory, in one instant."""

    directory: str

    def outcomes(self, state: State, context: Context) -> Outcomes:
        return [(state, tuple(sorted(name for name, _ in state.names if name.startswith(self.directory))))]


@dataclass(frozen=True)
class Create(Operation):
    """A new file with its content; returns a descriptor."""

    name: str
    content: Any

    def outcomes(self, state: State, context: Context) -> Outcomes:
        new = len(state.files)
        files = (*state.files, File(self.content, TORN if context.machine.power else None))
        names = {**dict(state.names), self.name: new}
        return [(_rename(state._replace(files=files), context, names, Change(self.name, new)), new)]


@dataclass(frozen=True)
class Write(Operation):
    """Overwrite an open file. Until its flush, a power cut can leave the old content, the new one or neither."""

    file: int
    content: Any

    def outcomes(self, state: State, context: Context) -> Outcomes:
        files = list(state.files)
        files[self.file] = files[self.file]._replace(content=self.content)
        return [(state._replace(files=tuple(files)), True)]


@dataclass(frozen=True)
class Move(Operation):
    """rename(2); ``new``: only if the target does not exist (RENAME_NOREPLACE). Returns "ok" or the error."""

    source: str
    target: str
    new: bool = False

    def outcomes(self, state: State, context: Context) -> Outcomes:
        names = dict(state.names)
        if self.source not in names:
            return [(state, "ENOENT")]
        if self.new and self.target in names:
            return [(state, "EEXIST")]
        names[self.target] = file = names.pop(self.source)
        return [(_rename(state, context, names, Change(self.source, None), Change(self.target, file)), "ok")]


@dataclass(frozen=True)
class Link(Operation):
    source: str
    target: str

    def outcomes(self, state: State, context: Context) -> Outcomes:
        names = dict(state.names)
        if self.source not in names:
            return [(state, "ENOENT")]
        names[self.target] = file = names[self.source]
        return [(_rename(state, context, names, Change(self.target, file)), "ok")]


@dataclass(frozen=True)
class Unlink(Operation):
    name: str

    def outcomes(self, state: State, context: Context) -> Outcomes:
        names = dict(state.names)
        if names.pop(self.name, None) is None:
            return [(state, "ENOENT")]
        return [(_rename(state, context, names, Change(self.name, None)), "ok")]


@dataclass(frozen=True)
class Flush(Operation):
    """fsync(2) of a file. With a journal, all changes of names before it become durable, too."""

    file: int

    def outcomes(self, state: State, context: Context) -> Outcomes:
        return [(_flush(state, context, self.file, names=context.machine.journal), True)]


@dataclass(frozen=True)
class FlushData(Operation):
    """fdatasync(2) of a file that keeps its size: its content alone becomes durable."""

    file: int

    def outcomes(self, state: State, context: Context) -> Outcomes:
        return [(_flush(state, context, self.file, names=False), True)]


@dataclass(frozen=True)
class FlushNames(Operation):
    """fsync(2) of the directories."""

    def outcomes(self, state: State, context: Context) -> Outcomes:
        return [(_flush(state, context, None, names=True), True)]


def _held_by_others(state: State, name: str, process: int, shared: bool) -> bool:
    return any(lock == name and other != process and not (shared and mode) for lock, other, mode in state.locks)


def _locked(state: State, name: str, process: int, shared: bool) -> State:
    state = state.unlocked(process, name)
    return state._replace(locks=state.locks | {(name, process, shared)})


@dataclass(frozen=True)
class Lock(Operation):
    """Wait for a byte lock. The kernel releases it when the process dies."""

    name: str
    shared: bool = False

    def outcomes(self, state: State, context: Context) -> Outcomes:
        if _held_by_others(state, self.name, context.process, self.shared):
            return []
        return [(_locked(state, self.name, context.process, self.shared), True)]


@dataclass(frozen=True)
class TryLock(Operation):
    """Take a byte lock if it is free; returns whether it was."""

    name: str

    def outcomes(self, state: State, context: Context) -> Outcomes:
        if _held_by_others(state, self.name, context.process, shared=False):
            return [(state, False)]
        return [(_locked(state, self.name, context.process, shared=False), True)]


@dataclass(frozen=True)
class Unlock(Operation):
    name: str

    def outcomes(self, state: State, context: Context) -> Outcomes:
        return [(state.unlocked(context.process, self.name), True)]


@dataclass(frozen=True)
class IsLocked(Operation):
    """Return whether another process holds a lock."""

    name: str

    def outcomes(self, state: State, context: Context) -> Outcomes:
        return [(state, any(lock == self.name and other != context.process for lock, other, _ in state.locks))]


@dataclass(frozen=True)
class Load(Operation):
    """A cell of shared memory."""

    cell: str

    def outcomes(self, state: State, context: Context) -> Outcomes:
        return [(state, state.cell(self.cell))]


@dataclass(frozen=True)
class LoadAll(Operation):
    """Several cells of shared memory in one read."""

    cells: tuple[str, ...]

    def outcomes(self, state: State, context: Context) -> Outcomes:
        return [(state, tuple(state.cell(cell) for cell in self.cells))]


@dataclass(frozen=True)
class Store(Operation):
    """Store a value in a cell of shared memory. Readers never see half of it: the engine proves cells by checksums."""

    cell: str
    value: Any

    def outcomes(self, state: State, context: Context) -> Outcomes:
        memory = {**dict(state.memory), self.cell: self.value}
        return [(state._replace(memory=frozenset(memory.items())), True)]


@dataclass(frozen=True)
class Await(Operation):
    """Wait until a condition on the state holds. A process that begins so may wait for ever."""

    condition: Condition

    def outcomes(self, state: State, context: Context) -> Outcomes:
        return [(state, True)] if self.condition(state, context.alive) else []


@dataclass(frozen=True)
class Ask(Operation):
    """The value of a condition on the state."""

    condition: Condition

    def outcomes(self, state: State, context: Context) -> Outcomes:
        return [(state, self.condition(state, context.alive))]


@dataclass(frozen=True)
class Choose(Operation):
    """Any of several values: the checker tries each."""

    values: tuple[Any, ...]

    def outcomes(self, state: State, context: Context) -> Outcomes:
        return [(state, value) for value in self.values]


class Note(Operation):
    """Record what a caller was told or promised. No system call: it happens with the step before it.

    ``function(state, context, *arguments)`` returns the state with its record, or raises :class:`Violation`.
    """

    def __init__(self, function: Callable[..., State], *arguments: Any) -> None:
        self.function = function
        self.arguments = arguments

    def outcomes(self, state: State, context: Context) -> Outcomes:
        return [(self.function(state, context, *self.arguments), True)]


class Survivor(NamedTuple):
    """One disk that a power cut can leave."""

    names: Names
    contents: tuple[tuple[int, Any], ...]

    def files(self) -> dict[str, Any]:
        contents = dict(self.contents)
        return {name: contents[file] for name, file in sorted(self.names)}


def survivors(state: State, machine: Machine) -> Iterator[Survivor]:
    """Every disk that a power cut can leave now."""
    seen = set()
    for names in _surviving_names(state, machine):
        used = sorted({file for _, file in names})
        for contents in product(*(_surviving_contents(state.files[file]) for file in used)):
            survivor = Survivor(names, tuple(zip(used, contents, strict=True)))
            files = tuple(survivor.files().items())
            if files not in seen:
                seen.add(files)
                yield survivor


def _surviving_names(state: State, machine: Machine) -> list[Names]:
    if machine.journal:
        return list(dict.fromkeys((state.durable, *state.unflushed)))
    found = {}
    for chosen in product((False, True), repeat=len(state.unflushed)):
        names = dict(state.durable)
        for change, survives in zip(state.unflushed, chosen, strict=True):
            if survives and change.file is None:
                names.pop(change.name, None)
            elif survives:
                names[change.name] = change.file
        found[frozenset(names.items())] = True
    return list(found)


def _surviving_contents(file: File) -> list[Any]:
    if file.content == file.flushed:
        return [file.content]
    return list(dict.fromkeys((file.content, file.flushed, TORN)))
