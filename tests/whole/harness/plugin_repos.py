"""Git repositories with plugins in them, and a loopback server that speaks git's own HTTP."""

from __future__ import annotations

import gzip
import os
import subprocess
import threading
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from whole.harness.plugin_store import as_json, manifest_folder

ENV = {
    "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
    "HOME": "/nonexistent",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_AUTHOR_NAME": "a",
    "GIT_AUTHOR_EMAIL": "a@example.org",
    "GIT_COMMITTER_NAME": "a",
    "GIT_COMMITTER_EMAIL": "a@example.org",
}


def git(folder: Path, *arguments: str) -> str:
    """Run git in a folder, as nobody in particular."""
    done = subprocess.run(
        ["git", "-c", "safe.directory=*", "-c", "protocol.file.allow=always", *arguments],
        cwd=folder,
        env=ENV,
        check=True,
        capture_output=True,
        text=True,
        encoding="utf-8",
    )
    return done.stdout


def repository(
    root: Path, name: str, tags: dict[str, str], *, below: str = "", **manifest: Any
) -> Path:
    """Make a bare repository with a commit for each tag: the tag, and the manifest's version.

    With `below` the manifest lies in a folder of the repository, where it is none.
    """
    work = root / f"{name}-work"
    work.mkdir(parents=True)
    git(work, "init", "--quiet", "--initial-branch=main")
    for tag, version in tags.items():
        manifest_folder(work / below, as_json(name=name, version=version, **manifest))
        (work / "CHANGES").write_text(tag, encoding="utf-8")
        git(work, "add", "--all")
        git(work, "commit", "--quiet", "--message", tag)
        git(work, "tag", tag)
    bare = root / f"{name}.git"
    git(work, "clone", "--quiet", "--bare", str(work), str(bare))
    for path in (bare, *bare.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return bare


@contextmanager
def git_server(root: Path) -> Generator[tuple[str, list[str]]]:
    """Serve the repositories below `root`; yields the address and what it was asked."""
    seen: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(b"")

        def do_POST(self) -> None:
            self._answer(self.rfile.read(int(self.headers.get("Content-Length") or 0)))

        def _answer(self, body: bytes) -> None:
            packed = self.headers.get("Content-Encoding") == "gzip"
            plain = gzip.decompress(body) if packed else body
            seen.append(f"{self.command} {self.path} {plain.decode('utf-8', 'replace')}")
            address = urlsplit(self.path)
            env = {
                **ENV,
                "GIT_PROJECT_ROOT": str(root),
                "GIT_HTTP_EXPORT_ALL": "1",
                "REQUEST_METHOD": self.command,
                "PATH_INFO": address.path,
                "QUERY_STRING": address.query,
                "CONTENT_TYPE": self.headers.get("Content-Type", ""),
                "CONTENT_LENGTH": str(len(plain)),
                "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
                "GIT_CONFIG_COUNT": "1",
                "GIT_CONFIG_KEY_0": "safe.directory",
                "GIT_CONFIG_VALUE_0": "*",
            }
            done = subprocess.run(
                ["git", "http-backend"], input=plain, env=env, check=False, capture_output=True
            )
            head, _, rest = done.stdout.partition(b"\r\n\r\n")
            headers = dict(line.split(": ", 1) for line in head.decode().split("\r\n") if line)
            self.send_response(int(headers.pop("Status", "200").split()[0]))
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
