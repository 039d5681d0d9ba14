"""The common parts of programs that listen at an address: options, and the wait for the end of the program."""

import errno
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from xaspool_scripts.terminal.exit_codes import WRONG_USAGE
from xaspool_scripts.terminal.output import write_bytes, write_json
from xaspool_scripts.terminal.program import Failure, note, space_path
from xaspool_scripts.terminal.signals import handle_ending
from xaspool_scripts.terminal.wording import printable

if TYPE_CHECKING:
    from spool import Space

_POLL_SECONDS = 0.2  # the longest time until the main thread acts on a signal
_Command = TypeVar("_Command", bound=Callable[..., Any])


def address(context: click.Context, parameter: click.Parameter, given: str | None) -> tuple[str, int] | None:
    """Return the host and the port of ``HOST:PORT``."""
    if given is None:
        return None
    host, colon, port = given.rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise click.BadParameter(f"{given!r} is not HOST:PORT, e.g. 127.0.0.1:8815")
    return host.removeprefix("[").removesuffix("]"), int(port)


def listeners_at(host: str, port: int) -> "list[socket.socket]":
    """Return the sockets that listen at an address. Failure if the address cannot be used."""
    from forwarder.web.sockets import in_url, listening

    try:
        return listening(host, port)
    except (OSError, UnicodeError) as error:
        at = in_url(getattr(error, "filename", None) or host)
        raise Failure(f"cannot listen at {at}:{port}: {reason_of(error)}") from error


def reason_of(error: Exception) -> str:
    """Return the operating system's reason, without the words that Python adds."""
    number = error.errno if isinstance(error, OSError) else None
    if number == errno.EADDRINUSE:
        return "address already in use; does another program listen there?"
    return os.strerror(number).lower() if number is not None and number > 0 else str(error)


def announce(what: str, space: str, address: str, *, as_json: bool) -> None:
    """Print the address at which a space is served."""
    if as_json:
        write_json({"event": "serving", "space": space, "address": address})
    else:
        write_bytes(f"{what} {printable(space)} at {address}\n".encode())


def named_spaces(given: tuple[str, ...]) -> dict[str, str]:
    """Return the directories of the spaces by name. Without NAME=, the name is the directory's name."""
    from forwarder.web.tokens import SPACE_NAME

    spaces: dict[str, str] = {}
    for text in given or (space_path(),):
        name, named, path = text.partition("=")
        if not named:
            name, path = Path(text).resolve().name, text
        if SPACE_NAME.fullmatch(name) is None:
            raise Failure(f"{name!r} cannot be a space's name: write NAME={path}, with letters and digits", WRONG_USAGE)
        if name in spaces:
            raise Failure(f"two spaces have the name {name}: write NAME={path} with another name", WRONG_USAGE)
        spaces[name] = path
    return spaces


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


def wait_for_end(ended: threading.Event, spaces: "Iterable[Space]", check: Callable[[], object] = lambda: None) -> None:
    """Wait for the event of ``end_signal``.

    Args:
        spaces: the spaces that the program serves. If a space was moved, replaced or removed, this raises SpaceStopped,
            so that systemd or a container starts the program again.
        check: called every 0.2 seconds; its errors also end the wait.
    """
    while not ended.wait(_POLL_SECONDS):
        check()
        for space in spaces:
            space.engine.check_in_place()


def end(text: str, *, as_json: bool, has_ended: bool = True) -> None:
    """Report the end of a program, and end the interpreter, which a hanging call of the engine or of a client would
    prevent otherwise."""
    if as_json:
        write_json({"event": "ended"})
    else:
        note(text)
    if not has_ended:
        sys.stdout.flush()
        os._exit(0)
