"""The common parts of programs that listen at an address: options, and signals that end the program."""

import threading
from collections.abc import Callable
from typing import Any, TypeVar

import click

from xaspool_scripts.terminal.signals import handle_ending

_Command = TypeVar("_Command", bound=Callable[..., Any])


def address(context: click.Context, parameter: click.Parameter, given: str | None) -> tuple[str, int] | None:
    """Return the host and the port of ``HOST:PORT``."""
    if given is None:
        return None
    host, colon, port = given.rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise click.BadParameter(f"{given!r} is not HOST:PORT, e.g. 127.0.0.1:8815")
    return host.removeprefix("[").removesuffix("]"), int(port)


def tls_options(command: _Command) -> _Command:
    """Add ``--tls-cert`` and ``--tls-key``."""
    is_file = click.Path(dir_okay=False)
    key = click.option("--tls-key", type=is_file, metavar="FILE", help="The private key of the certificate, as PEM.")
    chain = click.option("--tls-cert", type=is_file, metavar="FILE", help="The certificate chain, as PEM.")
    return chain(key(command))


def end_signal() -> threading.Event:
    """Return an event. From now on, each ending signal, e.g. SIGTERM or Ctrl-C, sets this event.

    A program calls this function before it prints its address, because a reader of the address may send a signal at
    once.
    """
    ended = threading.Event()
    handle_ending(lambda *_: ended.set())
    return ended
