"""Functions of the tested pipelines. The body of a message names its outcome."""

import spool
from forwarder import Continue, Error, Kill, Send

delivered: list[tuple[str, str]] = []
"""(destination, body) in the order of delivery."""


def decide(message: spool.Message) -> object:
    """A hook that returns or raises the outcome that the body names."""
    match message.body.split():
        case ["kill", *why]:
            return Kill(" ".join(why))
        case ["error"]:
            return Error("it says so", reply={"why": "error"})
        case ["reject"]:
            raise spool.Reject("refused", reply="refused")
        case ["raise"]:
            raise LookupError("no such patient")
        case ["retry"]:
            raise spool.Retry("later", delay=3600.0)
        case ["split", *parts]:
            return [Continue(part, headers={"part": part}) for part in parts]
        case ["change", what]:
            return Continue({"what": what}, priority=9, headers={"new": "1", "old": None}, group="g", user_code=7)
        case ["send", where]:
            return Send(where, "sent")
        case ["wrong"]:
            return {"body": "x"}
        case ["same"]:
            return Continue()
    return None


def lazily(message: spool.Message):
    """A hook that is a generator."""
    yield Continue(message.body + "1")
    yield Continue(message.body + "2")


def untyped(message: spool.Message) -> Continue:
    return Continue(content_type=None)


failure: type[BaseException] = ValueError


def upper(message: spool.Message) -> Continue:
    if message.body == "bad":
        raise failure("bad")
    return Continue(str(message.body).upper())


def lower(message: spool.Message) -> Continue:
    return Continue(str(message.body).lower())


def is_short(message: spool.Message) -> bool:
    return len(message.body) < 4


def one(message: spool.Message) -> None:
    delivered.append(("one", str(message.body)))


def two(message: spool.Message) -> None:
    delivered.append(("two", str(message.body)))
