"""Calls that a type checker has nothing to say about."""

import asyncio
import io
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import UTC, datetime

import forwarder
import spool

LATER: spool.PutOptions = {"delay": 5, "priority": 90}
ORDERS: spool.QueueOptions = {"order": ("priority", "fifo"), "retries": 3, "error_queue": "errors"}
OLD: spool.MessageFilters = {"older_than": 60}


def administer(path: str) -> list[str]:
    space: spool.Space = spool.create(path, sync_method="auto", max_messages=None, defaults={"retry_delay": 2.5})
    spool.create(path, exist_ok=True).close()
    config: spool.QueueConfig = space.create_queue("orders", **ORDERS)
    space.create_queue("orders", exist_ok=True, drop_types={".csv": "text/csv"})
    space.create_queue("errors", order=["priority", "time"], on_expiry="drop", capacity_high="5000 messages")
    space.change_queue("orders", max_bytes=1 << 30, reply_queue=None, ordered=True)
    count: int = space.purge("orders", dry_run=True, **OLD)
    count += space.redrive("errors", to="orders", headers={"tenant": "acme"})
    space.export(io.BytesIO(), compress=True)
    found: list[spool.Finding] = space.check(repair=True)
    report: spool.RecoveryReport = space.recovery
    return [config.name, str(count), report.in_doubt[0], found[0].detail, spool.__version__, space.path]


def work(space: spool.Space, bodies: Iterable[object]) -> int:
    one: str = space.put("orders", {"amount": 3}, priority=90, headers={"tenant": "acme"}, time_to_live=60.0)
    some: list[str] = space.put_many("orders", bodies, delay=5, group="acme", content_type="application/json")
    again = space.put("orders", b"x", before=one, deduplication_key="k", not_before=datetime.now(UTC))
    known: bool = isinstance(again, spool.MessageId) and again.duplicate
    reply: spool.Message = space.request("orders", {"known": known}, timeout=None, **LATER)
    one = reply.id
    later: Future[str] = space.submit("orders", b"x", transaction=None, **LATER)
    message: spool.Message = space.get("orders", timeout=None, message_id=later.result())
    for tx, taken in space.consume("orders", timeout=5):
        tx.put(taken.reply_queue or "replies", b"", correlation_id=taken.correlation_id, user_code=1)
        tx.put_many("audit", [taken.id], expires_at=2e9, client_id=None)
        tx.submit("audit", taken.id, not_before=taken.not_before, top=True).cancel()
    with space.transaction(timeout=30) as tx:
        space.put("orders", "x", transaction=tx)
        tx.get("orders", correlation_id="x", timeout=5)
    browsed = [message.attempts for message in space.browse("orders", older_than=5)]
    return len(some) + space.stats("orders").ready + len(space.stats()) + message.priority + sum(browsed)


async def tasks(path: str) -> list[str]:
    async with spool.aio.create(path, mirror=None) as space:
        await space.create_queue("orders", **ORDERS)
        config: spool.QueueConfig = await space.change_queue("orders", retry_delay=1)
        queues: dict[str, spool.QueueConfig] = await space.queues()
        async with space.transaction() as tx:
            await tx.put("orders", b"x", priority=3)
            await space.put_many("orders", [b"x"], transaction=tx, **LATER)
            message: spool.Message = await tx.get("orders", timeout=5)
        await space.put("orders", b"x", reply_queue="orders", transaction=None)
        await space.request("orders", b"x", timeout=3)
        for other in await space.get_many("orders", 9, timeout=None):
            await space.move(other.id, "orders")
        count: int = await space.purge("orders", older_than=5, progress=print)
        async for seen in space.browse("orders", correlation_id="x"):
            count += seen.priority
        count += (await space.stats("orders")).ready + (await space.stats())["orders"].ready
        return [config.name, *queues, message.id, str(count)]


def handle(message: spool.Message) -> bytes | None:
    if message.attempts > 3:
        raise spool.Reject("no such account", reply=b"none")
    raise spool.Retry("later", delay=60)


@dataclass(frozen=True)
class Printer:
    device: str
    threads: int = 4
    watched: float | None = None

    def check(self) -> None:
        if not self.device:
            raise forwarder.ServiceError("name a device")

    def open(self) -> "PrinterCaller":
        return PrinterCaller()


class PrinterCaller:
    def __call__(self, request: forwarder.Request) -> forwarder.Outcome:
        if not request.raw:
            return forwarder.Rejected("nothing to print", forwarder.Replied(b"no"))
        if request.message.attempts > 3:
            return forwarder.Retried("no paper", delay=60.0, counted=False)
        return forwarder.Replied(request.raw)

    def close(self) -> None:
        pass


def forward() -> forwarder.Service:
    printer: forwarder.Service = Printer("lp0")
    forwarder.Forwarder("shop", {"orders": printer, "bills": "exec:lp"}, threads=4)
    caller: forwarder.Caller = printer.open()
    caller.close()
    return printer


def main() -> None:
    forward()
    with spool.open("shop") as space:
        work(space, ["x"])
        summary: spool.WorkSummary = space.work("orders", handle, threads=4, once=True, timeout=None)
        print(summary.delivered)
    asyncio.run(tasks("shop"))
