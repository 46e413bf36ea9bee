"""A daemon's life: ready, signals, reload, the end; and a second one that wants the same home."""

from __future__ import annotations

import json
import signal
import socket
import stat
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from fakes.running_daemon import ANY_PORT, KAGED, DaemonProcess, environment, kaged, make_home
from fakes.signal_masks import others
from kaged.base.instance_lock import holder_of

Start = Callable[..., DaemonProcess]


def _events(home: Path, name: str) -> list[dict[str, object]]:
    done = kaged(home, "audit", "query", "--event", name, "--json")
    assert done.returncode == 0, done.stderr
    return [row["data"] for row in json.loads(done.stdout)]


def test_a_daemon_says_when_it_answers_keeps_to_itself_and_ends_on_a_signal(
    start: Start, home: Path, tmp_path: Path
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(60)
        daemon = start(env={"NOTIFY_SOCKET": str(tmp_path / "notify")})
        assert daemon.said["ready"] is True
        assert daemon.said["pid"] == daemon.pid
        with daemon.client() as client:
            status = client.get("/status").json()
        assert status["pid"] == daemon.pid
        assert status["url"] == daemon.said["url"]
        assert systemd.recv(1024).startswith(b"READY=1\n")

        assert Path(f"/proc/{daemon.pid}/cwd").readlink() == Path("/")
        assert _limit(daemon.pid, "Max core file size") == ["0", "0"]
        for path in home.rglob("*"):
            if path.name == "config.toml" or path.is_symlink():
                continue
            mode = stat.S_IMODE(path.lstat().st_mode)
            private = mode & 0o077 == 0
            # The cage's shelf of base programs is read by users that cages run as.
            assert private or "cache" in path.parts, (path, oct(mode))

        # One on another home is nobody's business.
        other = start(tmp_path / "other", forked=True)
        assert other.said["ready"] is True
        other.signal(signal.SIGINT)
        assert daemon.stop() == 0
        assert other.process.wait(60) == 0
        assert systemd.recv(1024).startswith(b"STOPPING=1\n")
    for ended, name in ((daemon, "SIGTERM"), (other, "SIGINT")):
        assert not Path(ended.said["socket"]).exists()
        (stopped,) = _events(ended.home, "daemon.stopped")
        assert (stopped["signal"], stopped["pid"]) == (name, ended.pid)
        assert kaged(ended.home, "audit", "verify").returncode == 0


def _limit(pid: int, name: str) -> list[str]:
    lines = Path(f"/proc/{pid}/limits").read_text(encoding="ascii").splitlines()
    return next(line.removeprefix(name).split()[:2] for line in lines if line.startswith(name))


def test_started_by_nohup_in_the_background_it_hears_again_and_so_do_its_guests(
    start: Start,
) -> None:
    """And it may open as many files as its starter let it, whatever that one made do with."""
    starter = 'trap "" INT QUIT HUP USR1 TSTP; ulimit -S -n 256; exec "$@"'
    daemon = start(argv=("/bin/sh", "-c", starter, "sh", *KAGED))
    status = Path(f"/proc/{daemon.pid}/status").read_text(encoding="ascii")
    (ignored,) = (line.split()[1] for line in status.splitlines() if line.startswith("SigIgn:"))
    assert others(ignored) == 0
    soft, hard = _limit(daemon.pid, "Max open files")
    assert soft == hard
    daemon.signal(signal.SIGUSR1)
    daemon.signal(signal.SIGINT)
    assert daemon.process.wait(60) == 0


def test_many_commands_at_once_start_one_daemon_that_runs_until_it_is_stopped(
    own: Path, tmp_path: Path
) -> None:
    """Inside a hostile project none of it runs that project's `kaged/` or `json.py`."""
    trap = tmp_path / "trap"
    (trap / "kaged" / "cli").mkdir(parents=True)
    planted = "import pathlib; pathlib.Path(r'%s').touch()\n" % (tmp_path / "pwned")
    for name in ("kaged/__init__.py", "kaged/cli/__init__.py", "json.py", "structlog.py"):
        (trap / name).write_text(planted, encoding="utf-8")

    def program(_: int) -> Any:
        done = subprocess.run(
            [*KAGED, "status", "--json"], env=environment(own), cwd=trap, capture_output=True,
            text=True, check=False, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    with ThreadPoolExecutor(3) as pool:
        (pid,) = {status["pid"] for status in pool.map(program, range(3))}
    assert len(_events(own, "daemon.started")) == 1
    assert not (tmp_path / "pwned").exists()
    for stopped, named in ((True, pid), (False, None)):
        done = kaged(own, "daemon", "stop", "--json")
        assert json.loads(done.stdout) == {"stopped": stopped, "pid": named}
        assert holder_of(own / "run" / "daemon.lock") is None


def _hang_up(daemon: DaemonProcess, home: Path, count: int) -> dict[str, object]:
    """Send SIGHUP and wait for the record of the reload, by following the trail."""
    daemon.signal(signal.SIGHUP)
    until = time.monotonic() + 60
    while len(found := _events(home, "daemon.config_reloaded")) < count:
        assert time.monotonic() < until, daemon.log()
    return found[0]


def test_a_hangup_takes_up_new_settings_and_refuses_broken_ones(start: Start, home: Path) -> None:
    daemon = start(forked=True)
    make_home(home, f'{ANY_PORT}[auth]\noperator = "grace"\n')
    assert _hang_up(daemon, home, 1) == {"changed": ["auth"], "problems": []}
    with daemon.client() as client:
        assert client.get("/auth/whoami").json()["operator_id"] == "grace"
        make_home(home, "[auth\n")
        second = _hang_up(daemon, home, 2)
        assert second["changed"] == []
        assert second["problems"]
        assert client.get("/auth/whoami").json()["operator_id"] == "grace"
        make_home(home, '[daemon]\nbind = "off"\n')
        assert _hang_up(daemon, home, 3)["changed"] == ["daemon", "auth"]
        assert (
            "daemon.bind was changed and needs a restart"
            in client.get("/status").json()["warnings"]
        )


def test_the_second_daemon_is_told_the_pid_of_the_first_and_harms_nothing(
    start: Start, home: Path
) -> None:
    first = start(forked=True)
    second = start(forked=True)
    assert second.said["ready"] is False
    error = second.said["error"]
    assert error["code"] == "daemon_running"
    assert error["data"]["pid"] == first.pid
    assert str(first.pid) in error["message"]
    assert second.process.wait(60) == 7
    with first.client() as client:
        assert client.get("/status").json()["pid"] == first.pid
    assert len(_events(home, "daemon.started")) == 1


def test_two_daemons_never_share_data_through_the_home_setting(
    start: Start, home: Path, tmp_path: Path
) -> None:
    """Other sockets, other configuration, the same data: refused by the lock of the data."""
    config = f'[daemon]\nbind = "127.0.0.1:0"\nhome = "{tmp_path / "data"}"\n'
    assert start(config=config, forked=True).said["ready"] is True
    second = start(tmp_path / "other", config=config, forked=True)
    assert second.said["error"]["code"] == "daemon_running"
