"""Checks of callers' arguments. A failed check raises InvalidArgument unless the function names another error."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, Unpack

from spool.coordination.counters import CounterPage
from spool.errors import BadMessageId, InvalidArgument
from spool.log.visibility import catch_up
from spool.log.write_set import WriteSet
from spool.model import codecs
from spool.model.message import attributes_of, check_content_type, headers_bytes, parse_message_id
from spool.model.options import PutOptions
from spool.model.order import place_before
from spool.model.position import Position
from spool.model.settings import BEFORE, TOP, QueueConfig, SpaceConfig, check_queue_name
from spool.model.text import no_queue
from spool.policies.no_effect import warn_of_put
from spool.store.settings_reader import Settings, SettingsReader
from spool.store.store import Store
from spool.transactions.core import Core


def check_queue(reader: SettingsReader, queue: str, page: CounterPage) -> Settings:
    """Return the current settings; raises QueueNotFound if the queue does not exist.

    ``page``: the counters, which the caller has just read.
    """
    settings = reader.known
    if queue in settings.config.queues and page.settings == settings.version:
        return settings
    check_queue_name(queue)
    settings = reader.current(page)
    if queue not in settings.config.queues:
        raise no_queue(queue, settings.config.queues)
    return settings


def put_request(core: Core, queue: str, bodies: Sequence[Any], **options: Unpack[PutOptions]) -> WriteSet:
    """Check and encode messages that are put outside of a transaction."""
    store, leader = core.store, core.leader
    page, settings = leader.page if leader.waiting else None, store.settings.known
    if page is None or queue not in settings.config.queues:
        if store.guard.closed:
            store.guard.check()
        page = store.shared.counters.read()
        if page.is_stopped:
            page.check()
        if queue not in settings.config.queues or page.settings != settings.version:
            settings = check_queue(store.settings, queue, page)
        leader.page = page
    found = WriteSet(page=page)
    for raws, fields in encode_bodies(store, settings, queue, bodies, options):
        found.put(queue, raws, fields)
    return found


def control_fields(store: Store, settings: Settings, queue: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Check the options of a put; returns the control fields of the message. The queue exists."""
    config, attributes = settings.config.queues[queue], attributes_of(**options)
    check_headers(attributes.get("headers", {}), settings.config)
    if TOP in attributes or BEFORE in attributes:
        _place(store, config, attributes)
    warn_of_put(store.files.disk.root, config, attributes, options.get("deduplication_key"))
    return with_times_of_queue(config, attributes, options)


def with_times_of_queue(
    config: QueueConfig, attributes: dict[str, Any], options: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Add the queue's ``first_delay``, unless the caller has given a delay (even 0) or a time; the same for the queue's
    ``time_to_live``."""
    said = attributes if options is None else options
    if config.first_delay and said.get("delay") is None and said.get("not_before") is None:
        attributes = {**attributes, "delay": config.first_delay}
    if config.time_to_live is not None and said.get("time_to_live") is None and said.get("expires_at") is None:
        attributes = {**attributes, "time_to_live": config.time_to_live}
    return attributes


def check_headers(headers: Mapping[str, str], limits: SpaceConfig) -> None:
    """Check the number and the size of the headers against the limits of the space."""
    size = headers_bytes(headers)
    if len(headers) > limits.max_headers or size > limits.max_headers_bytes:
        raise InvalidArgument(
            f"a message carries at most {limits.max_headers} headers of {limits.max_headers_bytes} bytes together, "
            f"not {len(headers)} of {size}: put the rest into the body, or raise the limit in space.toml"
        )


def _place(store: Store, config: QueueConfig, attributes: dict[str, Any]) -> None:
    """Place a message out of order, if the queue allows that.

    Raises BadMessageId if the message given as ``before`` was removed.
    """
    wanted = TOP if TOP in attributes else BEFORE
    if wanted not in config.out_of_order:
        raise InvalidArgument(
            f"queue {config.name} does not allow {wanted} (its option out_of_order): leave {wanted} out, "
            f"or allow it with: spool-admin queue change {config.name} --out-of-order {wanted}"
        )
    if wanted == BEFORE:
        message_id = attributes[BEFORE]
        catch_up(store)
        with store.view.mutex:
            run, ordinal = store.view.index.messages.with_id(*parse_message_id(message_id))
        if run is None or run.queue.name != config.name or run.is_expired(store.clock.now()):
            raise BadMessageId(f"there is no message {message_id} in queue {config.name} to put another before")
        attributes[BEFORE] = place_before(run.attributes, run.committed_at, Position(run.number, ordinal))


def encode_bodies(
    store: Store, settings: Settings, queue: str, bodies: Sequence[Any], options: PutOptions
) -> list[tuple[Sequence[bytes], dict[str, Any]]]:
    """Check the options of a put, and encode the bodies; returns groups of neighbours with the same control fields.

    The queue exists. The option ``content_type`` is removed from ``options``.
    """
    config, limit = settings.config.queues[queue], settings.config.max_body_bytes
    attributes, content_type = dict[str, Any](), None
    if options or config.first_delay or config.time_to_live is not None:
        content_type = options.pop("content_type", None)
        attributes = control_fields(store, settings, queue, options)
        if content_type is not None:
            content_type = check_content_type(content_type)
    if set(map(type, bodies)) == {bytes}:
        fields = attributes if content_type is None else {**attributes, "content_type": content_type}
        if max(map(len, bodies)) > limit:
            check_size(max(map(len, bodies)), limit)
        return [(bodies, fields)]
    groups: list[tuple[Sequence[bytes], dict[str, Any]]] = []
    for (codec, kind), group in groupby((codecs.encode(one, content_type) for one in bodies), key=lambda one: one[1:]):
        raws = [raw for raw, _, _ in group]
        check_size(max(map(len, raws)), limit)
        fields = dict(attributes)
        if codec is not None:
            fields["codec"] = codec
        if kind is not None:
            fields["content_type"] = kind
        groups.append((raws, fields))
    return groups


def check_size(size: int, limit: int) -> None:
    """Check the size of a body, in bytes, against the limit of the space."""
    if size > limit:
        raise InvalidArgument(
            f"a body of {size} bytes is larger than the space's max_body_bytes, {limit}: "
            "put it into a file and its name into the message, or raise the limit in space.toml"
        )
