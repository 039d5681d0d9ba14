"""Puts and claims by HTTP on loopback, compared with asyncio tasks in one process, and with PostgreSQL behind an
application of starlette."""

import asyncio
import importlib.util
import re
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial

import spool
from bench.cases.base import Case, Result, compare
from bench.figures import Figure, in_turns
from bench.peers.base import BODY
from bench.setting import Bench
from bench.spaces import QUEUE
from bench.table import Outcome, Row, Verdict, unmeasured

_PUTTING, _TAKING = 32, 8
_LEAST, _MOST_MILLISECONDS, _PAUSE_SECONDS = 0.5, 6.0, 0.02
_PUT = Row("http-put", f"put by HTTP, {_PUTTING} connections", f"≥ {_LEAST} × {_PUTTING} asyncio tasks in one process")
_PUT_BESIDE = Row("http-put-postgresql", f"put by HTTP, {_PUTTING} connections", "≥ 1.0 × PostgreSQL behind starlette")
_TAKE = Row(
    "http-claim", f"claim and acknowledge by HTTP, {_TAKING} connections", f"≥ {_LEAST} × the same in one process"
)
_WAIT = Row("http-latency", "put by HTTP to the answer of a waiting claim, idle system", "p50 ≤ 6 ms")
_ROWS = (_PUT, _PUT_BESIDE, _TAKE, _WAIT)
_HERE, _THERE, _POSTGRESQL = "by HTTP", "in one process", "PostgreSQL"

_HEAD = "{} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/octet-stream\r\nContent-Length: {}\r\n\r\n"
_PUT_CALL = _HEAD.format(f"POST /v1/bench/queues/{QUEUE}/messages", len(BODY)).encode() + BODY


def _claim_call(wait: float) -> bytes:
    return _HEAD.format(f"POST /v1/bench/queues/{QUEUE}/claims?wait={wait:g}", 0).encode()


class _Connection(asyncio.Protocol):
    """A client's connection. It uses as little processor time as is possible in Python."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport, self._got = transport, b""
        self._answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        self._got += data
        end = self._got.find(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", self._got[: max(0, end)], re.IGNORECASE)
        if end >= 0 and len(self._got) >= end + 4 + int(length[1] if length else 0):
            found, self._got = self._got, b""
            self._answer.set_result(found)

    def connection_lost(self, error: Exception | None) -> None:
        if not self._answer.done():
            self._answer.set_exception(error or ConnectionResetError())

    async def call(self, sent: bytes, status: bytes) -> bytes:
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(sent)
        found = await self._answer
        if not found.startswith(b"HTTP/1.1 " + status):
            raise RuntimeError(found[:500].decode("latin-1"))
        return found

    async def take(self, wait: float = 0) -> float:
        """Claim a message, and acknowledge it. Return the time between both."""
        found = await self.call(_claim_call(wait), b"200")
        at, receipt = time.perf_counter(), re.search(rb"spool-receipt: (\S+)", found, re.IGNORECASE)
        assert receipt is not None
        await self.call(_HEAD.format(f"DELETE /v1/bench/claims/{receipt[1].decode()}", 0).encode(), b"204")
        return at


async def _connections(port: int, count: int) -> list[_Connection]:
    loop = asyncio.get_running_loop()
    return [(await loop.create_connection(_Connection, "127.0.0.1", port))[1] for _ in range(count)]


async def _seconds(count: int, calls: Sequence[Callable[[], Awaitable[object]]]) -> float:
    """Make ``count`` calls, by as many tasks as there are functions; return the duration."""
    left = iter(range(count))

    async def caller(call: Callable[[], Awaitable[object]]) -> None:
        for _ in left:
            await call()

    begun = time.perf_counter()
    await asyncio.gather(*map(caller, calls))
    return time.perf_counter() - begun


async def _by_http(port: int, count: int, seconds: dict[str, float]) -> None:
    putting, taking = await _connections(port, _PUTTING), await _connections(port, _TAKING)
    seconds["put"] = await _seconds(count, [partial(each.call, _PUT_CALL, b"201") for each in putting])
    seconds["take"] = await _seconds(count, [each.take for each in taking])


async def _in_process(path: str, count: int, seconds: dict[str, float]) -> None:
    import spool.aio

    async with spool.aio.open(path) as space, space.claims() as claims:

        async def take() -> None:
            found = await asyncio.get_running_loop().run_in_executor(None, claims.sync.take, QUEUE, 1)
            claims.sync.begin(found[0])
            await claims.remove(found)

        seconds["put"] = await _seconds(count, [lambda: space.put(QUEUE, BODY)] * _PUTTING)
        seconds["take"] = await _seconds(count, [take] * _TAKING)


async def _latencies(port: int, count: int) -> list[float]:
    """Return the milliseconds of each message. An idle pause precedes each message."""
    putting, taking = await _connections(port, 2)
    found = list[float]()
    for _ in range(count):
        taken = asyncio.ensure_future(taking.take(20))
        await asyncio.sleep(_PAUSE_SECONDS)
        begun = time.perf_counter()
        await putting.call(_PUT_CALL, b"201")
        found.append(1_000 * (await taken - begun))
    return found


async def _awaited(step: Awaitable[None]) -> None:
    await step


@contextmanager
def _server(*words: str) -> Iterator[int]:
    with subprocess.Popen([sys.executable, "-m", *words], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield int(re.findall(r"\d+", server.stdout.readline())[-1])
        finally:
            server.send_signal(signal.SIGTERM)


def _measure(bench: Bench) -> Iterator[Result]:
    if any(importlib.util.find_spec(name) is None for name in ("starlette", "uvicorn")):
        yield from (unmeasured(row, "it takes the extra [web]") for row in _ROWS)
        return
    count = bench.sizes.forwarded // 5
    with bench.scratch("http") as directory, ExitStack() as opened:
        for name in ("served", "own"):
            with spool.create(f"{directory}/{name}") as space:
                space.create_queue(QUEUE)
        words = ("xaspool_scripts.serve", f"bench={directory}/served", "--listen", "127.0.0.1:0", "--json")
        port = opened.enter_context(_server(*words))
        steps: dict[str, Callable[[dict[str, float]], Awaitable[None]]] = {
            _HERE: partial(_by_http, port, count),
            _THERE: partial(_in_process, f"{directory}/own", count),
        }
        if _POSTGRESQL in bench.peers:
            behind = opened.enter_context(_server("bench.postgresql_web", bench.peers[_POSTGRESQL].directory))
            steps[_POSTGRESQL] = partial(_by_http, behind, count)
        yield from _compared(steps, bench.sizes.forwards, f"{count:,} messages; clients and server on two cores")
        waits = Figure("xaspool", asyncio.run(_latencies(port, bench.sizes.latencies)), "ms")
        p50 = statistics.median(waits.samples)
        yield Outcome(_WAIT, f"p50 {p50:.2f} ms", Verdict.of(p50 <= _MOST_MILLISECONDS), waits)


def _compared(
    steps: dict[str, Callable[[dict[str, float]], Awaitable[None]]], rounds: int, note: str
) -> Iterator[Outcome]:
    found: dict[str, list[dict[str, float]]] = {who: [] for who in steps}

    def step(who: str) -> float:
        seconds = dict[str, float]()
        found[who].append(seconds)
        asyncio.run(_awaited(steps[who](seconds)))
        return 0.0

    in_turns({who: partial(step, who) for who in steps}, rounds)
    count = int(note.split()[0].replace(",", ""))
    for kind, rows in (("put", {_PUT: _THERE, _PUT_BESIDE: _POSTGRESQL}), ("take", {_TAKE: _THERE})):
        figures = {
            who: Figure(who, [count / seconds[kind] for seconds in runs], "messages/s") for who, runs in found.items()
        }
        others = [figure for who, figure in figures.items() if who != _HERE]
        for row, against in rows.items():
            yield compare(row, figures[_HERE], others, against, _LEAST if against == _THERE else 1.0, note)


CASES = (Case("http", _ROWS, _measure),)
