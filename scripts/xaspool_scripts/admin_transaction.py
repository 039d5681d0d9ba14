"""``spool-admin transaction``: transactions in doubt, and an administrator's word on them."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from xaspool_scripts.common import BadValue, Failure, complete_prepared, json_option, note, opened, space_option
from xaspool_scripts.output import moment, pairs, table, write_json

if TYPE_CHECKING:
    from xa import ResourceManager, Xid

_XID = click.argument("xid", metavar="XID", shell_complete=complete_prepared)


@click.group()
@space_option
def transaction() -> None:
    """Transactions in doubt: prepared, and waiting for their coordinator's decision."""


@transaction.command("list")
@json_option
@space_option
def list_(as_json: bool) -> None:
    """List the transactions in doubt.

    \b
    Example:
      spool-admin transaction list
    """
    with _manager() as manager:
        found = manager.recover()
    if as_json:
        for xid in found:
            write_json(_object(xid))
    elif found:
        table(("xid", "format id"), ((str(xid), xid.format_id) for xid in found))
    else:
        note("no transaction is in doubt")


@transaction.command("show")
@_XID
@json_option
@space_option
def show_(xid: str, as_json: bool) -> None:
    """Show what a transaction in doubt would do: how many messages it puts into and takes from which queues.

    \b
    Example:
      spool-admin transaction show 0.b3JkZXI.MQ
    """
    from spool.decide import describe

    with opened() as space:
        found = describe(space._store, _parsed(xid))
    if as_json:
        write_json(found)
        return
    pairs(
        {
            "xid": found.xid,
            "prepared at": moment(found.prepared_at),
            "by": found.writer,
            "puts": found.puts,
            "takes": found.takes,
        }
    )


def _object(xid: "Xid") -> dict[str, object]:
    """The parts of an xid are bytes: they are written as in its text form, in base64url."""
    _, gtrid, bqual = str(xid).split(".")
    return {"xid": str(xid), "format_id": xid.format_id, "gtrid": gtrid, "bqual": bqual}


@transaction.command()
@_XID
@space_option
def commit(xid: str) -> None:
    """Commit a transaction in doubt, in the place of its coordinator, which is told when it asks.

    \b
    Example:
      spool-admin transaction commit 0.b3JkZXI.MQ
    """
    with _manager() as manager:
        manager.decide_heuristically(_parsed(xid), commit=True)
        note(f"committed {xid}")


@transaction.command()
@_XID
@space_option
def rollback(xid: str) -> None:
    """Roll back a transaction in doubt, in the place of its coordinator, which is told when it asks.

    \b
    Example:
      spool-admin transaction rollback 0.b3JkZXI.MQ
    """
    with _manager() as manager:
        manager.decide_heuristically(_parsed(xid), commit=False)
        note(f"rolled back {xid}")


@transaction.command()
@click.argument("xid", metavar="XID")
@space_option
def forget(xid: str) -> None:
    """Forget a decision made with commit or rollback here: its coordinator knows, or will never ask.

    \b
    Example:
      spool-admin transaction forget 0.b3JkZXI.MQ
    """
    with _manager() as manager:
        manager.forget(_parsed(xid))
        note(f"forgot the decision about {xid}")


@contextmanager
def _manager() -> "Iterator[ResourceManager]":
    """The space's resource manager; its errors as ours."""
    from xa import ResourceManager, XAError

    with opened() as space:
        try:
            yield ResourceManager(space)
        except XAError as error:
            raise Failure(str(error)) from error


def _parsed(text: str) -> "Xid":
    from xa import Xid

    try:
        return Xid.parse(text)
    except ValueError as error:
        raise BadValue(str(error)) from None
