"""The command line, end to end, with a real daemon or without one."""

from __future__ import annotations

import json
import os
import pty
import select
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from fakes.running_daemon import KAGED, environment, kaged, make_home, make_project
from kaged.base.instance_lock import holder_of


def _json(home: Path, *arguments: str, expect: int = 0) -> Any:
    done = kaged(home, *arguments, "--json")
    assert done.returncode == expect, (done.stdout, done.stderr)
    return json.loads(done.stdout if expect in (0, 6, 8) else done.stderr)


@pytest.fixture
def own(home: Path) -> Path:
    """Return a home with a configuration that takes any free port."""
    return make_home(home)


def test_a_command_starts_a_daemon_when_none_runs_and_leaves_it_running(own: Path) -> None:
    first = _json(own, "status")
    assert _json(own, "status")["pid"] == first["pid"]
    assert _json(own, "daemon", "stop") == {"stopped": True, "pid": first["pid"]}
    assert holder_of(own / "run" / "daemon.lock") is None
    assert _json(own, "daemon", "stop") == {"stopped": False, "pid": None}


def test_many_commands_at_once_start_one_daemon(own: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: _json(own, "status"), range(4)))
    assert len({status["pid"] for status in found}) == 1
    started = _json(own, "audit", "query", "--event", "daemon.started")
    assert len(started) == 1


def test_status_and_doctor_say_alike_how_cages_are_limited(own: Path) -> None:
    """What an ordinary user's machine cannot enforce is said plainly, not found out later."""
    limits = _json(own, "status")["limits"]
    row = next(one for one in _json(own, "doctor")["rows"] if one["id"] == "cage.limits")
    backend = limits.removeprefix("by ").partition(";")[0].partition(",")[0]
    assert row["cause"].startswith(f"by {backend}")
    assert ("WEAKER" in limits) is (row["status"] == "warn")
    assert bool(row["fix"]) is (row["status"] == "warn")


def test_the_daemon_has_as_many_open_files_as_it_may(own: Path) -> None:
    pid = _json(own, "status")["pid"]
    text = Path(f"/proc/{pid}/limits").read_text(encoding="ascii")
    soft, hard = next(one for one in text.splitlines() if "open files" in one).split()[3:5]
    assert soft == hard


def test_without_a_daemon_and_without_permission_to_start_one(own: Path) -> None:
    for arguments in (
        ("status", "--no-start"),
        ("daemon", "status"),
        ("project", "list", "--no-start"),
    ):
        error = _json(own, *arguments, expect=5)["error"]
        assert error["code"] == "daemon_unreachable"
        assert error["data"]["fix"]


def test_a_projects_way_through_the_commands(own: Path, project: Path) -> None:
    loaded = _json(own, "project", "load", str(project))
    assert [one["id"] for one in _json(own, "project", "list")] == [loaded["id"]]
    assert _json(own, "project", "trust", "sample")["trusted"] is True
    assert _json(own, "project", "trust", str(project), "--revoke")["trusted"] is False
    assert _json(own, "project", "reload", loaded["id"])["id"] == loaded["id"]
    assert _json(own, "project", "unload", "sample")["unloaded"] is True
    assert _json(own, "project", "unload", "sample", expect=3)["error"]["code"] == (
        "project_not_found"
    )


def test_load_with_trust_is_one_command(own: Path, project: Path) -> None:
    assert _json(own, "project", "load", str(project), "--trust")["trusted"] is True


def test_a_slug_that_two_projects_have_is_not_guessed(own: Path, tmp_path: Path) -> None:
    for name in ("one", "other"):
        _json(own, "project", "load", str(make_project(tmp_path / name)))
    done = kaged(own, "project", "unload", "sample")
    assert done.returncode == 1
    assert "prj_" in done.stderr


def test_project_files_are_made_checked_and_shown_without_a_daemon(
    own: Path, tmp_path: Path
) -> None:
    root = tmp_path / "new"
    root.mkdir()
    assert ".kaged/project.yaml" in _json(own, "project", "init", str(root))["created"]
    assert _json(own, "project", "init", str(root))["created"] == []
    assert _json(own, "project", "check", str(root)) == {"ok": True, "problems": []}
    assert _json(own, "project", "show", str(root))["agents"][0]["path"] == "primary"
    make_project(root, "primary: {model: default, system_prmpt: x}\n")
    broken = _json(own, "project", "check", str(root), expect=6)
    assert broken["ok"] is False
    assert any("system_prompt" in problem["fix"] for problem in broken["problems"])
    assert kaged(own, "project", "show", str(root)).returncode == 6
    assert holder_of(own / "run" / "daemon.lock") is None


def test_the_current_folder_is_the_project_by_default(own: Path, project: Path) -> None:
    done = kaged(own, "project", "check", cwd=project)
    assert (done.returncode, done.stdout) == (0, "No problems found.\n")


def test_the_trail_can_be_read_checked_and_copied_with_and_without_a_daemon(
    own: Path, project: Path, tmp_path: Path
) -> None:
    _json(own, "project", "load", str(project))
    online = _json(own, "audit", "query")
    assert _json(own, "audit", "query", "--offline") == online
    assert _json(own, "audit", "verify")["ok"] is True
    assert _json(own, "audit", "verify", "--offline")["ok"] is True
    _json(own, "daemon", "stop")
    offline = _json(own, "audit", "query", "-e", "project.*", "-n", "1")
    assert [row["event"] for row in offline] == ["project.loaded"]
    copy = tmp_path / "copy.jsonl"
    _json(own, "audit", "export", str(copy))
    assert copy.stat().st_mode & 0o077 == 0
    assert _json(own, "audit", "verify", str(copy))["ok"] is True
    lines = copy.read_bytes().splitlines(keepends=True)
    copy.write_bytes(b"".join([*lines[:1], *lines[2:]]))
    assert _json(own, "audit", "verify", str(copy), expect=8)["ok"] is False
    assert kaged(own, "audit", "export", str(copy)).returncode == 1
    tail = kaged(own, "audit", "tail", "-n", "2", "--json")
    assert [json.loads(line)["seq"] for line in tail.stdout.splitlines()] == [
        online[0]["seq"], online[0]["seq"] + 1,
    ]  # fmt: skip


def test_without_any_trail_reading_says_what_to_do(own: Path) -> None:
    for command in ("query", "verify", "export"):
        done = kaged(own, "audit", command)
        assert done.returncode == 1
        assert "start the daemon" in done.stderr.lower()


def test_following_the_trail_shows_what_happens(own: Path, project: Path) -> None:
    _json(own, "status")
    with subprocess.Popen(
        [*KAGED, "audit", "tail", "-f", "--json", "-n", "1"],
        env=environment(own), stdout=subprocess.PIPE, stdin=subprocess.DEVNULL,
    ) as tail:  # fmt: skip
        try:
            assert tail.stdout is not None
            assert json.loads(tail.stdout.readline())["event"] == "daemon.started"
            _json(own, "project", "load", str(project))
            assert json.loads(tail.stdout.readline())["event"] == "project.loaded"
            _json(own, "daemon", "stop")
            rest = [json.loads(line)["event"] for line in tail.stdout]
            assert tail.wait(60) == 0
        finally:
            tail.kill()
    assert rest in ([], ["daemon.stopped"])


def test_a_pipe_gets_plain_lines(own: Path, project: Path) -> None:
    loaded = _json(own, "project", "load", str(project))
    done = kaged(own, "project", "list")
    assert done.stdout == f"{loaded['id']}\tsample\tloaded\tno\t2\t{project}\n"


def test_a_reader_that_has_seen_enough_is_no_error(own: Path, project: Path) -> None:
    for _ in range(3):
        _json(own, "project", "load", str(project))
    command = f"{' '.join(KAGED)} audit query | head -n 1"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], env=environment(own), capture_output=True,
        text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0
    assert done.stderr == ""


def _on_terminal(home: Path, *arguments: str, **env: str) -> str:
    """Run a command with a terminal as its output; returns what it painted."""
    leader, follower = pty.openpty()
    with subprocess.Popen(
        [*KAGED, *arguments], env={**environment(home), "TERM": "xterm-256color", **env},
        stdin=subprocess.DEVNULL, stdout=follower, stderr=follower,
    ) as process:  # fmt: skip
        os.close(follower)
        painted = b""
        while select.select([leader], [], [], 60)[0]:
            try:
                piece = os.read(leader, 65536)
            except OSError:
                break
            if not piece:
                break
            painted += piece
        process.wait(60)
    os.close(leader)
    return painted.decode()


def test_a_terminal_gets_colours_unless_it_does_not_want_them(own: Path) -> None:
    assert "\x1b[" in _on_terminal(own, "doctor", "--offline")
    assert "\x1b[3" not in _on_terminal(own, "doctor", "--offline", NO_COLOR="1")


def test_names_from_a_project_cannot_speak_to_the_terminal(own: Path, tmp_path: Path) -> None:
    root = make_project(
        tmp_path / "evil",
        'project: {name: "x\\e]0;owned\\a\\e[2J"}\n'
        'primary: {model: default, system_prompt: x, description: "\\e[31m"}\n',
    )
    _json(own, "project", "load", str(root))
    for arguments in (("project", "list"), ("project", "show", str(root)), ("audit", "tail")):
        painted = _on_terminal(own, *arguments, NO_COLOR="1")
        assert "\x1b]0" not in painted
        assert "\x1b[2J" not in painted
        assert "\x07" not in painted


def test_the_launch_link_and_the_token_work(own: Path) -> None:
    import httpx

    token = kaged(own, "daemon", "token").stdout.strip()
    link = kaged(own, "daemon", "open", "--print").stdout.strip()
    base = link.partition("/api/")[0]
    with httpx.Client(trust_env=False) as browser:
        bearer = {"authorization": f"Bearer {token}"}
        assert browser.get(f"{base}/api/v1/status", headers=bearer).status_code == 200
        assert browser.get(link).status_code == 303
        assert browser.get(f"{base}/api/v1/status").status_code == 200
        fresh = kaged(own, "daemon", "token", "--rotate").stdout.strip()
        assert fresh != token
        assert browser.get(f"{base}/api/v1/status").status_code == 401
        assert browser.get(f"{base}/api/v1/status", headers=bearer).status_code == 401


def test_the_token_is_there_and_can_be_rotated_without_a_daemon(own: Path) -> None:
    first = kaged(own, "daemon", "token").stdout.strip()
    assert kaged(own, "daemon", "token").stdout.strip() == first
    assert kaged(own, "daemon", "token", "--rotate").stdout.strip() != first
    assert holder_of(own / "run" / "daemon.lock") is None


def test_doctor_looks_for_itself_and_asks_a_running_daemon(own: Path) -> None:
    alone = {row["id"]: row["status"] for row in _json(own, "doctor")["rows"]}
    assert alone["store"] == "ok"
    assert "cage.bwrap" in alone
    _json(own, "status")
    asked = {row["id"]: row for row in _json(own, "doctor")["rows"]}
    assert set(alone) <= set(asked)
    assert "running, pid" in asked["daemon"]["cause"]


def test_doctor_exits_with_8_when_something_fails(own: Path) -> None:
    own.chmod(0o777)
    rows = _json(own, "doctor", "--offline", expect=8)["rows"]
    assert "home" in {row["id"] for row in rows if row["status"] == "fail"}


def test_a_database_that_is_not_sqlite_is_refused_before_anything_starts(own: Path) -> None:
    (own / "config.toml").write_text(
        '[storage]\nurl = "postgresql://me:hunter2@db/kaged"\n', encoding="utf-8"
    )
    rows = {row["id"]: row for row in _json(own, "doctor", "--offline", expect=8)["rows"]}
    assert rows["config"]["status"] == "fail"
    assert "store" not in rows
    said = rows["config"]["cause"] + rows["config"]["fix"]
    started = kaged(own, "daemon", "start")
    assert started.returncode != 0
    for text in (said, started.stdout + started.stderr):
        assert "this version keeps its data in SQLite only" in text
        assert "sqlite:////absolute/path/kaged.db" in text
        assert "hunter2" not in text


def test_a_sqlite_url_is_where_the_data_goes(own: Path, tmp_path: Path) -> None:
    file = tmp_path / "elsewhere.db"
    config = f'[daemon]\nbind = "127.0.0.1:0"\n[storage]\nurl = "sqlite:///{file}"\n'
    (own / "config.toml").write_text(config, encoding="utf-8")
    _json(own, "status")
    assert file.exists()
    rows = {row["id"]: row for row in _json(own, "doctor")["rows"]}
    assert rows["config"]["status"] == rows["store"]["status"] == "ok"


def test_an_unexpected_error_is_told_as_a_bug_without_a_traceback(own: Path) -> None:
    script = """
import importlib, sys
sys.argv = ['kaged', 'schema']
def broken(): raise ZeroDivisionError('oops')
importlib.import_module('kaged.config.schemas').schemas = broken
from kaged.cli.main import main; main()
"""
    done = subprocess.run(
        [KAGED[0], "-c", script], env={**environment(own), "KAGED_DEBUG": ""},
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "ZeroDivisionError: oops" in done.stderr
    assert "KAGED_DEBUG=1" in done.stderr
