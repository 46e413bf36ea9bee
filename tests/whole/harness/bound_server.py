"""A server with TLS on loopback that wants a key, as a Git host, a registry and an API do.

It records what reaches it. Its certificate is of an authority outside, which no cage knows.
"""

from __future__ import annotations

import base64
import datetime as dt
import gzip
import hashlib
import io
import ipaddress
import json
import os
import ssl
import subprocess
import tarfile
import threading
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

GIT_BACKEND = Path("/usr/lib/git-core/git-http-backend")


@dataclass
class Request:
    """What reached the server."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes = field(repr=False)


class BoundServer:
    """Serves until `close`; answers 401 to whoever does not bring the value."""

    def __init__(self, folder: Path, value: str, *, trusted: bool = True) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.value = value
        self.seen: list[Request] = []
        self.ca_file = folder / "outside-ca.pem"
        chain = _certificates(self.ca_file if trusted else folder / "elsewhere.pem", folder)
        if not trusted:
            _certificates(self.ca_file, folder / "other")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(chain)
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.owner = self
        self._server.socket = context.wrap_socket(
            self._server.socket, server_side=True, do_handshake_on_connect=False
        )
        self.port = int(self._server.server_address[1])
        self.url = f"https://localhost:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Take no more."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def repository(self, name: str) -> Path:
        """Make a Git repository with one commit that the server has at `/NAME.git`."""
        bare = self.folder / "git" / f"{name}.git"
        work = self.folder / "work" / name
        work.mkdir(parents=True)
        env = {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"}
        who = ("-c", "user.name=a", "-c", "user.email=a@example.org")
        for words in (
            ("init", "-q", "-b", "main", str(work)),
            ("-C", str(work), *who, "commit", "-q", "--allow-empty", "-m", "first"),
            ("clone", "-q", "--bare", str(work), str(bare)),
            ("-C", str(bare), "config", "http.receivepack", "true"),
        ):
            subprocess.run(("git", *words), check=True, env=env, capture_output=True)
        return bare

    def keys_seen(self) -> list[str]:
        """Return the values that came, each with where it stood."""
        return [one.headers.get("authorization", "") for one in self.seen]


class _Server(ThreadingHTTPServer):
    owner: BoundServer
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        del request, client_address  # a client that does not trust the server is no error of it


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
        del format, args

    @property
    def owner(self) -> BoundServer:
        """Whose request this is."""
        assert isinstance(self.server, _Server)
        return self.server.owner

    def do_GET(self) -> None:
        self._serve()

    do_POST = do_PUT = do_DELETE = do_HEAD = do_PATCH = do_GET  # noqa: N815 - the library's names

    def _serve(self) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        body = self._body(headers)
        owner = self.owner
        owner.seen.append(Request(self.command, self.path, headers, body))
        if not self._has_key(headers):
            self._say(401, b"no key\n", {"WWW-Authenticate": 'Basic realm="bound"'})
            return
        path = urlsplit(self.path).path
        if path.startswith("/git/"):
            self._git(headers, body)
        elif path.startswith("/simple/"):
            self._index(path)
        elif path == "/echo":
            told = {"headers": headers, "body": body.decode("latin-1"), "path": self.path}
            self._say(200, json.dumps(told).encode(), {"X-Echo": headers.get("authorization", "")})
        elif path == "/away":
            self._say(302, b"", {"Location": f"https://elsewhere.example/?{owner.value}"})
        elif path == "/small":
            self._npm()
        elif path == "/small/-/small-1.0.0.tgz":
            self._say(200, _tarball(), {"Content-Type": "application/octet-stream"})
        elif path == "/v1/chat/completions":
            self._stream()
        else:
            self._say(200, b"ok\n", {})

    def _body(self, headers: Mapping[str, str]) -> bytes:
        if headers.get("expect"):
            self.send_response_only(100)
            self.end_headers()
        if "chunked" in headers.get("transfer-encoding", ""):
            parts: list[bytes] = []
            while size := int(self.rfile.readline().split(b";")[0], 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)
        return self.rfile.read(int(headers.get("content-length", "0")))

    def _has_key(self, headers: Mapping[str, str]) -> bool:
        value = self.owner.value
        kind, _, rest = headers.get("authorization", "").partition(" ")
        if kind.lower() == "basic":
            return base64.b64decode(rest).decode().endswith(f":{value}")
        return rest == value or headers.get("x-api-key") == value

    def _say(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _git(self, headers: Mapping[str, str], body: bytes) -> None:
        parts = urlsplit(self.path)
        if headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        done = subprocess.run(
            [GIT_BACKEND],
            input=body,
            capture_output=True,
            check=False,
            env={
                "PATH": "/usr/bin:/bin",
                "GIT_PROJECT_ROOT": str(self.owner.folder / "git"),
                "GIT_HTTP_EXPORT_ALL": "1",
                "REMOTE_USER": "agent",
                "PATH_INFO": parts.path.removeprefix("/git"),
                "QUERY_STRING": parts.query,
                "REQUEST_METHOD": self.command,
                "CONTENT_TYPE": headers.get("content-type", ""),
                "CONTENT_LENGTH": str(len(body)),
                "GIT_PROTOCOL": headers.get("git-protocol", ""),
            },
        )
        head, _, rest = done.stdout.partition(b"\r\n\r\n")
        told = dict(line.split(": ", 1) for line in head.decode().split("\r\n") if ": " in line)
        status = int(told.pop("Status", "200").split()[0])
        self._say(status, rest, told)

    def _index(self, path: str) -> None:
        if path.endswith(".whl"):
            self._say(200, _wheel(), {"Content-Type": "application/octet-stream"})
            return
        page = '<a href="small-1.0-py3-none-any.whl">small-1.0-py3-none-any.whl</a>'
        self._say(200, page.encode(), {"Content-Type": "text/html"})

    def _npm(self) -> None:
        tarball = f"{self.owner.url}/small/-/small-1.0.0.tgz"
        integrity = "sha512-" + base64.b64encode(hashlib.sha512(_tarball()).digest()).decode()
        version = {
            "name": "small",
            "version": "1.0.0",
            "dist": {"tarball": tarball, "integrity": integrity},
        }
        about = {"name": "small", "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": version}}
        self._say(200, json.dumps(about).encode(), {"Content-Type": "application/json"})

    def _stream(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for word in ("Hello", " from", " outside"):
            delta = {"choices": [{"index": 0, "delta": {"content": word}}]}
            told = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
            self._chunk(f"data: {json.dumps(told | delta)}\n\n".encode())
        self._chunk(b"data: [DONE]\n\n")
        self._chunk(b"")

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()


def _wheel() -> bytes:
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as wheel:
        wheel.writestr("small.py", "SAID = 'installed'\n")
        info = "small-1.0.dist-info"
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: small\nVersion: 1.0\n")
        wheel.writestr(
            f"{info}/WHEEL",
            "Wheel-Version: 1.0\nGenerator: a\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        wheel.writestr(f"{info}/RECORD", "")
    return held.getvalue()


def _tarball() -> bytes:
    held = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=held, mode="wb", mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w") as tar,
    ):
        for name, text in (
            ("package.json", '{"name": "small", "version": "1.0.0"}'),
            ("index.js", "module.exports = 'installed'"),
        ):
            info = tarfile.TarInfo(f"package/{name}")
            info.size = len(text)
            tar.addfile(info, io.BytesIO(text.encode()))
    return held.getvalue()


def _certificates(ca_file: Path, folder: Path) -> Path:
    """Make an authority and a certificate of localhost; return the file with that and its key."""
    folder.mkdir(parents=True, exist_ok=True)
    now = dt.datetime.now(dt.UTC)  # noqa: TID251 - whole tests import nothing of kaged
    ca_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "outside")])
    authority_id = x509.SubjectKeyIdentifier.from_public_key(ca_key.public_key())

    def build(name: str, public: ec.EllipticCurvePublicKey, *, ca: bool) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
            .issuer_name(issuer)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(hours=1))
            .not_valid_after(now + dt.timedelta(days=2))
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
        )

    authority = (
        build("outside", ca_key.public_key(), ca=True)
        .add_extension(authority_id, critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    ca_file.write_bytes(authority.public_bytes(serialization.Encoding.PEM))
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    leaf = (
        build("localhost", key.public_key(), ca=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False
        )
        .sign(ca_key, hashes.SHA256())
    )
    chain = folder / "localhost.pem"
    chain.write_bytes(
        leaf.public_bytes(serialization.Encoding.PEM)
        + key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return chain
