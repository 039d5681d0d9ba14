"""A laboratory system for the example. It receives messages by POST, and prints each message on one line.

The address is the same as in the destination in adt.toml.
"""

import sys
import tomllib
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from urllib.parse import urlsplit


class Laboratory(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        print(self.headers["Spool-Header-sender"], body.decode(), flush=True)
        self.send_response(204)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


pipeline = tomllib.loads(Path(__file__).with_name("adt.toml").read_text())
address = urlsplit(pipeline["destinations"]["laboratory"]["service"])
with HTTPServer((address.hostname, address.port), Laboratory) as server:
    print("listening", file=sys.stderr, flush=True)
    server.serve_forever()
