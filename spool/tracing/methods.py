"""The methods that get spans, in one table, and the wrappers that replace these methods.

The wrapper of a method begins a span, adds the context of the span to the headers or options of the call, and hands the
result to the span. The method itself knows nothing of spans. ``within(method)`` still returns the innermost method.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import wraps
from inspect import iscoroutinefunction
from operator import attrgetter
from threading import Lock
from typing import Any

from opentelemetry import context

from spool.tracing import note_failure
from spool.tracing.calls import GetSpan, PutSpan, begin_client_call, begin_get, begin_process, begin_put, note_error
from spool.tracing.spans import in_context

Method = Callable[..., Any]
_limits = attrgetter("_store.settings.known.config")
Begin = Callable[[Any, Any, tuple[Any, ...], dict[str, Any]], PutSpan | GetSpan | None]


# -- puts and gets ----------------------------------------------------------------------------------------------------


def _spanned(begin: Begin) -> Callable[[Method], Method]:
    """Return a wrapper for methods whose calls have the span that ``begin`` begins.

    ``begin`` gets the object, the first argument, the other arguments and the options of a call.
    """

    def wrap(method: Method) -> Method:
        @wraps(method)
        def call(self: Any, queue: Any, *args: Any, **options: Any) -> Any:
            try:
                # Without a context, the caller has no span. (The public function takes one more frame.)
                found = getattr(context, "_RUNTIME_CONTEXT", context).get_current()
            except Exception as error:
                note_failure(error)
                found = None
            if not found or (span := begin(self, queue, args, options)) is None:
                return method(self, queue, *args, **options)
            with span:
                return span.done(method(self, queue, *args, **span.options))

        @wraps(method)
        async def wait(self: Any, queue: Any, *args: Any, **options: Any) -> Any:
            if (span := begin(self, queue, args, options)) is None:
                return await method(self, queue, *args, **options)
            with span:
                return span.done(await method(self, queue, *args, **span.options))

        return wait if iscoroutinefunction(method) else call

    return wrap


def _put(count: Callable[[tuple[Any, ...]], int]) -> Callable[[Method], Method]:
    return _spanned(lambda owner, queue, args, options: begin_put(_limits(owner), queue, count(args), options))


def _get(queue_of: Callable[[Any], str]) -> Callable[[Method], Method]:
    return _spanned(lambda owner, queue, args, options: begin_get(queue_of(queue), options))


def _of_the_task(submit: Method) -> Method:
    """Let a thread of ``spool.aio`` work in the context of the task."""

    @wraps(submit)
    def call(threads: Any, work: Callable[[], Any], *kind: str) -> Any:
        return submit(threads, in_context(work), *kind)

    return call


# -- calls of functions by workers ------------------------------------------------------------------------------------


def _of_the_call(calling: Method) -> Method:
    """Begin the span of a call. The span becomes an attribute of the attempt, ``process``."""

    @wraps(calling)
    @contextmanager
    def call(attempt: Any, space: Any) -> Iterator[None]:
        with calling(attempt, space):
            attempt.process = begin_process(attempt.message)
            with attempt.process or nullcontext():
                yield

    return call


def _at_the_end(end: Method) -> Method:
    """End the span with the outcome of the attempt, or with the reason of its withdrawal."""

    @wraps(end)
    def call(attempt: Any, outcome: Any, *args: Any) -> Any:
        if (process := getattr(attempt, "process", None)) is not None:
            process.end(outcome)
        return end(attempt, outcome, *args)

    return call


def _with_reply(record: Method) -> Method:
    """Let the reply carry the context of the call."""

    @wraps(record)
    def call(attempt: Any, message: Any, *args: Any) -> Any:
        if (process := getattr(attempt, "process", None)) is not None:
            message = process.continued(message, _limits(attempt))
        return record(attempt, message, *args)

    return call


# -- calls of services by the forwarder -------------------------------------------------------------------------------


def _of_the_service(begin: Method) -> Method:
    """Begin the span of a call in a task. The message of the key, of which the reply is made, carries its context."""

    @wraps(begin)
    def call(calls: Any, key: Any, service: Callable[[], Any]) -> None:
        place, found = key
        if (process := begin_process(found.message)) is not None:
            message = process.continued(found.message, calls.chunk.policy.space)
            key, service = (place, found._replace(message=message)), process.around(service)
        begin(calls, key, service)

    return call


def _noting_errors(run: Method) -> Method:
    """Record the exceptions of a function, which become outcomes."""

    @wraps(run)
    def call(limit: Any, *args: Any) -> Any:
        try:
            return run(limit, *args)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            note_error(error)
            raise

    return call


def _noting_error(failed: Method) -> Method:
    """Record the exception of a service, which becomes an outcome."""

    @wraps(failed)
    def call(threads: Any, error: BaseException) -> Any:
        note_error(error)
        return failed(threads, error)

    return call


def _over_http(send: Method) -> Method:
    """Begin the span of a request. The context of the span enters the headers of the request."""

    @wraps(send)
    def call(caller: Any, posted: Any) -> Any:
        if (span := begin_client_call(posted.method, *caller.address)) is None:
            return send(caller, posted)
        with span:
            posted.headers.update(span.headers)
            return span.done(send(caller, posted))

    return call


# -- the table --------------------------------------------------------------------------------------------------------

_one, _list, _from = _put(lambda args: 1), _put(lambda args: len(args[0])), _get(lambda queue: queue)
_reply, _claims = _get(lambda request: request.reply_queue), _get(lambda wanted: wanted.queue)
_both = {"put": _one, "replace": _one, "submit": _one, "_put_list": _list, "get": _from, "get_many": _from}

METHODS: dict[str, dict[str, Callable[[Method], Method]]] = {
    "spool.space:Space": {**_both, "_take_reply": _reply},
    "spool.transactions.transaction:Transaction": _both,
    "spool.transactions.claims:Claims": {"_take": _claims},
    "spool.aio.space:Space": {"_put": _list, "get_many": _from},
    "spool.aio.space:Transaction": {"get_many": _from},
    "spool.aio.receiver:Receiver": {"take_reply": _reply},
    "spool.aio.threads:Threads": {"submit": _of_the_task},
    "spool.workers.attempt:Attempt": {
        "calling": _of_the_call,
        "conclude": _at_the_end,
        "withdraw": _at_the_end,
        "_record": _with_reply,
    },
    "forwarder.task:ChunkCalls": {"begin": _of_the_service},
    "forwarder.task:ServiceThreads": {"failed": _noting_error},
    "forwarder.time_limits:TimeLimit": {"call": _noting_errors},
    "forwarder.services.http:HttpCaller": {"_send": _over_http},
}
"""The wrapper of each method, by module and class."""

_replaced: set[tuple[str, str]] = set()
_mutex = Lock()


def _inside(method: Any, wrap: Callable[[Method], Method]) -> Any:
    """Wrap the method inside its decorators, because the exception of a signal handler must not reach the wrapper: the
    wrapper would take it for an exception of OpenTelemetry."""
    decorate = getattr(method, "decorate", None)
    return wrap(method) if decorate is None else decorate(_inside(method.__wrapped__, wrap))


def replace_methods() -> None:
    """Replace the methods of the table, each once. A module that is imported later needs a later call."""
    with _mutex:
        for place, wrappers in METHODS.items():
            module, _, name = place.partition(":")
            # (another thread may be importing the module, so its class may be missing)
            owner = getattr(sys.modules.get(module), name, None)
            for method, wrap in wrappers.items() if owner is not None else ():
                if (place, method) not in _replaced:
                    plain = getattr(owner, method)
                    wrapper: Any = _inside(plain, wrap)
                    wrapper.__wrapped__ = getattr(plain, "__wrapped__", plain)
                    setattr(owner, method, wrapper)
                    _replaced.add((place, method))
