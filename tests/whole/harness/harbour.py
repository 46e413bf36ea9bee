"""`Harbour`: a small service with accounts, for the example bridges: codes, devices, tokens."""

from __future__ import annotations

import json
import secrets
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs

Answer = tuple[int, dict[str, Any]]


class Harbour:
    """The service on loopback. What a test does here, a person does in a browser otherwise."""

    def __init__(self) -> None:
        self.access: dict[str, str] = {}
        self.refresh: dict[str, str] = {}
        self.codes: dict[str, str] = {}
        self.devices: dict[str, dict[str, str]] = {}
        self.denied: set[str] = set()
        self.renewals = 0
        self.revoked: list[str] = []
        self.issued: list[str] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        """End it."""
        self._server.shutdown()
        self._server.server_close()

    def code_for(self, name: str) -> str:
        """Agree in somebody's name; returns the code of the callback."""
        code = self._fresh()
        self.codes[code] = name
        return code

    def approve(self, user_code: str, name: str) -> None:
        """Type the code of a device in."""
        [found] = [one for one in self.devices.values() if one["user_code"] == user_code]
        found["name"] = name

    def personal(self, name: str) -> str:
        """Make a token that a person types in."""
        token = self._fresh()
        self.access[token] = name
        return token

    def expire(self, name: str) -> None:
        """Let the short-lived tokens of somebody end."""
        self.access = {key: one for key, one in self.access.items() if one != name}

    def answer(self, path: str, form: dict[str, str] | None, token: str) -> Answer:
        """Answer one request."""
        if path == "/entries":
            name = self.access.get(token)
            if name is None:
                return 401, {}
            if name in self.denied:
                return 403, {}
            return 200, {"name": name, "entries": [f"{name} moors", f"{name} leaves"]}
        if path == "/device":
            code, shown = self._fresh(), secrets.token_hex(3).upper()
            self.devices[code] = {"user_code": shown}
            return 200, {
                "device_code": code,
                "user_code": shown,
                "verification_uri": f"{self.url}/device",
                "interval": 1,
            }
        if path == "/revoke" and form is not None:
            gone = form["token"]
            self.revoked.append(gone)
            self.refresh.pop(gone, None)
            self.access.pop(gone, None)
            return 200, {}
        if path == "/token" and form is not None:
            return self._tokens(form)
        return 404, {}

    def _tokens(self, form: dict[str, str]) -> Answer:
        match form["grant_type"]:
            case "authorization_code":
                name = self.codes.pop(form["code"], None)
            case "refresh_token":
                name = self.refresh.pop(form["refresh_token"], None)
                self.renewals += 1
                if name is None:
                    return 401, {}
            case _:
                name = self.devices[form["device_code"]].get("name")
                if name is None:
                    return 200, {"error": "authorization_pending"}
        if name is None:
            return 400, {}
        access, refresh = self._fresh(), self._fresh()
        self.access[access], self.refresh[refresh] = name, name
        return 200, {"access_token": access, "refresh_token": refresh, "name": name}

    def _fresh(self) -> str:
        token = secrets.token_urlsafe(24)
        self.issued.append(token)
        return token


def _handler(harbour: Harbour) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def _serve(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = self.rfile.read(length).decode()
            form = {k: v[-1] for k, v in parse_qs(body).items()} if self.command == "POST" else None
            token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
            status, said = harbour.answer(self.path.partition("?")[0], form, token)
            data = json.dumps(said).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = _serve  # noqa: N815 - the names that the module asks for

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the library's name
            return

    return Handler
