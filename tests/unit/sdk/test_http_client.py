"""`http_client`: requests of plugins that always have one open, against plain sockets."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import Encoding

from fakes.tls_mail import make_ca, make_certificate
from kaged.sdk.http_client import Unreachable, connect, request

OK = b"HTTP/1.1 200 OK\r\n"


class Peer:
    """Answers one connection with fixed bytes and keeps the request's head."""

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self.heard = b""
        self.reply = b""
        self.thread = threading.Thread(target=self._serve)
        self.thread.start()

    def _serve(self) -> None:
        link, _ = self._listening.accept()
        with link:
            while b"\r\n\r\n" not in self.heard and (data := link.recv(65_536)):
                self.heard += data
            try:
                link.sendall(self.reply)
            except OSError:
                return

    def close(self) -> None:
        """End it, also when nobody came."""
        if self.thread.is_alive():
            socket.create_connection(self._listening.getsockname()).close()
        self.thread.join()
        self._listening.close()


@pytest.fixture
def peer() -> Iterator[Peer]:
    made = Peer()
    yield made
    made.close()


def test_a_request_says_what_it_is_and_reads_a_body_with_a_length(peer: Peer) -> None:
    peer.reply = OK + b'Content-Length: 7\r\n\r\n{"a":1}and more'
    assert request("POST", f"{peer.url}/x?q=1", {"X-Who": "ann"}, {"b": 2}) == (200, {"a": 1})
    head = peer.heard.decode()
    assert head.startswith("POST /x?q=1 HTTP/1.1\r\nHost: 127.0.0.1:")
    assert "\r\nX-Who: ann\r\n" in head
    assert "\r\nContent-Length: 8\r\n" in head


def test_a_body_may_come_in_chunks(peer: Peer) -> None:
    peer.reply = OK + b"Transfer-Encoding: chunked\r\n\r\n3\r\n[1,\r\n2\r\n2]\r\n0\r\n\r\n"
    assert request("GET", peer.url, {}) == (200, [1, 2])


def test_without_a_body_there_is_none(peer: Peer) -> None:
    peer.reply = b"HTTP/1.1 204 No Content\r\n\r\n"
    assert request("GET", peer.url, {}) == (204, None)


@pytest.mark.parametrize(
    "reply",
    [b"", b"nonsense\r\n\r\n", OK + b"\r\n<html>", OK + b"Content-Length: x\r\n\r\n{}",
     OK + b"Transfer-Encoding: chunked\r\n\r\n900000\r\n{}",
     OK + b"Transfer-Encoding: chunked\r\n\r\n?\r\n{}"],
)  # fmt: skip
def test_what_cannot_be_read_is_no_answer(peer: Peer, reply: bytes) -> None:
    peer.reply = reply
    with pytest.raises(Unreachable):
        request("GET", peer.url, {})


def test_nothing_is_smuggled_into_a_request(peer: Peer) -> None:
    with pytest.raises(Unreachable, match="line end"):
        request("GET", peer.url, {"X-Who": "ann\r\nX-Kaged-User-Id: bo"})
    with pytest.raises(Unreachable, match="line end"):
        request("GET", f"{peer.url}/a\r\nX: y", {})
    assert peer.heard == b""


@pytest.mark.parametrize("url", ["file:///etc/passwd", "http://", "x", "http://127.0.0.1:no/"])
def test_what_is_no_address_is_not_asked(url: str) -> None:
    with pytest.raises(Unreachable):
        connect(url, 1)


def test_nobody_there_is_unreachable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(Unreachable, match=r"127\.0\.0\.1"):
        request("GET", f"http://127.0.0.1:{port}", {})


def _secure(certificate: Path) -> tuple[str, threading.Thread]:
    """Serve one request over TLS; returns the address and who does it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    listening = socket.create_server(("127.0.0.1", 0))

    def act() -> None:
        plain, _ = listening.accept()
        try:
            with listening, context.wrap_socket(plain, server_side=True) as link:
                link.recv(65_536)
                link.sendall(OK + b"Content-Length: 4\r\n\r\ntrue")
        except OSError:
            plain.close()

    thread = threading.Thread(target=act)
    thread.start()
    return f"https://localhost:{listening.getsockname()[1]}/", thread


def test_https_is_for_the_host_that_was_named_and_for_who_can_prove_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ca = make_ca("ours")
    roots = tmp_path / "ca.pem"
    roots.write_bytes(ca.certificate.public_bytes(Encoding.PEM))
    monkeypatch.setenv("SSL_CERT_FILE", str(roots))
    for name, signed, right in (
        ("right", make_certificate(ca), True),
        ("other", make_certificate(ca, "elsewhere.example"), False),
        ("stranger", make_certificate(make_ca("theirs")), False),
    ):
        url, thread = _secure(signed.save(tmp_path, name))
        if right:
            assert request("GET", url, {}) == (200, True)
        else:
            with pytest.raises(Unreachable, match="certificate"):
                request("GET", url, {})
        thread.join()
