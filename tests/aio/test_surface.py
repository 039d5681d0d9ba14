"""``spool.aio`` has every call of ``spool``, except those in ``EXCUSED``, each with its reason."""

import asyncio
import inspect
import io
from collections.abc import Callable
from pathlib import Path

import pytest

import spool
import spool.aio
from spool.routing import Route, Router
from tests.held import PATIENT_SECONDS

EXCUSED = {
    "Space.engine": "it is for packages that are built upon the library: sync has it",
    "Space.arrivals": "its descriptor is for loops: sync has it",
    "Space.submit": "put is awaitable, and what tasks await at the same time shares a flush",
    "spool.read_metrics": "it reads one small file",
    "spool.plan_recovery": "it is for an administrator's program, which does nothing else meanwhile",
    "spool.current_space": "it tells a function that work calls in which space it is",
    "spool.shared": "a space for tasks belongs to one loop, whose main task opens and closes it",
    "spool.decode": "it waits for nothing",
    "spool.connect": "a space by HTTP has calls for threads only",
    "Transaction.submit": "put is awaitable",
    "Transaction.commit_async": "commit is awaitable",
}
RENAMED = {"threads": "tasks"}  # ``Space.work`` calls its function in threads or tasks
PAIRS = [
    (spool.Space, spool.aio.Space),
    (spool.Transaction, spool.aio.Transaction),
    (spool.Claims, spool.aio.Claims),
    (spool, spool.aio),
]


def _public(thing: object) -> set[str]:
    if thing is spool:
        return {name for name in spool.__all__ if inspect.isfunction(getattr(spool, name))} - {"register_codec"}
    return {name for name in dir(thing) if not name.startswith("_")}


def _arguments(call: Callable[..., object]) -> list[str]:
    return list(inspect.signature(call).parameters)[1:]


@pytest.mark.parametrize(("threads", "tasks"), PAIRS, ids=["Space", "Transaction", "Claims", "module"])
def test_tasks_have_every_call_that_threads_have_and_the_excuses_are_needed(threads: type, tasks: type) -> None:
    missing = {f"{threads.__name__}.{name}" for name in _public(threads) - _public(tasks)}
    assert missing == {name for name in EXCUSED if name.startswith(f"{threads.__name__}.")}


@pytest.mark.parametrize(("threads", "tasks"), PAIRS[:3], ids=["Space", "Transaction", "Claims"])
def test_an_awaited_call_takes_the_arguments_of_the_plain_call_and_has_a_docstring(threads: type, tasks: type) -> None:
    for name in _public(threads) & _public(tasks):
        call, awaited = getattr(threads, name), getattr(tasks, name)
        assert inspect.getdoc(awaited), name
        if inspect.isfunction(call):
            assert [RENAMED.get(one, one) for one in _arguments(call)] == _arguments(awaited), name


async def test_a_space_is_administered_by_tasks(tmp_path: Path) -> None:
    async with asyncio.timeout(PATIENT_SECONDS), spool.aio.create(tmp_path / "space", max_headers=3) as space:
        assert space.path == str(tmp_path / "space")
        assert space.recovery.alone
        await space.create_queue("errors")
        await space.create_queue("orders", order=("priority",), error_queue="errors")
        assert (await space.change_queue("orders", max_messages=9)).max_messages == 9
        assert list(await space.queues()) == ["errors", "orders"]
        ids = await space.put_many("orders", [b"a", b"b", b"c"], correlation_id="x")
        assert {name: figures.ready for name, figures in (await space.stats()).items()} == {"errors": 0, "orders": 3}
        assert (await space.change(ids[2], priority=90)).priority == 90
        assert (await space.move(ids[0], "errors")).queue == "errors"
        assert (await space.delete(ids[1])).body == b"b"
        assert await space.redrive("errors", to="orders") == 1
        assert await space.purge("orders", older_than=1000) == 0
        assert await space.check() == await space.quarantined() == []
        exported = io.BytesIO()
        await space.export(exported)
        assert await space.purge("orders", correlation_id="x") == 2
        await space.delete_queue("orders")
        with pytest.raises(spool.QueueNotFound):
            await space.stats("orders")
    exported.seek(0)
    assert (await spool.aio.verify_export(exported)).files > 0
    exported.seek(0)
    async with spool.aio.import_space(tmp_path / "copy", exported) as copy:
        assert (await copy.stats("orders")).ready == 2


async def test_a_call_may_name_its_transaction_or_have_one_of_its_own(tmp_path: Path) -> None:
    async with asyncio.timeout(PATIENT_SECONDS), spool.aio.create(tmp_path) as space:
        await space.create_queue("orders")
        named = space.transaction()
        await space.put("orders", b"named", transaction=named)
        async with space.transaction() as tx:
            await space.put("orders", b"joined")
            await space.put("orders", b"own", transaction=None)
            assert (await space.get("orders", transaction=None)).body == b"own"
            tx.set_rollback_only()
            assert tx.rollback_only
        with pytest.raises(spool.Empty):
            await space.get("orders")
        await named.commit()
        taking = space.transaction()
        assert (await space.get("orders", transaction=taking)).body == b"named"
        await taking.abandon()
        assert (await space.get("orders")).attempts == 0


async def test_the_reprs_of_spaces_transactions_and_routers_name_kind_and_state(tmp_path: Path) -> None:
    async with spool.aio.create(tmp_path) as space:
        tx = space.transaction()
        assert repr(tx.sync) == f"<transaction {tx.xid} of {tmp_path}: active>"
        assert repr(tx) == f"<{tx.sync!r}, for asyncio>"
        assert repr(space) == f"<<queue space {tmp_path}>, for asyncio>"
        await tx.rollback()
        assert repr(tx.sync).endswith(": rolled back>")
    assert (
        repr(Router([Route("/a", ("eu",)), Route("/b", ("us",))], field="region"))
        == "<router by field region to /a, /b>"
    )
