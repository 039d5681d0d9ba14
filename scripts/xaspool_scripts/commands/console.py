"""``spool-admin console``: serve the web console of a space."""

import os
import re
import socket
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

import click

from xaspool_scripts.terminal.exit_codes import WRONG_USAGE
from xaspool_scripts.terminal.listening import (
    address,
    announce,
    end,
    end_signal,
    listeners_at,
    named_spaces,
    wait_for_end,
)
from xaspool_scripts.terminal.program import Failure, SpaceCommand, extra, json_option, note, space_path, typed_values
from xaspool_scripts.terminal.wording import printable
from xaspool_scripts.watch.watched_space import Watched, published_option, watched_space

if TYPE_CHECKING:
    from xaspool_console.console import Console
    from xaspool_console.server import ConsoleServer

_HOST = re.compile(r"([A-Za-z0-9.-]{1,253}|\[[0-9A-Fa-f:]+\])(:[0-9]{1,5})?")


def _host_names(context: click.Context, parameter: click.Parameter, given: tuple[str, ...]) -> tuple[str, ...]:
    for name in given:
        if _HOST.fullmatch(name) is None:
            raise click.BadParameter(f"{name!r} is not HOST or HOST:PORT, e.g. console.example")
    return given


@click.command(cls=SpaceCommand)
@click.argument("given", nargs=-1, metavar="[[NAME=]DIRECTORY...]")
@click.option(
    "--listen", default="127.0.0.1:8765", show_default=True, metavar="HOST:PORT", callback=address,
    help="The address to listen at. Port 0 takes a free port.",
)  # fmt: skip
@click.option(
    "--host", "hosts", multiple=True, metavar="HOST[:PORT]", callback=_host_names,
    help="A further name of the console in the address line of browsers, e.g. the name of a reverse proxy. May be "
    "given several times.",
)  # fmt: skip
@click.option(
    "--token-file", type=click.Path(dir_okay=False), metavar="FILE",
    help="The file with the token for the login. The token is the first line with text, and has at least 16 "
    "characters. Only you may read the file. Without it, every user who reaches the address may read.",
)  # fmt: skip
@click.option("--allow-changes", is_flag=True, help="Add forms that change the space, for people who are logged in.")
@click.option("--insecure", is_flag=True, help="Listen beyond this machine without a token: everybody may read.")
@published_option
@json_option
def console(
    given: tuple[str, ...], listen: tuple[str, int], hosts: tuple[str, ...], token_file: str | None,
    allow_changes: bool, insecure: bool, published: bool, as_json: bool,
) -> None:  # fmt: skip
    """Serve web pages about the space: queues, tasks, messages, transactions, the flow, and recovery.

    With several DIRECTORYs, the console serves several spaces. The first page lists them, and the pages of each space
    are below its name, which is the name of its directory, or NAME.

    The pages are for reading. With --allow-changes, a person who is logged in can move, redrive and delete messages,
    decide transactions in doubt, and empty quarantine. SIGTERM or Ctrl-C ends the console with exit code 0.

    \b
    Examples:
      spool-admin console
      spool-admin console --allow-changes --token-file token
      spool-admin -s /var/spool/shop console --listen 127.0.0.1:9000
      spool-admin console /var/spool/shop bakery=/srv/spool
    """
    with extra("console", "the console"):
        import xaspool_console.app
        import xaspool_console.server  # noqa: F401
    from forwarder.web.sockets import is_loopback

    if allow_changes and published:
        raise Failure("--published gives no right to change the space: leave out --allow-changes", WRONG_USAGE)
    if allow_changes and token_file is None:
        raise Failure("--allow-changes needs a login: give --token-file", WRONG_USAGE)
    _check_host(*listen)
    if token_file is None and not insecure and not is_loopback(listen[0]):
        raise Failure(f"{listen[0]} can be reached from other machines: give --token-file, or --insecure", WRONG_USAGE)
    with ExitStack() as opened:
        spaces = {
            name: (path, opened.enter_context(watched_space(path, published=published)))
            for name, path in _spaces(given).items()
        }
        server, consoles, url = _started(spaces, listen, hosts, token_file, allow_changes)
        try:
            ended = end_signal()
            for (path, _), each in zip(spaces.values(), consoles, strict=True):
                announce("console of", path, f"{url}{each.prefix}", as_json=as_json)
            if token_file is None:
                reader = "user of this machine" if is_loopback(listen[0]) else "user who reaches this address"
                subject = "these metrics" if published else "the space"
                note(f"every {reader} can read {subject} here; --token-file asks for a login")
            for each in consoles:
                opened.enter_context(each.samples.recorded())
            in_place = [space for _, watched in spaces.values() for space in watched.spaces]
            wait_for_end(ended, in_place, partial(_check_runs, server))
        finally:
            has_ended = server.close()
    end("the console has ended", as_json=as_json, has_ended=has_ended)


def _check_host(host: str, port: int) -> None:
    """Raise Failure if the host does not resolve to an address."""
    from forwarder.web.sockets import in_url

    try:
        socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        where = f"{in_url(printable(host))}:{port}"
        raise Failure(f"cannot listen at {where}: the name does not resolve to an address") from error


def _spaces(given: tuple[str, ...]) -> dict[str, str]:
    """Return the directories of the spaces by name. A single space has no name."""
    if not given:
        return {"": space_path()}
    named = named_spaces(given)
    return named if len(named) > 1 else {"": next(iter(named.values()))}


def _started(
    spaces: Mapping[str, tuple[str, Watched]], listen: tuple[str, int], hosts: tuple[str, ...], token_file: str | None,
    allow_changes: bool,
) -> "tuple[ConsoleServer, list[Console], str]":  # fmt: skip
    """Start the server; return the server, a console for each space, and the server's address for a browser."""
    from forwarder.web.sockets import in_url
    from xaspool_console.access import Access, known_hosts, token_of_file
    from xaspool_console.app import application, application_of_several
    from xaspool_console.console import Console
    from xaspool_console.server import ConsoleServer

    with typed_values():
        token = None if token_file is None else token_of_file(token_file)
        for _, watched in spaces.values():
            watched.metrics()  # an unreadable space is an error now, and not later on each page
    host, port = listen
    listeners = listeners_at(host, port)
    port = listeners[0].getsockname()[1]
    access = Access(known_hosts(host, port, hosts), token)
    consoles = [
        Console(os.path.abspath(path), watched.metrics, watched.space, access, allow_changes, note, name)
        for name, (path, watched) in spaces.items()
    ]
    app = application(consoles[0]) if len(consoles) == 1 else application_of_several(consoles)
    return ConsoleServer(app, listeners, consoles[0].refuse), consoles, f"http://{in_url(host)}:{port}"


def _check_runs(server: "ConsoleServer") -> None:
    if not server.is_running:
        raise Failure("the web server ended unexpectedly")
