"""Tasks of Celery, Django, Dramatiq and workers: one form for all of them. Pure: messages in, values out.

A message is a task if it has the header ``task``, or if its body has one of three forms: the envelope of kombu, the
dict of Django's back end, or the JSON of Dramatiq. The result of an ended task is a message with the header ``state``.
"""

import binascii
import json
from ast import literal_eval
from base64 import b64decode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from spool.admin.holders import CLAIMED
from spool.model.text import one_line

if TYPE_CHECKING:
    from spool.admin.holders import Holder
    from spool.admin.listing import QueueEntry
    from spool.model.message import Message

NAME, STATE, RUNTIME, WORKER = "task", "state", "runtime", "worker"  # the headers of a task or a result
WAITING, RESERVED, RUNNING, FAILED = "waiting", "reserved", "running", "failed"
FAILED_STATES = frozenset({"FAILURE", "FAILED"})  # of results: Celery's and Django's words
_STATES = {"ready": WAITING}
_MOST_REPR = 4_096  # characters of a text that is parsed as a Python literal
_RESULT_PREFIX = "celery-task-meta-"  # of the correlation id of Celery's results


@dataclass(frozen=True, slots=True)
class Task:
    """A task, as far as its message tells.

    id: the id that the framework gave.
    name: the name of the task; "" if it is not known.
    arguments: the arguments on one line, e.g. ``1, 2, size='large'``.
    state: "waiting"; "delayed"; "reserved" (a worker holds the message, and has not begun the task); "running"; "in
        doubt"; "failed" (in an error queue); or the state in a result, in the framework's own word, e.g. "SUCCESS".
    runtime: the seconds since the task began, or of an ended task, the seconds that it took; None if not known.
    worker: the process that runs or ran the task; None if not known.
    cause: the reason of the last failure; None if no attempt has failed.
    """

    id: str | None
    name: str
    arguments: str
    state: str
    runtime: float | None = None
    worker: str | None = None
    cause: str | None = None


def task_of(entry: "QueueEntry", now: float) -> Task | None:
    """Return the task of a message, or None if the message is damaged or is no task.

    The body of the entry is the stored bytes; the arguments are omitted if it is cut. ``now``: seconds since the epoch.
    """
    if (message := entry.message) is None:
        return None
    found = _in_result(message) if STATE in message.headers else _in_body(message, is_cut=entry.body_cut)
    name = one_line(message.headers.get(NAME, found.name if found else ""))
    if not name and found is None:
        return None
    id_ = task_id(message) or (found.id if found else None)
    arguments = found.arguments if found else ""
    if (ended := message.headers.get(STATE)) is not None:
        runtime, worker = _seconds(message.headers.get(RUNTIME)), message.headers.get(WORKER)
        return Task(id_, name, arguments, ended, runtime, worker, found.cause if found else None)
    state, holder = state_of(entry), entry.holder
    begun = holder.since if holder is not None and state == RUNNING else None
    runtime = None if begun is None else max(0.0, now - begun)
    worker = None if holder is None else process_of(holder)
    return Task(id_, name, arguments, state, runtime, worker, message.failure_reason)


def task_id(message: "Message") -> str | None:
    """Return the id of the task that a message or a result belongs to, as far as its control fields tell."""
    return message.correlation_id and message.correlation_id.removeprefix(_RESULT_PREFIX)


def state_of(entry: "QueueEntry") -> str:
    """Return the state of a task that has not ended."""
    if entry.holder is not None and entry.state == CLAIMED:
        return RESERVED if entry.holder.xid is None else RUNNING
    if entry.message is not None and entry.message.origin_queue and entry.message.failure_reason is not None:
        return FAILED
    return _STATES.get(entry.state, entry.state)


def process_of(holder: "Holder") -> str:
    """Describe the process of a holder in a few words."""
    return "a program" if holder.pid is None else f"process {holder.pid} ({holder.program or 'unknown program'})"


@dataclass(frozen=True, slots=True)
class _Found:
    """The parts of a task in a body."""

    name: str = ""
    id: str | None = None
    arguments: str = ""
    cause: str | None = None


# -- bodies ------------------------------------------------------------------------------------------------------------


def _in_body(message: "Message", *, is_cut: bool) -> _Found | None:
    """Return the task in a body; None if the body has none of the three forms."""
    body = None if is_cut else _value(message.body)
    if not isinstance(body, dict):
        return None
    if isinstance(body.get("headers"), dict) and isinstance(body.get("properties"), dict) and "body" in body:
        return _of_kombu(body)
    args, kwargs = body.get("args"), body.get("kwargs")
    if not isinstance(args, list) or not isinstance(kwargs, dict):
        return None
    if isinstance(body.get("actor_name"), str) and isinstance(body.get("message_id"), str):
        return _Found(body["actor_name"], body["message_id"], _call(args, kwargs))
    if isinstance(body.get("task"), str):
        return _Found(body["task"], None, _call(args, kwargs))
    return None


def _of_kombu(envelope: Mapping[str, Any]) -> _Found | None:
    """Return the task in an envelope of kombu. The texts in its headers may hide arguments, so they come first."""
    headers, inner = envelope["headers"], envelope["body"]
    name, id_ = headers.get("task"), headers.get("id")
    if envelope["properties"].get("body_encoding") == "base64":
        try:
            inner = b64decode(inner)
        except (binascii.Error, TypeError, ValueError):
            inner = None
    args, kwargs = headers.get("argsrepr"), headers.get("kwargsrepr")
    if isinstance(args, str) and isinstance(kwargs, str):
        arguments = ", ".join(filter(None, (_without_brackets(args), _named(kwargs))))
    else:
        value = _value(inner)
        if isinstance(value, dict):  # the first protocol of Celery
            name, id_ = name or value.get("task"), id_ or value.get("id")
            args, kwargs = value.get("args"), value.get("kwargs")
        elif isinstance(value, list) and len(value) == 3:
            args, kwargs, _ = value
        arguments = _call(args, kwargs) if isinstance(args, list) and isinstance(kwargs, dict) else ""
    if not isinstance(name, str):
        return None  # (a message of another program that uses kombu)
    return _Found(name, id_ if isinstance(id_, str) else None, one_line(arguments))


def _in_result(message: "Message") -> _Found:
    """Return the cause in the result of a failed task: of Celery and Dramatiq, the exception; of Django, the end of a
    traceback."""
    body = _value(message.body) if message.headers[STATE] in FAILED_STATES else None
    if not isinstance(body, dict):
        return _Found(cause=message.failure_reason)
    error, errors, exn = body.get("result"), body.get("errors"), body.get("exn")
    cause = message.failure_reason
    if isinstance(error, dict) and isinstance(error.get("exc_type"), str):
        told = error.get("exc_message")
        words = ", ".join(map(str, told)) if isinstance(told, list) else str(told or "")
        cause = f"{error['exc_type']}: {words}" if words else error["exc_type"]
    elif isinstance(exn, dict):
        cause = f"{exn.get('type')}: {exn.get('msg')}"
    elif isinstance(errors, list) and errors and isinstance(errors[-1], dict):
        lines = str(errors[-1].get("traceback") or "").strip().splitlines()
        cause = lines[-1] if lines else str(errors[-1].get("exception_class_path") or "")
    return _Found(cause=cause if cause is None else one_line(cause))


def _value(body: Any) -> Any:
    """Return the value of a JSON body; None if the body is no JSON. A body that is decoded already is the value."""
    if not isinstance(body, bytes | str):
        return body
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def _call(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Return arguments as in a call of Python."""
    return one_line(", ".join([*map(_repr, args), *(f"{name}={_repr(value)}" for name, value in kwargs.items())]))


def _repr(value: object) -> str:
    try:
        return repr(value)
    except RecursionError:
        return "…"


def _without_brackets(args: str) -> str:
    """Return Celery's text of positional arguments, a tuple or a list, without its brackets."""
    text = args.strip()
    if text[:1] + text[-1:] in ("()", "[]"):
        text = text[1:-1].strip()
    return text.removesuffix(",")


def _named(kwargs: str) -> str:
    """Return Celery's text of a dict of named arguments as in a call; if the text is no whole dict, as it is."""
    text = kwargs.strip()
    if text == "{}":
        return ""
    try:
        value = literal_eval(text) if len(text) <= _MOST_REPR else None
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        value = None
    return _call([], value) if isinstance(value, dict) and all(isinstance(key, str) for key in value) else text


def _seconds(text: str | None) -> float | None:
    """Return the seconds in a header; None if the text is no finite number from 0."""
    try:
        seconds = float(text or "")
    except ValueError:
        return None
    return seconds if 0 <= seconds < float("inf") else None
