"""The functions and services that the demonstration and the tour call with messages."""

import hashlib
import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

LARGEST_BODY_BYTES = 64 << 20


def describe(body: bytes) -> dict[str, Any]:
    """Describe a file by its SHA-256, its size in bytes and its number of lines, as both services do."""
    return {"sha256": hashlib.sha256(body).hexdigest(), "size": len(body), "lines": len(body.splitlines())}


def describe_message(message: Any) -> dict[str, Any]:
    """Describe the file in a message."""
    return {"service": "python", **describe(message.body)}


SENTENCE = "this is a q example"  # from the guide to Tuxedo /Q; its service answers in capitals


def capitals(message: Any) -> str:
    """Answer in capitals."""
    return str(message.body).upper()


def to_lines(message: Any) -> Any:
    """Translate an order into one message for each of its lines."""
    from forwarder import Continue  # (the tour does not need this import)

    return [Continue(line) for line in message.body["lines"]]


def to_total(message: Any) -> Any:
    """Translate an order into one message with the total."""
    from forwarder import Continue

    return Continue({"total": sum(line["count"] for line in message.body["lines"])})


# Both destinations are stopped, so their messages remain in the queues, and the demonstration counts these messages.
PIPELINE = """\
name = "shop"
retry_delay = 0.0

[[routes]]
name = "warehouse"
translate = "xaspool_scripts.sample:to_lines"
to = "warehouse"

[[routes]]
name = "accounts"
translate = "xaspool_scripts.sample:to_total"
to = "accounts"

[destinations.warehouse]
service = "queue:nowhere"
stopped = true

[destinations.accounts]
service = "queue:nowhere"
stopped = true
"""


class _SampleHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # send head and body together, because Nagle's algorithm and delayed ACKs would cost 40 ms a request

    def do_POST(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        if length > LARGEST_BODY_BYTES:
            self.send_error(413)
            return
        answer = json.dumps({"service": "http", **describe(self.rfile.read(length))}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing, because a line for each request would hide the output of the demonstration."""


class _SampleServer(ThreadingHTTPServer):
    """A server that accepts many connections at once. The default of five is too small for a forwarder with many
    cores."""

    request_queue_size = 256

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print no error, because the demonstration kills the forwarder in the middle of calls."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


def main() -> None:
    """Serve on a free port of this machine until the process is killed. The first line of the output is the port."""
    server = _SampleServer(("127.0.0.1", 0), _SampleHandler)
    print(server.server_address[1], flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
