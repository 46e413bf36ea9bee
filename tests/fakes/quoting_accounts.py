"""A mail server and a calendar server that repeat the password they were shown, as asked.

The folder, or the calendar, that a call opens names the encoding; after `no:` it is in a refusal.
"""

from __future__ import annotations

import base64
import contextlib
import re
import socketserver
import threading
from collections.abc import Generator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote
from xml.sax.saxutils import escape

from encodings_of_secrets import encodings

REFUSING = "no:"


@dataclass
class Repeated:
    """What a server repeated: the password and the name of the encoding; `passwords` let in."""

    url: str
    passwords: set[str]
    shown: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])

    def repeat(self, password: str, name: str) -> str:
        """Return the password as the name says."""
        name = name.removeprefix(REFUSING)
        self.shown.append((password, name))
        return encodings(password)[name]


def _words(line: bytes) -> list[str]:
    """Split a line of IMAP; quoted texts are unquoted."""
    found = re.findall(rb'"((?:[^"\\]|\\.)*)"|(\S+)', line)
    return [
        re.sub(rb"\\(.)", rb"\1", quoted).decode() if quoted or not plain else plain.decode()
        for quoted, plain in found
    ]


@contextlib.contextmanager
def quoting_mail(*passwords: str) -> Generator[Repeated]:
    """Run the mail server; `url` is its host and port."""

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self._say("* OK here")
            password = folder = ""
            for line in self.rfile:
                tag, command, *rest = _words(line.strip())
                command = rest.pop(0) if command.upper() == "UID" else command
                match command.upper():
                    case "AUTHENTICATE":
                        self._say("+ ")
                        shown = base64.b64decode(self.rfile.readline())
                        password = shown.decode().rpartition("\0")[2]
                        if password not in made.passwords:
                            said = made.repeat(password, "plain")
                            self._say(f"{tag} NO [AUTHENTICATIONFAILED] no account has {said}")
                            continue
                    case "SELECT" | "EXAMINE":
                        folder = rest[0]
                        if folder.startswith(REFUSING):
                            said = " ".join(made.repeat(password, folder).split())
                            self._say(f"{tag} NO {said}")
                            continue
                        self._say("* 1 EXISTS")
                    case "CAPABILITY":
                        self._say("* CAPABILITY IMAP4rev1")
                    case "FETCH":
                        text = made.repeat(password, folder)
                        head = "Subject: x\r\nContent-Type: text/plain; charset=utf-8\r\n\r\n"
                        data = f"{head}it is {text} .\r\n".encode()
                        self._say(f"* 1 FETCH (UID 1 RFC822.SIZE {len(data)} FLAGS ()"
                                  f" BODY[]<0> {{{len(data)}}}")  # fmt: skip
                        self.wfile.write(data + b")\r\n")
                    case _:
                        pass
                self._say(f"{tag} OK done")

        def _say(self, line: str) -> None:
            self.wfile.write(f"{line}\r\n".encode())

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True

    with Server(("127.0.0.1", 0), Handler) as server:
        made = Repeated(f"127.0.0.1:{server.server_address[1]}", set(passwords))
        with _serving(server):
            yield made


@contextlib.contextmanager
def quoting_calendar(*passwords: str) -> Generator[Repeated]:
    """Run the calendar server."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the library's name
            return

        def _answer(self, status: int, text: str) -> None:
            data = text.encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def _serve(self) -> None:
            self.rfile.read(int(self.headers.get("content-length") or 0))
            shown = self.headers.get("authorization", "").removeprefix("Basic ")
            password = base64.b64decode(shown).decode().partition(":")[2]
            if password not in made.passwords:
                self._answer(401, made.repeat(password, "plain") if password else "")
                return
            path = unquote(self.path).strip("/")
            if path.startswith(REFUSING):
                self._answer(500, made.repeat(password, path))
            elif self.command == "PROPFIND":
                self._answer(207, _multistatus("/home/", _CALENDAR))
            else:
                text = _event(made.repeat(password, path))
                data = f'<C:calendar-data xmlns:C="{_CAL}">{escape(text)}</C:calendar-data>'
                self._answer(207, _multistatus(f"{self.path}one.ics", data))

        do_PROPFIND = do_REPORT = do_OPTIONS = _serve  # noqa: N815 - the library's names

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    made = Repeated(f"http://127.0.0.1:{server.server_port}/", set(passwords))
    with server, _serving(server):
        yield made


_CAL = "urn:ietf:params:xml:ns:caldav"
_CALENDAR = f'<D:resourcetype><D:collection/><C:calendar xmlns:C="{_CAL}"/></D:resourcetype>'


def _multistatus(path: str, props: str) -> str:
    return (
        f'<?xml version="1.0"?><D:multistatus xmlns:D="DAV:"><D:response><D:href>{path}</D:href>'
        f"<D:propstat><D:prop>{props}</D:prop><D:status>HTTP/1.1 200 OK</D:status></D:propstat>"
        "</D:response></D:multistatus>"
    )


def _event(title: str) -> str:
    for plain, written in (("\\", "\\\\"), (";", "\\;"), (",", "\\,"), ("\n", "\\n")):
        title = title.replace(plain, written)
    lines = [
        *("BEGIN:VCALENDAR", "VERSION:2.0", "BEGIN:VEVENT", "UID:1"),
        *("DTSTART:20260303T090000Z", "DTEND:20260303T100000Z", f"SUMMARY:it is {title} ."),
        *("END:VEVENT", "END:VCALENDAR"),
    ]
    return "\r\n".join(lines)


@contextlib.contextmanager
def _serving(server: socketserver.BaseServer) -> Generator[None]:
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join(timeout=30)
