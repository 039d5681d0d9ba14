"""``spool-admin``: make, inspect, change and repair a space."""

from collections.abc import Iterator, MutableMapping
from importlib import import_module
from typing import cast

import click

from xaspool_scripts.common import Program, space_option, version_option

# By command, its module, and its name in the module.
_MODULES = {
    "check": ("admin_check", "check"),
    "docs": ("admin_docs", "docs"),
    "doctor": ("admin_doctor", "doctor"),
    "export": ("admin_archive", "export"),
    "import": ("admin_archive", "import_"),
    "init": ("admin_init", "init"),
    "message": ("admin_message", "message"),
    "mirror": ("admin_mirror", "mirror"),
    "quarantine": ("admin_quarantine", "quarantine"),
    "queue": ("admin_queue", "queue"),
    "subscription": ("admin_subscription", "subscription"),
    "tour": ("admin_tour", "tour"),
    "transaction": ("admin_transaction", "transaction"),
}


class _Commands(MutableMapping[str, click.Command]):
    """The commands. A command imports its module when it runs."""

    def __init__(self) -> None:
        self._known: dict[str, click.Command | None] = dict.fromkeys(_MODULES)

    def __getitem__(self, name: str) -> click.Command:
        command = self._known[name]
        if command is None:
            module, attribute = _MODULES[name]
            command = cast(click.Command, getattr(import_module(f"xaspool_scripts.{module}"), attribute))
            self._known[name] = command
        return command

    def __setitem__(self, name: str, command: click.Command) -> None:
        self._known[name] = command

    def __delitem__(self, name: str) -> None:
        del self._known[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)


@click.group("spool-admin", cls=Program, commands=_Commands())
@space_option
@version_option
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
