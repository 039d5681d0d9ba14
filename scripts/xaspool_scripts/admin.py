"""``spool-admin``: create, inspect, change and repair a space."""

from collections import UserDict
from importlib import import_module
from typing import Any

import click

from xaspool_scripts.terminal.program import Program

# The commands by name: for each command, the name of the module, and the name of the function in the module.
_MODULES = {
    "archive": ("commands.archive", "archive"),
    "check": ("commands.check", "check"),
    "console": ("commands.console", "console"),
    "docs": ("commands.docs", "docs"),
    "doctor": ("commands.doctor", "doctor"),
    "export": ("commands.export_import", "export"),
    "import": ("commands.export_import", "import_"),
    "init": ("commands.init", "init"),
    "message": ("commands.message", "message"),
    "metrics": ("watch.metrics", "metrics"),
    "mirror": ("commands.mirror", "mirror"),
    "quarantine": ("commands.quarantine", "quarantine"),
    "queue": ("commands.queue", "queue"),
    "schedule": ("commands.schedule", "schedule"),
    "subscription": ("commands.subscription", "subscription"),
    "top": ("watch.top.command", "top"),
    "tour": ("commands.tour", "tour"),
    "transaction": ("commands.transaction", "transaction"),
}


class _Commands(UserDict[str, Any]):
    """The commands. The module of a command is imported when the command is looked up."""

    def __getitem__(self, name: str) -> click.Command:
        command: Any = self.data[name]
        if not isinstance(command, click.Command):
            module, attribute = command
            command = getattr(import_module(f"xaspool_scripts.{module}"), attribute)
        return command  # type: ignore[no-any-return]


@click.group("spool-admin", cls=Program, commands=_Commands(_MODULES))
def main() -> None:
    """Administer a queue space.

    \b
    Examples:
      spool-admin init /var/spool/shop
      export SPOOL_SPACE=/var/spool/shop
      spool-admin queue create orders
      echo hello | spool-admin message put orders
      spool-admin message get orders

    \b
    Completion, for bash (zsh and fish likewise):
      eval "$(_SPOOL_ADMIN_COMPLETE=bash_source spool-admin)"

    Exit codes: 0 fine, 1 it failed, 2 wrong usage or a wrong value, 3 nothing there, 4 damage; spool-admin docs
    commands has all of them.
    """


if __name__ == "__main__":
    main()
