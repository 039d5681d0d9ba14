"""The description of a pipeline, from Python or TOML: its words, checked. Every mistake is told with its place."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails, PydanticCustomError

from forwarder.pipelines.functions import Function
from forwarder.pipelines.toml import PipelineError
from forwarder.services import ServiceError, parse
from spool.errors import InvalidArgument
from spool.model.settings import check_queue_name
from spool.model.text import shown

# -- what an option takes ---------------------------------------------------------------------------------------------


def _wrong(text: str) -> PydanticCustomError:
    return PydanticCustomError("wrong", "{text}", {"text": text})


def _list_of(value: object) -> list[object]:
    """Return several values as they are, and one as a list of it."""
    return list(value) if isinstance(value, list | tuple) else [value]


def _function(value: object) -> Function:
    try:
        return Function.of(value)
    except ValueError as error:
        raise _wrong(f"is {error}") from None


def _functions(value: object) -> tuple[Function, ...]:
    return tuple(map(_function, _list_of(value)))


def _queue(value: object) -> str:
    try:
        return check_queue_name(value)
    except InvalidArgument as error:
        raise _wrong(str(error)) from None


def _names(value: object) -> tuple[str, ...]:
    names = _list_of(value)
    if not names or not all(isinstance(name, str) for name in names):
        raise _wrong(f"is the name of a destination, or a list of names, not {shown(value)}")
    return tuple(map(str, names))


def _condition(value: object) -> "Function | dict[str, tuple[str, ...]]":
    if not isinstance(value, Mapping):
        try:
            return Function.of(value)
        except ValueError:
            raise _wrong(
                'is headers with their values, e.g. { event = ["admitted", "moved"] }, or a function, by its name '
                f"package.module:function, not {shown(value)}"
            ) from None
    found = {}
    for name, values in value.items():
        texts = _list_of(values)
        if not texts or not all(isinstance(text, str) for text in texts):
            raise _wrong(f"takes a text, or a list of texts, for the header {name}, not {shown(values)}")
        found[name] = tuple(map(str, texts))
    return found


QueueName = Annotated[str, BeforeValidator(_queue)]
Functions = Annotated[tuple[Function, ...], BeforeValidator(_functions)]
Seconds = Annotated[float, Field(ge=0, lt=1e10)]
Count = Annotated[int, Field(ge=0)]


class _Described(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, arbitrary_types_allowed=True)


# -- a pipeline -------------------------------------------------------------------------------------------------------


class Destination(_Described):
    """Where messages are delivered.

    service: the URL of a service, as of a route of ``spool-forward``.
    outbound: hooks, called before the service.
    stopped: nothing is delivered; the messages wait.
    ordered: messages are delivered one after the other; one that fails keeps those behind it waiting. As the pipeline
        says, if it is left out.
    on_failure: what a refusal of the service means, as of a ``Forwarder``.
    timeout: seconds for a call. threads: calls at a time, where the service allows several and nothing is ordered.
    retries: attempts after the first one; left out: it is tried for ever, and the messages behind it wait.
    retry_delay, retry_delay_max, max_messages, max_bytes, reply_queue: options of the queue.
    """

    service: str
    outbound: Functions = ()
    stopped: bool = False
    ordered: bool | None = None
    on_failure: Literal["reject", "delete", "retry"] = "reject"
    timeout: Annotated[float, Field(gt=0, lt=1e10)] = 30.0
    threads: Annotated[int, Field(ge=1, le=1000)] | None = None
    retries: Count | None = None
    retry_delay: Seconds = 1.0
    retry_delay_max: Seconds = 300.0
    max_messages: Count | None = None
    max_bytes: Count | None = None
    reply_queue: QueueName | None = None


class Route(_Described):
    """A way of a message to its destinations.

    when: the headers that a message has which takes it, each with a value or several; or a function that tells.
        Left out: every message takes it.
    translate: functions, called one after the other; left out: the message goes as it is.
    to: the destinations.
    severity: if it fails, the whole message fails ("message"), or this route alone ("route").
    """

    name: Annotated[str, Field(min_length=1, max_length=127)]
    when: Annotated["Function | dict[str, tuple[str, ...]] | None", BeforeValidator(_condition)] = None
    translate: Functions = ()
    to: Annotated[tuple[str, ...], BeforeValidator(_names)]
    severity: Literal["message", "route"] = "message"


class Description(_Described):
    """A pipeline.

    name: its queues begin with it. source: the queue that messages come into; the name, if it is left out.
    inbound: hooks, called before the routes.
    unrouted: a message that no route takes is an error ("error"), or is dropped ("kill").
    ordered: messages are handled one after the other, so that they arrive in sequence.
    timeout: seconds for the functions of a stage, together.
    retries, retry_delay, retry_delay_max: of messages whose hooks or translation fail for now.
    max_messages, max_bytes: limits of the source.
    error_queue: for messages that failed; failure_queue: for those of which a route failed alone.
    """

    name: QueueName
    source: QueueName | None = None
    inbound: Functions = ()
    routes: Annotated[tuple[Route, ...], Field(min_length=1), BeforeValidator(lambda value: tuple(_list_of(value)))]
    destinations: Annotated[dict[QueueName, Destination], Field(min_length=1)]
    unrouted: Literal["error", "kill"] = "error"
    ordered: bool = True
    timeout: Annotated[float, Field(gt=0, lt=1e10)] = 30.0
    retries: Count = 3
    retry_delay: Seconds = 1.0
    retry_delay_max: Seconds = 300.0
    max_messages: Count | None = None
    max_bytes: Count | None = None
    error_queue: QueueName | None = None
    failure_queue: QueueName | None = None

    @model_validator(mode="after")
    def _fits_together(self) -> "Description":
        mistakes = [*self._wrong_routes(), *self._wrong_services(), *self._wrong_names()]
        if mistakes:
            raise _wrong("\n".join(mistakes))
        return self

    def _wrong_routes(self) -> list[str]:
        names, wrong = [route.name for route in self.routes], []
        for index, route in enumerate(self.routes):
            if route.name in names[:index]:
                wrong.append(f"routes[{index}].name: there is another route {route.name!r}: give each its own name")
            wrong += [
                f"routes[{index}].to: there is no destination {name!r}; there are {', '.join(self.destinations)}"
                for name in route.to
                if name not in self.destinations
            ]
        return wrong

    def _wrong_services(self) -> list[str]:
        wrong, own = [], set(self.queue_names)
        for name, destination in self.destinations.items():
            place = f"destinations.{name}.service"
            try:
                parse(destination.service)
            except ServiceError as error:
                wrong.append(f"{place}: {error}")
            if destination.service.startswith("queue:") and (queue := destination.service[len("queue:") :]) in own:
                wrong.append(f"{place}: {queue!r} is a queue of this pipeline, messages would go round: name another")
        return wrong

    def _wrong_names(self) -> list[str]:
        names, wrong = self.queue_names, []
        for name in dict.fromkeys(names):
            if names.count(name) > 1:
                wrong.append(f"two of its queues are called {name!r}: name the source, or one of them, otherwise")
            try:
                check_queue_name(name)
            except InvalidArgument as error:
                wrong.append(f"{error}: choose shorter names")
        return wrong

    # -- its queues ---------------------------------------------------------------------------------------------------

    @property
    def queue_names(self) -> list[str]:
        """The names of all its queues."""
        stages = [self.source_queue, *([self.translate_queue] if self.inbound else [])]
        for name, destination in self.destinations.items():
            stages += [self.first_queue(name), *([self.last_queue(name)] if destination.outbound else [])]
        return [*stages, self.errors, self.failures]

    def is_of_another_shape(self, queue: str) -> bool:
        """Return whether a pipeline of this name has a queue of that name in another shape, and not in this one."""
        is_stage = queue == f"{self.name}.translate" or queue.startswith(f"{self.name}.to.")
        return is_stage and queue not in self.queue_names

    @property
    def source_queue(self) -> str:
        """Where messages come in."""
        return self.source or self.name

    @property
    def translate_queue(self) -> str:
        """Where messages wait for the routes: the source, if there are no inbound hooks."""
        return f"{self.name}.translate" if self.inbound else self.source_queue

    def first_queue(self, destination: str) -> str:
        """Where the routes put the messages of a destination."""
        return f"{self.name}.to.{destination}"

    def last_queue(self, destination: str) -> str:
        """Where messages wait for the service of a destination: its first queue, if there are no outbound hooks."""
        first = self.first_queue(destination)
        return f"{first}.deliver" if self.destinations[destination].outbound else first

    @property
    def errors(self) -> str:
        """The error queue of all its queues."""
        return self.error_queue or f"{self.name}.errors"

    @property
    def failures(self) -> str:
        """Where messages go of which a route failed alone."""
        return self.failure_queue or f"{self.name}.failures"


# -- reading one ------------------------------------------------------------------------------------------------------


def described(given: Mapping[str, Any], where: str) -> Description:
    """Return a checked description. ``where``: what has it, for the text of errors. Raises PipelineError."""
    try:
        return Description.model_validate(dict(given))
    except ValidationError as error:
        details = error.errors()
        places = [detail["loc"] for detail in details]
        # (a list whose only item is wrong is told to be empty, too)
        details = [
            one for one in details if not any(one["loc"] == place[: len(one["loc"])] != place for place in places)
        ]
        lines = [line for detail in details for line in _in_words(detail).splitlines()]
        raise PipelineError("\n".join(f"{where}: {line}" for line in lines)) from None


_EXPECTED = {
    "string_type": "is a text", "bool_type": "is true or false", "int_type": "is a whole number",
    "float_type": "is a number", "dict_type": "is a table", "model_type": "is a table",
    "greater_than_equal": "is at least {ge:g}", "greater_than": "is more than {gt:g}",
    "less_than": "is less than {lt:g}",
    "less_than_equal": "is at most {le:g}", "literal_error": "is {expected}",
    "string_too_short": "has a character or more", "string_too_long": "has at most {max_length} characters",
}  # fmt: skip
_OPTIONS: Mapping[str, type[_Described]] = {"routes": Route, "destinations": Destination}


def _in_words(detail: ErrorDetails) -> str:
    """Return one mistake as a line: the place, and what is allowed there."""
    *outer, last = place = [part for part in detail["loc"] if part != "[key]"] or [""]
    where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place).lstrip(".")
    kind = detail["type"]
    if kind == "wrong":
        return f"{where}: {detail['msg']}" if where else detail["msg"]
    if kind == "missing":
        return f"{where}: it is missing"
    if kind == "extra_forbidden":
        model = _OPTIONS[str(outer[0])] if outer else Description
        return f"{where}: there is no option {last!r}; there are {', '.join(model.model_fields)}"
    if kind == "too_short":
        return f"{where}: give at least one"
    context = detail.get("ctx", {})
    said = _EXPECTED[kind].format_map(context) if kind in _EXPECTED else detail["msg"]
    return f"{where}: it {said}, not {shown(detail['input'])}"
