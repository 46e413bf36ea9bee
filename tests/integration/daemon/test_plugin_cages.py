"""No setting of anybody's takes a plugin out of its cage, and none gives it a wider one."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from fakes.plugin_lab import BASE_MANIFEST, STUB
from fakes.running_daemon import DaemonProcess, kaged, make_home, make_project
from kaged.base import SystemClock
from kaged.cli.launch import wait_until
from kaged.config import ConfigFileInvalid, Locations
from kaged.config.settings import read_settings
from kaged.diagnostics.cage_views import CageView, CageViews
from kaged.kernel.policy import CageLimits, SeccompProfile
from requirements import requirement

Start = Callable[..., DaemonProcess]
CONFIG = '[daemon]\nbind = "127.0.0.1:0"\n'


def put_plugin(home: Path, name: str, *capabilities: str, **more: Any) -> Path:
    """Put a stub into the store of a home, as an operator does by hand."""
    directory = home / "plugins" / name
    directory.mkdir(parents=True)
    manifest = {**BASE_MANIFEST, "name": name, "capabilities": list(capabilities), **more}
    (directory / "kaged-plugin.yaml").write_text(yaml.safe_dump(manifest), encoding="utf-8")
    shutil.copy(STUB, directory / "main.py")
    behaviour = {"answer": {"name": name}}
    (directory / "behaviour.json").write_text(json.dumps(behaviour), encoding="utf-8")
    return directory


@contextmanager
def served(daemon: DaemonProcess) -> Generator[httpx.Client]:
    """Yield a client of a daemon that has looked into its plugin store."""
    with daemon.client() as client:
        assert wait_until(lambda: bool(client.get("/plugins").json()["items"]), SystemClock())
        yield client


def in_cages(daemon: int) -> list[int]:
    """Return the descendants of a daemon that are bwrap's or below one."""
    parents: dict[int, tuple[int, str]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                name, _, rest = (entry / "stat").read_text(errors="replace").rpartition(")")
            except OSError:
                continue
            parents[int(entry.name)] = (int(rest.split()[1]), name.partition("(")[2])
    found: list[int] = []
    for pid in parents:
        line = [pid]
        while line[-1] in parents and line[-1] != daemon:
            line.append(parents[line[-1]][0])
        if line[-1] == daemon and any(parents[one][1] == "bwrap" for one in line[:-1]):
            found.append(pid)
    return found


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("config.toml", '[sandbox.plugins.stub]\ncage = "disabled"\n'),
        ("config.toml", '[sandbox.plugins.stub]\nseccomp = "relaxed"\n'),
        ("config.toml", '[sandbox.limits]\nseccomp = "relaxed"\n'),
        ("config.toml", '[plugins.stub]\ncage = "disabled"\n'),
        ("local.toml", '[plugins.stub]\ncage = "disabled"\nseccomp = "relaxed"\n'),
    ],
)
@requirement("PH-CAGE-07", "PH-CAGE-10")
def test_no_line_in_the_operators_files_changes_the_kind_of_cage(
    home: Path, file: str, text: str
) -> None:
    make_home(home, CONFIG)
    put_plugin(home, "stub")
    before = _view(home)
    with (home / file).open("a", encoding="utf-8") as end:
        end.write(text)
    (home / file).chmod(0o600)
    try:
        after = _view(home)
    except ConfigFileInvalid:
        return
    assert after.policy == before.policy  # the key is not known and has no effect
    assert after.policy is not None
    assert after.policy.seccomp is SeccompProfile.DEFAULT


@requirement("PH-CAGE-13", "PH-CAGE-10", "PH-CAGE-11")
def test_no_line_in_a_projects_file_changes_a_plugins_cage(
    home: Path, start: Start, tmp_path: Path
) -> None:
    """Not even where the operator's own file frees the agents."""
    make_home(home, CONFIG + "[sandbox]\nno_sandbox = true\n")
    put_plugin(home, "stub")
    text = (
        "version: 1\nproject: sample\nprimary:\n  model: default\n  system_prompt: You help.\n"
        "  cage: {fs: [{mode: rw, path: .}], net: {allow: ['*']}, seccomp: relaxed}\n"
        "  plugins: {stub: {package: stub%s}}\n"
    )
    with served(start(home, config=None, forked=True)) as client:
        root = make_project(tmp_path / "wide", text % "")
        loaded = client.post("/projects", json={"root": str(root), "trust": True})
        assert loaded.status_code in (200, 201), loaded.text
        enabled = client.post("/plugins/stub/enable").json()
        assert enabled.get("state") == "running", enabled.get("note", enabled)
        found = client.get("/audit", params={"event": "cage.started"}).json()["items"]
    (begun,) = [row["data"] for row in found if row["data"]["what"] == "plugin:stub"]
    assert begun["grants"] == [f"ro {home}/plugins/stub"]
    assert (begun["caged"], begun["network"], begun["seccomp"]) == (True, [], "default")
    for extra in (", cage: disabled", ", cage: {fs: []}", ", capabilities: ['net:*']"):
        bad = make_project(tmp_path / "bad", text % extra)
        assert kaged(home, "project", "check", str(bad)).returncode == 6, extra


@requirement("PH-CAGE-09")
def test_limits_of_all_and_of_single_plugins_come_from_the_configuration(home: Path) -> None:
    put_plugin(home, "one")
    put_plugin(home, "two")
    limits = "[sandbox.limits]\nmemory_mb = 300\npids = 33\n[sandbox.plugins.two]\nmemory_mb = 77\n"
    make_home(home, CONFIG + limits)
    for name, memory in (("one", 300), ("two", 77)):
        policy = _view(home, name).policy
        assert policy is not None
        assert policy.limits == CageLimits(memory_mb=memory, pids=33)


@requirement("PH-CAGE-19")
def test_what_is_the_hosts_or_another_plugins_or_the_kernels_cannot_be_granted(
    home: Path, start: Start
) -> None:
    make_home(home, CONFIG)
    put_plugin(home, "other")
    wanted = [
        "/",
        *("/proc", "/proc/sys", "/sys", "/dev", "/dev/shm", "/run"),
        str(home),
        str(home.parent),
        *(
            str(home / one)
            for one in ("kaged.db", "config.toml", "local.toml", "run", "http-token")
        ),
        str(home / "run" / "kaged.sock"),
        str(home / "plugins"),
        str(home / "plugins" / "other"),
        str(home / "plugins" / "other" / "main.py"),
        str(home.parent / "missing"),
    ]
    (home / "local.toml").write_text("", encoding="utf-8")
    (home / "local.toml").chmod(0o600)
    for number, path in enumerate(wanted):
        put_plugin(home, f"p{number}", f"{'write' if number % 2 else 'read'}:fs:{path}")
    put_plugin(home, "exec", f"exec:git:{home}")
    daemon = start(home, config=None, forked=True)
    with served(daemon) as client:
        for number, path in enumerate(wanted):
            failed = client.post(f"/plugins/p{number}/enable").json()
            assert failed.get("state") == "failed", (path, failed)
            assert path in failed["note"]
            assert failed["pid"] is None
        assert client.post("/plugins/exec/enable").json()["state"] == "failed"
        assert in_cages(daemon.pid) == []
        reasons = client.get("/audit", params={"event": "cage.refused", "limit": 100}).json()
        assert {row["data"]["path"] for row in reasons["items"]} >= set(wanted)
        assert client.post("/plugins/other/enable").json()["state"] == "running"
        assert in_cages(daemon.pid) != []


@requirement("PH-CAGE-16")
def test_without_the_sandbox_tool_a_plugin_fails_and_nothing_is_started(
    home: Path, start: Start, tmp_path: Path
) -> None:
    put_plugin(home, "stub")
    missing = tmp_path / "no-such-bwrap"
    make_home(home, CONFIG + f'[sandbox]\nbwrap = "{missing}"\nno_sandbox = true\n')
    daemon = start(home, config=None, forked=True)
    with served(daemon) as client:
        failed = client.post("/plugins/stub/enable").json()
        assert (failed["state"], failed["pid"]) == ("failed", None)
        assert "bubblewrap" in failed["note"]
        found = client.get("/audit", params={"event": "plugin.failed"}).json()["items"]
        assert [row["data"]["name"] for row in found] == ["stub"]
        assert client.get("/audit", params={"event": "plugin.spawned"}).json()["items"] == []
    plugin = os.fsencode(home / "plugins" / "stub")
    assert [pid for pid in _children(daemon.pid) if plugin in _words(pid)] == []


def _view(home: Path, name: str = "stub") -> CageView:
    environ = {"KAGED_HOME": str(home)}
    settings = read_settings(Locations.from_env(environ), environ)
    return CageViews(settings, environ, home, None).find(name)


def _children(pid: int) -> list[int]:
    return [
        int(word)
        for file in Path(f"/proc/{pid}/task").glob("*/children")
        for word in file.read_text(encoding="ascii").split()
    ]


def _words(pid: int) -> bytes:
    try:
        folder = Path(f"/proc/{pid}")
        return (folder / "cmdline").read_bytes() + (folder / "environ").read_bytes()
    except OSError:
        return b""
