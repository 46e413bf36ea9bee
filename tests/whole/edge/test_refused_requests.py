"""What the daemon's listeners refuse, and how they say so: one status, one code, one shape."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, unix_connect

from whole.harness.daemon import PATIENCE_S, Daemon, exactly, wait_for
from whole.harness.project import Project
from whole.harness.scripts import Scripts, command

HEAD_LIMIT = 32 * 1024
BODY_LIMIT = 1024 * 1024
CONNECTIONS = 256
LISTENERS = 64
NOWHERE = "prj_01M7GH81G7BG8J23XEEGRHP5VB"


def shown(answer: httpx.Response, code: str) -> dict[str, Any]:
    """Return the inside of an error; it has the one shape and this code."""
    body: dict[str, Any] = answer.json()
    assert set(body) == {"error"}, body
    error: dict[str, Any] = body["error"]
    assert error["code"] == code, error
    assert error["message"], error
    assert error["request_id"].startswith("req_"), error
    return error


def connect(daemon: Daemon) -> socket.socket:
    """Return a bare connection to the Unix socket."""
    Daemon.spoken += 1
    made = socket.socket(socket.AF_UNIX)
    made.settimeout(60.0)
    made.connect(daemon.get("/status")["socket"])
    return made


def raw(daemon: Daemon, sent: bytes) -> tuple[int, dict[str, Any]]:
    """Send bytes and read the one answer."""
    with connect(daemon) as line:
        line.sendall(sent)
        return read_answer(line)


def read_answer(line: socket.socket) -> tuple[int, dict[str, Any]]:
    """Read until the daemon hangs up; returns status and error."""
    got = b""
    while piece := line.recv(65536):
        got += piece
    head, _, body = got.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)["error"]


@pytest.fixture(scope="module")
def half_a_head(daemon: Daemon) -> Iterator[socket.socket]:
    """Yield a connection that began a request long ago and never went on."""
    with connect(daemon) as line:
        line.sendall(b"GET /healthz HTTP/1.1\r\nhost: ka")
        yield line


@pytest.fixture(scope="module")
def deaf(daemon: Daemon, module_path: Path) -> Iterator[socket.socket]:
    """Yield a client of the event stream that never reads what it asked for; there is a lot."""
    with connect(daemon) as line:
        line.sendall(
            b"GET /api/v1/events HTTP/1.1\r\nhost: kaged\r\nupgrade: websocket\r\n"
            b"connection: upgrade\r\nsec-websocket-version: 13\r\n"
            b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        )
        assert line.recv(1) == b"H"
        scripts = Scripts(daemon, daemon.load(Project(module_path / "loud")))
        shouts = "for i = 1, 2000 do kage.notify(string.rep('x', 1000)) end return 1"
        scripts.load(loud=command("shout", shouts))
        scripts.value("shout")
        scripts.close()
        yield line


@pytest.fixture
def stranger(daemon: Daemon) -> Iterator[httpx.Client]:
    """Yield a client that comes by TCP and shows nothing."""
    with httpx.Client(base_url=daemon.url, trust_env=False, timeout=60.0) as client:
        yield client


@pytest.mark.usefixtures("half_a_head", "deaf")
@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nowhere", 404, "not_found"),
        ("DELETE", "/api/v1/status", 405, "method_not_allowed"),
        ("PATCH", "/healthz", 405, "method_not_allowed"),
        ("GET", f"/api/v1/projects/{NOWHERE}", 404, "project_not_found"),
        ("POST", f"/api/v1/projects/{NOWHERE}/reload", 404, "project_not_found"),
        ("GET", "/api/v1/audit?cursor=nonsense", 400, "invalid_cursor"),
        ("GET", "/api/v1/projects?cursor=nonsense", 400, "invalid_cursor"),
        ("GET", "/api/v1/auth/launch?token=made-up", 403, "launch_token_invalid"),
        ("GET", "/api/v1/audit?limit=0", 422, "invalid_request"),
    ],
)
def test_a_request_that_cannot_be_served_gets_status_and_code(
    daemon: Daemon, method: str, path: str, status: int, code: str
) -> None:
    answer = daemon.client.request(method, path)
    assert answer.status_code == status
    assert shown(answer, code)["request_id"] == answer.headers["x-request-id"]


def test_a_body_over_the_limit_is_refused_and_one_at_the_limit_is_read(daemon: Daemon) -> None:
    for size, status, code in (
        (BODY_LIMIT + 1, 413, "payload_too_large"),
        (BODY_LIMIT, 422, "invalid_request"),
    ):
        answer = daemon.client.post("/api/v1/projects", content=b"x" * size)
        assert answer.status_code == status
        shown(answer, code)


@pytest.mark.parametrize(
    ("sent", "status", "code"),
    [
        (b"nonsense\r\n\r\n", 400, "invalid_request"),
        (
            b"GET / HTTP/1.1\r\nx: " + b"a" * (HEAD_LIMIT + 1) + b"\r\n\r\n",
            431,
            "headers_too_large",
        ),
    ],
)
def test_bytes_that_are_no_request_get_the_same_shape(
    daemon: Daemon, sent: bytes, status: int, code: str
) -> None:
    found, error = raw(daemon, sent)
    assert (found, error["code"]) == (status, code)


# -- who may come in --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "status", "code"),
    [
        ({}, 401, "unauthenticated"),
        ({"authorization": "Bearer wrong"}, 401, "unauthenticated"),
        ({"host": "evil.example"}, 421, "host_not_allowed"),
        ({"origin": "http://evil.example"}, 403, "origin_not_allowed"),
    ],
)
def test_strangers_are_refused_and_the_refusal_is_on_record(
    daemon: Daemon, stranger: httpx.Client, headers: dict[str, str], status: int, code: str
) -> None:
    before = len(daemon.audit("access.denied"))
    answer = stranger.get("/api/v1/status", headers=headers)
    assert answer.status_code == status
    shown(answer, code)
    rows = wait_for(lambda: daemon.audit("access.denied")[before:], "the record")
    data = rows[-1]["data"]
    assert (data["surface"], data["path"]) == ("http", "/api/v1/status")
    assert data["reason"], data
    assert "Bearer" not in str(rows)


def test_the_right_token_does_not_help_a_page_of_another_origin(
    daemon: Daemon, stranger: httpx.Client
) -> None:
    stranger.headers["authorization"] = f"Bearer {daemon.token}"
    assert stranger.get("/api/v1/status").is_success
    foreign = {"origin": "http://evil.example"}
    shown(stranger.get("/api/v1/status", headers=foreign), "origin_not_allowed")


def test_names_and_origins_that_the_operator_adds_are_answered(own: Callable[..., Daemon]) -> None:
    daemon = own(
        config='[auth]\nallowed_hosts = ["kaged.example"]\n'
        'allowed_origins = ["https://page.example"]\n'
    )
    daemon.start()
    bearer = {"authorization": f"Bearer {daemon.token}"}
    with httpx.Client(
        base_url=daemon.url, headers=bearer, trust_env=False, timeout=PATIENCE_S
    ) as client:
        for headers, code in (
            ({"host": "kaged.example"}, ""),
            ({"origin": "https://page.example"}, ""),
            ({"host": "other.example"}, "host_not_allowed"),
            ({"origin": "https://other.example"}, "origin_not_allowed"),
        ):
            answer = client.get("/api/v1/status", headers=headers)
            assert answer.is_success is not bool(code), (headers, answer.text)
            if code:
                shown(answer, code)


def test_a_launch_link_opens_one_session_and_no_second(
    daemon: Daemon, stranger: httpx.Client
) -> None:
    before = len(daemon.audit("access.token_issued"))
    link = daemon.post("/auth/launch")["url"]
    assert stranger.get(link).status_code == 303
    assert stranger.get("/api/v1/auth/whoami").json()["via"] == "cookie"
    with httpx.Client(base_url=daemon.url, trust_env=False, timeout=PATIENCE_S) as second:
        shown(second.get(link), "launch_token_invalid")
        assert second.get("/api/v1/status").status_code == 401
    rows = exactly(2, lambda: daemon.audit("access.token_issued")[before:])
    assert [one["data"]["kind"] for one in rows] == ["launch_url", "browser_session"]
    assert link.partition("token=")[2] not in str(rows)


def test_without_a_tcp_listener_there_is_no_launch_link(own: Callable[..., Daemon]) -> None:
    daemon = own(config='[daemon]\nbind = "off"\n')
    daemon.start()
    refused = daemon.error("POST", "/auth/launch")
    assert (refused["status"], refused["code"]) == (409, "tcp_disabled")
    said = daemon.cli("ui", "--json", code=None)
    assert said.code != 0


# -- the event stream -------------------------------------------------------------------------


@contextlib.contextmanager
def stream(daemon: Daemon, query: str = "") -> Generator[ClientConnection]:
    """Yield an opened event stream."""
    socket_path = daemon.get("/status")["socket"]
    with unix_connect(socket_path, f"ws://kaged/api/v1/events{query}") as line:
        assert json.loads(line.recv(60.0))["type"] == "hello"
        yield line


def test_a_client_that_speaks_on_the_stream_is_told_why_it_is_hung_up_on(daemon: Daemon) -> None:
    with stream(daemon, "?topics=nothing") as line:
        line.send("hello?")
        said = json.loads(line.recv(60.0))
        assert (said["type"], said["error"]["code"]) == ("error", "unexpected_message")
        with pytest.raises(ConnectionClosed) as caught:
            line.recv(60.0)
    assert caught.value.rcvd is not None
    assert (caught.value.rcvd.code, caught.value.rcvd.reason) == (1003, "unexpected_message")


def test_the_stream_serves_so_many_and_has_room_again_when_one_leaves(daemon: Daemon) -> None:
    with contextlib.ExitStack() as held:

        def one_more() -> ClientConnection | None:
            with contextlib.suppress(InvalidStatus):  # streams of earlier tests may still be ending
                return held.enter_context(stream(daemon, "?topics=nothing"))
            return None

        lines = [wait_for(one_more, "room for a stream") for _ in range(LISTENERS)]
        with pytest.raises(InvalidStatus) as caught, stream(daemon):
            pass
        assert caught.value.response.status_code == 503
        error = json.loads(caught.value.response.body or b"")["error"]
        assert error["code"] == "too_many_subscribers"
        assert lines[0] is not None
        lines[0].close()
        wait_for(one_more, "room for one more")


def test_clients_hear_that_the_daemon_stops(own: Callable[..., Daemon], tmp_path: Path) -> None:
    daemon = own()
    daemon.start()
    daemon.load(Project(tmp_path / "p"))
    with stream(daemon) as line:
        assert daemon.stop() == 0
        heard = [json.loads(one) for one in line]  # ends with the stream
    assert heard[-1]["error"]["code"] == "daemon_stopping"
    assert line.close_code == 1001


def test_refusals_without_end_are_few_rows_and_an_exact_count(own: Callable[..., Daemon]) -> None:
    daemon = own()
    daemon.start()
    with httpx.Client(base_url=daemon.url, trust_env=False, timeout=60.0) as stranger:
        for _ in range(300):
            assert stranger.get("/api/v1/status").status_code == 401
        # Another reason has its first row, whatever the flood was about.
        assert stranger.get("/api/v1/status", headers={"host": "evil.example"}).is_error
    rows = [one["data"]["reason"] for one in daemon.audit("access.denied")]
    assert len(rows) < 200
    assert rows[-1] == "host_not_allowed"
    folded = [one["data"] for one in daemon.audit("audit.folded")]
    assert {one["kind"] for one in folded} == {"access.denied"}
    assert len(rows) + sum(one["count"] for one in folded) == 301
    assert daemon.post("/audit/verify")["ok"]


# -- too much at once -------------------------------------------------------------------------


def test_one_connection_too_many_is_turned_away_and_room_comes_back(
    own: Callable[..., Daemon],
) -> None:
    """Each of them is let in and waits for its body; such are not dropped for others."""
    daemon = own()
    daemon.start()
    half_a_body = (
        b"POST /api/v1/projects HTTP/1.1\r\nhost: k\r\ncontent-length: 10\r\n"
        b"expect: 100-continue\r\n\r\n"
    )
    with contextlib.ExitStack() as held:
        lines = [held.enter_context(connect(daemon)) for _ in range(CONNECTIONS - 1)]
        for line in lines:
            line.sendall(half_a_body)
        for line in lines:
            assert line.recv(4096).startswith(b"HTTP/1.1 100")
        last = held.enter_context(connect(daemon))
        with contextlib.suppress(BrokenPipeError):
            last.sendall(b"GET /healthz HTTP/1.1\r\nhost: k\r\nconnection: close\r\n\r\n")
        found, error = read_answer(last)
        assert (found, error["code"]) == (503, "too_many_connections")
        lines[0].close()
        wait_for(lambda: daemon.client.get("/healthz").is_success, "room again")


def test_a_request_that_never_ends_is_given_up(daemon: Daemon, half_a_head: socket.socket) -> None:
    found, error = read_answer(half_a_head)
    assert (found, error["code"]) == (408, "request_timeout")
    assert daemon.client.get("/healthz").is_success


def test_a_client_that_does_not_read_its_events_is_cut_off(
    daemon: Daemon, deaf: socket.socket
) -> None:
    def dropped() -> list[str]:
        return [one for one in daemon.log().splitlines() if "events.client_dropped" in one]

    wait_for(lambda: any("slow_client" in one for one in dropped()), "the end of patience")
    with contextlib.suppress(ConnectionResetError):
        while deaf.recv(65536):  # what was on its way; then nothing more comes
            pass
