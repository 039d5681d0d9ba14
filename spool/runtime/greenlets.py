"""Refuse processes in which gevent or eventlet has replaced Python's threads, locks, time or ``select``.

Such a process runs many greenlets in one thread. A call that waits in the kernel would stop all greenlets, even the
greenlet that would put the awaited message. And a lock that the engine holds would not stop another greenlet.
"""

import sys

from spool.errors import ProtocolError

_OF_GEVENT = ("threading", "_thread", "time", "select")
_OF_EVENTLET = ("thread", "time", "select")


def check_threads() -> None:
    """Raise ProtocolError if a library has replaced a part of Python that a space needs. Nothing is imported."""
    gevent, eventlet = sys.modules.get("gevent.monkey"), sys.modules.get("eventlet.patcher")
    if gevent is not None and any(map(gevent.is_module_patched, _OF_GEVENT)):
        raise _refusal("gevent")
    if eventlet is not None and any(map(eventlet.is_monkey_patched, _OF_EVENTLET)):
        raise _refusal("eventlet")


def _refusal(library: str) -> ProtocolError:
    return ProtocolError(
        f"{library} has replaced the threads of this process (monkey patching), so a call of a space that waits would "
        "stop the whole process: serve with threads (gunicorn -k gthread) or asyncio (uvicorn), run a worker of "
        "Celery with -P threads or -P prefork, or use the space in a separate process"
    )
