"""``spool-serve``: serve spaces by HTTP, for other languages, other machines and Spark."""

import gc
import logging
import socket
import sys
from typing import TYPE_CHECKING, Any

import click

from xaspool_scripts.terminal.exit_codes import WRONG_USAGE
from xaspool_scripts.terminal.listening import (
    address,
    announce,
    end,
    end_signal,
    listeners_at,
    named_spaces,
    reason_of,
    tls_options,
    wait_for_end,
)
from xaspool_scripts.terminal.program import Failure, SingleProgram, extra, json_option, log_to_stderr, note
from xaspool_scripts.terminal.shared_options import size

if TYPE_CHECKING:
    from forwarder.web.processes import Processes
    from forwarder.web.server import WebServer

_PATH = "unix:"


def _listen(context: click.Context, parameter: click.Parameter, given: str) -> str | tuple[str, int] | None:
    return given.removeprefix(_PATH) if given.startswith(_PATH) else address(context, parameter, given)


@click.command("spool-serve", cls=SingleProgram)
@click.argument("given", nargs=-1, metavar="[[NAME=]DIRECTORY...]")
@click.option(
    "--listen", default="127.0.0.1:8815", show_default=True, metavar="HOST:PORT|unix:PATH", callback=_listen,
    help="The address to listen at, or the path of a Unix socket. Port 0 takes a free port. Sockets of systemd "
    "(LISTEN_FDS) are used instead.",
)  # fmt: skip
@click.option(
    "--socket-group", metavar="GROUP",
    help="The group whose members may connect to the Unix socket, e.g. the group of a proxy. By default, only you may.",
)  # fmt: skip
@tls_options
@click.option(
    "--token-file", type=click.Path(dir_okay=False), metavar="FILE",
    help="The tokens of the clients: one in a line, with its rights after it (SPACE:look, SPACE:put, SPACE:take, each "
    "with =QUEUE for one queue, or SPACE:subscribe=NAME), or all rights. Only you may read the file.",
)  # fmt: skip
@click.option(
    "--insecure", is_flag=True, help="Listen beyond this machine without TLS or tokens: everybody may read and write."
)
@click.option(
    "--processes", type=click.IntRange(1, 64), default=1, show_default=True, metavar="N",
    help="The number of processes that answer. One process uses one processor.",
)  # fmt: skip
@click.option(
    "--max-write", type=size, default="16 GiB", show_default=True, metavar="SIZE",
    help="The most bytes that one task of a write of Spark may send. A larger write needs more tasks.",
)  # fmt: skip
@click.option("-v", "--verbose", is_flag=True, help="Print the log's lines of level INFO.")
@json_option
def main(
    given: tuple[str, ...], listen: str | tuple[str, int], socket_group: str | None, tls_cert: str | None,
    tls_key: str | None, token_file: str | None, insecure: bool, processes: int, max_write: int, verbose: bool,
    as_json: bool,
) -> None:  # fmt: skip
    """Serve spaces by HTTP, to programs in every language, programs on other machines, and Spark.

    The server runs on the machine of its spaces. A program names a space by its address instead of its directory, e.g.
    https://HOST:8815/NAME. The name of a space is the name of its directory, or NAME. Without a DIRECTORY, the server
    serves the space of -s.

    After SIGTERM or Ctrl-C, the server finishes the running calls, releases the messages that clients hold, rolls back
    the writes of Spark that are not committed, and ends.

    \b
    Exit codes:
      0  a signal ended the server
      1  it failed
      2  wrong usage

    \b
    Examples:
      spool-serve -s /var/spool/shop
      spool-serve /var/spool/shop audit=/srv/spool --listen 0.0.0.0:8815 --tls-cert cert.pem \\
        --tls-key key.pem --token-file tokens
    """
    with extra("web", "spool-serve"):
        import forwarder.web.server  # noqa: F401
    if verbose:
        log_to_stderr(logging.INFO)
    if (tls_cert is None) != (tls_key is None):
        raise Failure("--tls-cert and --tls-key belong together: give both", WRONG_USAGE)
    spaces = named_spaces(given)
    if socket_group is not None and not isinstance(listen, str):
        raise Failure("--socket-group belongs to a Unix socket: give --listen unix:PATH", WRONG_USAGE)
    is_safe = insecure or (tls_cert is not None and token_file is not None)
    listeners, reached = _listeners(listen, socket_group, is_safe=is_safe)
    server = _started(listeners, spaces, token_file, processes, certificate=tls_cert, key=tls_key, most_bytes=max_write)
    try:
        ended = end_signal()
        for name, path in spaces.items():
            at = f"{_url(listeners[0], reached, is_tls=tls_cert is not None)}/{name}"
            announce("serving", path, at, as_json=as_json)
        if reached and (tls_cert is None or token_file is None):
            note(
                "WARNING: everybody who reaches this address may read and write these spaces, or listen to the traffic"
            )
        elif token_file is None and listeners[0].family != socket.AF_UNIX:
            note("every user of this machine can read and write these spaces here; --token-file asks for a token")
        sys.stdout.flush()
        wait_for_end(ended, server.spaces, server.check)
    finally:
        has_ended = server.close()
    end("ended: the messages that clients held are released", as_json=as_json, has_ended=has_ended)


def _listeners(listen: str | tuple[str, int], group: str | None, *, is_safe: bool) -> tuple[list[socket.socket], str]:
    """Return the sockets, and the host by which other machines reach them; "" if they cannot.

    group: of the Unix socket. is_safe: whether other machines may reach the server.
    """
    from forwarder.web.sockets import is_loopback, listening_at_path, sockets_of_systemd
    from spool.errors import InvalidArgument

    try:
        listeners = sockets_of_systemd()
    except InvalidArgument as error:
        raise Failure(str(error), WRONG_USAGE) from error
    hosts = [str(each.getsockname()[0]) for each in listeners if each.family != socket.AF_UNIX]
    if not listeners and isinstance(listen, tuple):
        hosts = [listen[0]]
    reached = next((host for host in hosts if not is_loopback(host)), "")
    if reached and not is_safe:
        raise Failure(
            f"{reached} can be reached from other machines: give --tls-cert, --tls-key and --token-file, or --insecure",
            WRONG_USAGE,
        )
    if listeners:
        return listeners, reached
    if isinstance(listen, tuple):
        return listeners_at(*listen), reached
    try:
        return [listening_at_path(listen, group)], ""
    except InvalidArgument as error:
        raise Failure(f"--socket-group: {error}", WRONG_USAGE) from error
    except OSError as error:
        raise Failure(f"cannot listen at {_PATH}{listen}: {reason_of(error)}") from error


def _url(listener: socket.socket, host: str, *, is_tls: bool) -> str:
    """Return the address of the server for its clients; a Unix socket's in the form of nginx."""
    from forwarder.web.sockets import in_url

    if listener.family == socket.AF_UNIX:
        return f"http://unix:{listener.getsockname()}:"
    name = listener.getsockname()
    return f"http{'s' if is_tls else ''}://{in_url(host or name[0])}:{name[1]}"


def _started(
    listeners: list[socket.socket], spaces: dict[str, str], token_file: str | None, processes: int, **options: Any
) -> "WebServer | Processes":
    from forwarder.web.processes import Processes
    from forwarder.web.server import WebServer
    from forwarder.web.tokens import TokenFile, Tokens
    from spool.errors import InvalidArgument, SpoolError

    try:
        tokens = Tokens() if token_file is None else TokenFile(token_file)

        def start(*own: socket.socket, **state: Any) -> WebServer:
            server = WebServer([*listeners, *own], spaces, tokens, **options, **state)
            gc.freeze()
            gc.set_threshold(20_000, 50, 50)  # (the default's collections take a third of a put's processor time)
            return server

        if processes == 1:
            return start()
        return Processes(processes, start, lambda server, check: wait_for_end(end_signal(), server.spaces, check))
    except InvalidArgument as error:
        raise Failure(str(error), WRONG_USAGE) from error
    except (SpoolError, OSError) as error:
        raise Failure(str(error)) from error


if __name__ == "__main__":
    main()
