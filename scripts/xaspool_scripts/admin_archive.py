"""``spool-admin export`` and ``import``: write a space into one file, and read it back."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, BinaryIO

import click

from xaspool_scripts.common import Failure, named_space, note, opened, space_option
from xaspool_scripts.options import progress
from xaspool_scripts.output import printable
from xaspool_scripts.wording import plural

if TYPE_CHECKING:
    from spool.admin.export import Progress

_STANDARD = "-"


@click.command("export")
@click.argument("file", type=click.Path())
@space_option
def export(file: str) -> None:
    """Write the whole space into FILE, a tar of its files as they are at one moment; - is standard output.

    Everything is kept but claims: a message that a program holds is ready in the copy. Programs may use the space
    meanwhile. A name that ends in .gz compresses.

    \b
    Examples:
      spool-admin export /backup/shop.tar.gz
      spool-admin export - | ssh elsewhere spool-admin import - -s /var/spool/shop
    """
    with opened() as space, _written(file) as stream, _bar("exporting") as set_progress:
        count = space.export(stream, compress=file.endswith(".gz"), progress=set_progress)
    note(f"exported {plural(count, 'file')} to {'standard output' if file == _STANDARD else printable(file)}")


@click.command("import")
@click.argument("file", type=click.Path())
@space_option
def import_(file: str) -> None:
    """Make a new space of FILE, which export wrote; - is standard input. -s names the directory, which must be empty.

    \b
    Example:
      spool-admin import /backup/shop.tar.gz -s /var/spool/copy
    """
    import spool

    path = named_space()
    if path is None:
        raise click.UsageError("name the directory of the new space with -s PATH, or in $SPOOL_SPACE")
    with _read(file) as stream, _bar("importing") as set_progress:
        try:
            made = spool.import_space(path, stream, progress=set_progress)
        except (spool.CorruptedFile, spool.NewerFormat) as error:
            raise Failure(f"{file}: {error}") from error
    with made as space:
        damaged = [finding for finding in space.check() if finding.kind == "damaged"]
        note(
            f"made a queue space in {printable(space.path)}; its queues: {', '.join(sorted(space.queues())) or 'none'}"
        )
    for finding in damaged[:-1]:
        note(str(finding))
    if damaged:
        raise Failure(f"{damaged[-1]} (the export was damaged; every other message is served)")


@contextmanager
def _written(file: str) -> Iterator[BinaryIO]:
    """Open a new file that gets its name when it is whole and durable."""
    if file == _STANDARD:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    if os.path.exists(file):
        raise Failure(f"{file} exists already: choose another name, or remove it")
    unfinished = f"{file}.part"
    directory = os.path.dirname(file)
    if directory and not os.path.isdir(directory):
        raise Failure(f"{file} cannot be written: there is no directory {directory}")
    with open(unfinished, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as stream:
        try:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
            os.rename(unfinished, file)
        except BaseException:
            os.unlink(unfinished)
            raise


@contextmanager
def _read(file: str) -> Iterator[BinaryIO]:
    if file == _STANDARD:
        yield sys.stdin.buffer
        return
    with open(file, "rb") as stream:
        yield stream


@contextmanager
def _bar(what: str) -> Iterator["Callable[[Progress], None]"]:
    with progress(what, 1) as set_progress:
        yield lambda done: set_progress(done.files / max(1, done.of))
