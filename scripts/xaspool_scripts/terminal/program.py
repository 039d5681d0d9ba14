"""Functions for all programs: errors in one line, the space of a command, and shell completion.

The programs import the engine inside their commands, so that ``--help`` and shell completion are fast.
"""

import logging
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar

import click

from xaspool_scripts.ownership import explain
from xaspool_scripts.start import INTERRUPTED, write_at_once
from xaspool_scripts.terminal.exit_codes import FAILED, NOTHING_THERE, WRONG_USAGE
from xaspool_scripts.terminal.wording import printable

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from spool import Space

_SPACE = "xaspool.space"
_SETTINGS = "space.toml"
_LINES = "\n\t"

# The names of the programs that run in this process. Only tests run more than one program.
_running = ["spool"]

AnyFunction = TypeVar("AnyFunction", bound=Callable[..., Any])


class Failure(click.ClickException):
    """A failure of the command, with a message of one line for the user. ``code``: the exit code."""

    def __init__(self, message: str, code: int = FAILED) -> None:
        super().__init__(message)
        self.exit_code = code  # type: ignore[misc]


@contextmanager
def extra(name: str, program: str) -> Iterator[None]:
    """Raise Failure if the block imports a package of this extra of xaspool that is not installed."""
    try:
        yield
    except ImportError as error:
        package = (error.name or str(error)).partition(".")[0]
        raise Failure(f"{program} needs {package}: pip install './xaspool[{name}]'") from error


# -- the error boundary ------------------------------------------------------------------------------------------------


class Boundary(click.Command):
    """A command with the option --version. Each error becomes one line on stderr and an exit code."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        click.version_option(package_name="xaspool", message="%(prog)s %(version)s")(self)

    def main(self, *args: Any, **extra: Any) -> Any:
        if not extra.get("standalone_mode", True):
            return super().main(*args, **extra)
        program = str(self.name)
        _running.append(program)
        log_to_stderr()
        code: object = FAILED
        typed = list(extra.get("args", args[0] if args else None) or sys.argv[1:])
        try:
            code = super().main(*args, **{**extra, "prog_name": program, "standalone_mode": False})
            if sys.stdout is not None:
                sys.stdout.flush()
        except SystemExit as error:  # the pipe is closed, or the shell completes a command
            code = error.code
        except BaseException as error:
            if os.environ.get("SPOOL_DEBUG"):
                traceback.print_exc()
            code = _report(program, error, typed)
        _forget_unwritten_output()
        _running.remove(program)
        sys.exit(code if isinstance(code, int) else 0)


class NoSuchCommand(click.UsageError):
    """No command has this name."""

    def __init__(self, name: str, context: click.Context) -> None:
        super().__init__(f"No such command {name!r}.", context)
        self.command_name = name


class SpaceCommand(click.Command):
    """A command about one space: it has the option -s/--space."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        _space_option(self)


class Commands(SpaceCommand, click.Group):
    """A group of commands about a space. The group's help shows the whole first sentence of each command."""

    command_class = SpaceCommand

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if self.get_command(ctx, args[0]) is None and not args[0].startswith("-") and not ctx.resilient_parsing:
            raise NoSuchCommand(args[0], ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        there = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [
            (name, command.get_short_help_str(sys.maxsize)) for name, command in there if command and not command.hidden
        ]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


class Program(Boundary, Commands):
    """A program with commands, e.g. ``queue list``."""


class SingleProgram(Boundary, SpaceCommand):
    """A program that is one command."""


def _report(program: str, error: BaseException, typed: list[str]) -> int:
    """Print an error; return the exit code. ``typed``: the arguments of the program."""
    # The usage text helps only if the form of the command is wrong, and not if a value is wrong.
    is_value = isinstance(error, click.BadParameter) and not isinstance(error, click.MissingParameter)
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        error.show()
    elif isinstance(error, click.UsageError) and not is_value:
        _print_misuse(program, error, typed)
    elif isinstance(error, KeyboardInterrupt | click.Abort):
        _print(program, "interrupted")
        return INTERRUPTED
    elif not isinstance(error, BrokenPipeError):
        _print(program, describe(error))
    if _is_of_engine(error, "Empty"):
        return NOTHING_THERE
    return error.exit_code if isinstance(error, click.ClickException) else FAILED


def _print_misuse(program: str, error: click.UsageError, typed: list[str]) -> None:
    """Print the error on one line, with a suggestion and the command that shows the usage."""
    from xaspool_scripts.terminal.suggestions import suggestion

    is_unknown = isinstance(error, click.NoSuchOption)  # (click adds guesses to its text)
    text = (error.message if is_unknown else describe(error)).rstrip(".")
    if error.ctx is None:
        _print(program, text)
        return
    command = error.ctx.command_path
    meant = suggestion(error, typed)
    _print(
        command, f"{text[:1].lower()}{text[1:]}; {f'did you mean {meant}? See' if meant else 'see'} {command} --help"
    )


def describe(error: BaseException) -> str:
    """Describe an error in one line."""
    if isinstance(error, click.ClickException):
        text = error.format_message()
    elif isinstance(error, ImportError | AttributeError) and (sentence := explain(error)):
        text = sentence
    elif isinstance(error, ImportError):
        from spool.errors import in_place_of

        text = in_place_of(error) or str(error)
    elif _is_of_engine(error, "SpoolError"):
        text = str(error) or type(error).__name__
    elif isinstance(error, OSError):
        text = error.strerror or str(error) or type(error).__name__
        text += f": {os.fsdecode(error.filename)}" if isinstance(error.filename, str | bytes) else ""
    else:
        what = f"unexpected {type(error).__name__}: {error}"
        text = f"{what} (please report this; run with SPOOL_DEBUG=1 for the traceback)"
    return " ".join(text.split())


def _is_of_engine(error: BaseException, name: str) -> bool:
    """Return whether an error is of the class ``name`` of spool.errors, without importing the engine."""
    errors = sys.modules.get("spool.errors")
    return errors is not None and isinstance(error, getattr(errors, name))


def _forget_unwritten_output() -> None:
    """Drop output that could not be written. Otherwise the interpreter would report the error again when it ends."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except (OSError, ValueError):
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 (open until the end)


class _Notes(logging.Handler):
    """Prints the engine's log on stderr, one line for each record. With level INFO, it also prints tracebacks."""

    def emit(self, record: logging.LogRecord) -> None:
        level = f"{record.levelname.lower()}: " if record.levelno >= logging.WARNING else ""
        note(f"{level}{' '.join(record.getMessage().split())}")
        if record.exc_info and self.level < logging.WARNING:
            lines = "".join(traceback.format_exception(*record.exc_info)).rstrip()
            click.echo(printable(lines, keep=_LINES), err=True)


def log_to_stderr(level: int = logging.WARNING) -> None:
    """Print the records of the engine's log that have at least this level."""
    log = logging.getLogger("spool")
    log.handlers = [handler for handler in log.handlers if not isinstance(handler, _Notes)]
    log.addHandler(_Notes(level))
    log.propagate = False
    if level < logging.WARNING:
        log.setLevel(level)


def note(text: str) -> None:
    """Print a remark on stderr, because stdout is only for data. Any thread may call this function."""
    _print(_running[-1], text)


def note_at_once(text: str) -> None:
    """Print information from a signal handler. The signal may have interrupted a write to stderr."""
    write_at_once(f"{_running[-1]}: {text}")


def _print(program: str, text: str) -> None:
    """Print a line on stderr. Control characters are escaped, because an exception may quote any text."""
    with suppress(OSError):  # (standard error may be closed)
        click.echo(f"{program}: {printable(text, keep=_LINES)}", err=True)


# -- which space -------------------------------------------------------------------------------------------------------


def _remember(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    if value is not None:
        context.meta[_SPACE] = value


# The option -s may stand before or after the command's name.
_space_option = click.option(
    "-s", "--space", metavar="PATH", expose_value=False, callback=_remember,
    type=click.Path(readable=False),  # (the engine's error for an unreadable space says more)
    help="The directory of the queue space; without it, $SPOOL_SPACE or the current directory.",
)  # fmt: skip
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, with one object a line.")


def named_space(context: click.Context | None = None) -> str | None:
    """Return the directory that -s or the environment names, or None. The address of a server is wrong usage."""
    from spool.model.paths import local_path

    if (named := named_address(context)) is not None:
        raise Failure(
            f"{named} is a space of a server, and this command needs the directory of the space: run it on the "
            "server's machine (spool-worker takes the address of a server)", WRONG_USAGE,
        )  # fmt: skip
    named = _named(context)
    return local_path(named) if named else None


def named_address(context: click.Context | None = None) -> str | None:
    """Return the space that -s or the environment names, if it is a space of a server; otherwise None."""
    named = _named(context)
    return named if named.startswith(("http://", "https://", "spool+")) else None


def _named(context: click.Context | None) -> str:
    context = context or click.get_current_context()
    return context.meta.get(_SPACE) or os.environ.get("SPOOL_SPACE", "")


def new_space_path() -> str:
    """Return the directory of the space that the command creates. Only -s or the environment can name it."""
    path = named_space()
    if path is None:
        raise click.UsageError("name the directory of the new space with -s PATH, or in $SPOOL_SPACE")
    return path


def space_path(context: click.Context | None = None, otherwise: str = "") -> str:
    """Return the path of the command's space.

    Without -s and $SPOOL_SPACE, the path is the current directory if it is a space. If not, the path is `otherwise`;
    without `otherwise`, the command ends with wrong usage.
    """
    named = named_space(context)
    if named is not None:
        return named
    if os.path.isfile(_SETTINGS):
        return os.curdir
    if otherwise:
        return otherwise
    raise click.UsageError(
        "which queue space? Name it with -s PATH or in $SPOOL_SPACE, or go to its directory, which holds a space.toml"
    )


@contextmanager
def opened(path: str | None = None, *, tell: bool = True) -> Iterator["Space"]:
    """Open the space at a path, or the command's space. Bodies are returned as stored, without decoding. `tell`:
    whether to print the names of damaged files."""
    with open_space(path) as space:
        space.engine.deliver_stored_bytes()
        for finding in space.recovery.damaged if tell else ():
            note(f"{finding} (spool-admin check reads everything)")
        with typed_values():
            yield space


def open_space(path: str | None = None) -> "Space":
    """Open the space at a path, or the command's space. Wrong settings of the space are a failure of the command, and
    not wrong usage."""
    import spool

    try:
        return spool.open(space_path() if path is None else path)
    except spool.InvalidArgument as error:
        raise Failure(str(error)) from error


@contextmanager
def typed_values() -> Iterator[None]:
    """If the engine refuses a value, report wrong usage. The text names options, and not the engine's arguments."""
    import spool

    try:
        yield
    except (spool.InvalidArgument, spool.QueueNotFound, spool.QueueExists, spool.SpaceExists) as error:
        command = click.get_current_context().command
        options = {str(p.name): max(p.opts, key=len) for p in command.params if isinstance(p, click.Option)}
        code = WRONG_USAGE if isinstance(error, spool.InvalidArgument) else FAILED
        raise Failure(error.told(options), code) from error


# -- shell completion --------------------------------------------------------------------------------------------------


def _offers(names: Iterable[str], incomplete: str) -> "list[CompletionItem]":
    from click.shell_completion import CompletionItem  # only shell completion needs this import

    return [CompletionItem(name) for name in sorted(names) if name.startswith(incomplete)]


def complete_queue(context: click.Context, parameter: click.Parameter, incomplete: str) -> "list[CompletionItem]":
    """Complete the name of a queue. The names are read from space.toml, and the space is not opened."""
    from spool.model.settings_file import parse

    try:
        with open(os.path.join(space_path(context), _SETTINGS), encoding="utf-8") as file:
            return _offers(parse(file.read(), _SETTINGS).queues, incomplete)
    except Exception:  # completion prints no errors
        return []


def complete_prepared(context: click.Context, parameter: click.Parameter, incomplete: str) -> "list[CompletionItem]":
    """Complete the xid of a prepared branch."""
    from spool.model import layout

    xids = map(layout.parse_xid, _names(context, layout.PREPARED))
    return _offers((str(xid) for xid in xids if xid is not None), incomplete)


def complete_quarantined(context: click.Context, parameter: click.Parameter, incomplete: str) -> "list[CompletionItem]":
    """Complete the name of a file in quarantine."""
    from spool.model import layout

    names = _names(context, layout.QUARANTINE)
    return _offers((name for name in names if not name.endswith(layout.REASON_SUFFIX)), incomplete)


def _names(context: click.Context, directory: str) -> list[str]:
    try:
        return os.listdir(os.path.join(space_path(context), directory))
    except Exception:  # completion prints no errors
        return []
