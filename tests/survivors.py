"""The states of a simulated machine's disk after a power cut: every state that the rules of its file system allow.

The rules for names are:

* ``ORDERED``: ext4 with a journal, and xfs. Operations on names reach the disk in their order, so a prefix of them
  survives; a flush of a file or directory makes everything durable up to the last operation that changed its inode.
* ``NAMES_FOLLOW``: ext4 with a journal, more closely: the same, but a flush of a file's bytes alone carries no name.
* ``LOG_TREE``: btrfs. A flush makes the operations on the names of the flushed file (or directory) durable. Operations
  on other files survive separately, but never without the earlier operations on the same file. A renamed file may be
  found under both names until the directory that it left is flushed (seen on btrfs).
* ``STRICT``: the promises of POSIX, and the behaviour of ext4 without a journal. Each entry of a directory survives
  separately, in its state at the directory's last flush or in any later state; a rename is two entries. The flush of a
  file makes no name durable.
* ``NEW_NAMES``: ext4 without a journal, more closely: the same, but that flushing a file makes the name durable that it
  has then, if that was no other file's before. (It writes the whole directory; that is not relied upon.)

Bytes, by all rules: a file that was not flushed has its content of the last flush or any later content (half a write
included). Its first page may also be of one state and the rest of another, or the whole file may consist of zeros. A
file that was never flushed may be empty. So a file may be renamed, but empty.

Content that a failed flush dropped (``Machine.fail_flush``) remains lost until a process writes it again; further
flushes do not restore it. This holds for bytes by all rules, and for entries of directories where each entry survives
separately.

``run/`` is never flushed and recovery may not depend on it: it is found as it was, or with all files empty, or lost.

Bounds: only the last ``_VARYING_NAMES`` entries (or files) vary in all combinations; of the earlier entries, one at a
time differs from the newest state. A file's bytes vary over the last ``_VARYING_CONTENTS`` states. If more than
``limit`` states remain, ``survivors`` takes the newest, the oldest, and a sample by ``seed``.
"""

import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

from tests.machine import PAGE, Change, Image, Inode, Machine, Operation, image_of

_VARYING_NAMES = 5
_VARYING_CONTENTS = 5
_RUN = "run/"

T = TypeVar("T")
Names = dict[tuple[int, str], Inode]


class Rules(Enum):
    """The file system of the machine. The disk tells the engine whether its renames are ordered."""

    ORDERED = "ordered"
    NAMES_FOLLOW = "names that follow"
    LOG_TREE = "log tree"
    STRICT = "strict"
    NEW_NAMES = "new names flushed with files"

    @property
    def told(self) -> dict[str, bool]:
        """Return the properties of the file system that the simulated machine reports to the engine."""
        return {
            "ordered": self in (Rules.ORDERED, Rules.NAMES_FOLLOW, Rules.LOG_TREE),
            "carries": self is Rules.NEW_NAMES,
            "follow": self is Rules.NAMES_FOLLOW,
        }


@dataclass(frozen=True)
class Survivor:
    """One state of the disk after a power cut, and how it came about."""

    image: Image
    story: str


def survivors(machine: Machine, rules: Rules, *, limit: int, seed: int = 0) -> Iterator[Survivor]:
    """Yield different states, at most about ``limit``. A mirror's disk loses power at the same moment, with separate
    losses."""
    own = _of_one_disk(machine, rules, limit, seed)
    if machine.beside is None:
        yield from own
        return
    mine, its = list(own), list(_of_one_disk(machine.beside, rules, limit, seed))
    random.Random(seed).shuffle(its)
    for place in range(max(len(mine), len(its))):
        one, other = mine[place % len(mine)], its[place % len(its)]
        yield Survivor(one.image._replace(beside=other.image), f"{one.story}; of the mirror: {other.story}")


def _of_one_disk(machine: Machine, rules: Rules, limit: int, seed: int) -> Iterator[Survivor]:
    seen: set[Image] = set()
    for number, (names, bytes_, story) in enumerate(_bounded(machine, rules, limit, seed)):
        image = _build(machine, names, bytes_)
        image, run = _RUN_STATES[number % len(_RUN_STATES)](image)
        if image not in seen:
            seen.add(image)
            yield Survivor(image, f"{rules.value} file system; names: {story}; {run}")


def _bounded(machine: Machine, rules: Rules, limit: int, seed: int) -> Iterator[tuple[Names, dict[int, bytes], str]]:
    """(names, bytes by inode, story): all combinations, or some if they are too many."""
    states = [(names, _varying_files(machine, names), story) for names, story in _STATES_OF_NAMES[rules](machine)]
    sizes = [_product(len(contents) for _, contents in files) for _, files, _ in states]
    choices: Iterator[tuple[int, int]]
    if sum(sizes) <= limit:
        choices = ((place, choice) for place, size in enumerate(sizes) for choice in range(size))
    else:
        choices = iter(_sample(sizes, limit, random.Random(seed)))
    for place, choice in choices:
        names, files, story = states[place]
        picked, told = {}, []
        for inode, contents in files:
            choice, which = divmod(choice, len(contents))
            picked[inode.number] = contents[which]
            if which:
                told.append(f"inode {inode.number} has {len(contents[which])} bytes of state -{which}")
        yield names, picked, "; ".join([story, *told])


def _sample(sizes: list[int], limit: int, numbers: random.Random) -> list[tuple[int, int]]:
    ends = [(place, end) for place in (0, len(sizes) - 1) for end in (0, sizes[place] - 1)]
    firsts = [(place, 0) for place in numbers.sample(range(len(sizes)), min(len(sizes), limit // 2))]
    places = [numbers.randrange(len(sizes)) for _ in range(max(0, limit - len(ends) - len(firsts)))]
    return list(dict.fromkeys([*ends, *firsts, *((place, numbers.randrange(sizes[place])) for place in places)]))


def _product(sizes: Iterator[int]) -> int:
    total = 1
    for size in sizes:
        total *= size
    return total


# -- bytes ------------------------------------------------------------------------------------------------------------


def _varying_files(machine: Machine, names: Names) -> list[tuple[Inode, list[bytes]]]:
    """Files that can be reached and may hold one thing or another."""
    found = {inode.number: inode for path, inode in _walk(machine, names) if not path.startswith(_RUN)}
    return [(inode, contents) for inode in found.values() if len(contents := _contents(inode)) > 1]


def _contents(inode: Inode) -> list[bytes]:
    """The newest first."""
    if inode.entries is not None or not inode.pending:
        return [inode.coming]
    new, old = inode.coming, inode.flushed
    recent = inode.pending[: -_VARYING_CONTENTS - 1 : -1]
    mixed = [old[:PAGE].ljust(PAGE, b"\0") + new[PAGE:], new[:PAGE] + old[PAGE:]] if len(new) > PAGE else []
    return list(dict.fromkeys([new, old, *recent, *mixed, bytes(len(new))]))


# -- names ------------------------------------------------------------------------------------------------------------


def _ordered(machine: Machine) -> list[tuple[Names, str]]:
    """Return every prefix of the log that has at least the operations committed by the journal."""
    found = []
    names = dict(machine.base)
    for place, operation in enumerate([None, *machine.log]):
        if operation is not None:
            _apply(names, operation.changes)
        if place >= machine.journaled:
            found.append((dict(names), f"the first {place} of {len(machine.log)} operations"))
    return found[::-1]


def _strict(machine: Machine) -> list[tuple[Names, str]]:
    """Return the names with each entry in its state at the directory's last flush, or in any later state."""
    return _each_entry(machine, lambda place, change, before: _was_flushed(place, change))


def _new_names(machine: Machine) -> list[tuple[Names, str]]:
    """Return the names as ``_strict`` does, but a flush of a file also settles the entry with its new name."""
    return _each_entry(
        machine,
        lambda place, change, before: (
            _was_flushed(place, change) or (before is None and _was_carried(machine, place, change))
        ),
    )


def _was_carried(machine: Machine, place: int, change: Change) -> bool:
    """Return whether the file was flushed while it had the name that this operation gave it."""
    if change.inode is None or change.inode.entries is not None:
        return False
    key = change.directory, change.name
    later = enumerate(machine.log[place + 1 :], place + 1)
    end = next((at for at, one in later if key in {(c.directory, c.name) for c in one.changes}), len(machine.log))
    return any(
        place < flush <= end and not any(first <= place < stop < flush for first, stop in change.directory.dropped)
        for flush in change.inode.flushes
    )


def _each_entry(machine: Machine, is_settled: Callable[[int, Change, Inode | None], bool]) -> list[tuple[Names, str]]:
    """Return the names with each entry in its state after the last settled change (``is_settled``), or in any later
    state."""
    names = dict(machine.base)
    history: dict[tuple[int, str], list[Inode | None]] = {}
    for place, operation in enumerate(machine.log):
        for change in operation.changes:
            key = (change.directory.number, change.name)
            before = names.get(key)
            _apply(names, (change,))
            if _is_run(machine, change):
                continue
            if is_settled(place, change, before):
                history.pop(key, None)
                continue
            values = history.pop(key, [before])
            history[key] = [v for v in values if v is not change.inode] + [change.inode]
    choices = [[(key, value) for value in values[::-1]] for key, values in history.items()]
    return [(_with_entries(names, picked), _story_of_entries(picked, names)) for picked in _vary(choices)]


def _was_flushed(place: int, change: Change) -> bool:
    """Return whether the directory was flushed after the operation, and no earlier failed flush had dropped the
    operation."""
    directory = change.directory
    dropped = any(first <= place < stop for first, stop in directory.dropped)
    return place < directory.names_flushed and not dropped


def _with_entries(names: Names, picked: tuple[tuple[tuple[int, str], Inode | None], ...]) -> Names:
    found = dict(names)
    for key, inode in picked:
        if inode is None:
            found.pop(key, None)
        else:
            found[key] = inode
    return found


def _story_of_entries(picked: tuple[tuple[tuple[int, str], Inode | None], ...], names: Names) -> str:
    old = [
        f"{name} is {'absent' if inode is None else f'inode {inode.number}'}"
        for (directory, name), inode in picked
        if names.get((directory, name)) is not inode
    ]
    return ", ".join(old) or "the newest"


def _log_tree(machine: Machine) -> list[tuple[Names, str]]:
    """Return the names after each file's operations up to its last flush or further; one rename may have left the old
    name."""
    lives: dict[int, list[int]] = {}
    for place, operation in enumerate(machine.log):
        if not _is_run(machine, operation.changes[0]) and not _is_durable(machine, place, operation):
            lives.setdefault(_subject(machine, place).number, []).append(place)
    choices = [[tuple(places[:count]) for count in range(len(places), -1, -1)] for places in lives.values()]
    optional = {place for places in lives.values() for place in places}
    found = []
    for picked in _vary(choices):
        lost = optional.difference(*picked)
        lost |= _inside_the_lost(machine, lost, optional)
        names = _replay(machine, lost)
        story = f"without operations {sorted(lost)}" if lost else "the newest"
        found.append((names, story))
        found += [(both, f"{story}; in both: {name}") for both, name in _in_both(machine, names, lost)]
    return found


def _inside_the_lost(machine: Machine, lost: set[int], optional: set[int]) -> set[int]:
    """Nothing survives within a directory whose making did not."""
    made = [machine.log[place] for place in lost if machine.log[place].kind == "make_directory"]
    missing = {change.inode for operation in made for change in operation.changes}
    return {place for place in optional if any(change.directory in missing for change in machine.log[place].changes)}


def _subject(machine: Machine, place: int) -> Inode:
    """The file that an operation is about; of an unlink, the one that it was."""
    change = machine.log[place].changes[0]
    if change.inode is not None:
        return change.inode
    for earlier in reversed(machine.log[:place]):
        for old in earlier.changes:
            if (old.directory, old.name) == (change.directory, change.name) and old.inode is not None:
                return old.inode
    return machine.base[change.directory.number, change.name]


def _is_durable(machine: Machine, place: int, operation: Operation) -> bool:
    flushed = [_subject(machine, place), *(change.directory for change in operation.changes)]
    return any(place < inode.names_flushed for inode in flushed)


def _replay(machine: Machine, lost: set[int]) -> Names:
    names = dict(machine.base)
    for place, operation in enumerate(machine.log):
        if place not in lost:
            _apply(names, operation.changes)
    return names


def _in_both(machine: Machine, names: Names, lost: set[int]) -> Iterator[tuple[Names, str]]:
    renames = [
        (place, operation)
        for place, operation in enumerate(machine.log)
        if operation.kind == "rename" and place not in lost and not _is_run(machine, operation.changes[0])
    ]
    for place, operation in renames[-2:]:
        new, old = operation.changes
        key = (old.directory.number, old.name)
        here = names.get((new.directory.number, new.name))
        if place >= old.directory.names_flushed and key not in names and here is new.inode and here is not None:
            yield {**names, key: here}, old.name


_STATES_OF_NAMES: dict[Rules, Callable[[Machine], list[tuple[Names, str]]]] = {
    Rules.ORDERED: _ordered,
    Rules.NAMES_FOLLOW: _ordered,
    Rules.LOG_TREE: _log_tree,
    Rules.STRICT: _strict,
    Rules.NEW_NAMES: _new_names,
}


def _vary(choices: list[list[T]]) -> Iterator[tuple[T, ...]]:
    """Return all combinations of the last few items; of the earlier items, at most one is not in its newest state."""
    early, late = choices[:-_VARYING_NAMES], choices[-_VARYING_NAMES:]
    newest = [options[0] for options in early]
    for combination in itertools.product(*late):
        yield (*newest, *combination)
    for place, options in enumerate(early):
        for option in options[1:]:
            yield (*newest[:place], option, *newest[place + 1 :], *(one[0] for one in late))


def _apply(names: Names, changes: tuple[Change, ...]) -> None:
    for directory, name, inode in changes:
        if inode is None:
            names.pop((directory.number, name), None)
        else:
            names[directory.number, name] = inode


def _is_run(machine: Machine, change: Change) -> bool:
    return change.directory is (machine.root.entries or {}).get(_RUN.strip("/"))


# -- the whole disk ---------------------------------------------------------------------------------------------------


def _walk(machine: Machine, names: Names) -> Iterator[tuple[str, Inode]]:
    """(path, inode) of everything that can be reached from the root."""
    entries: dict[int, list[tuple[str, Inode]]] = {}
    for (directory, name), inode in names.items():
        entries.setdefault(directory, []).append((name, inode))
    waiting = [("", machine.root)]
    while waiting:
        prefix, directory = waiting.pop()
        for name, inode in entries.get(directory.number, ()):
            yield prefix + name, inode
            if inode.entries is not None:
                waiting.append((f"{prefix}{name}/", inode))


def _build(machine: Machine, names: Names, contents: dict[int, bytes]) -> Image:
    return image_of((path, inode, contents.get(inode.number, inode.coming)) for path, inode in _walk(machine, names))


def _run_as_it_was(image: Image) -> tuple[Image, str]:
    return image, "run/ as it was"


def _run_empty(image: Image) -> tuple[Image, str]:
    kept = ((p, n, b"" if p.startswith(_RUN) and d is not None else d) for p, n, d in image.files)
    return Image(tuple(kept)), "run/ with empty files"


def _run_lost(image: Image) -> tuple[Image, str]:
    return Image(tuple(file for file in image.files if not file[0].startswith(_RUN))), "run/ lost"


_RUN_STATES = (_run_as_it_was, _run_empty, _run_lost)
