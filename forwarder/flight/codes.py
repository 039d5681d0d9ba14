"""The values that client and server exchange as msgpack, and the server's errors, which the client raises again."""

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import msgpack
import pyarrow.flight as flight

from forwarder.flight.address import Unreachable
from spool import errors
from spool.engine.tasks import Vote
from spool.errors import AccessDenied, ProtocolError, SpoolError, SystemFailure
from spool.model.xid import Xid

VERSION = 1
MOST_BYTES = 16 << 20
"""The most bytes of a request. The votes of 200,000 tasks fit into one request."""
_LONGEST_TEXT, _LONGEST_NOTE, _MOST_NOTES = 2 << 10, 512, 4  # (gRPC limits an error and its copies to 16 KiB)
_KINDS = {name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, SpoolError)}


def encode(values: Mapping[str, Any]) -> bytes:
    encoded: bytes = msgpack.packb({"version": VERSION, **values})
    return encoded


def decode(data: bytes, **expected: type | tuple[type, ...]) -> dict[str, Any]:
    """Decode the values of a request.

    Args:
        expected: the types of each value, with ``type(None)`` if the value may be missing.

    Raises:
        ProtocolError: the values are not the values of the request.
    """
    if len(data) > MOST_BYTES:
        raise ProtocolError(f"a request has at most {MOST_BYTES >> 20} MiB, not {len(data):,} bytes")
    try:
        found = msgpack.unpackb(data)
    except (ValueError, msgpack.UnpackException, RecursionError):
        raise ProtocolError("the request cannot be decoded: the client has another version, or is no xaspool") from None
    version = found.pop("version", None) if isinstance(found, dict) else None
    if version != VERSION:
        raise ProtocolError(f"the request has the version {version!r}, and not {VERSION}: install the same xaspool")
    for name, kind in expected.items():
        if not isinstance(found.setdefault(name, None), kind):
            raise ProtocolError(f"the value {name!r} of the request has the type {type(found[name]).__name__}")
    unknown = found.keys() - expected.keys()
    if unknown:
        raise ProtocolError(f"the request has unknown values: {', '.join(sorted(map(str, unknown)))[:100]}")
    return dict(found)


def packed_vote(vote: Vote | None) -> list[Any] | None:
    return None if vote is None else [list(vote.xid), vote.size, vote.checksum]


def vote_of(values: Sequence[Any] | None) -> Vote | None:
    """Return the vote in an answer of the server."""
    return None if values is None else Vote(Xid.checked(*values[0]), values[1], values[2])


# -- errors -----------------------------------------------------------------------------------------------------------


def as_flight(error: Exception) -> flight.FlightError:
    """Return the error in a form that Flight can send. In the client, ``raise_as_ours`` raises the error again."""
    text = str(error)[:_LONGEST_TEXT]
    notes = [note[:_LONGEST_NOTE] for note in getattr(error, "__notes__", ())][:_MOST_NOTES]
    kinds = [kind.__name__ for kind in type(error).__mro__ if kind.__name__ in _KINDS]  # (some subclasses are internal)
    told = encode({"kind": kinds[0] if kinds else type(error).__name__, "text": text, "notes": notes})
    kind: Any = flight.FlightServerError
    found: flight.FlightError = kind(text, extra_info=told)
    return found


_UNSIGNED = "certificate verify failed"
_ADVICE = (
    ("is not in peer certificate", "its certificate is for another name: use the name in the certificate"),
    ("certificate has expired", "its certificate has expired: give the server a new one"),
    (_UNSIGNED, "no authority that this client knows has signed its certificate: give the option "
     "tlsCertificate, a file with the certificate of its authority"),
    ("wrong version number", "it does not speak TLS: write spool+grpc:// in the address, or give it --tls-cert"),
    ("handshake failed", "the two agree on no encryption: compare tlsCertificate with the server's --tls-cert"),
    ("errors resolving", "its name has no address: correct the name"),
    ("socket closed", "start it, then try again; if it has a certificate, write spool+grpc+tls:// in the address"),
)  # fmt: skip
"""Parts of gRPC's texts about an unreachable server, in small letters, and the advice for each part."""


def raise_as_ours(error: Exception, server: str, token_place: str = "", certificate_file: str = "") -> NoReturn:
    """Convert an error that the server sent into an error of the library, and raise this error.

    Args:
        server: the server's address, for the text.
        token_place, certificate_file: the places of the client's token and certificate, for the text.

    Raises:
        SpoolError: the error of the server.
        AccessDenied: the server refuses the client.
        Unreachable: the server cannot be reached, or ended during the call.
    """
    told = getattr(error, "extra_info", b"")
    if told:
        found = decode(told, kind=str, text=str, notes=list)
        kind = _KINDS.get(found["kind"], SystemFailure)
        ours: SpoolError = kind(found["text"])
        for note in found["notes"]:
            ours.add_note(str(note))
        raise ours from None
    text = str(error).partition(". gRPC client debug context")[0].partition("; RPC")[0].removesuffix(".")
    if isinstance(error, flight.FlightUnauthenticatedError | flight.FlightUnauthorizedError):
        is_unknown = isinstance(error, flight.FlightUnauthenticatedError) and token_place
        place = f" (the token is from {token_place})" if is_unknown else ""
        raise AccessDenied(f"{server} refuses this client: {text}{place}") from None
    told_by_grpc = text.lower().replace("_", " ")
    advice = next((advice for part, advice in _ADVICE if part in told_by_grpc), None)
    if _UNSIGNED in told_by_grpc and certificate_file:
        advice = f"{certificate_file} did not sign its certificate: give tlsCertificate the one of its authority"
    if advice is None:
        raise Unreachable(f"{server} cannot be reached, or has ended: {text}; start it, then try again") from error
    raise Unreachable(f"{server} cannot be reached: {advice} ({text})") from error
