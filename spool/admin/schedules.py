"""Create, delete and run schedules, and put their due messages, each time once among all processes.

A commit with a message of a schedule also replaces the schedule's fact, and happens only if the schedule is unchanged.
The condition is checked under the number lock (Rule 5). So of several processes one puts each message, and after a
crash both the message and the new fact exist, or neither. In this way, an application's batch is committed once, too.
"""

import logging
from collections.abc import Mapping, Sequence
from datetime import datetime
from math import inf
from typing import Any

from spool.coordination.next_due import LOOK_NOW, tell_next_due
from spool.disk.disk import is_full
from spool.errors import Argument, Full, InvalidArgument, QueueNotFound, SpoolError
from spool.log.engine_commit import own_file
from spool.log.visibility import apply_up_to, catch_up
from spool.log.write import Write, write
from spool.log.write_set import WriteSet
from spool.model.codecs import Encoded
from spool.model.message import attributes_of
from spool.model.options import KEEP
from spool.model.schedule import OF_ONE_MESSAGE, SCHEDULE_FACT, Schedule, decided, is_due, planned, puts, with_body
from spool.model.text import did_you_mean, one_line, shown
from spool.store.store import Store
from spool.transactions.core import Core
from spool.transactions.validation import put_request

log = logging.getLogger("spool")

_AT_ONCE = 256  # the most schedules in one commit


class _Conflict(SpoolError):
    """Another commit has changed the schedule."""


# A commit that changes a schedule if it is still the same: the key of its fact, the schedule or None, the commit.
_Change = tuple[str, Schedule | None, WriteSet]


def create_schedule(core: Core, new: Schedule, body: Any, options: Mapping[str, Any], exist_ok: bool) -> Schedule:
    """Create a schedule; ``new`` has neither a body nor options yet. For the errors, see
    ``Administration.create_schedule``."""
    for option in OF_ONE_MESSAGE:
        if options.get(option) is not None:
            instead = "leave it out, or give a time that counts from each put: delay or time_to_live"
            raise InvalidArgument(Argument(option), f" is for one message, and not for a schedule: {instead}")
    kept = attributes_of(**{option: value for option, value in options.items() if option != "content_type"})
    new = planned(with_body(new._replace(options=kept), body, options.get("content_type")), core.store.clock.now())
    while True:
        _message(core, new, new.next_due)  # raises the errors of a put
        present = schedules(core.store).get(new.name)
        if present is not None and not (exist_ok and present[:8] == new[:8]):
            other = " with other options" if exist_ok else ""
            advice = f"choose another name, or change it: spool-admin schedule change {new.name}"
            raise InvalidArgument(f"schedule {new.name!r} exists already{other}: {advice}")
        if present is not None or _decide(core.store, new.name, new, None, WriteSet()):
            return present or new


def change_schedule(core: Core, name: str, body: Any, content_type: str | None, **changes: Any) -> Schedule:
    """Change the body and the fields of a schedule that are not KEEP. For the errors, see
    ``Administration.change_schedule``."""
    while True:
        known, now = find(core.store, name), core.store.clock.now()
        new = planned(known._replace(**{field: value for field, value in changes.items() if value is not KEEP}), now)
        new = new if body is KEEP else with_body(new, body, content_type)
        _message(core, new, None)
        if known.next_due is not None and known.next_due <= now:  # (this message is late, and is still put)
            new = new._replace(next_due=known.next_due)
        if _decide(core.store, name, new, known, WriteSet()):
            return new


def delete_schedule(store: Store, name: str) -> None:
    """Delete a schedule durably. Raises InvalidArgument if the schedule does not exist."""
    while not _decide(store, name, None, find(store, name), WriteSet()):
        pass


def schedules(store: Store) -> dict[str, Schedule]:
    """Return all schedules by name."""
    catch_up(store)
    with store.view.mutex:
        found = sorted(store.view.index.schedules.values(), key=lambda each: each.name)
    return {each.name: each for each in found}


def find(store: Store, name: str) -> Schedule:
    """Return a schedule. Raises InvalidArgument if the schedule does not exist."""
    known = schedules(store)
    if name not in known:
        meant = did_you_mean(str(name), known)
        raise InvalidArgument(f"there is no schedule {shown(name)}{meant}: spool-admin schedule list names them")
    return known[name]


def run_schedule(core: Core, name: str) -> str:
    """Put the message of a schedule now. The times of the schedule do not change. Returns the id of the message."""
    while True:
        known = find(core.store, name)
        new, writes = known._replace(last_put=core.store.clock.now(), error=""), _message(core, known, None)
        if _decide(core.store, name, new, known, writes):
            return writes.ids[0]


def put_due(core: Core) -> float:
    """Put the due messages of all schedules. Return the time at which the next message is due, in seconds since the
    epoch; infinity if none is.

    If a message cannot be put, its schedule records the reason, and a later call repeats the attempt. The call then
    returns the present time.
    """
    store, now = core.store, core.store.clock.now()
    catch_up(store)
    with store.view.mutex:
        due = [each for each in store.view.index.schedules.values() if is_due(each, now)]
    for begin in range(0, len(due), _AT_ONCE):
        _put(core, due[begin : begin + _AT_ONCE], now)
    with store.view.mutex:
        times = [each.next_due for each in store.view.index.schedules.values() if each.next_due is not None]
    return min((max(time, now) for time in times), default=inf)


def _put(core: Core, due: Sequence[Schedule], now: float) -> None:
    """Make one commit for all these schedules, and one for the errors of those that cannot be put."""
    store, changes, failed = core.store, list[_Change](), list[tuple[Schedule, BaseException | None]]()
    for known in due:
        try:
            writes = _message(core, known, known.next_due) if puts(known, now) else WriteSet()
            changes.append(_change(known.name, decided(known, now), known, writes))
        except (InvalidArgument, QueueNotFound) as error:
            failed.append((known, error))
    _commit(store, changes)
    failed += [(known, writes.error) for _, known, writes in changes if known is not None]
    notes: list[_Change] = []
    for known, refused in failed:
        if isinstance(refused, OSError) and is_full(refused):
            refused = store.translate_error("committing", refused)
        elif refused is not None and not isinstance(refused, _Conflict | Full | InvalidArgument | QueueNotFound):
            raise refused
        if refused is not None and not isinstance(refused, _Conflict) and (text := one_line(refused)) != known.error:
            log.warning("schedule %s cannot put its message, which is late: %s", known.name, text)
            notes.append(_change(known.name, known._replace(error=text), known, WriteSet()))
    _commit(store, notes)


def _message(core: Core, schedule: Schedule, due: float | None) -> WriteSet:
    """Return the write set with a message of the schedule. ``due``: the time of the message; None for a run."""
    headers = {"schedule": schedule.name}
    if due is not None:
        headers["schedule-due"] = datetime.fromtimestamp(due, schedule.zone).isoformat()
    options: Any = {**schedule.options, "headers": {**headers, **schedule.options.get("headers", {})}}
    body = schedule.raw if schedule.codec is None else Encoded(schedule.raw, schedule.codec, proven=True)
    return put_request(core, schedule.queue, [body], **options)


def _change(name: str, new: Schedule | None, known: Schedule | None, writes: WriteSet) -> _Change:
    """Add the new state of a schedule to a write set; None deletes the schedule."""
    key = f"{SCHEDULE_FACT}{name}"
    writes.fact(key, None if new is None else list(new[1:]))
    return key, known, writes


def _decide(store: Store, name: str, new: Schedule | None, known: Schedule | None, writes: WriteSet) -> bool:
    """Commit the new state of a schedule; return False if the schedule is no longer ``known``."""
    _commit(store, [_change(name, new, known, writes)])
    tell_next_due(store.shared.control, LOOK_NOW)
    if writes.error is None or isinstance(writes.error, _Conflict):
        return writes.error is None
    raise writes.error


def _commit(store: Store, changes: Sequence[_Change]) -> None:
    """Commit the changes together, except those that are refused: their write sets have the errors."""

    def check_unchanged(_: object) -> None:
        for key, known, writes in changes:
            if writes.error is None and store.view.index.schedules.get(key) != known:
                writes.error = _Conflict()

    left = [writes for _, _, writes in changes]
    while left:
        with own_file(store, store.deadline()) as file:
            write(Write(store, left, file, limited=True, settled=True, check=check_unchanged))
        left = [one for one in left if one.number is None and one.error is None]
    apply_up_to(store, max((writes.number or 0 for _, _, writes in changes), default=0))
