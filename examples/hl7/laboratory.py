"""A laboratory system for the example: prints each message that is POSTed to it, on one line."""

import sys
from http.server import BaseHTTPRequestHandler, HTTPServer


class Laboratory(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        print(self.headers["Spool-Header-sender"], body.decode(), flush=True)
        self.send_response(204)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


with HTTPServer(("127.0.0.1", 48055), Laboratory) as server:
    print("listening", file=sys.stderr, flush=True)
    server.serve_forever()
