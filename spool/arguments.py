"""What callers may ask for: their arguments, checked, with errors that say what would do."""

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from spool import codecs
from spool.consume import Wanted
from spool.counters import Page
from spool.errors import InvalidArgument, QueueNotFound
from spool.message import check_content_type
from spool.settings import check_queue_name
from spool.store import Store


def check_queue(store: Store, queue: str, page: Page) -> None:
    """QueueNotFound if the space has no such queue, even after reading its settings again; ``page``: just read."""
    if queue in store.config.queues:
        if page.settings != store.settings_version:
            store.refresh_settings()
        return
    check_queue_name(queue)
    store.refresh_settings()
    if queue not in store.config.queues:
        there = ", ".join(sorted(store.config.queues)[:20]) or "none yet"
        raise QueueNotFound(
            f"there is no queue {queue!r} (queues: {there}): create it with spool-admin queue create {queue}"
        )


def check_wanted(
    queue: str, count: int, timeout: float | None, message_id: str | None, correlation_id: str | None
) -> Wanted:
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise InvalidArgument(f"max_messages is a whole number from 1, not {count!r}")
    if timeout is not None and (isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout >= 0):
        raise InvalidArgument(f"timeout is 0, a number of seconds, or None to wait for ever, not {timeout!r}")
    wanted = Wanted(queue, count, message_id, correlation_id)
    if wanted.by_key and timeout != 0:
        raise InvalidArgument("a get by id or correlation id does not wait: leave timeout at 0")
    if message_id is not None and correlation_id is not None:
        raise InvalidArgument("message_id and correlation_id exclude each other: give one of them")
    return wanted


def encoded(
    bodies: Sequence[Any], content_type: str | None, attributes: dict[str, Any], limit: int
) -> list[tuple[Sequence[bytes], dict[str, Any]]]:
    """Groups of neighbouring bodies with the same control fields."""
    check_content_type(content_type)
    if set(map(type, bodies)) == {bytes}:
        described = attributes if content_type is None else {**attributes, "content_type": content_type}
        _check_size(max(map(len, bodies)), limit)
        return [(bodies, described)]
    groups: list[tuple[Sequence[bytes], dict[str, Any]]] = []
    for (codec, kind), group in groupby(
        (codecs.encode(body, content_type) for body in bodies), key=lambda one: one[1:]
    ):
        raws = [raw for raw, _, _ in group]
        _check_size(max(map(len, raws)), limit)
        described = dict(attributes)
        if codec is not None:
            described["codec"] = codec
        if kind is not None:
            described["content_type"] = kind
        groups.append((raws, described))
    return groups


def _check_size(size: int, limit: int) -> None:
    if size > limit:
        raise InvalidArgument(
            f"a body of {size} bytes is larger than the space's max_body_bytes, {limit}: "
            "put it into a file and its name into the message, or raise the limit in space.toml"
        )
