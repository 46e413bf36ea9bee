"""The daemon is killed in the middle of its work: nothing acknowledged is lost."""

from __future__ import annotations

import json
import signal
import socket
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from fakes.running_daemon import DaemonProcess, kaged, make_project
from kaged.base import SystemClock
from kaged.cli import launch
from raising import raises_code

Start = Callable[..., DaemonProcess]


def _rows(home: Path, name: str) -> list[dict[str, object]]:
    done = kaged(home, "audit", "query", "--event", name, "-n", "5000", "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_killed_daemon_leaves_a_lock_and_a_socket_that_nobody_has_to_clean_up(
    start: Start, home: Path
) -> None:
    first = start()
    first.kill()
    assert (home / "run" / "kaged.sock").exists()
    assert str(first.pid) in (home / "run" / "daemon.lock").read_text(encoding="ascii")
    assert kaged(home, "daemon", "status").returncode == 5
    assert kaged(home, "daemon", "stop").stdout == "No daemon was running.\n"
    second = start()
    assert second.said["ready"] is True
    with second.client() as client:
        assert client.get("/status").json()["pid"] == second.pid


def test_everything_acknowledged_before_the_kill_is_there_after_it(
    start: Start, home: Path, project: Path
) -> None:
    daemon = start()
    acknowledged: list[str] = []
    stop = threading.Event()

    def work() -> None:
        with daemon.client() as client:
            try:
                while not stop.is_set():
                    answer = client.post("/projects", json={"root": str(project), "trust": True})
                    if answer.status_code == 201:
                        acknowledged.append(answer.headers["x-request-id"])
            except httpx.TransportError:
                return  # killed in the middle of this one, which was not acknowledged

    workers = [threading.Thread(target=work) for _ in range(3)]
    for worker in workers:
        worker.start()
    with daemon.client() as client:
        while len(acknowledged) < 60:
            client.get("/status")
    daemon.kill()
    stop.set()
    for worker in workers:
        worker.join(60)

    again = start()
    assert again.said["ready"] is True
    recorded = {row["request_id"] for row in _rows(home, "project.loaded")}
    assert set(acknowledged) <= recorded
    report = json.loads(kaged(home, "audit", "verify", "--json").stdout)
    assert report["ok"] is True, report
    with again.client() as client:
        (kept,) = client.get("/projects").json()["items"]
    assert kept["root"] == str(project)


def test_killed_again_and_again_it_comes_up_again_and_again(start: Start, home: Path) -> None:
    for _ in range(2):
        daemon = start()
        assert daemon.said["ready"] is True, daemon.said
        daemon.kill()
    assert start().said["ready"] is True
    assert len(_rows(home, "daemon.started")) == 3
    assert kaged(home, "audit", "verify").returncode == 0


def test_a_daemon_that_does_not_end_by_itself_is_told_so_and_can_be_forced(
    start: Start, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = start()
    daemon.signal(signal.SIGSTOP)
    monkeypatch.setattr(launch, "STOP_TIMEOUT_S", 0.2)
    lock = home / "run" / "daemon.lock"
    with raises_code("daemon_stuck") as caught:
        launch.stop_daemon(lock, SystemClock())
    assert "--force" in (caught.value.fix or "")
    forced = launch.stop_daemon(lock, SystemClock(), force=True)
    assert forced is not None
    assert forced.pid == daemon.pid
    daemon.process.wait(60)
    assert start().said["ready"] is True


def test_asking_twice_ends_it_without_waiting_for_connections(start: Start) -> None:
    """A client that keeps a request open does not keep the daemon alive."""
    daemon = start()
    with socket.socket(socket.AF_UNIX) as held:
        held.connect(daemon.said["socket"])
        held.sendall(b"POST /api/v1/projects HTTP/1.1\r\nhost: k\r\ncontent-length: 5\r\n\r\n")
        with daemon.client() as client:
            client.get("/status")
        daemon.signal(signal.SIGTERM)
        daemon.signal(signal.SIGTERM)
        assert daemon.process.wait(60) == 0


def test_the_trail_shows_what_a_stranger_did_to_the_database_between_two_lives(
    start: Start, home: Path, tmp_path: Path
) -> None:
    daemon = start()
    root = make_project(tmp_path / "sample")
    with daemon.client() as client:
        for _ in range(3):
            client.post("/projects", json={"root": str(root), "trust": True})
    assert daemon.stop() == 0
    connection = sqlite3.connect(home / "kaged.db")
    for (name,) in connection.execute(
        "select name from sqlite_master where type = 'trigger'"
    ).fetchall():
        connection.execute(f'drop trigger "{name}"')
    connection.execute("delete from audit_events where seq = (select max(seq) from audit_events)")
    connection.commit()
    connection.close()

    assert kaged(home, "audit", "verify").returncode == 8
    again = start()
    assert again.said["ready"] is True
    with again.client() as client:
        warnings = client.get("/status").json()["warnings"]
        assert any("audit chain" in warning for warning in warnings)
        assert client.post("/audit/verify").json()["ok"] is False


def test_what_a_killed_daemon_left_half_written_is_gone_after_the_next_start(
    start: Start, project: Path
) -> None:
    first = start()
    with first.client() as client:
        assert (
            client.post("/projects", json={"root": str(project), "trust": True}).status_code == 201
        )
    first.kill()
    left = project / f".kaged-tmp-{first.pid}-0"  # as a write leaves it that was cut off
    left.write_text("half", encoding="utf-8")
    mine = project / ".kaged-tmp-mine"
    mine.write_text("a person's own", encoding="utf-8")
    start()
    deadline_s = SystemClock().monotonic_s() + 30
    while left.exists() and SystemClock().monotonic_s() < deadline_s:
        threading.Event().wait(0.05)
    assert not left.exists()
    assert mine.exists()
