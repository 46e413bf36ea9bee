"""What the operator sets about cages, the log and the opening of projects, in a running daemon."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from whole.harness.daemon import Daemon, wait_for
from whole.harness.model import ModelServer
from whole.harness.plugin import PluginFolder
from whole.harness.plugin_relay import Relay
from whole.harness.policies import PolicySite, entry
from whole.harness.project import Project

WAITS = """
import asyncio, os


class Waits(Plugin):
    async def initialize(self):
        while not os.path.exists(self.config.config["mark"]):
            await asyncio.sleep(0.02)

    async def tool_pre_invoke(self, payload, context):
        return None
"""
RUNTIME = """#!/usr/bin/env python3
import runpy, sys
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
WRITE = "kaged:storage:write"


@pytest.fixture(scope="module")
def limited(module_path: Path, model: ModelServer) -> Iterator[Daemon]:
    """Yield a daemon whose operator has set limits, a runtime and a log of its own."""
    python = module_path / "programs" / "own-python"
    python.parent.mkdir()
    python.write_text(RUNTIME, encoding="utf-8")
    python.chmod(0o755)
    made = Daemon(
        module_path / "h",
        config=(
            f'[logging]\nlevel = "debug"\nformat = "text"\nfile = "{module_path}/kaged.log"\n'
            f'[sandbox.runtimes]\nown-python = "{python}"\n'
            "[sandbox.agent_limits]\nfile_size_mb = 1\ntmpfs_mb = 2\n"
            "[plugins]\nstorage_mb = 64\n[plugins.storage_mb_of]\nsmall = 1\n"
        ),
        local=model.local_toml(),
    )
    made.start()
    yield made
    made.close()


def test_an_agents_files_and_scratch_space_end_where_the_operator_says(
    limited: Daemon, tmp_path: Path
) -> None:
    cage = {"fs": [{"mode": "rw", "path": "."}], "capabilities": ["shell"]}
    project = limited.load(Project(tmp_path / "p", cage=cage))
    for place, count, whole in (
        ("here", 1, True),
        ("here", 3, False),
        ("/tmp/a", 1, True),
        ("/tmp/a /tmp/b /tmp/c", 1, False),
    ):
        files = " && ".join(
            f"dd if=/dev/zero of={one} bs=1M count={count}" for one in place.split()
        )
        ran = project.call("shell.bash", command=files)
        assert (ran["exit_code"] == 0) is whole, (place, count, ran)
    assert (project.root / "here").stat().st_size == 1024 * 1024


def test_a_plugin_runs_with_a_program_that_the_operator_names(
    limited: Daemon, tmp_path: Path
) -> None:
    behaviour = {"on": {"a.b": [{"result": "ran"}]}}
    command = ["own-python", "./main.py"]
    folder = PluginFolder(limited, tmp_path / "own", behaviour, name="own", command=command)
    assert folder.run()["state"] == "running", folder.state()
    assert folder.call() == "ran"
    other = PluginFolder(
        limited, tmp_path / "oth", behaviour, name="oth", command=["other-python", "./main.py"]
    )
    assert other.run()["state"] == "failed"


def test_one_plugin_has_less_room_than_the_others(limited: Daemon, tmp_path: Path) -> None:
    for name, fits in (("small", False), ("large", True)):
        relay = Relay(limited, tmp_path, name, WRITE)
        relay.exec("CREATE TABLE notes (text TEXT)")
        insert = "INSERT INTO notes VALUES (zeroblob(600000))"
        last = [relay.ask("kaged.storage.exec", sql=insert) for _ in range(3)][-1]
        assert ("result" in last) is fits, (name, last)


def test_the_log_goes_where_and_as_the_operator_says(limited: Daemon, module_path: Path) -> None:
    lines = wait_for((module_path / "kaged.log").read_text)
    assert "[debug" in lines
    assert '{"' not in lines.splitlines()[0]
    assert oct((module_path / "kaged.log").stat().st_mode & 0o777) == "0o600"
    assert limited.log() == ""


def test_without_cages_an_agents_commands_see_everything_and_status_says_so(
    own: Callable[..., Daemon], tmp_path: Path
) -> None:
    daemon = own(config="[sandbox]\nno_sandbox = true\n")
    daemon.start()
    (tmp_path / "outside.txt").write_text("seen", encoding="utf-8")
    cage = {"fs": [{"mode": "rw", "path": "."}], "capabilities": ["shell"]}
    project = daemon.load(Project(tmp_path / "p", cage=cage))
    ran = project.call("shell.bash", command=f"cat {tmp_path}/outside.txt")
    assert ran["stdout"].strip() == "seen"
    assert any("NO SANDBOX" in one for one in daemon.get("/status")["warnings"])
    assert "NO SANDBOX" in daemon.cli("status").err
    daemon.write("config.toml", (daemon.home / "config.toml").read_text().replace("true", "false"))
    daemon.restart()
    project.daemon = daemon
    ran = project.call("shell.bash", command=f"cat {tmp_path}/outside.txt")
    assert ran["exit_code"] != 0
    assert "seen" not in str(ran)


def test_a_project_whose_policies_do_not_come_is_refused_after_the_time_the_operator_gives(
    own: Callable[..., Daemon], tmp_path: Path
) -> None:
    site = PolicySite(tmp_path / "policies")
    mark = tmp_path / "marks" / "go"
    mark.parent.mkdir()
    options = {"class_name": "Waits", "mark": str(mark), "cage": {"read": [str(mark.parent)]}}
    site.write(entry("waits", "caged", config=options), source=WAITS)
    daemon = own(config=site.config_toml("[daemon]\nopening_seconds = 1\n"))
    daemon.start()
    project = daemon.load(Project(tmp_path / "p"))
    project.write("a.txt", "one\n")
    refused = project.fail("file.read", path="a.txt")
    assert (refused["status"], refused["code"]) == (503, "project_opening")
    assert refused["data"]["missing"], refused
    assert project.get("")["readiness"]["state"] == "opening"
    mark.touch()
    wait_for(lambda: project.get("")["readiness"]["state"] == "open")
    assert project.call("file.read", path="a.txt")["content"] == "1: one"


@pytest.mark.parametrize("demanded", [False, True])
def test_no_cage_starts_with_weaker_limits_than_the_operator_demands(
    own: Callable[..., Daemon], tmp_path: Path, demanded: bool
) -> None:
    daemon = own(config="[sandbox]\nrequire_limits = true\n" if demanded else "")
    daemon.start()
    cage = {"capabilities": ["shell"], "fs": [{"mode": "rw", "path": "."}]}
    project = daemon.load(Project(tmp_path / "p", cage=cage))
    said = daemon.cli("doctor", "--json", code=None).json["rows"]
    (row,) = [one for one in said if one["id"] == "cage.limits"]
    if row["status"] == "ok" or not demanded:
        assert row["status"] in ("ok", "warn")
        assert project.call("shell.bash", command="echo ran")["stdout"] == "ran\n"
        return
    assert row["status"] == "fail"
    assert "memfd" in row["cause"]
    for _ in range(2):
        refused = project.fail("shell.bash", command="echo ran > ran.txt")
        assert refused["code"] == "shell_spawn_failed"
        assert "require_limits" in refused["message"]
        assert "kaged doctor" in str(refused["data"])
    assert not (project.root / "ran.txt").exists()
    project.call("file.write", path="still.txt", content="works")  # needs no cage of its own


def test_an_agents_cage_has_room_for_builds_and_doctor_says_how_much(
    daemon: Daemon, limited: Daemon, tmp_path: Path
) -> None:
    def told(where: Daemon) -> str:
        rows = where.get("/doctor")["rows"]
        (row,) = [one for one in rows if one["id"] == "agent limits"]
        assert row["status"] == "ok"
        assert "[sandbox.agent_limits]" in row["cause"]
        return str(row["cause"])

    cage = {"fs": [{"mode": "rw", "path": "."}], "capabilities": ["shell"]}
    project = daemon.load(Project(tmp_path / "room", cage=cage))
    size = "df -m --output=size /tmp | tail -1; ulimit -n"
    tmp_mb, files = project.call("shell.bash", command=size)["stdout"].split()
    # More than the 64 MiB and 1024 files of a plugin, and what doctor says.
    assert int(tmp_mb) > 200
    assert int(files) == 4096
    assert f"{tmp_mb} MiB of /tmp" in told(daemon)
    assert "2 MiB of /tmp, files of 1 MiB" in told(limited)
