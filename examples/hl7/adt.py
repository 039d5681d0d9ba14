"""The functions of the pipeline in adt.toml: HL7 v2 admission messages become JSON and fixed-width records."""

from typing import Any

import hl7
from hl7_batches import messages_of

import spool
from forwarder import Continue, Error, Kill

# The components of MSH-11: the processing id (HL7 table 0103) and the processing mode (table 0207). A message without a
# mode has the mode T.
PRODUCTION, TESTS = "P", {"T": "training", "D": "debugging"}
MODES = {"A": "archive", "R": "restore from archive", "I": "initial load", "T": "current processing"}


def split(message: spool.Message) -> list[Continue] | Error | Kill:
    """An inbound hook: put each message of a file as a separate message, in the file's order and in one commit."""
    try:
        text = message.body if isinstance(message.body, str) else message.body.decode("utf-8-sig")
        messages = messages_of(text)
    except ValueError as error:
        return Error(f"it is no file of HL7 v2 messages: {error}")
    return [Continue(one) for one in messages] or Kill("a batch without messages")


def read_header(message: spool.Message) -> Continue | Error | Kill:
    """An inbound hook: turn the fields for the routes into headers. Test messages are dropped; only ADT is accepted."""
    try:
        header = hl7.parse(message.body).segment("MSH")
        [[kind], [event]] = header[9][0][:2]
        id, mode = components(header[11], 2)
    except Exception as error:  # the library raises many kinds of errors for malformed messages
        return Error(f"it is no HL7 v2 message: {type(error).__name__}: {error}")
    if kind != "ADT":
        return Error(f"it is {kind}, not ADT")
    if id in TESTS:
        return Kill(f"a message for {TESTS[id]} (processing id {id})")
    if id != PRODUCTION or (mode or "T") not in MODES:
        return Error(f"its processing id (MSH-11) is {header[11]!s:.20}, not P, T or D with a mode A, R, I or T")
    headers = {"event": event, "control-id": str(header[10]), "processing-mode": mode or "T"}
    return Continue(headers=headers)


def to_json(message: spool.Message) -> Continue:
    """A translation: return the fields for the ward and the laboratory as JSON."""
    return Continue(patient(message), content_type="application/json")


def to_record(message: spool.Message) -> Continue:
    """A translation: return a record of 80 characters for the billing system."""
    found = patient(message)
    record = (
        f"{found['event']:<3}{found['id']:<12.12}{found['family']:<20.20}{found['given']:<15.15}"
        f"{found['born']:>8}{found['sex']:1}{found['ward']:<10.10}{found['control_id']:<10.10} "
    )
    if len(record) != 80:
        raise spool.Reject(f"the record has {len(record)} characters, not 80")
    return Continue(record.encode("ascii", "replace") + b"\r\n")


def stamp(message: spool.Message) -> Continue:
    """An outbound hook: add the sender for the laboratory."""
    return Continue(headers={"sender": "xaspool"})


def patient(message: spool.Message) -> dict[str, Any]:
    """Return the message fields that the receivers use."""
    found = hl7.parse(message.body)
    person, visit = found.segment("PID"), found.segment("PV1")
    name = person[5][0]
    return {
        "event": message.headers["event"],
        "control_id": message.headers["control-id"],
        "id": first(person[3]),
        "family": str(name[0]),
        "given": str(name[1]) if len(name) > 1 else "",
        "born": str(person[7])[:8],
        "sex": str(person[8])[:1],
        "ward": first(visit[3]),
    }


def first(field: hl7.Field) -> str:
    """Return the first component of a field with one or several components."""
    return components(field, 1)[0]


def components(field: hl7.Field, count: int) -> list[str]:
    """Return the first components of a field's first repetition; "" for each missing component."""
    found = [str(one) for one in field[0]] if isinstance(field[0], list) else [str(field)]
    return [*found, *[""] * count][:count]
