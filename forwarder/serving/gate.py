"""The gate of a server: for a client without a known token, the server keeps few bytes, and only for a short time.

Arrow Flight reads the whole message of a call, of any length, before it looks at the token. So the server itself
listens at a socket in a private directory. The gate listens at the server's address, decrypts TLS, and passes bytes
between the client and the server. For a connection without an accepted call, the gate passes at most 256 KiB. When the
server has accepted a call, the server notifies the gate, which then passes more bytes.

The gate does not interpret the bytes of a call. It identifies a connection by the name of the connection's socket,
which the server sees as the peer of each call.
"""

import asyncio
import os
import shutil
import socket
import ssl
import tempfile
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from forwarder.flight.endpoint import listening
from spool.errors import InvalidArgument

STRANGER_BYTES, READER_BYTES = 256 << 10, 20 << 20
"""The most bytes of a client without an accepted call, and the most unaccepted bytes of a client that may only read. A
request has at most 16 MiB."""
_CALL_BYTES = 512  # the most bytes of a call besides its request: headers, frames, token
_READ_SHARE = 1024  # a client confirms the bytes that it reads, with at most one byte for this many bytes
MOST_READERS, MOST_OF_A_TOKEN = 256, 64
"""The most connections of clients that may only read: of all clients together, and of one token. The same numbers
limit their reads in progress, because each process of Spark has one connection, and makes one read at a time."""
_MOST_STRANGERS = 64
_STRANGER_SECONDS = 20.0
_HANDSHAKE_SECONDS = 10.0
_ROOM_SECONDS = 0.1
_BUFFERED_BYTES = 1 << 20
_ANY = float("inf")  # the limit for a client that may write
_CONNECTIONS = "connections of clients that may only read: end one, then try again, or use a token that may write"
_READS = "reads of clients that may only read in progress: end one, then try again, or use a token that may write"
_LONGEST_PATH = 80  # the longest path of the private directory: a socket's path has at most 107 bytes


class _End(asyncio.Protocol):
    """One end of a connection. It passes received bytes to the other end, no faster than the other end takes them."""

    other: "_End"

    def __init__(self) -> None:
        self.transport: Any = None  # None until the end is connected
        self.is_held = False  # whether received bytes have to wait
        self.waiting: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.transport.set_write_buffer_limits(_BUFFERED_BYTES)
        self.other.go_on()

    def data_received(self, data: bytes) -> None:
        self.other.earn(len(data) / _READ_SHARE)
        if self.is_held or self.other.transport is None:
            self.waiting.append(data)
        else:
            self.other.transport.write(data)

    def earn(self, size: float) -> None:
        """Let the end send ``size`` more bytes. Do nothing for the server's end, which has no limit."""

    def go_on(self) -> None:
        """Pass on the bytes that wait."""
        if not self.is_held and self.other.transport is not None:
            for data in self.waiting:
                self.other.transport.write(data)
            self.waiting.clear()

    def pause_writing(self) -> None:
        self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if not self.other.is_held:
            self.other.transport.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        self.waiting.clear()
        if self.other.transport is not None:
            self.other.transport.close()


class _Client(_End):
    """The end of a client.

    left: the number of bytes that the client may still send. An accepted call of a reader adds only the call's own
        bytes. Otherwise one thread of the client could make small calls, so that another could send a message of any
        size.
    most: the most bytes that ``left`` can become; 0 without an accepted call.
    is_refused: whether the server has refused a call, and has logged the refusal.
    connecting: the task that connects both ends.
    is_connected: whether the socket ``accepted`` has a transport, which closes it.
    """

    connecting: "asyncio.Task[None]"

    def __init__(self, gate: "Gate", accepted: socket.socket, address: str) -> None:
        super().__init__()
        self._gate = gate
        self._timer = asyncio.get_running_loop().call_later(
            _STRANGER_SECONDS, self.end
        )  # an accepted call cancels the timer
        self.accepted = accepted
        self.address = address
        self.other = _End()
        self.other.other = self
        self.name = ""
        self.left: float = STRANGER_BYTES
        self.most: float = 0
        self.is_refused = False
        self.is_connected = False

    def data_received(self, data: bytes) -> None:
        self.left -= len(data)
        if self.left < 0 and not self.is_held:
            self.is_held = True
            self.transport.pause_reading()
            if not self.is_stranger:
                self._timer = asyncio.get_running_loop().call_later(_STRANGER_SECONDS, self.end)
        super().data_received(data)

    @property
    def is_stranger(self) -> bool:
        """Whether the server has not yet accepted a call of this client."""
        return self.most == 0

    def earn(self, size: float) -> None:
        if self.most:
            self.left = min(self.most, self.left + size)

    def accept(self, most: float, size: int) -> None:
        """Go on after an accepted call, whose request had ``size`` bytes."""
        if self.most < most:
            self.left = self.most = most
        self.earn(size + _CALL_BYTES)
        if self.left < 0:
            return
        self._timer.cancel()
        if self.is_held and not self.transport.is_closing():
            self.is_held = False
            self.go_on()
            self.transport.resume_reading()

    def end(self) -> None:
        """End the connection at once."""
        self._timer.cancel()
        self.connecting.cancel()
        for each in (self.transport, self.other.transport):
            if each is not None:
                each.abort()
        self._gate.forget(self)

    def close_unconnected(self, _: object) -> None:
        if not self.is_connected:
            self.accepted.close()

    def connection_lost(self, error: Exception | None) -> None:
        self._timer.cancel()
        super().connection_lost(error)
        self._gate.forget(self)


class Gate:
    """Listens at an address from its creation until ``close``.

    Args:
        certificate, key: the files with the certificate chain and the private key of the server, as PEM; None without
            TLS.
        refuse: called with a sentence about a client that disconnected without an accepted call.

    certificate: the certificate chain; b"" without TLS.

    Raises:
        InvalidArgument: the certificate or its key is not valid.
        OSError: the gate cannot listen at the address.
    """

    def __init__(
        self, host: str, port: int, certificate: str | None, key: str | None, refuse: Callable[[str], None]
    ) -> None:
        self.certificate = b"" if certificate is None else _read(certificate)
        self._tls = None if certificate is None else _tls(self.certificate, _read(key or ""))
        self._refuse = refuse
        self._listeners = listening(host, port)
        self.port = int(self._listeners[0].getsockname()[1])
        is_long = len(tempfile.gettempdir()) > _LONGEST_PATH
        self._directory = tempfile.mkdtemp(prefix="xaspool-", dir="/tmp" if is_long else None)
        self.path = os.path.join(self._directory, "flight")
        self._strangers: dict[_Client, None] = {}  # the oldest first
        self._clients: dict[str, _Client] = {}  # by the name of the client's socket
        self._mutex = threading.RLock()  # (the garbage collector may end a lost read while ``reading`` has the lock)
        self._readers: dict[_Client, str] = {}  # the clients that may only read, each with its token
        self._reads: list[str] = []  # the tokens of these clients' reads in progress
        self._accepting: list[asyncio.Task[None]] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="xaspool gate", daemon=True)

    def open(self) -> None:
        """Accept clients, and connect them with the server, which listens at ``path``."""
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._open(), self._loop).result()

    async def _open(self) -> None:
        for listener in self._listeners:
            listener.setblocking(False)
            self._accepting.append(self._loop.create_task(self._accept_from(listener)))

    def accept(self, peer: str, token: str, size: int, *, is_writer: bool) -> None:
        """Let a client go on, because the server has accepted a call of this client.

        InvalidArgument if clients that may only read have too many connections, either in total or with this token.

        Args:
            peer: the client, as the server sees it.
            token: the token of the client, or any name that identifies the token.
            size: the bytes of the call's request.
            is_writer: whether the token may write.
        """
        client = self._client(peer)
        if client is None or client.most == _ANY:
            return
        if not is_writer:
            with self._mutex:
                if client not in self._readers:
                    check_room(self._readers.values(), token, MOST_READERS, MOST_OF_A_TOKEN, _CONNECTIONS)
                self._readers[client] = token
        self._loop.call_soon_threadsafe(self.welcome, client, _ANY if is_writer else READER_BYTES, size)

    @contextmanager
    def reading(self, token: str) -> Iterator[None]:
        """Count a read of a client that may only read during the block. A read keeps a batch in the server's memory.

        gRPC lets a client begin any number of reads over one connection without taking any data of these reads.
        InvalidArgument if too many reads are in progress, either in total or with this token.
        """
        with self._mutex:
            check_room(self._reads, token, MOST_READERS, MOST_OF_A_TOKEN, _READS)
            self._reads.append(token)
        try:
            yield
        finally:
            with self._mutex:
                self._reads.remove(token)

    def refused(self, peer: str) -> None:
        """Note that the server has refused a call of a client, and has logged the refusal."""
        client = self._client(peer)
        if client is not None:
            client.is_refused = True

    def _client(self, peer: str) -> _Client | None:
        return self._clients.get(peer.rpartition(":")[2])

    def close_listeners(self) -> None:
        """Accept no further client."""
        if self._thread.is_alive():
            asyncio.run_coroutine_threadsafe(self._close_listeners(), self._loop).result()
        for each in self._listeners:
            each.close()

    async def _close_listeners(self) -> None:
        for each in self._accepting:
            each.cancel()
        await asyncio.gather(*self._accepting, return_exceptions=True)

    def close(self) -> None:
        """End all connections."""
        self.close_listeners()
        if self._thread.is_alive():
            asyncio.run_coroutine_threadsafe(self._end_all(), self._loop).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
        self._loop.close()
        shutil.rmtree(self._directory, ignore_errors=True)

    async def _end_all(self) -> None:
        clients = {*self._strangers, *self._clients.values()}
        for client in clients:
            client.end()
        await asyncio.gather(*(client.connecting for client in clients), return_exceptions=True)
        await asyncio.sleep(0)  # (the transports close their sockets)

    # -- the gate's thread -----------------------------------------------------------------------------------------

    async def _accept_from(self, listener: socket.socket) -> None:
        while True:
            try:
                accepted, address = await self._loop.sock_accept(listener)
            except OSError:  # the process can open no further connection
                await asyncio.sleep(_ROOM_SECONDS)
                continue
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if len(self._strangers) >= _MOST_STRANGERS:
                next(iter(self._strangers)).end()
            client = _Client(self, accepted, str(address[0]))
            self._strangers[client] = None
            client.connecting = self._loop.create_task(self._connect(client))
            client.connecting.add_done_callback(client.close_unconnected)

    async def _connect(self, client: _Client) -> None:
        """Connect a client with the server."""
        near = socket.socket(socket.AF_UNIX)
        try:
            near.setblocking(False)
            near.bind("")  # (the kernel chooses a free name)
            client.name = near.getsockname()[1:].decode("ascii")
            self._clients[client.name] = client
            await self._loop.sock_connect(near, self.path)
            await self._loop.create_unix_connection(lambda: client.other, sock=near)
            client.is_connected = True
            seconds = _HANDSHAKE_SECONDS if self._tls is not None else None
            await self._loop.connect_accepted_socket(
                lambda: client, client.accepted, ssl=self._tls, ssl_handshake_timeout=seconds
            )
        except OSError:  # the client does not use TLS or has disconnected, or the server has ended
            client.end()
        finally:
            if client.other.transport is None:
                near.close()

    def forget(self, client: _Client) -> None:
        self._strangers.pop(client, None)
        if self._clients.get(client.name) is not client:
            return  # (this client was forgotten before; another may have its name)
        del self._clients[client.name]
        with self._mutex:
            self._readers.pop(client, None)
        if client.is_stranger and client.left < STRANGER_BYTES and not client.is_refused:
            self._refuse(f"a client at {client.address} went away without an accepted call")

    def welcome(self, client: _Client, most: float, size: int) -> None:
        self._strangers.pop(client, None)
        if most == _ANY or self._clients.get(client.name) is not client:  # the client may write, or has disconnected
            with self._mutex:
                self._readers.pop(client, None)
        client.accept(most, size)


def check_room(owners: Collection[str], token: str, most: int, most_of_a_token: int, things: str) -> None:
    """Raise InvalidArgument if the server or the token already has the largest allowed number of things.

    ``owners``: the tokens of the present things. ``token``: "" if the server has no tokens.
    """
    if token and sum(owner == token for owner in owners) >= most_of_a_token:
        raise InvalidArgument(f"the token has {most_of_a_token:,} {things}")
    if len(owners) >= most:
        raise InvalidArgument(f"the server has {most:,} {things}")


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise InvalidArgument(f"the certificate or its key cannot be read: {path}: {error.strerror}") from None


def _check_pem(certificate: bytes, key: bytes) -> None:
    """Raise InvalidArgument, with advice, for a certificate or key that OpenSSL would refuse without a reason.

    For a key with a password, OpenSSL would ask at the terminal.
    """
    if b"-----BEGIN CERTIFICATE-----" not in certificate:
        raise InvalidArgument("the file of --tls-cert has no certificate as PEM: give another file")
    if b"PRIVATE KEY-----" not in key:
        raise InvalidArgument("the file of --tls-key has no private key as PEM: give another file")
    if b"-----BEGIN ENCRYPTED" in key or b"Proc-Type: 4,ENCRYPTED" in key:
        raise InvalidArgument(
            "the private key in the file of --tls-key has a password: give a key without one, which openssl pkey -in "
            "KEY -out NEW_KEY writes"
        )


def _tls(certificate: bytes, key: bytes) -> ssl.SSLContext:
    _check_pem(certificate, key)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.set_alpn_protocols(["h2"])
    handles = [os.memfd_create(name) for name in ("certificate", "key")]  # (Python reads both only from files)
    try:
        for handle, data in zip(handles, (certificate, key), strict=True):
            os.write(handle, data)
        context.load_cert_chain(*(f"/proc/self/fd/{handle}" for handle in handles))
    except (ssl.SSLError, OSError) as error:
        reason = getattr(error, "reason", None) or error
        if reason == "KEY_VALUES_MISMATCH":
            raise InvalidArgument(
                "the private key does not belong to the certificate: give --tls-key the key of the --tls-cert"
            ) from None
        raise InvalidArgument(f"the certificate or its key is not valid: {reason}") from None
    finally:
        for handle in handles:
            os.close(handle)
    return context
