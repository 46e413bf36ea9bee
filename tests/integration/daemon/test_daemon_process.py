"""A daemon's life: ready, signals, reload, the end; and a second one that wants the same home."""

from __future__ import annotations

import json
import signal
import socket
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from fakes.running_daemon import ANY_PORT, KAGED, DaemonProcess, environment, kaged, make_home
from fakes.signal_masks import others

Start = Callable[..., DaemonProcess]


def _events(home: Path, name: str) -> list[dict[str, object]]:
    done = kaged(home, "audit", "query", "--event", name, "--json")
    assert done.returncode == 0, done.stderr
    return [row["data"] for row in json.loads(done.stdout)]


def test_a_daemon_says_when_it_answers_and_answers_then(start: Start) -> None:
    daemon = start()
    assert daemon.said["ready"] is True
    assert daemon.said["pid"] == daemon.pid
    with daemon.client() as client:
        status = client.get("/status").json()
    assert status["pid"] == daemon.pid
    assert status["url"] == daemon.said["url"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_cleanly_and_on_record(
    start: Start, home: Path, number: signal.Signals
) -> None:
    daemon = start()
    daemon.signal(number)
    assert daemon.process.wait(60) == 0
    assert not Path(daemon.said["socket"]).exists()
    (stopped,) = _events(home, "daemon.stopped")
    assert stopped["signal"] == number.name
    assert stopped["pid"] == daemon.pid
    assert kaged(home, "audit", "verify").returncode == 0


def test_started_by_nohup_in_the_background_it_hears_again_and_so_do_its_guests(
    start: Start,
) -> None:
    deaf = ("/bin/sh", "-c", 'trap "" INT QUIT HUP USR1 TSTP; exec "$@"', "sh", *KAGED)
    daemon = start(argv=deaf)
    status = Path(f"/proc/{daemon.pid}/status").read_text(encoding="ascii")
    (ignored,) = (line.split()[1] for line in status.splitlines() if line.startswith("SigIgn:"))
    assert others(ignored) == 0
    daemon.signal(signal.SIGUSR1)
    daemon.signal(signal.SIGINT)
    assert daemon.process.wait(60) == 0


def test_its_files_are_for_its_user_only(start: Start, home: Path) -> None:
    start()
    for path in home.rglob("*"):
        if path.name == "config.toml" or path.is_symlink():
            continue
        mode = stat.S_IMODE(path.lstat().st_mode)
        private = mode & 0o077 == 0
        # The cage's shelf of base programs is read by users that cages run as.
        assert private or "cache" in path.parts, (path, oct(mode))


def test_it_holds_no_folder_and_leaves_no_core(start: Start) -> None:
    daemon = start()
    assert Path(f"/proc/{daemon.pid}/cwd").readlink() == Path("/")
    limits = Path(f"/proc/{daemon.pid}/limits").read_text(encoding="ascii")
    core = next(line for line in limits.splitlines() if line.startswith("Max core file size"))
    assert core.split()[4:6] == ["0", "0"]


def test_systemd_hears_that_it_is_ready_and_that_it_stops(start: Start, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(60)
        daemon = start(env={"NOTIFY_SOCKET": str(tmp_path / "notify")})
        assert systemd.recv(1024).startswith(b"READY=1\n")
        assert daemon.stop() == 0
        assert systemd.recv(1024).startswith(b"STOPPING=1\n")


def _hang_up(daemon: DaemonProcess, home: Path, count: int) -> dict[str, object]:
    """Send SIGHUP and wait for the record of the reload, by following the trail."""
    daemon.signal(signal.SIGHUP)
    for _ in range(600):
        found = _events(home, "daemon.config_reloaded")
        if len(found) == count:
            return found[0]
        daemon.process.poll()
    raise AssertionError(daemon.log())


def test_a_hangup_takes_up_new_settings_and_refuses_broken_ones(start: Start, home: Path) -> None:
    daemon = start()
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
    first = start()
    second = start()
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
    assert start(config=config).said["ready"] is True
    second = start(tmp_path / "other", config=config)
    assert second.said["error"]["code"] == "daemon_running"


def test_a_daemon_on_another_home_is_nobodys_business(start: Start, tmp_path: Path) -> None:
    assert start().said["ready"] is True
    assert start(tmp_path / "other").said["ready"] is True


def test_a_module_in_the_current_folder_is_not_loaded_by_a_background_start(
    home: Path, tmp_path: Path
) -> None:
    """`kaged status` inside a hostile project must not run that project's `kaged/` or `json.py`."""
    trap = tmp_path / "trap"
    (trap / "kaged" / "cli").mkdir(parents=True)
    planted = "import pathlib; pathlib.Path(r'%s').touch()\n" % (tmp_path / "pwned")
    for name in ("kaged/__init__.py", "kaged/cli/__init__.py", "json.py", "structlog.py"):
        (trap / name).write_text(planted, encoding="utf-8")
    make_home(home)
    done = kaged(home, "status", "--json", cwd=trap)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "pwned").exists()


def test_the_environment_of_the_starter_does_not_leak_descriptors(start: Start) -> None:
    daemon = start()
    names = {str(fd.readlink()) for fd in Path(f"/proc/{daemon.pid}/fd").iterdir()}
    assert not [name for name in names if "pytest" in name and name.endswith((".py", ".xml"))]
    assert environment(daemon.home)["KAGED_HOME"] == str(daemon.home)
