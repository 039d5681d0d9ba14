"""Read and check the description of a pipeline, from Python or TOML. Every mistake is reported with its place."""

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

from forwarder.pipelines.pipeline_functions import Function
from forwarder.services import QueueService, ServiceError, parse
from spool.errors import InvalidArgument
from spool.model.checks import FLAG, TIME_LIMIT, ValueCheck, check, number, one_of, require, text
from spool.model.settings import QUEUE_NAME, QUEUE_OPTIONS, check_queue_name
from spool.model.text import shown
from spool.workers.effects import ON_FAILURE, OnFailure
from spool.workers.pauses import PAUSE_AFTER, PAUSES_AFTER
from spool.workers.worker import AT_ONCE

T = TypeVar("T")


class PipelineError(ServiceError):
    """The description of a pipeline is wrong. Each line of the error text names one mistake and its place."""


# -- what an option takes ---------------------------------------------------------------------------------------------


def _list_of(value: object) -> list[Any]:
    """Return a list or a tuple as a list; return any other value in a list of one item."""
    return list(value) if isinstance(value, list | tuple) else [value]


def _texts(value: object) -> tuple[str, ...]:
    texts = _list_of(value)
    require(bool(texts) and all(isinstance(each, str) for each in texts))
    return tuple(texts)


def _condition(value: object) -> Function | tuple[tuple[str, tuple[str, ...]], ...]:
    if not isinstance(value, Mapping):
        return Function.of(value)
    return tuple((text(name), _texts(values)) for name, values in value.items())


_A_FUNCTION = "a function, by its name package.module:function"
_FUNCTIONS = ValueCheck(f"{_A_FUNCTION}, or a list of these", lambda value: tuple(map(Function.of, _list_of(value))))
_CONDITION = ValueCheck(
    f"""headers with a text or a list of texts for each, e.g. {{ event = ["admitted", "moved"] }}, or {_A_FUNCTION}""",
    lambda value: () if value is None else _condition(value),
)
_TEXT = ValueCheck("a text", text)
_NAMES = ValueCheck("the name of a destination, or a list of names", _texts)
_ROUTE_NAME = ValueCheck("a text of 1 to 127 characters", lambda value: text(value, 127))
_QUEUE = QUEUE_NAME._replace(optional=True)


def _taken(value_check: ValueCheck, default: Any = MISSING) -> Any:
    return field(default=default, metadata={"check": value_check})


def _of_queue(option: str) -> Any:
    """Return a dataclass field for an option of queues. The field has the same default as the queue option."""
    listed = QUEUE_OPTIONS[option]
    return _taken(listed.check, listed.default)


# -- a pipeline -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Destination:
    """A destination, to which messages are delivered.

    service: the URL of a service, as in a route of ``spool-forward``.
    outbound: hooks, called before the service.
    stopped: whether delivery is stopped, so that the messages wait.
    ordered: whether messages are delivered one after the other. A message that fails then holds up later messages. The
        default is the option ``ordered`` of the pipeline.
    on_failure: the effect if the service refuses a message. ``Forwarder`` describes the values.
    timeout: the time limit of a call in seconds.
    threads: the largest number of concurrent calls, if the service allows several and messages are not ordered.
    pause_after: how many messages fail one after another before the delivery pauses, as for ``Forwarder``.
    retries: the number of attempts after the first attempt. None means no limit, and later messages wait.
    retry_delay, retry_delay_max, max_messages, max_bytes, reply_queue: options of the queue.
    """

    service: str = _taken(_TEXT)
    outbound: tuple[Function, ...] = _taken(_FUNCTIONS, ())
    stopped: bool = _taken(FLAG, False)
    ordered: bool | None = _taken(FLAG._replace(optional=True), None)
    on_failure: OnFailure = _taken(ON_FAILURE, "reject")  # noqa: RUF009 (it is a field)
    timeout: float = _taken(TIME_LIMIT, 30.0)
    threads: int | None = _taken(AT_ONCE._replace(optional=True), None)
    pause_after: int = _taken(PAUSES_AFTER, PAUSE_AFTER)
    retries: int | None = _of_queue("retries")
    retry_delay: float = _of_queue("retry_delay")
    retry_delay_max: float | None = _of_queue("retry_delay_max")
    max_messages: int | None = _of_queue("max_messages")
    max_bytes: int | None = _of_queue("max_bytes")
    reply_queue: str | None = _of_queue("reply_queue")


@dataclass(frozen=True, kw_only=True)
class RouteDescription:
    """A route, by which messages reach destinations.

    when: the condition under which a message takes the route: headers with their allowed values, or a function. Without
        a condition, every message takes the route.
    translate: functions, called one after the other; without functions, the message is not changed.
    to: the names of the destinations.
    severity: whether a failure of the route makes the whole message fail ("message") or only the route ("route").
    """

    name: str = _taken(_ROUTE_NAME)
    when: Function | tuple[tuple[str, tuple[str, ...]], ...] = _taken(_CONDITION, ())  # noqa: RUF009
    translate: tuple[Function, ...] = _taken(_FUNCTIONS, ())
    to: tuple[str, ...] = _taken(_NAMES)
    severity: str = _taken(one_of("message", "route"), "message")


@dataclass(frozen=True, kw_only=True)
class Description:
    """A pipeline.

    name: the name of the pipeline. The names of the pipeline's queues begin with it.
    source: the queue from which the pipeline takes messages. By default, the queue has the name of the pipeline.
    inbound: hooks, called before the routes.
    unrouted: whether a message without a route fails ("error") or is dropped ("kill").
    ordered: whether messages are handled one after the other, so that they arrive in sequence.
    timeout: the time limit in seconds for all functions of a stage together.
    retries, retry_delay, retry_delay_max: options for messages whose hooks or translation fail temporarily.
    max_messages, max_bytes: limits of the source.
    error_queue: the queue for messages that have failed for good.
    failure_queue: the queue for a message if a route with the severity "route" failed.
    """

    name: str = _taken(QUEUE_NAME)
    source: str | None = _taken(_QUEUE, None)
    inbound: tuple[Function, ...] = _taken(_FUNCTIONS, ())
    routes: tuple[RouteDescription, ...] = field(metadata={"each": RouteDescription})
    destinations: Mapping[str, Destination] = field(metadata={"by name": Destination})
    unrouted: str = _taken(one_of("error", "kill"), "error")
    ordered: bool = _taken(FLAG, True)
    timeout: float = _taken(TIME_LIMIT, 30.0)
    retries: int = _taken(number(2**31), 3)
    retry_delay: float = _of_queue("retry_delay")
    retry_delay_max: float | None = _of_queue("retry_delay_max")
    max_messages: int | None = _of_queue("max_messages")
    max_bytes: int | None = _of_queue("max_bytes")
    error_queue: str | None = _taken(_QUEUE, None)
    failure_queue: str | None = _taken(_QUEUE, None)

    def mistakes(self) -> Iterator[str]:
        """Yield the mistakes in combinations of options, and the place of each mistake."""
        names, queues = [route.name for route in self.routes], self.queue_names
        for index, route in enumerate(self.routes):
            if route.name in names[:index]:
                yield f"routes[{index}].name: there is another route {route.name!r}: give each its own name"
            for name in dict.fromkeys(route.to):
                place = f"routes[{index}].to"
                if name not in self.destinations:
                    yield f"{place}: there is no destination {name!r}; there are {', '.join(self.destinations)}"
                elif route.to.count(name) > 1:
                    yield f"{place}: {name!r} would get each message twice: name it once"
        for name, destination in self.destinations.items():
            place = f"destinations.{name}.service"
            try:
                service = parse(destination.service)
            except ServiceError as error:
                yield f"{place}: {error}"
                continue
            if isinstance(service, QueueService) and service.queue in queues:
                queue = service.queue
                yield f"{place}: {queue!r} is a queue of this pipeline, so messages would go round: name another"
        for name in dict.fromkeys(queues):
            if queues.count(name) > 1:
                yield f"two of its queues are called {name!r}: name the source, or one of them, otherwise"
            try:
                check_queue_name(name)
            except InvalidArgument as error:
                yield f"{error}: choose shorter names"

    # -- its queues ---------------------------------------------------------------------------------------------------

    @property
    def queue_names(self) -> list[str]:
        stages = [self.source_queue, *([self.translate_queue] if self.inbound else [])]
        for name, destination in self.destinations.items():
            stages += [self.first_queue(name), *([self.last_queue(name)] if destination.outbound else [])]
        return [*stages, self.errors, self.failures]

    def is_of_another_shape(self, queue: str) -> bool:
        """Return whether the queue is named like the queue of a stage, but this description has no such stage."""
        is_stage = queue == f"{self.name}.translate" or queue.startswith(f"{self.name}.to.")
        return is_stage and queue not in self.queue_names

    @property
    def source_queue(self) -> str:
        return self.source or self.name

    @property
    def translate_queue(self) -> str:
        """The queue in which messages wait for the routes. Without inbound hooks, this is the source."""
        return f"{self.name}.translate" if self.inbound else self.source_queue

    def first_queue(self, destination: str) -> str:
        return f"{self.name}.to.{destination}"

    def last_queue(self, destination: str) -> str:
        """Return the queue for a destination's service. Without outbound hooks, this is the first queue."""
        first = self.first_queue(destination)
        return f"{first}.deliver" if self.destinations[destination].outbound else first

    @property
    def errors(self) -> str:
        return self.error_queue or f"{self.name}.errors"

    @property
    def failures(self) -> str:
        return self.failure_queue or f"{self.name}.failures"


# -- reading a description --------------------------------------------------------------------------------------------


def read_toml(path: str | Path) -> dict[str, Any]:
    """Return the content of a TOML file. Raises PipelineError if the file cannot be read."""
    try:
        return tomllib.loads(Path(path).read_bytes().decode())
    except OSError as error:
        raise PipelineError(f"{path}: it cannot be read ({error.strerror}): name the TOML file of a pipeline") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise PipelineError(f"{path}: it is not TOML: {error}") from None


def described(given: Mapping[str, Any], where: str) -> Description:
    """Return a checked description. If it has mistakes, raise PipelineError with a line for each mistake.

    ``where``: the file or the pipeline, for the text of errors.
    """
    mistakes: list[str] = []
    if (found := _read(Description, given, "", mistakes)) is not None:
        mistakes += found.mistakes()
    if found is None or mistakes:
        raise PipelineError("\n".join(f"{where}: {mistake}" for mistake in mistakes))
    return found


def _read(kind: type[T], given: object, place: str, mistakes: list[str]) -> T | None:
    """Return a table as an object of the class ``kind``. For a wrong table, extend ``mistakes`` and return None."""
    if not isinstance(given, Mapping):
        mistakes.append(f"{place}: it is a table, not {shown(given)}")
        return None
    before, values = len(mistakes), {}
    known = {each.name: each for each in fields(kind)}  # type: ignore[arg-type]
    for name, each in known.items():
        at = f"{place}.{name}".lstrip(".")
        if name not in given:
            if each.default is MISSING:
                mistakes.append(f"{at}: it is missing")
        elif "check" in each.metadata:
            try:
                values[name] = check(name, given[name], each.metadata["check"])
            except InvalidArgument as error:
                mistakes.append(f"{at}: it{str(error).removeprefix(name)}")
        else:
            values[name] = _read_all(each.metadata, given[name], at, mistakes)
    for name in given:
        if name not in known:
            at = f"{place}.{name}".lstrip(".")
            mistakes.append(f"{at}: there is no option {name!r}; there are {', '.join(known)}")
    return None if len(mistakes) > before else kind(**values)


def _read_all(metadata: Mapping[str, Any], given: object, place: str, mistakes: list[str]) -> Any:
    """Read several tables from a list, or from a table of named tables. Each name has to be valid for a queue."""
    if "each" in metadata:
        found = _list_of(given)
        read: Any = tuple(
            _read(metadata["each"], one, f"{place}[{index}]", mistakes) for index, one in enumerate(found)
        )
    elif isinstance(given, Mapping):
        read = {}
        for name, one in given.items():
            try:
                check_queue_name(name)
            except InvalidArgument as error:
                mistakes.append(f"{place}: {error}")
            read[name] = _read(metadata["by name"], one, f"{place}.{name}", mistakes)
    else:
        mistakes.append(f"{place}: it is a table, not {shown(given)}")
        return None
    if not read:
        mistakes.append(f"{place}: give at least one")
    return read
