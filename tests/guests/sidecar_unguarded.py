"""Sidecars that break one rule each: `wide`, `open`, `health`, `borrowed`, `telling`, `silent`."""

from __future__ import annotations

import json
import os
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

FAULT = sys.argv[1]
ASKED = Path(os.environ["ASKED"])


class Answers(BaseHTTPRequestHandler):
    """Refuses everybody, but for its fault; what it is asked with a token is written down."""

    def do_GET(self) -> None:
        self.answer(200 if FAULT == "health" and self.path == "/health" else 401)

    def do_POST(self) -> None:
        given = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        with ASKED.open("ab") as file:
            file.write(given + b"\n")
        self.answer(200 if FAULT == "open" else 401)

    def answer(self, status: int) -> None:
        why = "no token" if not self.headers.get("Authorization") else "wrong token"
        body = json.dumps({"error": why if FAULT == "telling" else "unauthorized"}).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
        del format, args


server = ThreadingHTTPServer(("0.0.0.0" if FAULT == "wide" else "127.0.0.1", 0), Answers)
port = int(os.environ["ELSEWHERE"]) if FAULT == "borrowed" else server.server_address[1]
print("hello" if FAULT == "silent" else json.dumps({"port": port}), flush=True)
server.serve_forever()
