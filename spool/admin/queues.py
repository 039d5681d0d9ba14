"""Create, change and delete queues by edits of ``space.toml``. One process edits at a time, and each edit is
durable."""

import grp
import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from spool.admin.dropped import DroppedFiles
from spool.coordination.locks import PREPARED_LIST
from spool.disk.content import ensure_directories, ensure_directory, protect_files
from spool.disk.disk import DIRECTORY_MODE, PASSAGE_MODE, SHARED_MODE, Disk
from spool.errors import Argument, InvalidArgument, QueueExists, QueueNotEmpty
from spool.format.reader import FileContents
from spool.log.sequence import flush_published, number_locked, settle_to
from spool.log.settled_lock import settled
from spool.log.visibility import list_prepared
from spool.model import layout
from spool.model.options import KEEP, Keep
from spool.model.settings import (
    OPTIONAL,
    QUEUE_OPTIONS,
    QueueConfig,
    SpaceConfig,
    check_queue_name,
    check_queue_options,
    differences,
    named,
    queue_config,
)
from spool.model.text import no_queue, plural, shown
from spool.policies.no_effect import warn_of_queue
from spool.runtime.clock import LockTimeout, WaitExpired
from spool.store.edits import SettingsFile, edited, editing, use_edits
from spool.store.store import Store

log = logging.getLogger("spool")

_MOST_OF_A_GROUP = 255
_REFERRING = ("error_queue", "reply_queue", "failure_queue")
_LIMITS = ("retries", "deaths")


def add_queues(
    store: Store, wanted: Mapping[str, Mapping[str, Any]], *, create_missing: bool = False, exist_ok: bool = False
) -> dict[str, QueueConfig]:
    """Add queues to the settings in one edit, and create their directories. Returns the queues' configurations.

    ``wanted``: the options of each queue. The other arguments and the errors are as in
    ``Administration.create_queues``.
    """
    alike: dict[int, QueueConfig] = {}
    for name, options in wanted.items():
        _config_of(name, options, {}, alike)
    with editing(store) as file:
        found, made, alike = dict[str, QueueConfig](), dict[str, QueueConfig](), {}
        for name, options in wanted.items():
            if (present := file.config.queues.get(name)) is None:
                made[name] = _config_of(name, options, file.config.defaults, alike)
            elif exist_ok:
                _check_alike(present, queue_config(name, options, defaults=file.config.defaults), options)
                found[name] = present
            else:
                use = "pass ", Argument("exist_ok=True"), " to use it"
                raise QueueExists(f"queue {name!r} exists already: choose another name, or ", *use)
        if made:
            config = _change(store, file, made, dict.fromkeys(made, _REFERRING), create_missing)
            found |= {name: config.queues[name] for name in made}
        else:
            use_edits(store, file)
    for name in {id(wanted[name]): name for name in made}.values():  # (thousands of queues may share their options)
        warn_of_queue(found[name], wanted[name])
        _with_warning(found[name])
    return {name: found[name] for name in wanted}


def _config_of(
    name: str, options: Mapping[str, Any], defaults: Mapping[str, Any], alike: dict[int, QueueConfig]
) -> QueueConfig:
    """Return a queue with these options. ``alike``: by the identity of an options object, a queue that can share the
    object."""
    known = alike.get(id(options))
    if known is not None and name not in (known.error_queue, defaults.get("error_queue")):
        return named(known, check_queue_name(name))
    config = queue_config(name, options, defaults=defaults)
    if config.error_queue is not None or "error_queue" not in defaults:
        alike.setdefault(id(options), config)
    return config


def _check_alike(present: QueueConfig, wanted: QueueConfig, options: Iterable[str]) -> None:
    """Raise QueueExists if one of ``options`` of a queue differs."""
    if different := differences(present, wanted, options):
        change = f"change the queue's with change_queue or spool-admin queue change {present.name}"
        text = f"): give the same options, leave them out, or {change}"
        raise QueueExists(f"queue {present.name!r} exists with other options (", *different, text)


def change_queue(
    store: Store, name: str, *, create_missing: bool = False, drop_group: str | Keep | None = KEEP, **options: Any
) -> QueueConfig:
    """Change options of a queue, and the group of its drop folder. The errors are as in
    ``Administration.change_queue``."""
    reset = {option for option in options if options[option] is None and option in QUEUE_OPTIONS}
    reset -= OPTIONAL
    given = {option: value for option, value in options.items() if option not in reset}
    check_queue_name(name)
    check_queue_options(given, f"queue {name}: ")
    group = None if drop_group is KEEP or drop_group is None else group_id(drop_group)

    with editing(store) as file:
        known = file.config
        if name not in known.queues:
            raise no_queue(name, known.queues)
        current = {option: getattr(known.queues[name], option) for option in QUEUE_OPTIONS if option not in reset}
        config = queue_config(name, given, defaults={**known.defaults, **current})
        referring = {name: given.keys() & set(_REFERRING)}
        changed = _change(store, file, {name: config}, referring, create_missing).queues[name]
        if "durability" in options and changed.durability == "flush":
            _flush_all(store)
        if drop_group is not KEEP:
            _open_drop_folder(store.files.disk, name, group)
        else:
            _protect_drop_folder(store.files.disk, name)
        warn_of_queue(changed, [option for option, value in given.items() if value is not None])
    if (mark := known.queues[name].capacity_high) not in (None, changed.capacity_high):
        from spool.policies.capacity import forget_mark  # imported only if needed, because it imports subprocess

        forget_mark(store, name, mark)
    return _with_warning(changed) if {*_LIMITS, "error_queue"} & options.keys() else changed


def _flush_all(store: Store) -> None:
    """Flush all commits that began under the earlier settings, so that no power cut can lose their messages."""
    again = "the queue is changed; change it once more to flush earlier messages"
    # A commit that gets its number after this call reads the new settings.
    with number_locked(store.shared.control, store.deadline(), again):
        issued = store.shared.counters.read().issued
    try:
        settle_to(store, issued, store.deadline())
    except WaitExpired as error:
        raise LockTimeout(f"{error}; {again}") from None
    flush_published(store)


def _change(
    store: Store, file: SettingsFile, wanted: Mapping[str, QueueConfig], referring: Mapping[str, Iterable[str]],
    create_missing: bool,
) -> SpaceConfig:  # fmt: skip
    """Add or change queues in the settings; return the new settings.

    Also add the missing queues that options of these queues name. ``referring``: for each queue, the options that name
    a queue. Raise QueueNotFound for a missing queue unless ``create_missing``.
    """
    known, made = file.config, dict(wanted)
    naming = [(name, option) for name, options in referring.items() for option in sorted(options)]
    for name, option in naming:  # (the loop appends to this list)
        queue = getattr(made[name], option)
        if queue is None or queue in known.queues or queue in made:
            continue
        if not create_missing:
            advice = "create it first, or at once with ", Argument("create_missing=True")
            raise no_queue(queue, known.queues, *advice, where=(f"queue {name}: ", Argument(option), ": "))
        made[queue] = queue_config(queue, {}, defaults=known.defaults)
        naming += [(queue, each) for each in _REFERRING]  # (from the space's defaults)
    new = [f"{layout.DROP}/{name}" for name in made if name not in known.queues]
    if new:
        ensure_directories(store.files.disk, layout.DROP, new)
    with edited(store, file, made) as publish:
        return publish()


def _with_warning(config: QueueConfig) -> QueueConfig:
    """Warn if a queue deletes the messages that have used up their attempts."""
    for limit in _LIMITS:
        about = config.name, limit, getattr(config, limit)
        if about[2] is not None and config.error_queue is None:
            log.warning("queue %s has %s, %d, and no error_queue: a message that fails more often is deleted", *about)
    return config


def delete_queue(store: Store, name: str) -> None:
    """Delete an empty queue, and its directory.

    Raises:
        QueueNotFound: the queue does not exist.
        QueueNotEmpty: the queue has a message, which may be claimed or in doubt. Also raised if dropped files wait for
            the queue, or an option of another queue or a schedule names the queue.
    """

    with editing(store) as file:
        if check_queue_name(name) not in file.config.queues:
            raise no_queue(name, file.config.queues)
        with edited(store, file, {}, [name]) as publish, _commits_blocked(store):
            _check_unused(store, name, file.config)
            publish()
        with suppress(OSError):  # (a file was just dropped: the next intake reports the file)
            store.files.disk.remove_directory(f"{layout.DROP}/{name}")


def _check_unused(store: Store, name: str, known: SpaceConfig) -> None:
    disk, view = store.files.disk, store.view
    for other in known.queues.values():
        for option in _REFERRING:
            if other.name != name and getattr(other, option) == name:
                raise QueueNotEmpty(f"queue {name!r} is the {option} of queue {other.name!r}: change that first")
    with view.mutex:
        for schedule in view.index.schedules.values():
            if schedule.queue == name:
                advice = f"delete the schedule first: spool-admin schedule delete {schedule.name}"
                raise QueueNotEmpty(f"schedule {schedule.name!r} puts into queue {name!r}: {advice}")
        inside = view.index.messages.queue(name).live
    inside += sum(_puts(contents, name) for contents in view.prepared.branches.values())
    if inside:
        raise QueueNotEmpty(
            f"queue {name!r} holds {plural(inside, 'message')}: take, move or purge {'it' if inside == 1 else 'them'} "
            f"first, after the transactions that hold any have ended (spool-admin queue show {name} counts them)"
        )
    if disk.exists(f"{layout.DROP}/{name}") and disk.names(f"{layout.DROP}/{name}"):
        raise QueueNotEmpty(f"files wait in {layout.DROP}/{name}: take them in with spool-intake, or move them away")
    if (waiting := next(DroppedFiles(store).captured(name), None)) is not None:
        raise QueueNotEmpty(f"dropped files wait for room, e.g. {waiting}: raise the limits, and run spool-intake")


def _puts(contents: FileContents, queue: str) -> int:
    """Count the messages that a branch puts or moves into the queue."""
    count = 0
    for table in contents.tables:
        updates = (command for command in table.commands if command.name == "update")
        count += sum(update.length for update in updates if update.changes.get("queue") == queue)
        count += sum(length for place, _, length in table.runs if table.queues[place] == queue)
    return count


@contextmanager
def _commits_blocked(store: Store) -> Iterator[None]:
    """Prevent commits from getting a number, and branches from voting. Afterwards each commit and branch first reads
    the settings."""
    with settled(store, store.deadline()):
        for _ in store.deadline().polls():
            list_prepared(store)
            with store.shared.control.holding(PREPARED_LIST, store.deadline(), "the list of prepared branches"):
                if store.shared.counters.read().prepared == store.view.prepared.version:
                    yield
                    return
        raise LockTimeout("branches were prepared all the time: try again later")


def group_id(group: str) -> int:
    """Return the id of a group of this machine. Raises InvalidArgument if the group does not exist."""
    try:
        # The C library ends the process if a name has megabytes.
        if not isinstance(group, str) or len(group) > _MOST_OF_A_GROUP:
            raise KeyError(group)
        return grp.getgrnam(group).gr_gid
    except KeyError:
        raise InvalidArgument(f"there is no group {shown(group)} on this machine") from None


def _open_drop_folder(disk: Disk, name: str, group: int | None) -> None:
    """Let a group of users drop files into a queue's folder. If the group is None, only the space's owner may drop
    files."""
    folder = f"{layout.DROP}/{name}"
    ensure_directory(disk, folder)
    if group is None:
        disk.set_mode(folder, DIRECTORY_MODE)
        return
    try:
        disk.set_mode(folder, SHARED_MODE, group)
    except PermissionError:
        raise InvalidArgument(
            f"this user may not give folders to group {grp.getgrgid(group).gr_name}: name a group that this user is in"
        ) from None
    for passage in ("", layout.DROP):
        disk.set_mode(passage, PASSAGE_MODE)


def _protect_drop_folder(disk: Disk, name: str) -> None:
    """Protect the files in a folder that was opened to several users, by an earlier version or by a user's
    ``chmod``."""
    folder = f"{layout.DROP}/{name}"
    identity = disk.identity(folder)
    if identity is not None and identity.lets_users_remove_files_of_others:
        protect_files(disk, folder, identity)
