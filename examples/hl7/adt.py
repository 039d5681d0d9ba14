"""The functions of the pipeline in adt.toml: HL7 v2 admission messages become JSON and fixed-width records."""

from typing import Any

import hl7

import spool
from forwarder import Continue, Error, Kill


def read_header(message: spool.Message) -> Continue | Error | Kill:
    """An inbound hook: what the routes look at becomes headers; what is no ADT message fails, a test is dropped."""
    try:
        found = hl7.parse(message.body.decode().strip().replace("\r\n", "\r").replace("\n", "\r"))
        header = found.segment("MSH")
        [[kind], [event]] = header[9][0][:2]
    except Exception as error:  # of whatever kind: the message is what is wrong
        return Error(f"it is no HL7 v2 message: {type(error).__name__}: {error}")
    if kind != "ADT":
        return Error(f"it is {kind}, not ADT")
    if str(header[11]) != "P":
        return Kill(f"a message with the processing id {header[11]}")
    return Continue(str(found), headers={"event": event, "control-id": str(header[10])})


def to_json(message: spool.Message) -> Continue:
    """A translation: the fields that the ward and the laboratory want, as JSON."""
    return Continue(patient(message), content_type="application/json")


def to_record(message: spool.Message) -> Continue:
    """A translation: a record of 80 characters for the billing system."""
    found = patient(message)
    record = (
        f"{found['event']:<3}{found['id']:<12.12}{found['family']:<20.20}{found['given']:<15.15}"
        f"{found['born']:>8}{found['sex']:1}{found['ward']:<10.10}{found['control_id']:<10.10} "
    )
    if len(record) != 80:
        raise spool.Reject(f"the record has {len(record)} characters, not 80")
    return Continue(record.encode("ascii", "replace") + b"\r\n")


def stamp(message: spool.Message) -> Continue:
    """An outbound hook: the laboratory wants to know where a message comes from."""
    return Continue(headers={"sender": "xaspool"})


def patient(message: spool.Message) -> dict[str, Any]:
    """Return the fields of a message that its receivers use."""
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
    """Return the first component of a field, which may have one or several."""
    return str(field[0][0] if isinstance(field[0], list) else field)
