"""A network between clients and a server that loses connections at random bytes of requests and answers."""

import asyncio
import random
import threading
from contextlib import suppress

_READ_AT_ONCE = 1 << 16
_FAULTY = 0.5  # the share of connections that are lost by themselves


class Network:
    """Passes connections at ``port`` on to a port of this machine, in a thread."""

    def __init__(self, to: int, chance: random.Random) -> None:
        self._to, self._chance, self._is_down = to, chance, False
        self._open = set[asyncio.StreamWriter]()
        begun = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve(begun)), daemon=True)
        self._thread.start()
        assert begun.wait(60)

    def cut(self, seconds: float) -> None:
        """Lose all connections, and refuse others for some time."""
        self._loop.call_soon_threadsafe(self._cut, seconds)

    def mend(self) -> None:
        """Lose no further connections."""
        self._chance = random.Random()
        self._chance.random = lambda: 1.0  # type: ignore[method-assign]

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._ends.set)
        self._thread.join()

    async def _serve(self, begun: threading.Event) -> None:
        self._loop, self._ends = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._pass_on, "127.0.0.1", 0)
        self.port: int = server.sockets[0].getsockname()[1]
        begun.set()
        await self._ends.wait()

    def _cut(self, seconds: float) -> None:
        self._is_down = True
        for each in self._open:
            each.transport.abort()
        self._loop.call_later(seconds, setattr, self, "_is_down", False)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers = [writer]
        try:
            if self._is_down:
                return
            to_reader, to_writer = await asyncio.open_connection("127.0.0.1", self._to)
            writers.append(to_writer)
            self._open.update(writers)
            ways = [(reader, to_writer), (to_reader, writer)]
            lost = self._chance.randrange(2) if self._chance.random() < _FAULTY else None
            size, stall = int(10 ** self._chance.uniform(0, 4.5)), self._chance.choice((0.0, 0.0, 0.3))
            pumps = [
                asyncio.ensure_future(_pump(*way, size if place == lost else None, stall))
                for place, way in enumerate(ways)
            ]
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            for each in pumps:
                each.cancel()
        except OSError:
            pass
        finally:
            self._open.difference_update(writers)
            for one in writers:
                one.transport.abort()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, size: int | None, stall: float) -> None:
    """Pass bytes on until the end of the connection. ``size``: the number of bytes after which it is lost."""
    with suppress(OSError):
        while chunk := await reader.read(_READ_AT_ONCE):
            writer.write(chunk[:size])
            await writer.drain()
            if size is not None and (size := size - len(chunk)) <= 0:
                await asyncio.sleep(stall)
                return
