"""Suggestions for a wrong command, option or argument, by known synonyms or by similarity.

A suggestion can be pasted into a shell. If no name is similar, nothing is suggested, because a wrong guess is worse
than no guess.
"""

import re
from collections.abc import Iterable, Iterator
from shlex import quote

import click

# Words of other systems: for each word, the verbs of xaspool's commands that it may mean.
_VERBS = {
    "add": ("create", "put"), "backup": ("export",), "browse": ("list",), "cat": ("show",), "clear": ("purge",),
    "consume": ("get",), "dequeue": ("get",), "describe": ("show",), "drop": ("delete",), "dump": ("export",),
    "edit": ("change",), "empty": ("purge",), "enqueue": ("put",), "fsck": ("check",), "info": ("show",),
    "load": ("import",), "ls": ("list",), "make": ("create",), "modify": ("change",), "new": ("init", "create"),
    "peek": ("list",), "pop": ("get",), "publish": ("put",), "pull": ("get",), "push": ("put",), "queues": ("list",),
    "receive": ("get",), "remove": ("delete",), "replay": ("redrive",), "requeue": ("redrive",),
    "restore": ("import",), "retry": ("redrive",), "rm": ("delete",), "send": ("put",), "set": ("change",),
    "stats": ("list",), "status": ("list",), "take": ("get",), "update": ("change",), "verify": ("check",),
    "view": ("show",),
}  # fmt: skip
# Verbs of several commands: for each verb, the commands that a user may mean by the verb alone.
_COMMANDS = {verb: (f"queue {verb}", f"message {verb}") for verb in ("change", "delete", "list", "show")}
_PROGRAMS = {
    "forward": "spool-forward", "forwarder": "spool-forward", "intake": "spool-intake", "recover": "spool-recover",
    "work": "spool-worker", "worker": "spool-worker",
}  # fmt: skip
_OPTIONS = {
    "--attempts": "--retries", "--block": "--timeout", "--concurrency": "--threads", "--content": "--body",
    "--data": "--body", "--database": "--space", "--db": "--space", "--dead-letter-queue": "--error-queue",
    "--dir": "--directory", "--dlq": "--error-queue", "--expiry": "--expires-at", "--force": "--yes",
    "--idempotency-key": "--deduplication-key", "--jobs": "--threads", "--key": "--deduplication-key",
    "--max-attempts": "--retries", "--max-retries": "--retries", "--max-size": "--max-bytes", "--message": "--body",
    "--number": "--count", "--output": "--directory", "--parallel": "--threads", "--path": "--space",
    "--payload": "--body", "--text": "--body", "--ttl": "--time-to-live",
    "--wait": "--timeout", "--workers": "--threads",
}  # fmt: skip
# For each command, the most likely meaning of an extra argument, {}.
_ARGUMENTS = {
    "spool-admin message put": "--body {}", "spool-admin queue list": "spool-admin queue show {}",
    "spool-forward": "--route {}", "spool-admin import": "-s {}", "spool-admin check": "-s {}",
    "spool-intake": "-s {}", "spool-recover": "-s {}", "spool-admin mirror show": "-s {}",
}  # fmt: skip

_UNEXPECTED = re.compile(r"Got unexpected extra argument \((.*)\)")
_LIKENESS = 0.75


def suggestion(error: click.UsageError, typed: list[str]) -> str:
    """Return the command or option that the user probably meant, or "" if no name is similar. ``typed``: the
    arguments."""
    context = error.ctx
    assert context is not None
    if isinstance(error, click.NoSuchOption):
        found = _option(error.option_name, context, typed)
    elif (name := getattr(error, "command_name", None)) is not None:
        found = _command(name, context)
    else:
        found = _argument(error.message, context)
    return " or ".join(found)


def _near(name: str, names: Iterable[str]) -> list[str]:
    from difflib import get_close_matches

    return get_close_matches(name, names, n=1, cutoff=_LIKENESS)


def _command(name: str, context: click.Context) -> list[str]:
    """Return the commands that a wrong name may mean: from the same group, or otherwise from the whole program."""
    group, root = context.command, context.find_root()
    assert isinstance(group, click.Group)
    verbs = _VERBS.get(name, (name,))
    here = [verb for verb in verbs if verb in group.commands] or _near(name, group.commands)
    if here:
        return [f"{context.command_path} {verb}" for verb in here[:1]]
    leaves = list(_leaves(root.command))
    meant = [
        leaf
        for verb in verbs
        for leaf in _COMMANDS.get(verb, [leaf for leaf in leaves if leaf.rpartition(" ")[2] == verb])
    ]
    if not meant and name in _PROGRAMS:
        return [_PROGRAMS[name]]
    return [f"{root.command_path} {leaf}" for leaf in meant]


def _option(name: str, context: click.Context, typed: list[str]) -> list[str]:
    known = [option for parameter in context.command.params for option in parameter.opts if option.startswith("--")]
    meant = _OPTIONS.get(name)
    if meant in known:
        return [meant]
    if isinstance(context.command, click.Group) and (after := _with_option(name, context, typed)):
        return [after]
    return _near(name, known)


def _with_option(name: str, context: click.Context, typed: list[str]) -> str:
    """Return the typed line with the flag ``name`` at the end, or "" if the command has no such flag."""
    command = context.command
    for word in typed:
        if isinstance(command, click.Group) and word in command.commands:
            command = command.commands[word]
    flags = {option for one in command.params if isinstance(one, click.Option) and one.is_flag for option in one.opts}
    if name not in flags:
        return ""
    words = [word for word in typed if word != name]
    return " ".join(map(quote, (context.find_root().command_path, *words, name)))


def _argument(message: str, context: click.Context) -> list[str]:
    unexpected = _UNEXPECTED.match(message)
    if unexpected is not None and unexpected[1] == "-" and context.command_path == "spool-admin message put":
        return ["spool-admin message put QUEUE < FILE"]  # (without a body it reads standard input)
    form = _ARGUMENTS.get(context.command_path)
    return [form.format(quote(unexpected[1]))] if unexpected is not None and form is not None else []


def _leaves(command: click.Command, *words: str) -> Iterator[str]:
    """Yield the words that lead to each command, e.g. ``queue list``."""
    if isinstance(command, click.Group):
        for name, child in command.commands.items():
            yield from _leaves(child, *words, name)
    else:
        yield " ".join(words)
