"""The command line, end to end, with a real daemon or without one."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from fakes.command_server import command_server
from fakes.running_daemon import (
    KAGED,
    DaemonProcess,
    environment,
    kaged,
    make_project,
    on_terminal,
)
from kaged.base.instance_lock import holder_of

Start = Callable[..., DaemonProcess]
PLAIN = "version: 1\nproject: {}\nprimary: {{model: default, system_prompt: You help.}}\n"


def _json(home: Path, *arguments: str, expect: int = 0) -> Any:
    done = kaged(home, *arguments, "--json")
    assert done.returncode == expect, (done.stdout, done.stderr)
    return json.loads(done.stdout if expect in (0, 6, 8) else done.stderr)


def test_without_a_daemon_and_without_permission_to_start_one(own: Path) -> None:
    for arguments in (
        ("status", "--no-start"),
        ("daemon", "status"),
        ("project", "list", "--no-start"),
    ):
        error = _json(own, *arguments, expect=5)["error"]
        assert error["code"] == "daemon_unreachable"
        assert error["data"]["fix"]


def test_a_projects_way_through_the_commands(shared: DaemonProcess, tmp_path: Path) -> None:
    home, root = shared.home, make_project(tmp_path / "way", PLAIN.format("wayfarer"))
    loaded = _json(home, "project", "load", str(root), "--trust")
    assert loaded["trusted"] is True
    assert loaded["id"] in [one["id"] for one in _json(home, "project", "list")]
    # A pipe gets plain lines.
    line = f"{loaded['id']}\twayfarer\tloaded\tyes\t1\t{root}"
    assert line in kaged(home, "project", "list").stdout.splitlines()
    assert _json(home, "project", "trust", str(root), "--revoke")["trusted"] is False
    assert _json(home, "project", "trust", "wayfarer", "--yes")["trusted"] is True
    assert _json(home, "project", "reload", loaded["id"])["id"] == loaded["id"]
    assert _json(home, "project", "unload", "wayfarer")["unloaded"] is True
    refused = _json(home, "project", "unload", "wayfarer", expect=3)["error"]
    assert refused["code"] == "project_not_found"
    assert _json(home, "project", "load", "--trust", str(root))["trusted"] is True


def test_a_slug_that_two_projects_have_is_not_guessed(
    shared: DaemonProcess, tmp_path: Path
) -> None:
    for name in ("one", "other"):
        root = make_project(tmp_path / name, PLAIN.format("twin"))
        _json(shared.home, "project", "load", "--trust", str(root))
    done = kaged(shared.home, "project", "unload", "twin")
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
    start: Start, own: Path, project: Path, tmp_path: Path
) -> None:
    start(forked=True)
    _json(own, "project", "load", "--trust", str(project))
    online = _json(own, "audit", "query")
    assert _json(own, "audit", "query", "--offline") == online
    assert _json(own, "audit", "verify")["ok"] is True
    assert _json(own, "audit", "verify", "--offline")["ok"] is True
    _json(own, "daemon", "stop")
    offline = _json(own, "audit", "query", "-e", "project.*", "-n", "1")
    assert [row["event"] for row in offline] == ["project.trusted"]
    copy = tmp_path / "copy.jsonl"
    _json(own, "audit", "export", str(copy))
    assert copy.stat().st_mode & 0o077 == 0
    assert _json(own, "audit", "verify", str(copy))["ok"] is True
    lines = copy.read_bytes().splitlines(keepends=True)
    copy.write_bytes(b"".join([*lines[:1], *lines[2:]]))
    assert _json(own, "audit", "verify", str(copy), expect=8)["ok"] is False
    assert kaged(own, "audit", "export", str(copy)).returncode == 7
    tail = kaged(own, "audit", "tail", "-n", "2", "--json")
    assert [json.loads(line)["seq"] for line in tail.stdout.splitlines()] == [
        online[0]["seq"], online[0]["seq"] + 1,
    ]  # fmt: skip


def test_without_any_trail_reading_says_what_to_do(own: Path) -> None:
    for command in ("query", "verify", "export"):
        done = kaged(own, "audit", command)
        assert done.returncode == 1
        assert "start the daemon" in done.stderr.lower()


def test_following_the_trail_shows_what_happens(start: Start, own: Path, project: Path) -> None:
    start(forked=True)
    reader, writer = os.pipe()
    words = ("audit", "tail", "-f", "--json", "-n", "1")
    with Path(os.devnull).open("r+b") as nothing:
        files = [nothing.fileno(), writer, nothing.fileno()]
        tail = command_server().start(words, environment(own), None, files)
    os.close(writer)
    with os.fdopen(reader, "rb") as shown:
        assert json.loads(shown.readline())["event"] == "daemon.started"
        _json(own, "project", "load", "--trust", str(project))
        assert json.loads(shown.readline())["event"] == "project.loaded"
        assert json.loads(shown.readline())["event"] == "project.trusted"
        _json(own, "daemon", "stop")
        rest = [json.loads(line)["event"] for line in shown]
    assert tail.wait(60) == 0
    assert rest in ([], ["daemon.stopped"])


def test_a_reader_that_has_seen_enough_is_no_error(shared: DaemonProcess, project: Path) -> None:
    for _ in range(3):
        _json(shared.home, "project", "load", "--trust", str(project))
    command = f"{' '.join(KAGED)} audit query | head -n 1"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], env=environment(shared.home),
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0
    assert done.stderr == ""


def test_a_terminal_gets_colours_unless_it_does_not_want_them(own: Path) -> None:
    assert "\x1b[" in on_terminal(own, "doctor", "--offline")[1]
    assert "\x1b[3" not in on_terminal(own, "doctor", "--offline", NO_COLOR="1")[1]


def test_names_from_a_project_cannot_speak_to_the_terminal(
    shared: DaemonProcess, tmp_path: Path
) -> None:
    own = shared.home
    root = make_project(
        tmp_path / "evil",
        'project: {name: "x\\e]0;owned\\a\\e[2J"}\n'
        'primary: {model: default, system_prompt: x, description: "\\e[31m"}\n',
    )
    _json(own, "project", "load", "--trust", str(root))
    for arguments in (("project", "list"), ("project", "show", str(root)), ("audit", "tail")):
        _, painted = on_terminal(own, *arguments, NO_COLOR="1")
        assert "\x1b]0" not in painted
        assert "\x1b[2J" not in painted
        assert "\x07" not in painted


def test_the_launch_link_and_the_token_work(shared: DaemonProcess) -> None:
    own = shared.home
    token = kaged(own, "daemon", "token").stdout.strip()
    link = kaged(own, "daemon", "open", "--print").stdout.strip()
    base = link.partition("/api/")[0]
    with httpx.Client(trust_env=False, timeout=60) as browser:
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


def test_doctor_looks_for_itself_and_asks_a_running_daemon(
    own: Path, shared: DaemonProcess
) -> None:
    alone = {row["id"]: row["status"] for row in _json(own, "doctor")["rows"]}
    assert alone["store"] == "ok"
    assert "cage.bwrap" in alone
    asked = {row["id"]: row for row in _json(shared.home, "doctor")["rows"]}
    assert set(alone) <= set(asked)
    assert f"running, pid {shared.pid}" in asked["daemon"]["cause"]
    # What an ordinary user's machine cannot enforce is said plainly, and alike by both.
    limits, row = _json(shared.home, "status")["limits"], asked["cage.limits"]
    backend = limits.removeprefix("by ").partition(";")[0].partition(",")[0]
    assert row["cause"].startswith(f"by {backend}")
    assert ("WEAKER" in limits) is (row["status"] == "warn")
    assert bool(row["fix"]) is (row["status"] == "warn")


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


def test_a_sqlite_url_is_where_the_data_goes(start: Start, own: Path, tmp_path: Path) -> None:
    file = tmp_path / "elsewhere.db"
    config = f'[daemon]\nbind = "127.0.0.1:0"\n[storage]\nurl = "sqlite:///{file}"\n'
    start(config=config, forked=True)
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
