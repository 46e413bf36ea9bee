"""Real git repositories for tests, and a loopback server that speaks git's smart HTTP."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from fakes.store_lab import write_plugin

_ENV = {
    "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
    "HOME": "/nonexistent",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_AUTHOR_NAME": "a",
    "GIT_AUTHOR_EMAIL": "a@example.org",
    "GIT_COMMITTER_NAME": "a",
    "GIT_COMMITTER_EMAIL": "a@example.org",
}


def git(directory: Path, *args: str) -> str:
    """Run git in a directory, as nobody in particular."""
    done = subprocess.run(
        ["git", "-c", "safe.directory=*", "-c", "protocol.file.allow=always", *args],
        cwd=directory,
        env=_ENV,
        check=True,
        capture_output=True,
        text=True,
        encoding="utf-8",
    )
    return done.stdout


def plugin_repository(root: Path, tags: dict[str, str], name: str = "sample") -> Path:
    """Make a bare repository with one commit per tag; `tags` are tag → version of the manifest."""
    work = root / f"{name}-work"
    work.mkdir(parents=True)
    git(work, "init", "--quiet", "--initial-branch=main")
    for tag, version in tags.items():
        write_plugin(work, {"CHANGES": tag}, name=name, version=version)
        commit(work, tag)
        git(work, "tag", tag)
    return publish(work, root / f"{name}.git")


def commit(work: Path, message: str) -> None:
    git(work, "add", "--all")
    git(work, "commit", "--quiet", "--message", message)


def publish(work: Path, bare: Path) -> Path:
    """Return a bare copy of a repository that others can read."""
    git(work, "clone", "--quiet", "--bare", str(work), str(bare))
    for path in (bare, *bare.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return bare


@contextmanager
def git_server(root: Path) -> Generator[tuple[str, list[str]]]:
    """Serve the repositories below `root`; yield the address and the list of requests."""
    seen: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(b"")

        def do_POST(self) -> None:
            self._answer(self.rfile.read(int(self.headers.get("Content-Length") or 0)))

        def _answer(self, body: bytes) -> None:
            seen.append(f"{self.command} {self.path}")
            address = urlsplit(self.path)
            env = {
                **_ENV,
                "GIT_PROJECT_ROOT": str(root),
                "GIT_HTTP_EXPORT_ALL": "1",
                "REQUEST_METHOD": self.command,
                "PATH_INFO": address.path,
                "QUERY_STRING": address.query,
                "CONTENT_TYPE": self.headers.get("Content-Type", ""),
                "CONTENT_LENGTH": str(len(body)),
                "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
                "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
                "GIT_CONFIG_COUNT": "1",
                "GIT_CONFIG_KEY_0": "safe.directory",
                "GIT_CONFIG_VALUE_0": "*",
            }
            done = subprocess.run(
                ["git", "http-backend"], input=body, env=env, check=False, capture_output=True
            )
            head, _, rest = done.stdout.partition(b"\r\n\r\n")
            headers = dict(line.split(": ", 1) for line in head.decode().split("\r\n") if line)
            status = int(headers.pop("Status", "200").split()[0])
            self.send_response(status)
            for key, value in headers.items():
                self.send_header(key, value)
            self.send_header("Content-Length", str(len(rest)))
            self.end_headers()
            self.wfile.write(rest)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the parent's name
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", seen
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
