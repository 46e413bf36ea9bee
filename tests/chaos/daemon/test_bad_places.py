"""Homes, disks, ports and files that are not as they should be: a clear word, and nothing lost."""

from __future__ import annotations

import errno
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fakes.running_daemon import (
    ANY_PORT,
    KAGED,
    DaemonProcess,
    environment,
    kaged,
    make_home,
    make_project,
    start_daemon,
)

Start = Callable[..., DaemonProcess]
STRANGER = 65534


def _refused(daemon: DaemonProcess, code: str) -> dict[str, object]:
    assert daemon.said["ready"] is False, daemon.said
    error = daemon.said["error"]
    assert error["code"] == code, error
    assert error["message"]
    assert error["data"].get("fix") or error["data"].get("problems"), error
    assert daemon.process.wait(60) != 0
    return error


@pytest.fixture(scope="module")
def used_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the home of a daemon that has worked and was stopped; tests damage copies of it."""
    with tempfile.TemporaryDirectory(prefix="kgd-") as folder:
        home = Path(folder).resolve() / "h"
        daemon = start_daemon(home)
        try:
            with daemon.client() as client:
                root = make_project(Path(folder).resolve() / "sample")
                for _ in range(40):
                    assert (
                        client.post(
                            "/projects", json={"root": str(root), "trust": True}
                        ).status_code
                        == 201
                    )
        finally:
            assert daemon.stop() == 0
        kept = tmp_path_factory.mktemp("used") / "h"
        return Path(shutil.copytree(home, kept))


def test_a_missing_home_is_made(start: Start, tmp_path: Path) -> None:
    deep = tmp_path / "not" / "there" / "yet"
    daemon = start(deep, config=None, env={"KAGED_HOME": str(deep)})
    assert daemon.said["ready"] is True
    assert deep.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("value", ["relative/home", "/dev/null/h", "/proc/nope/h"])
def test_a_home_that_cannot_be_is_said_by_every_command(tmp_path: Path, value: str) -> None:
    done = kaged(tmp_path, "status", "--json", env={"KAGED_HOME": value})
    assert done.returncode != 0
    error = json.loads(done.stderr)["error"]
    assert error["message"]
    assert error["data"]["fix"]


def test_a_home_whose_path_is_too_long_for_a_socket_is_said(tmp_path: Path) -> None:
    done = kaged(tmp_path, "status", "--json", env={"KAGED_HOME": f"/tmp/{'x' * 100}"})
    assert "too long" in json.loads(done.stderr)["error"]["message"]


@pytest.mark.needs_root
def test_a_home_that_may_not_be_written_is_said(tmp_path: Path) -> None:
    home = make_home(tmp_path / "h")
    tmp_path.chmod(0o755)
    for parent in tmp_path.parents:
        if parent.stat().st_uid == os.getuid() and str(parent).startswith("/tmp/"):
            parent.chmod(0o755)
    os.chown(home, STRANGER, STRANGER)
    os.chown(home / "config.toml", STRANGER, STRANGER)
    home.chmod(0o500)
    # The tree under test is not readable for strangers everywhere; the interpreter's path is.
    script = (
        "import os, sys\n"
        f"os.setgid({STRANGER}); os.setuid({STRANGER})\n"
        "from kaged.config import Locations\n"
        "from kaged.base import KagedError\n"
        "try:\n"
        "    Locations.from_env(os.environ).ensure()\n"
        "except KagedError as error:\n"
        "    print(error.code, '|', error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", f"import kaged.config.locations\n{script}"],
        env=environment(home), capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.stdout.startswith("location_unsafe | "), done.stderr
    assert "Permission denied" in done.stdout


def test_a_home_that_others_may_change_is_not_used(start: Start, home: Path) -> None:
    make_home(home)
    home.chmod(0o777)
    error = _refused(start(), "location_unsafe")
    assert "chmod" in str(error["data"])


def test_a_file_in_place_of_the_home_is_left_alone(start: Start, tmp_path: Path) -> None:
    place = tmp_path / "file"
    place.write_text("precious", encoding="utf-8")
    _refused(start(place, config=None), "location_unsafe")
    assert place.read_text(encoding="utf-8") == "precious"


@pytest.mark.parametrize(
    ("config", "word"),
    [
        ("[daemon\n", "config.toml:1"),
        ('[daemon]\nbind = "nonsense"\n', "daemon.bind"),
        ('[daemon]\nbind = "0.0.0.0:0"\n[auth]\nmode = "insecure"\n', "insecure"),
        ("\x00", "NUL"),
        ("a = " + "[" * 5000, "config.toml"),
        ('x = "' + "y" * 11_000_000 + '"\n', "larger"),
    ],
)
def test_a_broken_configuration_is_said_with_its_place(
    start: Start, home: Path, config: str, word: str
) -> None:
    daemon = start(config=config)
    error = _refused(daemon, "config_invalid")
    assert word in str(error["message"])
    assert not (home / "kaged.db").exists()
    done = kaged(home, "status")
    assert done.returncode in (5, 6)
    assert word in done.stderr


def test_a_port_that_is_taken_is_said_with_the_port(start: Start, home: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        error = _refused(start(config=f'[daemon]\nbind = "127.0.0.1:{port}"\n'), "port_in_use")
        assert str(port) in str(error["message"])
        assert not (home / "run" / "kaged.sock").exists()
        done = kaged(home, "status", "--json")
        assert json.loads(done.stderr)["error"]["data"]["cause"] == "port_in_use"
    assert start(config=None).said["ready"] is True


def test_without_a_chosen_port_a_second_daemon_takes_the_next_free_one(
    start: Start, tmp_path: Path
) -> None:
    """Two users of one machine, or two homes of one, with the defaults."""
    found: list[dict[str, Any]] = []
    for name in ("one", "two"):
        home = tmp_path / name
        assert start(home, config=None, env={"KAGED_HOME": str(home)}).said["ready"] is True
        done = kaged(home, "status", "--json", env={"KAGED_HOME": str(home)})
        found.append(json.loads(done.stdout))
    ports = [int(status["url"].rpartition(":")[2]) for status in found]
    assert ports[0] != ports[1]
    assert min(ports) >= 7460
    assert any(f"the TCP listener is at {found[1]['url']}" in one for one in found[1]["warnings"])


def test_a_file_in_place_of_the_socket_is_left_alone(start: Start, home: Path) -> None:
    make_home(home)
    (home / "run").mkdir(mode=0o700)
    (home / "run" / "kaged.sock").write_text("precious", encoding="utf-8")
    _refused(start(), "bind_failed")
    assert (home / "run" / "kaged.sock").read_text(encoding="utf-8") == "precious"


@pytest.mark.parametrize("content", [b"", b"short", b"\xff" * 64])
def test_an_unusable_token_stops_the_start_and_is_left_alone(
    start: Start, home: Path, content: bytes
) -> None:
    make_home(home)
    (home / "http-token").write_bytes(content)
    (home / "http-token").chmod(0o600)
    _refused(start(), "token_file_unusable")
    assert (home / "http-token").read_bytes() == content


def test_a_token_that_others_can_read_stops_the_start(
    start: Start, home: Path, used_home: Path
) -> None:
    shutil.copytree(used_home, home)
    (home / "http-token").chmod(0o644)
    error = _refused(start(), "token_file_unusable")
    assert "chmod 600" in str(error["data"])
    assert kaged(home, "daemon", "token").returncode == 1


@pytest.mark.parametrize("damage", ["header", "middle", "nothing", "other"])
def test_a_damaged_database_is_said_and_left_exactly_as_it_is(
    start: Start, home: Path, used_home: Path, damage: str
) -> None:
    shutil.copytree(used_home, home)
    path = home / "kaged.db"
    data = bytearray(path.read_bytes())
    if damage == "header":
        data[:16] = b"not a database!!"
    elif damage == "middle":
        for at in range(4096, len(data), 4096):
            data[at : at + 64] = b"\xaa" * 64
    elif damage == "other":
        import sqlite3

        path.unlink()
        connection = sqlite3.connect(path)
        connection.execute("create table somebody_elses (x)")
        connection.commit()
        connection.close()
        data = bytearray(path.read_bytes())
    else:
        data = bytearray(b"garbage")
    path.write_bytes(bytes(data))
    for suffix in ("-wal", "-shm"):
        (home / f"kaged.db{suffix}").unlink(missing_ok=True)

    _refused(start(), "store_foreign" if damage == "other" else "store_corrupt")
    assert path.read_bytes() == bytes(data)
    done = kaged(home, "doctor", "--offline", "--json")
    rows = {row["id"]: row for row in json.loads(done.stdout)["rows"]}
    assert rows["store"]["status"] == "fail"
    assert rows["store"]["fix"]
    assert done.returncode == 8


def test_a_lost_audit_key_stops_the_start_instead_of_hiding_the_loss(
    start: Start, home: Path, used_home: Path
) -> None:
    shutil.copytree(used_home, home)
    key = (home / "audit.key").read_bytes()
    (home / "audit.key").unlink()
    _refused(start(), "audit_key_invalid")
    assert not (home / "audit.key").exists()
    (home / "audit.key").write_bytes(key)
    (home / "audit.key").chmod(0o600)
    assert start().said["ready"] is True


def test_a_clock_that_went_back_loses_no_order_and_breaks_no_chain(home: Path) -> None:
    """Three lives of a daemon, the second of them a year before the first."""
    import asyncio

    from fakes.running_daemon import daemon_in_process
    from kaged.audit import AuditEvent
    from kaged.base import ManualClock

    clock = ManualClock()

    async def live() -> list[int]:
        async with daemon_in_process(home, clock=clock) as daemon:
            audit = daemon.daemon.services.audit
            await audit.record(AuditEvent("daemon.started", {"version": "x", "pid": 1}))
            clock.set_wall(clock.now_ms() - 3_600_000)
            await audit.record(AuditEvent("daemon.stopped", {"reason": "x"}), durable=True)
            report = (await daemon.client.post("/api/v1/audit/verify")).json()
            assert report["ok"] is True
            items = (await daemon.client.get("/api/v1/audit")).json()["items"]
            ids = [row["id"] for row in items]
            assert ids == sorted(ids, reverse=True) or len(ids) > 2
            return [row["seq"] for row in items]

    assert asyncio.run(live()) == [2, 1]
    clock.set_wall(clock.now_ms() - 365 * 24 * 3_600_000)
    assert asyncio.run(live()) == [4, 3, 2, 1]
    clock.set_wall(0)
    assert asyncio.run(live()) == [6, 5, 4, 3, 2, 1]


def _in_small_disk(size: str, disk: Path) -> tuple[str, ...]:
    """Return the command line prefix that runs kaged with a small disk of its own at `disk`."""
    mount = f'mount -t tmpfs -o size={size},mode=700 none "{disk}" && exec "$@"'
    return ("unshare", "-rm", "sh", "-c", mount, "sh", *KAGED)


def _fill(path: Path) -> None:
    """Write into a file until its disk is full."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        while True:
            os.write(descriptor, b"x" * 4096)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
    finally:
        os.close(descriptor)


def _small_disks_work(tmp_path: Path) -> bool:
    if shutil.which("unshare") is None:
        return False
    probe = ("unshare", "-rm", "mount", "-t", "tmpfs", "none", str(tmp_path))
    return subprocess.run(probe, capture_output=True, check=False).returncode == 0


def test_a_disk_that_is_read_only_is_said_and_keeps_what_is_on_it(
    start: Start, home: Path, tmp_path: Path
) -> None:
    if not _small_disks_work(tmp_path):
        pytest.skip("this machine does not let us mount a disk of our own")
    assert start().stop() == 0
    frozen = f'mount --bind "{home}" "{home}" && mount -o remount,ro,bind "{home}" && exec "$@"'
    read_only = ("unshare", "-rm", "sh", "-c", frozen, "sh", *KAGED)
    daemon = start(config=None, argv=read_only)
    assert daemon.said["ready"] is False
    error = daemon.said["error"]
    assert error["code"] in {"home_unusable", "store_unavailable", "location_unsafe"}, error
    assert "read-only" in error["message"].lower()
    assert error["data"]["fix"]
    assert daemon.process.wait(60) != 0
    assert start(config=None).said["ready"] is True
    rows = json.loads(kaged(home, "audit", "query", "--json").stdout)
    assert [row["event"] for row in rows] == [
        "daemon.started", "daemon.stopped", "daemon.started",
    ]  # fmt: skip


def test_a_disk_that_is_full_at_the_start_is_said(start: Start, home: Path, tmp_path: Path) -> None:
    if not _small_disks_work(tmp_path):
        pytest.skip("this machine does not let us mount a small disk")
    disk = tmp_path / "disk"
    disk.mkdir(mode=0o700)
    config = f'{ANY_PORT}home = "{disk}/data"\n'
    daemon = start(config=config, argv=_in_small_disk("24k", disk))
    assert daemon.said["ready"] is False
    error = daemon.said["error"]
    assert error["code"] in {"store_unavailable", "location_unsafe", "home_unusable"}, error
    assert error["data"]["fix"]
    assert daemon.process.wait(60) != 0


def test_a_disk_that_fills_up_stops_changes_and_not_reads_and_loses_nothing(
    start: Start, home: Path, tmp_path: Path
) -> None:
    if not _small_disks_work(tmp_path):
        pytest.skip("this machine does not let us mount a small disk")
    disk = tmp_path / "disk"
    disk.mkdir(mode=0o700)
    config = f'{ANY_PORT}home = "{disk}/data"\n'
    daemon = start(config=config, argv=_in_small_disk("24m", disk))
    assert daemon.said["ready"] is True, daemon.said
    root = make_project(tmp_path / "sample")
    inside = Path(f"/proc/{daemon.pid}/root{disk}")
    with daemon.client() as client:
        loaded = client.post("/projects", json={"root": str(root), "trust": True})
        assert loaded.status_code == 201
        path = f"/projects/{loaded.json()['id']}"
        filler = inside / "filler"
        _fill(filler)
        acknowledged = 1
        answer = client.post(f"{path}/reload", json={"trust": True})
        while answer.status_code == 200:
            acknowledged += 1
            assert acknowledged < 500
            answer = client.post(f"{path}/reload", json={"trust": True})
        assert answer.status_code == 503
        error = answer.json()["error"]
        assert error["code"] in {"audit_unavailable", "store_unavailable"}
        assert error["data"]["fix"]
        # Reads go on, with a warning that cannot be overlooked.
        assert client.get(path).status_code == 200
        status = client.get("/status").json()
        assert any("audit trail" in one or "database" in one for one in status["warnings"])
        assert client.get("http://kaged/healthz").status_code == 503
        filler.unlink()
        # Room again: it recovers by itself, without a restart.
        tries = 0
        while (answer := client.post(f"{path}/reload", json={"trust": True})).status_code != 200:
            tries += 1
            assert tries < 2000, answer.text
        rows = client.get("/audit", params={"event": "project.loaded", "limit": 500}).json()
        assert len(rows["items"]) >= acknowledged + 1
        assert client.post("/audit/verify").json()["ok"] is True
    assert daemon.stop() == 0
