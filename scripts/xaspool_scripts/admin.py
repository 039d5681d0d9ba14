"""``spool-admin``: make, inspect, change and repair a space."""

from collections import UserDict
from importlib import import_module
from typing import Any

import click

from xaspool_scripts.common import Program

# The commands by name. Each has the name of its module, and the name of its function in the module.
_MODULES = {
    "check": ("admin_check", "check"),
    "console": ("admin_console", "console"),
    "docs": ("admin_docs", "docs"),
    "doctor": ("admin_doctor", "doctor"),
    "export": ("admin_archive", "export"),
    "import": ("admin_archive", "import_"),
    "init": ("admin_init", "init"),
    "message": ("admin_message", "message"),
    "metrics": ("watch.metrics", "metrics"),
    "mirror": ("admin_mirror", "mirror"),
    "quarantine": ("admin_quarantine", "quarantine"),
    "queue": ("admin_queue", "queue"),
    "subscription": ("admin_subscription", "subscription"),
    "top": ("watch.top.command", "top"),
    "tour": ("admin_tour", "tour"),
    "transaction": ("admin_transaction", "transaction"),
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
