"""Options of other brokers that have no effect here. Each is named in the log once, with its counterpart.

A program that moves from Redis or SQS keeps its settings, and Celery ignores the unknown ones in silence.
"""

import logging
from collections.abc import Collection, Iterable, Mapping
from difflib import get_close_matches

import spool
from celery_xaspool import names

log = logging.getLogger("celery_xaspool")

BROKER = ("queue", "native_eta", "deadletter_queue")
_OF_CONNECTIONS = (
    "max_retries", "interval_start", "interval_step", "interval_max", "connect_retries_timeout", "errback", "callback",
)  # fmt: skip
RESULTS = ("queue", "global_keyprefix")
ARGUMENTS = ("xaspool", "x-message-ttl", "x-max-priority")

_NO_TIMEOUT = "a task returns when its worker dies, and runs as long as it needs, so there is no timeout to set"
_ORDER = "declare the queue with max_priority: the highest number comes first, from 0 to 99"
_ONE_SPACE = "give each application a space of its own"
_NO_POLLING = "nothing is polled: a new message wakes the worker"
_NO_SERVER = "a space is a directory, and has no server"
_URL = "the URL names the directory: xaspool:///var/spool/shop"
_INSTEAD: Mapping[str, Iterable[str]] = {
    _NO_TIMEOUT: (
        "visibility_timeout", "unacked_restore_limit", "unacked_restore_interval", "unacked_restore_throttle",
        "ack_emulation", "x-consumer-timeout",
    ),
    _ORDER: ("priority_steps", "sep", "queue_order_strategy"),
    _ONE_SPACE: ("fanout_prefix", "fanout_patterns", "queue_name_prefix", "unacked_key", "unacked_index_key",
                 "unacked_mutex_key", "unacked_mutex_expire"),
    _NO_POLLING: ("polling_interval", "wait_time_seconds", "max_poll_seconds", "use_notify"),
    _NO_SERVER: ("socket_timeout", "socket_connect_timeout", "socket_keepalive", "socket_keepalive_options",
                 "max_connections", "health_check_interval", "retry_on_timeout", "client_name", "master_name",
                 "sentinel_kwargs", "min_other_sentinels", "confirm_publish", "region", "is_secure", "port",
                 "client-config", "predefined_queues", "x-queue-type"),
    _URL: ("data_folder_in", "data_folder_out", "processed_folder", "control_folder", "store_processed"),
    "use result_backend_always_retry = True": ("retry_policy",),
    "a chord's results are always ordered": ("result_chord_ordered",),
    "set max_messages in queue_arguments={'xaspool': {...}}": ("x-max-length",),
    "set max_bytes in queue_arguments={'xaspool': {...}}": ("x-max-length-bytes",),
    "set error_queue in queue_arguments={'xaspool': {...}}": ("x-dead-letter-exchange", "x-dead-letter-routing-key"),
    "set retries in queue_arguments={'xaspool': {...}}": ("x-delivery-limit",),
    "an unused queue remains until spool-admin queue delete": ("x-expires",),
}  # fmt: skip
_COUNTERPARTS = {key: sentence for sentence, keys in _INSTEAD.items() for key in keys}

_named = set[tuple[str, str]]()  # the settings and options that this process has named


def name_ignored(setting: str, options: Iterable[str], known: Collection[str]) -> None:
    """Log a warning for each option that has no effect here. Each is named once in a process."""
    for option in map(str, options):
        if option in known or (known is BROKER and option in _OF_CONNECTIONS) or (setting, option) in _named:
            continue
        _named.add((setting, option))
        instead = _COUNTERPARTS.get(option) or _advice(option, known)
        log.warning("%s: the option %s has no effect with xaspool: %s", setting, option, instead)


def _advice(option: str, known: Iterable[str]) -> str:
    meant = get_close_matches(option, known, n=1)
    return f"did you mean {meant[0]}?" if meant else f"the options are {', '.join(known)}"


def check_queue_options(setting: str, options: object, roles: Collection[str] = ("work", "error")) -> None:
    """Check the options of a queue: their names, which an existing queue would ignore in silence, one of these roles,
    and that they do not name a queue of Celery's own records.

    Raises ``spool.InvalidArgument``.
    """
    if not isinstance(options, Mapping):
        raise spool.InvalidArgument(f"{setting}: the options of a queue are a dict, not {options!r:.80}")
    known = spool.QueueOptions.__annotations__
    for option, value in options.items():
        said = None
        if option not in known:
            said = f"a queue has no option {option}: {_advice(str(option), known)}"
        elif option == "role" and value not in roles:
            said = f"the role of this queue is {' or '.join(roles)}, not {value!r}"
        elif value in (names.RESULTS, names.BINDINGS, names.TRANSIENT):
            said = f"{option} is {value}, which has other messages: name a separate queue, e.g. failed"
        if said is not None:
            raise spool.InvalidArgument(f"{setting}: {said}")


def name_ignored_priority(queue: str) -> None:
    """Log a warning once if a message has a priority, and its queue ignores priorities."""
    if (queue, "priority") not in _named:
        _named.add((queue, "priority"))
        log.warning(
            "queue %s ignores the priorities of its messages: declare it with max_priority, or, as it exists, "
            "run spool-admin queue change %s --order priority (the highest number comes first)",
            queue, queue,
        )  # fmt: skip
