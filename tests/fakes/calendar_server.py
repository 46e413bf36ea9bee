"""A real Radicale on loopback, with its own users and storage."""

from __future__ import annotations

import contextlib
import io
import socketserver
import threading
from collections.abc import Generator
from pathlib import Path
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server


class _Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the library's name
        return


def _reading_all(application: Any) -> Any:
    """Return the application behind what reads each request whole, as servers in front of it do.

    Radicale refuses a login without reading the body. A socket that is closed with something left
    to read is reset, and the answer, sent in small pieces, is lost now and then.
    """

    def answer(environ: dict[str, Any], start_response: Any) -> Any:
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        return application({**environ, "wsgi.input": io.BytesIO(body)}, start_response)

    return answer


class _Threaded(socketserver.ThreadingMixIn, WSGIServer):
    daemon_threads = True


@contextlib.contextmanager
def radicale(folder: Path, users: dict[str, str]) -> Generator[str]:
    """Run the server; yields its address."""
    from radicale import config
    from radicale.app import Application

    passwords = folder / "htpasswd"
    lines = "".join(f"{name}:{password}\n" for name, password in users.items())
    passwords.write_text(lines, encoding="utf-8")
    configuration = config.load()
    configuration.update(
        {
            "auth": {
                "type": "htpasswd",
                "htpasswd_filename": str(passwords),
                "htpasswd_encryption": "plain",
                "delay": "0",
            },
            "storage": {
                "filesystem_folder": str(folder / "collections"),
                "_filesystem_fsync": "False",
            },
            "rights": {"type": "owner_only"},
            "logging": {"level": "error"},
        },
        "test",
        privileged=True,
    )
    server = make_server(
        "127.0.0.1",
        0,
        _reading_all(Application(configuration)),
        server_class=_Threaded,
        handler_class=_Quiet,
    )
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(timeout=30)
