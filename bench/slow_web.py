"""A web service that answers each request after 20 ms: ``python -m bench.slow_web``, which prints its port."""

import asyncio

ANSWER_SECONDS = 0.02
_ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class SlowWeb(asyncio.Protocol):
    """One connection. It uses as little processor time as is possible in Python."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport, self._got = transport, b""

    def data_received(self, data: bytes) -> None:
        self._got += data
        while (end := self._got.find(b"\r\n\r\n")) >= 0:
            head = self._got[:end].lower()
            length = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0] or 0)
            if len(self._got) < end + 4 + length:
                return
            self._got = self._got[end + 4 + length :]
            asyncio.get_running_loop().call_later(ANSWER_SECONDS, self._transport.write, _ANSWER)


async def main() -> None:
    server = await asyncio.get_running_loop().create_server(SlowWeb, "127.0.0.1", 0, backlog=1000)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
