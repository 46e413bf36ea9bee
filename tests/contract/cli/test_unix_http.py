"""`DaemonClient` against a socket that answers what the test says, byte by byte."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from kaged.base import KagedError
from kaged.cli.client import DaemonClient, DaemonRefused

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 13\r\n\r\n"
BODY = b'{"fine":true}'


class Listener:
    """Takes one connection after the other; `answers` has one list of pieces per request."""

    def __init__(self, path: Path, connections: list[list[bytes]]) -> None:
        self.heads: list[bytes] = []
        self.bodies: list[bytes] = []
        self.taken = 0
        self.ended = threading.Semaphore(0)
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(str(path))
        self._listening.listen()
        self._thread = threading.Thread(target=self._serve, args=(connections,))
        self._thread.start()

    def _serve(self, connections: list[list[bytes]]) -> None:
        for answers in connections:
            try:
                connection, _ = self._listening.accept()
            except OSError:  # closed: nobody came
                return
            self.taken += 1
            with connection, connection.makefile("rb") as stream, suppress(ConnectionError):
                for answer in answers:
                    head = b""
                    while not head.endswith(b"\r\n\r\n") and (line := stream.readline()):
                        head += line
                    if not head:  # the client left
                        break
                    self.heads.append(head)
                    length = head.partition(b"content-length: ")[2].partition(b"\r\n")[0]
                    self.bodies.append(stream.read(int(length or 0)))
                    connection.sendall(answer)
            self.ended.release()

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)  # ends waiting for one more connection
        self._thread.join()
        self._listening.close()


@pytest.fixture
def listen(tmp_path: Path) -> Iterator[Callable[..., tuple[Listener, DaemonClient]]]:
    opened: list[tuple[Listener, DaemonClient]] = []

    def start(*connections: list[bytes]) -> tuple[Listener, DaemonClient]:
        path = tmp_path / "s"
        one = Listener(path, list(connections)), DaemonClient(path)
        opened.append(one)
        return one

    yield start
    for listener, client in opened:
        with client:
            pass
        listener.close()


Listen = Callable[..., tuple[Listener, DaemonClient]]


@contextmanager
def unreachable(text: str) -> Generator[None]:
    with pytest.raises(KagedError, match=text) as caught:
        yield
    assert caught.value.code == "daemon_unreachable"


def test_two_requests_go_through_one_connection(listen: Listen) -> None:
    listener, client = listen([OK + BODY, OK + BODY])
    assert client.get("/a") == {"fine": True}
    assert client.post("/b", {"x": "ä"}) == {"fine": True}
    assert listener.taken == 1
    assert listener.heads[0].startswith(b"GET /api/v1/a HTTP/1.1\r\nhost: kaged\r\n")
    assert listener.heads[1].startswith(b"POST /api/v1/b HTTP/1.1\r\n")
    assert b"content-type: application/json\r\n" in listener.heads[1]
    assert listener.bodies == [b"", b'{"x": "\\u00e4"}']


def test_a_connection_that_ended_between_two_requests_is_made_anew(listen: Listen) -> None:
    listener, client = listen([OK + BODY], [OK + BODY])
    assert client.get("/a") == {"fine": True}
    listener.ended.acquire()
    assert client.get("/b") == {"fine": True}
    assert listener.taken == 2


def test_an_answer_that_says_close_is_the_last_of_its_connection(listen: Listen) -> None:
    closing = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 13\r\n\r\n" + BODY
    listener, client = listen([closing, b"never asked for"], [OK + BODY])
    assert client.get("/a") == {"fine": True}
    assert client.get("/b") == {"fine": True}
    assert listener.taken == 2


def test_a_name_cannot_end_the_line_or_the_path(listen: Listen) -> None:
    listener, client = listen([OK + BODY, OK + BODY])
    client.get("/plugins/a b\r\nx: y\0#ä")
    client.get("/plugins/x", {"q": "a&b=c d", "all": True, "none": None, "n": [1, 2]})
    assert listener.heads[0].splitlines()[0] == (
        b"GET /api/v1/plugins/a%20b%0D%0Ax:%20y%00%23%C3%A4 HTTP/1.1"
    )
    assert listener.heads[1].splitlines()[0] == (
        b"GET /api/v1/plugins/x?q=a%26b%3Dc+d&all=true&n=1&n=2 HTTP/1.1"
    )


def test_a_client_below_a_path_asks_below_it(listen: Listen) -> None:
    listener, client = listen([OK + BODY, OK + BODY])
    client.below("/projects/p").get("")
    client.below("/projects/p").delete("/x?force=true")
    assert [head.split()[1] for head in listener.heads] == [
        b"/api/v1/projects/p",
        b"/api/v1/projects/p/x?force=true",
    ]


def test_pieces_of_a_stream_come_as_they_are_sent(listen: Listen) -> None:
    head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    chunked = head + b"3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n"
    _, client = listen([chunked, OK + BODY])
    assert b"".join(client.stream("/export")) == b"onetwo"
    assert client.get("/after") == {"fine": True}


def test_a_stream_left_early_does_not_spoil_the_next_answer(listen: Listen) -> None:
    begun = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\none\r\n"
    listener, client = listen([begun], [OK + BODY])
    pieces = client.stream("/export")
    assert next(pieces) == b"one"
    pieces.close()  # type: ignore[attr-defined] # a generator, which a loop would close
    assert client.get("/after") == {"fine": True}
    assert listener.taken == 2


def test_an_answer_without_content_is_none(listen: Listen) -> None:
    _, client = listen([b"HTTP/1.1 204 No Content\r\n\r\n"])
    assert client.delete("/a") is None


def test_a_refusal_keeps_its_code_and_fix_also_in_a_stream(listen: Listen) -> None:
    body = b'{"error":{"code":"not_found","message":"No.","data":{"fix":"Look."}}}'
    refusal = b"HTTP/1.1 404 Not Found\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)
    _, client = listen([refusal, refusal])
    for ask in (lambda: client.get("/a"), lambda: list(client.stream("/a"))):
        with pytest.raises(DaemonRefused, match="No") as caught:
            ask()
        assert (caught.value.code, caught.value.fix) == ("not_found", "Look.")


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (b"", "closed the connection before"),
        (OK + b'{"fi', "closed the connection before"),
        (b"220 mail.example ESMTP\r\n", "not HTTP"),
        (b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 20_000, "head of the answer does not end"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nhtml", "not a kaged daemon"),
        (b"HTTP/1.1 500 No\r\ncontent-length: 2\r\n\r\n{}", "not a kaged daemon"),
    ],
)
def test_what_is_no_answer_of_a_daemon_is_said_so(listen: Listen, answer: bytes, text: str) -> None:
    _, client = listen([answer])
    with unreachable(text):
        client.get("/a")


def test_an_answer_without_end_is_cut_off(listen: Listen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kaged.cli.client.MAX_ANSWER_BYTES", 8)
    _, client = listen([OK + BODY])
    with unreachable("more than 8 bytes"):
        client.get("/a")


def test_a_refusal_that_comes_before_the_body_is_read_is_told(tmp_path: Path) -> None:
    body = b'{"error":{"code":"payload_too_large","message":"Too large.","data":{}}}'
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(tmp_path / "s"))
    listening.listen()

    def refuse() -> None:
        connection, _ = listening.accept()
        with connection:
            connection.recv(100)
            connection.sendall(
                b"HTTP/1.1 413 No\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(body)
            )
            connection.sendall(body)
            connection.shutdown(socket.SHUT_RDWR)

    thread = threading.Thread(target=refuse)
    thread.start()
    try:
        with DaemonClient(tmp_path / "s") as client, pytest.raises(DaemonRefused) as caught:
            client.upload("/import", b"x" * 8_000_000)
        assert caught.value.code == "payload_too_large"
    finally:
        thread.join()
        listening.close()


def test_nobody_listening_starts_a_daemon_once(tmp_path: Path) -> None:
    started: list[str] = []
    with (
        DaemonClient(tmp_path / "none", start=lambda: started.append("a daemon")) as client,
        unreachable("No daemon answers on"),
    ):
        client.get("/status")
    assert started == ["a daemon"]
    with DaemonClient(tmp_path / "none") as client:
        assert not client.alive()
