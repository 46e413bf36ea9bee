"""`RegoServer`: OPA's data API over Rego files, as far as a policy asks it.

OPA's own server is in no package registry. What it decides with is real Rego here, read by
Microsoft's rego-cpp; only the HTTP around it is ours, after OPA's documentation of `/v1/data`: a
document that is undefined has no `result`, and every answer has a `decision_id`.
"""

from __future__ import annotations

import json
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from regopy import Interpreter


class RegoServer:
    """Answers on loopback; `mode` spoils its answers."""

    def __init__(self, rego: str, token: str = "") -> None:
        self.asked: list[dict[str, Any]] = []
        self.mode = ""
        self._rego = rego
        self._token = token
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the library's name
                return

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                status, data = outer.answer(self.path, self.headers.get("authorization"), body)
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                with suppress(ConnectionError):
                    self.wfile.write(data)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1/data/kaged"

    def answer(self, path: str, bearer: str | None, body: bytes) -> tuple[int, bytes]:
        """Return status and body for a question."""
        if self._token and bearer != f"Bearer {self._token}":
            return 401, b'{"code": "unauthorized"}'
        if self.mode == "broken":
            return 200, b"<html>"
        if self.mode == "flood":
            return 200, b'{"result": "' + b"x" * 1_000_000 + b'"}'
        if self.mode == "hang":
            time.sleep(1)
        asked = json.loads(body)["input"]
        self.asked.append(asked)
        engine = Interpreter()
        engine.add_module("kaged.rego", self._rego)
        engine.set_input(asked)
        name = path.removeprefix("/v1/data/").strip("/").replace("/", ".")
        found = engine.query(f"x = data.{name}")
        said: dict[str, Any] = {"decision_id": f"decision-{len(self.asked)}"}
        bindings = json.loads(str(found)).get("bindings", {}) if str(found)[0] == "{" else {}
        if "x" in bindings:
            said["result"] = bindings["x"]
        return 200, json.dumps(said).encode()

    def close(self) -> None:
        """Stop answering."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(timeout=30)
