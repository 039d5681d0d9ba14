"""The clients of the storm: programs that put and take by HTTP with nothing but Python's own library.

Each client keeps a journal: a line before each call, and a line after its answer. A call without the second line, or
with the status 0, has lost its answer. ``python -m tests.web.kills.clients put|take PORT JOURNAL SEED FIRST STEP END``
"""

import http.client
import json
import os
import random
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

LOST = 0
KEYED, PLAIN, TOGETHER = "keyed", "plain", "together"
TOGETHER_COUNT = 4
_CALL_SECONDS = 12.0
_TRIES = 8
_LATER = (LOST, 429, 503, 507)  # the call may be repeated


class Client:
    """A connection to the server, and the journal of its calls."""

    def __init__(self, port: int, journal: Path) -> None:
        self._port = port
        self._connection: http.client.HTTPConnection | None = None
        self._journal = os.open(journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note(self, *fields: object) -> None:
        os.write(self._journal, json.dumps([time.monotonic(), *fields]).encode() + b"\n")

    def call(
        self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> tuple[int, bytes]:
        """Return the status and the body of an answer; LOST if there was no whole answer."""
        if self._connection is None:
            self._connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=_CALL_SECONDS)
        try:
            self._connection.request(method, f"/v1/shop/{path}", body, dict(headers or {}))
            answer = self._connection.getresponse()
            found = answer.read()
            if answer.status == 204 or answer.headers.get("content-length") == str(len(found)):
                if answer.will_close:
                    self.close()
                return answer.status, found
        except (OSError, http.client.HTTPException):
            pass
        self.close()
        time.sleep(0.05)
        return LOST, b""

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    def ending(self, name: str, receipts: Sequence[str], method: str, body: Mapping[str, Any] | None = None) -> None:
        """End leases by a call, which is repeated while its answer is lost."""
        path = f"claims/{receipts[0]}" + ("" if method == "DELETE" else f"/{name}")
        sent = b"" if body is None else json.dumps(body).encode()
        for _ in range(_TRIES):
            self.note("call", name, receipts)
            status, _ = self.call(method, path, sent)
            self.note("done", name, receipts, status)
            if status not in _LATER:
                return


def puts(seed: str, number: int) -> tuple[str, list[str], list[str]]:
    """Return how a producer puts its messages of a number, their keys, and their bodies."""
    chance = random.Random(f"{seed} {number}")
    kind = chance.choices((KEYED, PLAIN, TOGETHER), (12, 5, 1))[0]
    keys = [f"{number}.{place}" for place in range(TOGETHER_COUNT if kind == TOGETHER else 1)]
    size = chance.choices((10, 1_000, 150_000), (20, 5, 1))[0]
    return kind, keys, [f"{key} {'x' * size}" for key in keys]


def put(client: Client, seed: str, numbers: range, journal: Path) -> None:
    """Put the messages of the numbers; a producer that has died before goes on after its journal."""
    written = [json.loads(line)[1:] for line in journal.read_text().splitlines()]
    begun = [number for what, number, *_ in written if what == "put"]
    answered = {number for what, number, *_ in written if what == "answer"}
    if begun:
        is_to_repeat = begun[-1] not in answered and puts(seed, begun[-1])[0] == KEYED
        numbers = range(begun[-1] + (0 if is_to_repeat else numbers.step), numbers.stop, numbers.step)
    for number in numbers:
        kind, keys, bodies = puts(seed, number)
        headers, sent = {"Content-Type": "text/plain"}, bodies[0].encode()
        if kind == KEYED:
            headers["Idempotency-Key"] = keys[0]
        elif kind == TOGETHER:
            headers["Content-Type"] = "application/x-ndjson"
            sent = "\n".join(json.dumps({"body": body}) for body in bodies).encode()
        status = LOST
        while status == LOST:
            client.note("put", number)
            status, answer = client.call("POST", "queues/orders/messages", sent, headers)
            if kind == KEYED and status in _LATER:
                status = LOST
            elif kind != KEYED:
                break
        told = json.loads(answer) if status in (200, 201) else {}
        client.note("answer", number, status, told.get("ids") or [told.get("id")])


def take(client: Client, chance: random.Random) -> None:
    """Claim messages, and end their leases in all ways, without end."""
    while True:
        way, lease = chance.choices(list(WAYS), [weight for weight, _, _ in WAYS.values()])[0], 1
        _, act, is_slow = WAYS[way]
        if not is_slow:
            lease = chance.choice((2, 4, 8))
        most = 10 if way == "several" else 1
        accept = {"Accept": "application/x-ndjson"}
        client.note("claim", most)
        status, raw = client.call("POST", f"queues/orders/claims?wait=3&max={most}&lease={lease}", b"", accept)
        found = [json.loads(line) for line in raw.splitlines()] if status == 200 else []
        held = [(each["receipt"], each["id"], each["body"].partition(" ")[0], each["attempts"]) for each in found]
        client.note("got", status, held)
        if held:
            act(client, [receipt for receipt, *_ in held], [f"{key} {id_}" for _, id_, key, _ in held])


def _results(texts: Sequence[str], further: Sequence[str] = ()) -> dict[str, Any]:
    return {"put": [{"queue": "results", "body": text} for text in texts], "receipts": list(further)}


def _acknowledge(client: Client, receipts: list[str], texts: list[str]) -> None:
    for receipt in receipts:
        client.ending("acknowledge", [receipt], "DELETE")


def _commit(client: Client, receipts: list[str], texts: list[str]) -> None:
    client.ending("commit", receipts, "POST", _results(texts, receipts[1:]))


def _late(client: Client, receipts: list[str], texts: list[str]) -> None:
    time.sleep(1.3)  # longer than the lease
    _acknowledge(client, receipts, texts)


def _extend(client: Client, receipts: list[str], texts: list[str]) -> None:
    client.call("POST", f"claims/{receipts[0]}/extend?lease=8")
    time.sleep(1.3)
    _commit(client, receipts, texts)


def _several(client: Client, receipts: list[str], texts: list[str]) -> None:
    half = -(-len(receipts) // 2)
    _commit(client, receipts[:half], texts[:half])
    _acknowledge(client, receipts[half:-1], texts)  # and the last lease ends


def _told(name: str) -> Callable[[Client, list[str], list[str]], None]:
    return lambda client, receipts, texts: client.ending(name, receipts[:1], "POST", {})


# by name: the weight, the function, and whether it holds a lease of a second for longer
WAYS: Mapping[str, tuple[int, Callable[[Client, list[str], list[str]], object], bool]] = {
    "acknowledge": (20, _acknowledge, False),
    "commit": (30, _commit, False),
    "several": (8, _several, False),
    "fail": (6, _told("fail"), False),
    "reject": (2, _told("reject"), False),
    "release": (6, _told("release"), False),
    "nothing": (3, lambda *_: None, False),
    "late": (1, _late, True),
    "extend": (1, _extend, True),
}


def main(what: str, port: str, journal: str, seed: str, first: str, step: str, end: str) -> None:
    client = Client(int(port), Path(journal))
    if what == "put":
        put(client, seed, range(int(first), int(end), int(step)), Path(journal))
    else:
        take(client, random.Random(f"{seed} {journal} {os.getpid()}"))


if __name__ == "__main__":
    main(*sys.argv[1:])
