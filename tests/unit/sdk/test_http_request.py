"""`http_request`: one request, made by a child of its own against a real server on loopback."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from kaged.sdk import http_request as module
from kaged.sdk.http_request import HttpUnreachable, http_request


class Service:
    """A server that answers `reply` and keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, dict[str, str], bytes]] = []
        self.reply: tuple[int, bytes, dict[str, str]] = (200, b"{}", {})
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                sent = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                headers = {name.lower(): value for name, value in self.headers.items()}
                outer.asked.append((self.command, self.path, headers, sent))
                status, data, more = outer.reply
                self.send_response(status)
                for name, value in more.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = answer  # noqa: N815 - names of the library's

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the library's
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.05,))


@pytest.fixture
def service() -> Iterator[Service]:
    made = Service()
    made.thread.start()
    yield made
    made.server.shutdown()
    made.thread.join()
    made.server.server_close()


def test_a_request_and_its_answer_arrive_whole_and_leave_nothing_open(service: Service) -> None:
    service.reply = (201, b'{"a": "\xc3\xa9"}', {"X-Left": "7"})
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - counts, not paths
    for text in ("first", "second"):
        answer = http_request("POST", f"{service.url}/x?q=1", {"X-Who": "me"}, {"text": text})
        assert (answer.status, answer.headers["x-left"], answer.json()) == (201, "7", {"a": "é"})
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208 - counts, not paths
    assert [json.loads(one[3])["text"] for one in service.asked] == ["first", "second"]
    method, path, headers, _ = service.asked[0]
    assert (method, path, headers["x-who"]) == ("POST", "/x?q=1", "me")
    assert headers["content-type"] == "application/json"


def test_a_redirect_and_an_error_are_answers_too(service: Service) -> None:
    service.reply = (302, b"", {"Location": "/elsewhere"})
    assert http_request("GET", service.url).headers["location"] == "/elsewhere"
    service.reply = (500, b"not json", {})
    answer = http_request("GET", service.url)
    assert (answer.status, answer.text, answer.json()) == (500, "not json", None)
    assert [one[1] for one in service.asked] == ["/", "/"], "no redirect was followed"


def test_an_answer_that_is_too_large_is_none(service: Service) -> None:
    service.reply = (200, b"x" * (module.LIMIT_BYTES + 1), {})
    with pytest.raises(HttpUnreachable, match="more than"):
        http_request("GET", service.url)


@pytest.mark.parametrize("url", ["ftp://example.org", "http://", "nothing"])
def test_other_addresses_are_refused(url: str) -> None:
    with pytest.raises(HttpUnreachable, match="must begin with http"):
        http_request("GET", url)


def test_where_nobody_listens_there_is_no_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(HttpUnreachable, match=r"127\.0\.0\.1"):
        http_request("GET", f"http://127.0.0.1:{port}")


def test_who_says_nothing_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        with pytest.raises(HttpUnreachable):
            http_request("GET", f"http://127.0.0.1:{silent.getsockname()[1]}", patience_s=1)
        with pytest.raises(HttpUnreachable):
            http_request("GET", f"http://127.0.0.1:{silent.getsockname()[1]}", patience_s=1)
