"""The stages of a pipeline that call functions: the hooks, and the translation with its routes. A stage is a service.

A stage turns a message into any number of new messages. One commit removes the message and puts the new messages.
"""

import logging
from asyncio import CancelledError
from collections.abc import Mapping
from dataclasses import dataclass, replace

from forwarder.pipelines.dispositions import Continue, Disposition, Error, Kill, Send, dispositions_of
from forwarder.pipelines.draft import ROUTE_HEADER, Draft, failed_alone
from forwarder.pipelines.pipeline_functions import Function
from forwarder.services import MAX_REPLY, Service
from forwarder.services.python import PythonCaller
from spool.errors import InvalidArgument
from spool.model.message import Message
from spool.model.text import one_line
from spool.workers.outcome import NewMessage, Outcome, Reject, Rejected, Retried, Translated, of_error

log = logging.getLogger("spool.forwarder")

_OF_FUNCTIONS = (Exception, SystemExit, CancelledError)  # (a time limit and Ctrl-C end the whole call)


class _Failed(Exception):
    """A function failed. ``outcome``: the outcome of the message, with the function's name in the reason."""

    def __init__(self, function: Function, error: BaseException) -> None:
        outcome = of_error(error, MAX_REPLY)
        self.outcome = replace(outcome, reason=one_line(f"{function.name}: {outcome.reason}"))


@dataclass
class Passage:
    """The result of calling functions with a message.

    going: the drafts for the next stage. sent: the messages for a destination, without further stages.
    notes: the reasons why messages were dropped.
    """

    going: list[Draft]
    sent: list[NewMessage]
    notes: list[str]


def passed_through(functions: tuple[Function, ...], draft: Draft, last_queues: Mapping[str, str]) -> Passage:
    """Call functions one after the other. Each function gets the drafts from the previous function.

    Args:
        last_queues: the last queue of each destination. The keys are the names of destinations.

    Raises:
        _Failed: a function failed.
    """
    passage = Passage([draft], [], [])
    for function in functions:
        before, passage.going = passage.going, []
        for one in before:
            try:
                dispositions = dispositions_of(function.load()(one.message))
                for disposition in dispositions:
                    if isinstance(disposition, Error):
                        raise Reject(disposition.reason, disposition.reply)
                for disposition in dispositions:
                    _apply(disposition, function, one, passage, last_queues)
            except _OF_FUNCTIONS as error:
                raise _Failed(function, error) from error
    return passage


def _apply(
    disposition: Disposition, function: Function, draft: Draft, passage: Passage, last_queues: Mapping[str, str]
) -> None:
    match disposition:
        case Continue():
            passage.going.append(draft.changed(disposition.body, disposition.changes))
        case Send():
            if disposition.destination not in last_queues:
                raise InvalidArgument(
                    f"there is no destination {disposition.destination!r}; there are {', '.join(last_queues)}"
                )
            changed = draft.changed(disposition.body, disposition.changes)
            passage.sent.append(changed.put_into(last_queues[disposition.destination]))
        case Kill():
            passage.notes.append(
                f"{function.name} dropped it" + (f": {disposition.reason}" if disposition.reason else "")
            )


@dataclass(frozen=True)
class Way:
    """A route of a translation (see ``description.RouteDescription``), or the hooks of a stage, without a name.

    into: the queues for the resulting messages, e.g. the first queue of each destination.
    """

    name: str
    when: Function | tuple[tuple[str, tuple[str, ...]], ...]
    translate: tuple[Function, ...]
    into: tuple[str, ...]
    alone: bool = False

    @property
    def functions(self) -> tuple[Function, ...]:
        return (*((self.when,) if isinstance(self.when, Function) else ()), *self.translate)

    def takes(self, message: Message) -> bool:
        """Return whether a message takes this route. Raises _Failed if the condition of the route fails."""
        if self.name and ROUTE_HEADER in message.headers:
            return message.headers[ROUTE_HEADER] == self.name
        if isinstance(self.when, Function):
            try:
                return bool(self.when.load()(message))
            except _OF_FUNCTIONS as error:
                raise _Failed(self.when, error) from error
        return all(message.headers.get(name) in values for name, values in self.when)


@dataclass(frozen=True)
class PipelineStage(Service):
    """Calls hooks, or the functions of all routes. One commit removes a message and puts the resulting messages.

    If a way with ``alone`` fails, a copy of the message, for only this route, is put into the queue ``failures``.

    last_queues: each destination with its last queue, which gets the messages that a function sends there.
    timeout: the time limit in seconds for one message.
    retries: the retries of the queue. If a way has ``alone``, its temporary failure
        after the last retry is final.
    """

    ways: tuple[Way, ...]
    last_queues: tuple[tuple[str, str], ...]
    timeout: float
    failures: str = ""
    unrouted: str = "error"
    retries: int = 0

    @property
    def shown_name(self) -> str:
        return "translation"

    @property
    def watched(self) -> float | None:
        """The time limit of a call. A limit is needed because a function may hang its process."""
        return self.timeout

    def open(self) -> PythonCaller:
        for function in self.functions:
            function.load()
        return PythonCaller(self.translated, self.timeout, lambda given: Draft.of(given.message, given.raw))

    @property
    def functions(self) -> tuple[Function, ...]:
        return tuple(function for way in self.ways for function in way.functions)

    def translated(self, draft: Draft) -> Outcome:
        """Return the messages from all routes, or the worst failure: a final failure is worse than a temporary one."""
        out: list[NewMessage] = []
        notes: list[str] = []
        later: Retried | None = None
        taken, failures = False, draft.message.attempts - draft.message.deaths
        for way in self.ways:
            try:
                if not way.takes(draft.message):
                    continue
                passage = passed_through(way.translate, draft, dict(self.last_queues))
            except _Failed as failed:
                outcome = failed.outcome
                if way.name:
                    outcome = replace(outcome, reason=one_line(f"route {way.name}: {outcome.reason}"))
                if isinstance(outcome, Retried) and (not way.alone or failures < self.retries):
                    later = later or outcome
                elif not way.alone:
                    return outcome
                else:
                    out.append(failed_alone(draft, self.failures, way.name, outcome.reason))
                    notes.append(f"{outcome.reason} (this route alone)")
            else:
                out += passage.sent
                out += [one.put_into(queue) for one in passage.going for queue in way.into]
                notes += passage.notes
            taken = True
        if later is not None:
            return later
        if not taken and self.unrouted == "error":
            return Rejected("no route takes it: add a route, or correct the conditions of the routes")
        return Translated(out, "; ".join(notes if taken else ["no route takes it"]))
