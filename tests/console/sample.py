"""A space with pleasant names, for the tests of the console and for the pictures of its page."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import spool
import xa
from spool.intake import Intake
from tests.at_once import AT_ONCE
from tests.branches import voting
from xaspool_console.console import Console
from xaspool_console.samples import Figures, _Sample

ERP = "https://erp.bakery.example/invoices"
LABELS = "python:bakery.labels:print_label"
TOO_LARGE = (256 << 20) + 1  # bytes; a space without max_body_bytes refuses such a body
XID = xa.Xid(4711, b"day-end-2030-06-01", b"till-3")
STUCK = {
    "order": 1207,
    "customer": "Café Lumière",
    "items": [{"bread": "rye", "count": 12}, {"bread": "brioche", "count": 30}],
}


def build(path: Path) -> spool.Space:
    """Create the space of a bakery, with each kind of trouble but a stopped disk. The caller closes it."""
    space = spool.create(path, defaults=AT_ONCE)
    space.engine.deliver_stored_bytes()
    for name in ("errors", "receipts", "deliveries", "tills"):
        space.create_queue(name)
    for name in ("orders", "oven", "invoices", "labels"):
        space.create_queue(name, error_queue="errors", retries=0, retry_delay=0)
    space.change_queue("orders", reply_queue="receipts")
    space.put_many("orders", [_order(number) for number in range(1208, 1250)])
    space.put_many("oven", [_order(number) for number in range(7)])
    space.put_many("invoices", [_order(number) for number in range(318)])
    space.put_many("labels", ["a label"] * 24)
    space.put_many("deliveries", ["a round"] * 3, delay=3600)
    fail(space, "invoices", STUCK)
    prepare_in(space, "tills", XID)
    publish(space)
    return space


def _order(number: int) -> dict[str, Any]:
    return {"order": number, "items": [{"bread": "rye", "count": number % 7 + 1}]}


def fail(
    space: spool.Space, queue: str, body: Any, reason: str = "the customer number 77-Ω is unknown", **options: Any
) -> str:
    """Put a message whose only attempt fails. Returns its id in the error queue."""
    options = {"correlation_id": "order-1207", "headers": {"shop": "harbour", "till": "3"}, **options}
    id = space.put(queue, body, **options)
    try:
        with space.transaction() as tx:
            tx.get(queue, message_id=id)
            raise RuntimeError(reason)
    except RuntimeError:
        pass
    return id


def refuse(space: spool.Space, *, wrong: int, large: int) -> None:
    """Drop files for queue orders that an intake refuses: files that are no msgpack, and files that are too large."""
    folder = Path(space.path) / "drop" / "orders"
    folder.mkdir(exist_ok=True)
    for number in range(wrong):
        (folder / f"wrong-{number:02}.msgpack").write_bytes(b'\xc1{"order":')
    for number in range(large):
        with open(folder / f"scan-{number:02}.bin", "wb") as file:
            file.truncate(TOO_LARGE)
    assert Intake(space).run(once=True).quarantined == wrong + large


def prepare_in(space: spool.Space, queue: str, xid: xa.Xid) -> None:
    """Prepare a branch that puts one message into a queue. Its coordinator never decides."""
    with voting(xa.ResourceManager(space), xid):
        space.put(queue, b"cash up")


def publish(space: spool.Space) -> None:
    """Report the meters of a running forwarder and worker."""
    meters = space.engine.meters
    for queue, target in (("orders", "oven"), ("orders", "invoices"), ("orders", "labels")):
        meters.change("destination", queue, target, by=1)
    for queue, service in (("oven", "python:bakery.oven:bake"), ("invoices", ERP), ("labels", LABELS)):
        meters.change("route", queue, service, by=1)
    meters.change("route_down", "invoices", ERP, by=1)
    for queue, effect, count in (
        ("orders", "done", 18_204), ("oven", "done", 18_197), ("invoices", "done", 17_903), ("invoices", "error", 1)
    ):  # fmt: skip
        meters.add("outcomes", "forwarder", queue, effect, number=count)
    meters.add("rounds", "orders", number=1_933)
    for bound, count in (("0.005", 9_000), ("0.01", 8_000), ("0.05", 903), ("total", 140_000_000_000)):
        meters.add("service_seconds", "invoices", bound, number=count)


@contextmanager
def with_tasks(space: spool.Space) -> Iterator[None]:
    """Give the bakery tasks of Celery: two that run, some that failed, and some that wait."""
    space.create_queue("celery", error_queue="errors", retries=0)

    def put(name: str, arguments: str, **options: Any) -> None:
        texts = {"task": name, "argsrepr": f"({arguments},)", "kwargsrepr": "{'oven': 2}"}
        envelope = {"body": "[]", "headers": texts, "properties": {}}
        space.put("celery", json.dumps(envelope), headers={"task": name}, correlation_id=arguments, **options)

    for number in range(9):
        put("bakery.send_receipt" if number % 3 else "bakery.bake", str(1200 + number))
    with space.claims() as claims, space.arrivals(["celery"]):
        claims.reject(
            claims.take("celery", 2), "ConnectionError: the printer of the harbour shop does not answer"
        ).result()
        claims.reject(claims.take("celery", 1), "ValueError: order 1202 has no address").result()
        for message in claims.take("celery", 2):
            claims.begin(message)
        yield


def with_history(console: Console) -> None:
    """Give a console the samples of the last minutes."""
    metrics = console.samples.snapshot().metrics
    kept = console.samples._history
    kept.clear()
    console.samples._recent.clear()
    for step in range(150, 0, -1):
        queues = {}
        for place, (name, stats) in enumerate(sorted(metrics.queues.items())):
            depth = stats.ready + stats.delayed + stats.claimed
            swing = abs((step * (place + 3)) % 40 - 20) / 20 * (0.1 if name == "invoices" else 0.6)
            growth = 1 - step / 160 if name == "invoices" else 1.0
            per_second = 3.2 + 2 * place if depth > 5 else 0.0
            moved = int(step * 10 * per_second)
            queues[name] = Figures(
                int(depth * growth * (1 - swing)) if depth > 5 else depth,
                stats.enqueued - moved, stats.dequeued - (0 if name == "invoices" else moved), stats.failed,
            )  # fmt: skip
        kept.append(_Sample(metrics.at - 10 * step, queues, sum(each.depth for each in queues.values())))

    console.samples.forget()


def shown(value: object) -> str:
    """Return a body as the console shows JSON."""
    return json.dumps(value, indent=2, ensure_ascii=False)
