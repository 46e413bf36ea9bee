"""A web site without an API, for the browser sidecar: people sign in by a form, with cookies."""

from __future__ import annotations

import secrets
import threading
from http.cookies import SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs


class Intranet:
    """The site, on loopback; `sessions` are its cookies, by whom they are of."""

    def __init__(self) -> None:
        self.passwords: dict[str, str] = {}
        self.sessions: dict[str, str] = {}
        self.sign_ins: list[str] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _page_class(self))
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._server.server_address[1])

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.port}"

    def employ(self, name: str) -> str:
        """Make somebody known; returns the password."""
        self.passwords[name] = f"pw-{secrets.token_hex(8)}"
        return self.passwords[name]

    def close(self) -> None:
        """End it."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _page_class(site: Intranet) -> type[BaseHTTPRequestHandler]:
    class Page(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            given = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
            [name], [password] = given["name"], given["password"]
            if site.passwords.get(name) != password:
                self.answer(403, "No.")
                return
            cookie = secrets.token_hex(16)
            site.sessions[cookie] = name
            site.sign_ins.append(name)
            self.answer(200, "Welcome.", cookie)

        def do_GET(self) -> None:
            held = SimpleCookie(self.headers.get("Cookie", "")).get("session")
            name = site.sessions.get(held.value) if held is not None else None
            if name is None:
                self.answer(401, "Sign in.")
            elif self.path == "/desk":
                self.answer(200, f'<h1>Desk of {name}</h1><a href="/post">Post</a>')
            else:
                self.answer(404, "Nothing here.")

        def answer(self, status: int, text: str, cookie: str = "") -> None:
            body = text.encode()
            self.send_response(status)
            if cookie:
                self.send_header("Set-Cookie", f"session={cookie}; HttpOnly")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's
            del format, args

    return Page
