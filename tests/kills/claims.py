"""A short life of claims, in a transaction and outside of it, the same each time. A log tells how far each message has
come.

The main thread makes all commits, because only its calls are counted for the kill.
"""

import os

import spool
from tests.held import committed_here

MESSAGES = ("removed", "failed", "rejected", "released", "kept", "undone")


def live(root: str, log_path: str) -> None:
    """Take six messages, begin to handle each, and end each in another way."""
    log = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def say(step: str, message: spool.Message) -> None:
        os.writev(log, [f"{message.body} {step}\n".encode()])  # (kills at pwrite64 do not count it)

    with spool.open(root) as space, space.claims() as claims:
        *taken, undone = space.browse("orders")
        with space.transaction(timeout=None) as transaction:
            say("beginning", undone)
            transaction.get("orders", message_id=undone.id)
            say("begun", undone)
            transaction.rollback()
        taken = claims.take("orders", len(taken))
        removed, failed, rejected, released, kept = taken
        for message in taken:
            say("beginning", message)
            claims.begin(message)
            say("begun", message)
        say("failing", failed)
        with committed_here(space):
            claims.fail(failed, "it broke")
        say("failed", failed)
        say("removing", removed)
        with committed_here(space):
            claims.remove([removed])
        say("removed", removed)
        say("rejecting", rejected)
        with committed_here(space):
            claims.reject([rejected], "no")
        say("rejected", rejected)
        say("releasing", released)
        claims.release([released])
        say("released", released)
        say("releasing", kept)
        claims.close()
        say("released", kept)
    os.close(log)
