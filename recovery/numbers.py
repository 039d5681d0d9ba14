"""Sequence numbers when a space opens: which were issued, which were published, and which commits lost their name or
their writer.

The first opener reads the numbered files above the highest number that is certainly durable (`read`). The opener works
out which numbers were issued and published (`count`), and decides about each number (`decide`). Then the opener
restores names that a power cut removed (Rule 13), and finishes the numbers of dead writers (Rule 3).
"""

import enum
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from spool.admin.findings import Kind
from spool.coordination.counters import CounterPage, Counters
from spool.disk.content import closed_at_end, opened
from spool.disk.disk import Disk
from spool.disk.recycler import origin_of
from spool.errors import CorruptedFile, NewerFormat, SpoolError
from spool.format.header import Header, stamp
from spool.format.reader import FileContents, contents_of, open_file, prove, read_header
from spool.log.sequence import finish_dead_writer
from spool.model import layout
from spool.model.text import plural
from spool.model.xid import Xid
from spool.store.store import Store, log

from .decision import Decision, Reason, Step

# Sequence numbers are issued one after the other, so a crash leaves only a few numbers without a file. A file whose
# number is farther ahead comes from another program, and recovery does not fill the numbers before that file.
MAX_GAP = 100_000

_Read = TypeVar("_Read")


class Condition(enum.Enum):
    """The state of a numbered file that is perhaps unpublished."""

    WHOLE = enum.auto()
    TORN = enum.auto()
    MISSING = enum.auto()  # the file does not exist, or is empty


@dataclass(frozen=True)
class NumberedFile:
    """A numbered file that is perhaps unpublished. ``cause``: the content or the defect of the file, in words."""

    condition: Condition
    cause: str
    adopts: tuple[Xid, ...] = ()


NO_FILE = NumberedFile(Condition.MISSING, "no file")


@dataclass(frozen=True)
class NumberedFiles:
    """The evidence about sequence numbers, from the files and the counters.

    page: the counters as the last process left them.
    same_boot: whether the machine has not been restarted since the last process wrote ``page``.
    seen: every number that occurs in the space: in names of files, in counters, in prepared branches or in claim
        journals.
    newest: the highest number whose file is whole; 0 if no file is whole.
    mark: the highest number that a whole file records as durable.
    unnamed: the present path of each file that lost its name in a power cut, by the number of the commit.
    files: the numbered files above the highest number that is certainly durable.
    from_mirror: the numbers of ``files`` that only the mirror has.
    """

    page: CounterPage
    same_boot: bool
    seen: frozenset[int]
    newest: int
    mark: int
    unnamed: Mapping[int, str]
    files: Mapping[int, NumberedFile]
    from_mirror: tuple[int, ...] = ()

    def with_mirrored(self, headers: Mapping[int, Header]) -> "NumberedFiles":
        """Return the evidence plus the commits with these headers, which recovery will copy from the mirror into the
        space."""
        if not headers:
            return self
        found = {
            number: NumberedFile(Condition.WHOLE, "the mirror has it", tuple(one.xid for one in header.adopts))
            for number, header in headers.items()
        }
        return replace(
            self,
            seen=self.seen | found.keys(),
            newest=max(self.newest, *found),
            mark=max([self.mark, *(header.durable_mark for header in headers.values())]),
            files={**self.files, **found},
            from_mirror=tuple(sorted(found)),
        )


@dataclass(frozen=True)
class Numbers:
    """The sequence numbers of the space, as they were when its last process ended.

    issued, published: the highest sequence numbers issued and published.
    same_life: whether no power cut has happened since a process last had the space open.
    unpublished: for each number that was issued but not published, its file, or `NO_FILE`.
    """

    issued: int
    published: int
    same_life: bool
    unpublished: Mapping[int, NumberedFile]


# -- reading ----------------------------------------------------------------------------------------------------------


def read(
    disk: Disk, counters: Counters, names: Iterable[str], named: int, stamped: Mapping[str, Header]
) -> NumberedFiles:
    """Read the evidence about the sequence numbers. Only this process has the space open.

    Args:
        names: the names of the entries in ``committed/``.
        named: the highest number that a prepared branch or a claim journal refers to. A power cut may remove an
            unflushed commit and leave a reference to its number. A number that has a reference must not be issued
            again.
        stamped: see `read_stamped`.
    """
    parsed = [p for p in map(layout.parse_committed, names) if p is not None]
    places = {p.number: layout.committed(p.number) for p in parsed if not p.adoption}
    page = counters.read()
    newest, mark = _newest_whole(disk, places)
    with_names = {p.number for p in parsed}
    unnamed = _unnamed(stamped, last_in_reach(with_names, newest))
    found, durable = _newest_whole(disk, unnamed)
    newest, mark = max(newest, found), max(mark, durable)
    seen = frozenset({*with_names, *unnamed, *_quarantined_numbers(disk), page.issued, named} - {0})
    issued = last_in_reach(seen, newest)
    same_boot = page.boot_id == disk.boot_id()
    certain = page.durable if same_boot else mark
    places |= unnamed
    files = {number: _read_file(disk, number, place) for number, place in sorted(places.items())
             if certain < number <= issued}  # fmt: skip
    return NumberedFiles(page, same_boot, seen, newest, mark, unnamed, files)


def _newest_whole(disk: Disk, places: Mapping[int, str]) -> tuple[int, int]:
    """Return the number of the newest whole file, and the highest number that a whole file records as durable. Both are
    0 if no file is whole.

    A writer reads the counters before it waits for the number lock. So a file may name an older mark than the file with
    the preceding number. Therefore this function reads every file above the mark.
    """
    newest = mark = 0
    for number in sorted(places, reverse=True):
        if number <= mark:
            break
        contents = contents_or_none(disk, places[number])
        if contents is not None and contents.header.number == number:
            newest, mark = newest or number, max(mark, contents.header.durable_mark)
    return newest, mark


def read_stamped(disk: Disk) -> dict[str, Header]:
    """Return the header of each file in ``active/`` and ``free/`` that has a number or the mark of a vote, by its
    path. After a power cut, such a file may be a commit or a vote that lost its name (Rule 13)."""
    places = [f"{layout.ACTIVE}/{name}" for name in disk.names(layout.ACTIVE) if layout.parse_xid(name) is not None]
    places += [f"{layout.FREE}/{name}" for name in disk.names(layout.FREE)]
    headers = {place: _unless_damaged(_header_of, disk, place) for place in sorted(places)}
    return {place: header for place, header in headers.items() if header is not None and header.number > 0}


def _header_of(disk: Disk, name: str) -> Header:
    with closed_at_end(disk, open_file(disk, name)) as handle:
        return read_header(disk, handle)


def _unnamed(stamped: Mapping[str, Header], highest: int) -> dict[int, str]:
    """Find commits above ``highest`` that have no committed name: return the path of each file, by its number."""
    unnamed = {}
    for place, header in stamped.items():
        number, free = header.number, layout.parse_free(place.rpartition("/")[2])
        if highest < number <= highest + MAX_GAP and (free is None or free.origin != origin_of(number)):
            unnamed[number] = place
    return unnamed


def _quarantined_numbers(disk: Disk) -> list[int]:
    prefix = f"{layout.COMMITTED}."
    numbers = []
    for name in disk.names(layout.QUARANTINE):
        digits = name.removeprefix(prefix)[:16]
        parsed = layout.parse_committed(f"{digits}{layout.SUFFIX}")
        if name.startswith(prefix) and parsed is not None:
            numbers.append(parsed.number)
    return numbers


def _read_file(disk: Disk, number: int, name: str) -> NumberedFile:
    identity = disk.identity(name)
    if identity is not None and identity.is_regular and not identity.size:
        return NumberedFile(Condition.MISSING, "an empty file")
    try:
        with closed_at_end(disk, open_file(disk, name)) as handle:
            header = prove(disk, handle).header
    except CorruptedFile as error:
        return NumberedFile(Condition.TORN, str(error))
    if header.number != number:
        return NumberedFile(Condition.TORN, f"it carries the number {header.number}")
    return NumberedFile(Condition.WHOLE, plural(header.messages, "message"), tuple(one.xid for one in header.adopts))


def contents_or_none(disk: Disk, name: str) -> FileContents | None:
    """Return the header and tables of a file; None if the file is missing or damaged."""
    return _unless_damaged(contents_of, disk, name)


def _unless_damaged(read: Callable[[Disk, str], _Read], disk: Disk, name: str) -> _Read | None:
    try:
        return read(disk, name)
    except NewerFormat as error:
        raise NewerFormat(f"{disk.root}: {name}: {error}") from None
    except CorruptedFile:
        return None


# -- deciding ---------------------------------------------------------------------------------------------------------


def count(evidence: NumberedFiles) -> Numbers:
    """Return the issued and published numbers that follow from the evidence.

    The boot id alone does not prove that the disk lost nothing. Within one boot, an administrator can mount a snapshot
    of the disk, or unplug the disk and mount it again. In these cases ``run/`` is as old as the other files, and its
    counters may include commits whose files were not flushed.
    """
    page, files = evidence.page, evidence.files
    issued = last_in_reach(evidence.seen, evidence.newest)
    published = min(evidence.mark, issued)
    unflushed = range(page.durable + 1, page.published + 1)
    same_life = evidence.same_boot and all(files.get(n, NO_FILE).condition is Condition.WHOLE for n in unflushed)
    if evidence.same_boot:  # after a failed flush, trust only the commits that were durable before
        believed = page.published if same_life and not page.is_stopped else page.durable
        published = min(issued, max(published, believed))
    unpublished = {number: files.get(number, NO_FILE) for number in range(published + 1, issued + 1)}
    return Numbers(issued, published, same_life, unpublished)


def last_in_reach(seen: Iterable[int], newest: int) -> int:
    """Return the highest issued number: the last number of `seen` before the first large gap.

    Args:
        newest: the newest number whose file is whole; 0 if no file is whole. If ``newest`` is 0, the lowest number in
            `seen` is trusted.
    """
    numbers = sorted(number for number in seen if number > newest)
    last = newest or (numbers[0] if numbers else 0)
    for number in numbers:
        if number > last + MAX_GAP:
            break
        last = number
    return last


def decide(evidence: NumberedFiles) -> list[Decision]:
    """Decide about unnamed commits, then about unpublished numbers, each group in ascending order.

    Names are given in this order. So if recovery is interrupted, the numbers of commits without a name are still above
    the highest name.
    """
    decisions = [
        Decision(Kind.MOVED, place, Reason.LOST_NAME, Step.NAME, number=number)
        for number, place in sorted(evidence.unnamed.items())
    ]
    for number, file in count(evidence).unpublished.items():
        about = _ABOUT_NUMBERS[file.condition]
        decisions.append(Decision(about[0], layout.committed(number), *about[1:], number=number, cause=file.cause))
    return decisions


_ABOUT_NUMBERS = {
    Condition.WHOLE: (Kind.FINISHED, Reason.UNPUBLISHED, Step.FINISH),
    Condition.TORN: (Kind.TORN, Reason.UNFLUSHED, Step.DISCARD),
    Condition.MISSING: (Kind.EMPTY_NUMBER, Reason.NO_FILE, Step.FILL),
}


# -- applying ---------------------------------------------------------------------------------------------------------


def apply(store: Store, evidence: NumberedFiles, decisions: Iterable[Decision]) -> None:
    """Give commits their names, set the counters, and finish each unpublished number.

    A disk error is raised, because recovery must not continue after the error. Names are given without a flush. If a
    further power cut removes a name, the space is again in its state before this recovery.
    """
    for decision in decisions:
        if decision.step is Step.NAME:
            store.files.disk.rename_new(decision.name, layout.committed(decision.number))
    if evidence.from_mirror:
        assert store.files.mirror is not None
        for number in evidence.from_mirror:
            store.files.mirror.give_back(number)
        log.warning(
            "%s: the mirror gave back %s that the space had lost, e.g. by a power cut",
            store.files.disk.root, plural(len(evidence.from_mirror), "commit"),
        )  # fmt: skip
    numbers, page = count(evidence), evidence.page
    store.shared.feed.start()
    store.shared.requests.start()
    store.shared.counters.start(
        issued=numbers.issued,
        published=numbers.published,
        # After a power cut, ``numbers.published`` was itself read from a durable mark.
        durable=min(numbers.published, page.durable) if numbers.same_life else numbers.published,
        suspect=evidence.same_boot and (page.is_stopped or page.is_suspect),
    )
    store.files.recycler.recover(after_power_cut=not numbers.same_life)
    for number in numbers.unpublished:
        _finish(store, number)


def write_number(disk: Disk, name: str, number: int) -> None:
    """Write the number of a file again, durably. A branch without a mark has the number 0."""
    with opened(disk, name, write=True) as handle:
        disk.write_at(handle, *stamp(number))
        disk.flush(handle)


def _finish(store: Store, number: int) -> None:
    """Finish an unpublished number, just as other processes finish the number of a dead writer."""
    with store.shared.numbers.trying(number) as ours:
        if not ours:
            raise SpoolError(f"commit {number} has a writer although no process has the space open")
        finish_dead_writer(store, number)
