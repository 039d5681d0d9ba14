"""The Celery application that the case ``celery`` measures, for its workers and for its publisher.

Each task appends a number to the file ``$XASPOOL_BENCH_LOG``: its start on the clock of ``time.monotonic``, in seconds,
which all processes of the machine share.
"""

import os
import struct
import time

from celery import Celery

BROKER, LOG, HOLDS = "XASPOOL_BENCH_BROKER", "XASPOOL_BENCH_LOG", "XASPOOL_BENCH_HOLDS"
START = struct.Struct("d")

app = Celery("bench", broker=os.environ.get(BROKER), set_as_current=False)
app.conf.update(
    task_acks_late=True, task_ignore_result=True, broker_connection_retry_on_startup=True,
    worker_hijack_root_logger=False,
)  # fmt: skip
_log = -1


@app.task(shared=False, name="start")  # type: ignore[untyped-decorator]
def start() -> None:
    """Note the start. In a worker with ``$XASPOOL_BENCH_HOLDS``, the task never ends."""
    global _log
    if _log < 0:
        _log = os.open(os.environ[LOG], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    if HOLDS in os.environ:
        time.sleep(3600)
    os.write(_log, START.pack(time.monotonic()))
