"""``spool-serve``: share spaces with Spark on machines that do not see them."""

import logging
import os
import sys
from typing import TYPE_CHECKING

import click

from xaspool_scripts.terminal.codes import WRONG_USAGE
from xaspool_scripts.terminal.listening import address, end, end_signal, named_spaces, tls_options, wait_for_end
from xaspool_scripts.terminal.options import size
from xaspool_scripts.terminal.output import write_json
from xaspool_scripts.terminal.program import Failure, SingleProgram, extra, json_option, log_to_stderr, note

if TYPE_CHECKING:
    from forwarder.serving.server import SpaceServer


@click.command("spool-serve", cls=SingleProgram)
@click.argument("given", nargs=-1, metavar="[[NAME=]DIRECTORY...]")
@click.option(
    "--listen", default="127.0.0.1:8815", show_default=True, metavar="HOST:PORT", callback=address,
    help="The address to listen at. Port 0 takes a free port.",
)  # fmt: skip
@tls_options
@click.option(
    "--token-file", type=click.Path(dir_okay=False), metavar="FILE",
    help="The tokens of the clients: one in a line, with its rights after it (SPACE:read, SPACE:subscribe=NAME, "
    "SPACE:write), or all rights. Only you may read the file.",
)  # fmt: skip
@click.option(
    "--insecure", is_flag=True, help="Listen beyond this machine without TLS or tokens: everybody may read and write."
)
@click.option(
    "--max-write", type=size, default="16 GiB", show_default=True, metavar="SIZE",
    help="The most bytes that one task of a write may send. A larger write needs more tasks.",
)  # fmt: skip
@click.option("-v", "--verbose", is_flag=True, help="Print the log's lines of level INFO.")
@json_option
def main(
    given: tuple[str, ...], listen: tuple[str, int], tls_cert: str | None, tls_key: str | None, token_file: str | None,
    insecure: bool, max_write: int, verbose: bool, as_json: bool,
) -> None:  # fmt: skip
    """Share spaces with Spark programs on other machines, by Arrow Flight.

    The server runs on the machine of its spaces. A program names a space by its address instead of its directory, e.g.
    spool+grpc+tls://HOST:8815/NAME. The name of a space is the name of its directory, or NAME. Without a DIRECTORY, the
    server shares the space of -s.

    After SIGTERM or Ctrl-C, the server rolls back the writes that are not committed, and ends.

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
    from forwarder.flight.endpoint import is_loopback

    if verbose:
        log_to_stderr(logging.INFO)
    if (tls_cert is None) != (tls_key is None):
        raise Failure("--tls-cert and --tls-key belong together: give both", WRONG_USAGE)
    spaces, (host, port) = named_spaces(given), listen
    if not insecure and not is_loopback(host) and (tls_cert is None or token_file is None):
        raise Failure(
            f"{host} can be reached from other machines: give --tls-cert, --tls-key and --token-file, or --insecure",
            WRONG_USAGE,
        )
    server = _started(spaces, host, port, tls_cert, tls_key, token_file, max_write)
    try:
        ended = end_signal()
        for name, path in spaces.items():
            if as_json:
                write_json({"event": "serving", "space": path, "address": server.address(name)})
            else:
                click.echo(f"serving {path} at {server.address(name)}")
        if not is_loopback(host) and (tls_cert is None or token_file is None):
            note(
                "WARNING: everybody who reaches this address may read and write these spaces, or listen to the traffic"
            )
        elif token_file is None:
            note("every user of this machine can read and write these spaces here; --token-file asks for a token")
        sys.stdout.flush()
        wait_for_end(ended, server.spaces)
    finally:
        has_ended = server.close()
    end("ended: writes that were not committed are rolled back", as_json=as_json, has_ended=has_ended)


def _started(
    spaces: dict[str, str],
    host: str,
    port: int,
    tls_cert: str | None,
    tls_key: str | None,
    token_file: str | None,
    max_write: int,
) -> "SpaceServer":
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # (otherwise gRPC would also print lines for our errors)
    with extra("spark", "spool-serve"):
        from forwarder.serving.access import TokenFile, Tokens
        from forwarder.serving.server import SpaceServer
    from spool.errors import InvalidArgument, SpoolError

    try:
        tokens = Tokens() if token_file is None else TokenFile(token_file)
        return SpaceServer(host, port, spaces, tokens, certificate=tls_cert, key=tls_key, most_bytes=max_write)
    except InvalidArgument as error:
        raise Failure(str(error), WRONG_USAGE) from error
    except (SpoolError, OSError) as error:
        raise Failure(str(error)) from error


if __name__ == "__main__":
    main()
