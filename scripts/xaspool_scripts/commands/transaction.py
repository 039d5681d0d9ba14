"""``spool-admin transaction``: list transactions in doubt, and decide them."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from spool.watch.units import age
from xaspool_scripts.terminal.output import moment, pairs, write_all, write_json
from xaspool_scripts.terminal.program import Commands, Failure, complete_prepared, json_option, note, opened
from xaspool_scripts.terminal.wording import on_terminal

if TYPE_CHECKING:
    from xa import ResourceManager, Xid


def _xid(text: str) -> "Xid":
    from xa import Xid

    try:
        return Xid.parse(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


_XID = click.argument("xid", metavar="XID", type=_xid, shell_complete=complete_prepared)


@click.group(cls=Commands)
def transaction() -> None:
    """Transactions in doubt: prepared, and waiting for their coordinator's decision."""


@transaction.command("list")
@json_option
def list_(as_json: bool) -> None:
    """List the transactions in doubt, and the decisions that an administrator made and has not forgotten yet.

    \b
    Example:
      spool-admin transaction list
    """
    with _manager() as manager:
        shown = [_row(_xid(each.xid), "in doubt", asdict(each)) for each in manager.space.engine.describe_all()]
        shown += [_row(_xid(text), outcome) for text, outcome in manager.space.engine.decisions().items()]
    columns = ("xid", "state", "age" if on_terminal() else "prepared at", "puts", "takes", "prepared by")
    rows = (
        (each["xid"], each["state"], _prepared(each["prepared_at"]), _sum(each["puts"]), _sum(each["takes"]), _by(each))
        for each in shown
    )
    write_all(shown, as_json, columns, rows, "no transaction is in doubt")


def _prepared(at: float | None) -> str | None:
    return moment(at) if at is None or not on_terminal() else age(max(0.0, time.time() - at))


def _sum(counts: dict[str, int] | None) -> int | None:
    return None if counts is None else sum(counts.values())


def _by(row: dict[str, Any]) -> str | None:
    writer = row["writer"]
    return None if writer is None else f"process {writer.get('pid')} ({writer.get('program')})"


@transaction.command("show")
@_XID
@json_option
def show_(xid: "Xid", as_json: bool) -> None:
    """Show how many messages a transaction in doubt puts into each queue and takes from each queue, and their ids.

    Of many messages, the command shows the first hundred ids.

    After spool-admin transaction commit or rollback, the command shows the decision until the decision is forgotten.

    \b
    Example:
      spool-admin transaction show 0.b3JkZXI.MQ
    """
    with _manager() as manager:
        outcome = manager.space.engine.decisions().get(str(xid))
        about = None if outcome is not None else asdict(manager.space.engine.describe(xid))
    row = _row(xid, outcome or "in doubt", about)
    if as_json:
        write_json(row)
        return
    fields = {"xid": row["xid"], "state": row["state"], "prepared at": moment(row["prepared_at"])}
    fields |= {"by": _by(row), "puts": row["puts"], "takes": row["takes"]}
    pairs({name: value for name, value in fields.items() if value is not None})
    for effect, ids in (("puts", row["put_ids"]), ("takes", row["taken_ids"])):
        for id_ in ids or ():
            click.echo(f"{effect:5} message {id_}")
    if outcome is not None:
        note(f"an administrator decided; this is kept for the coordinator until: spool-admin transaction forget {xid}")


def _row(xid: "Xid", state: str, about: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return a transaction for JSON. The parts of the xid are bytes; JSON has these bytes in base64url, as in the xid's
    text form."""
    text, unknown = str(xid), dict.fromkeys(("prepared_at", "writer", "puts", "takes", "put_ids", "taken_ids"))
    _, gtrid, bqual = text.split(".")
    known = {"xid": text, "format_id": xid.format_id, "gtrid": gtrid, "bqual": bqual, "state": state}
    return {**known, **(unknown if about is None else about)}


@transaction.command()
@_XID
def commit(xid: "Xid") -> None:
    """Commit a transaction in doubt in place of its coordinator, which gets this decision when it asks.

    \b
    Example:
      spool-admin transaction commit 0.b3JkZXI.MQ
    """
    _decide(xid, "committed", commit=True)


@transaction.command()
@_XID
def rollback(xid: "Xid") -> None:
    """Roll back a transaction in doubt in place of its coordinator, which gets this decision when it asks.

    \b
    Example:
      spool-admin transaction rollback 0.b3JkZXI.MQ
    """
    _decide(xid, "rolled back", commit=False)


def _decide(xid: "Xid", done: str, *, commit: bool) -> None:
    with _manager() as manager:
        manager.decide_heuristically(xid, commit=commit)
    note(f"{done} {xid}")


@transaction.command()
@click.argument("xid", metavar="XID", type=_xid)
def forget(xid: "Xid") -> None:
    """Forget a decision of commit or rollback, once the coordinator knows the decision or will never ask for it.

    \b
    Example:
      spool-admin transaction forget 0.b3JkZXI.MQ
    """
    with _manager() as manager:
        manager.forget(xid)
        note(f"forgot the decision about {xid}")


@contextmanager
def _manager() -> "Iterator[ResourceManager]":
    """Yield the resource manager of the space. An error of the manager becomes a failure of the command."""
    from xa import ResourceManager, XAError

    with opened() as space:
        try:
            yield ResourceManager(space)
        except XAError as error:
            text = str(error).replace("acknowledge it with xa_forget", "spool-admin transaction forget XID forgets it")
            raise Failure(text) from error
