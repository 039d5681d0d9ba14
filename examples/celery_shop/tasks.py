"""The tasks of a shop. The directory "queues" is the broker and has the results."""

from pathlib import Path

from celery import Celery

SPACE = f"xaspool://{Path(__file__).resolve().parent / 'queues'}"

app = Celery("tasks", broker=SPACE, backend=SPACE)
app.conf.update(
    task_acks_late=True,  # a task is acknowledged when it has ended, so a killed worker loses none
    task_reject_on_worker_lost=True,  # likewise if only a process of the pool was killed
    broker_transport_options={"queue": {"retries": 3, "error_queue": "failed"}},  # but not for ever
)


@app.task(autoretry_for=(ConnectionError,), retry_backoff=True)
def charge(order: str, cents: int) -> str:
    return f"receipt of {order} for {cents / 100:.2f}"


@app.task
def pack(order: str, item: str) -> str:
    return f"parcel with {item}"


@app.task
def ship(parts: list[str], order: str) -> str:
    return f"order {order}: {', '.join(parts)}"
