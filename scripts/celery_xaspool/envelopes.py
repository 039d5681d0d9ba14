"""The envelope of a message, and the fields of a task in it: kombu and Celery do not check what they read.

Any program can put anything into a queue. An odd value would end a worker, and then each worker that gets the message
afterwards. So the values are checked when a message is published, and when it is delivered.
"""

import reprlib
from collections.abc import Mapping
from datetime import datetime
from types import NoneType
from typing import Any

from kombu.exceptions import DecodeError
from kombu.transport import virtual
from kombu.utils.json import loads

from celery_xaspool.names import one_line

_ENVELOPE: Mapping[str, tuple[type, ...]] = {
    "body": (str,),
    "content-type": (str, NoneType),
    "content-encoding": (str, NoneType),
    "headers": (dict, NoneType),
    "properties": (dict,),
}
_PROPERTIES: Mapping[str, tuple[type, ...]] = {"delivery_info": (dict, NoneType), "body_encoding": (str, NoneType)}
# The fields are headers (protocol 2) or in the body (protocol 1). Celery uses no other field before the task runs.
_FIELDS: Mapping[str, tuple[type, ...]] = {
    "id": (str,),
    "task": (str,),
    "shadow": (str, NoneType),
    "eta": (str, datetime, NoneType),
    "expires": (str, datetime, NoneType),
    "group": (str, NoneType),
    "group_index": (int, NoneType),
    "retries": (int,),
    "replaced_task_nesting": (int,),
    "timelimit": (list, tuple, NoneType),
    "stamped_headers": (list, tuple, NoneType),
    "stamps": (dict, NoneType),
    "args": (list, tuple),
    "kwargs": (dict,),
    "callbacks": (list, tuple, NoneType),
    "errbacks": (list, tuple, NoneType),
    "chain": (list, tuple, NoneType),
    "chord": (dict, NoneType),
}
_LONGEST = 1e9  # seconds: the timers of a worker overflow at larger time limits


class NotATask(DecodeError):
    """A message of a task has a field that Celery does not understand."""


def read_envelope(body: Any) -> dict[str, Any]:
    """Return the parts of a message of kombu. Any exception means that another program has put the message."""
    payload = loads(body)
    if not isinstance(payload, dict):
        raise TypeError(f"it is a {type(payload).__name__}")
    check_envelope(payload)
    return payload


def check_envelope(payload: Mapping[str, Any]) -> None:
    """Check the parts of a message of kombu. Raises TypeError."""
    if missing := _ENVELOPE.keys() - payload.keys():
        raise TypeError(f"it has no {min(missing)}")
    _check(payload, _ENVELOPE)
    _check(payload["properties"], _PROPERTIES)


def check_task(fields: Mapping[str, Any]) -> None:
    """Check the fields of a task. Raises ``NotATask``."""
    try:
        _check(fields, _FIELDS)
        if (limits := fields.get("timelimit")) is not None:
            hard, soft = limits
            for limit in (hard, soft):
                if limit is not None and not (isinstance(limit, int | float) and abs(limit) <= _LONGEST):
                    raise TypeError(f"timelimit is {reprlib.repr(limit)}")
        for name in fields.get("stamped_headers") or ():
            if not isinstance(name, str):
                raise TypeError(f"stamped_headers has {reprlib.repr(name)}")
    except (TypeError, ValueError) as error:
        raise NotATask(f"no task that Celery can run: {error}") from None


def _check(fields: Mapping[str, Any], types: Mapping[str, tuple[type, ...]]) -> None:
    """Check the types of the fields that are in both maps. Raises TypeError. (This loop runs for each message.)"""
    for name, value in fields.items():
        if name in types and not isinstance(value, types[name]):
            raise TypeError(f"{name} is {reprlib.repr(value)}, of the type {type(value).__name__}")


class ClaimedMessage(virtual.Message):
    """A delivery. A worker acknowledges a message that it cannot decode; the channel refuses the message instead."""

    cause: Exception | None = None  # the error of the decoding

    def _decode(self) -> Any:
        try:
            body = super()._decode()
            if self.channel.is_in_worker:
                _check_body(body, is_task="task" in self.headers)
        except Exception as error:
            self.cause = error
            raise
        return body

    def ack(self, multiple: bool = False) -> None:
        cause = self.errors[0][1] if self.errors else self.cause
        if cause is not None and self.channel.is_in_worker and not self.acknowledged:
            self.channel.refuse(self.delivery_tag, one_line(cause))
            self._state = "REJECTED"
        else:
            super().ack(multiple)


def _check_body(body: Any, *, is_task: bool) -> None:
    """Check the body of a message, which has the fields of a task in protocol 1, and arguments in protocol 2."""
    if isinstance(body, dict):
        check_task(body if is_task or "task" in body else {})
    elif is_task:
        if not isinstance(body, list | tuple) or len(body) != 3 or not isinstance(body[2], dict | NoneType):
            raise NotATask(f"no task that Celery can run: its body is {body!r:.80}")
        check_task({"args": body[0], "kwargs": body[1]})
        check_task(body[2] or {})
