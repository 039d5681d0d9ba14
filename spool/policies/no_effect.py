"""Options that have no effect with the settings of their queue. A call accepts these options, and logs a warning.

An option that contradicts another option of the same call raises InvalidArgument. An option without effect raises no
error, because an administrator can change a queue's options without changing the programs that put messages.
"""

import logging
from collections.abc import Container, Iterator, Mapping
from typing import Any

from spool.model.settings import PRIORITY, QUEUE_OPTIONS, QueueConfig

log = logging.getLogger("spool")

_warned: set[tuple[str, str, str]] = set()


def warn_of_queue(config: QueueConfig, given: Container[str]) -> None:
    """Warn of each queue option that has no effect and is not the default. ``given``: the options that a call sets."""
    for option, why in _of_queue(config):
        if option in given and getattr(config, option) not in (0, QUEUE_OPTIONS[option].default):
            log.warning("queue %s: %s has no effect, because %s", config.name, option, why)


def _of_queue(config: QueueConfig) -> Iterator[tuple[str, str]]:
    """Yield the queue options without an effect, each with the reason."""
    if config.retries == 0 and not config.deaths:
        why = "retries is 0, so no message has another attempt"
        yield from (("retry_delay", why), ("retry_delay_max", why))
    elif not config.retry_delay:
        yield "retry_delay_max", "retry_delay is 0, so there is no delay to grow"
    if config.capacity_command is None:
        why = "there is no capacity_command to run"
        yield from (("capacity_high", why), ("capacity_low", why), ("capacity_timeout", why))


def warn_of_put(
    space: str, config: QueueConfig, attributes: Mapping[str, Any], deduplication_key: str | None = None
) -> None:
    """Warn of each put option without an effect. A process warns of an option once for each queue.

    Args:
        space: the path of the space; "" if the path is not known.
        attributes: the control fields that differ from their defaults.
    """
    if "priority" in attributes and PRIORITY not in config.order:
        order = ",".join((PRIORITY, *config.order))
        _warn_once(
            (space, config.name, "priority"),
            f"the queue's order is {','.join(config.order)} (spool-admin queue change {config.name} --order {order})",
        )
    if deduplication_key is not None and not config.deduplication_window:
        _warn_once((space, config.name, "deduplication_key"), "the queue's deduplication_window is 0")


def _warn_once(what: tuple[str, str, str], why: str) -> None:
    if what not in _warned:
        _warned.add(what)
        log.warning("queue %s: %s has no effect, because %s", what[1], what[2], why)
