"""The pipeline file of a running daemon: faulty ones, mended ones, and what operators are told."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from requirements.marker import whole
from whole.harness.conversation import begin, say_to
from whole.harness.daemon import Daemon, wait_for
from whole.harness.model import ModelServer, call, say
from whole.harness.policies import POST, PRE, PolicySite, entry, gives, spy
from whole.harness.project import Project

SOURCE = """
class Refuses(Plugin):
    def __init__(self, config):
        raise RuntimeError("I will not")

    async def tool_pre_invoke(self, payload, context): ...
"""
DENIES = gives(
    "PluginResult(continue_processing=False, violation=PluginViolation('not that', 'd', 'C'))"
    " if payload.args['path'] == 'danger.txt' else None",
    name="guard",
)
FAULTY = (
    {**spy("misspelt"), "capabilities": ["read_header"]},
    entry("stubborn", "Refuses"),
    DENIES,
)


def lines(site: PolicySite, *keys: str) -> list[int]:
    """Return the lines of the file that hold these texts."""
    text = site.file.read_text(encoding="utf-8").splitlines()
    return [next(n for n, one in enumerate(text, 1) if key in one) for key in keys]


def pipeline_row(daemon: Daemon) -> dict[str, Any]:
    """Return what doctor says about the pipeline."""
    (row,) = [one for one in daemon.get("/doctor")["rows"] if one["id"] == "pipeline"]
    return dict(row)


@pytest.fixture
def place(tmp_path: Path) -> PolicySite:
    """Return a pipeline file for a daemon of the test's own."""
    return PolicySite(tmp_path / "policies")


def hang_up(daemon: Daemon) -> dict[str, Any]:
    """Let a daemon read its configuration again, and wait until it has."""
    before = len(daemon.audit("daemon.config_reloaded"))
    os.kill(daemon.pid, signal.SIGHUP)
    rows = wait_for(
        lambda: found if len(found := daemon.audit("daemon.config_reloaded")) > before else None
    )
    assert rows is not None
    data: dict[str, Any] = rows[-1]["data"]
    return data


@whole("EX-AMB-24")
def test_a_faulty_file_is_reported_whole_and_its_hooks_are_closed_until_it_is_mended(
    own: Callable[..., Daemon], place: PolicySite, tmp_path: Path, model: ModelServer
) -> None:
    place.write(*FAULTY, source=SOURCE)
    daemon = own(config=place.config_toml())
    daemon.start()
    place.daemon = daemon
    project = daemon.load(Project(tmp_path / "work"))
    for name in ("a.txt", "danger.txt"):
        project.write(name, "one\n")

    # Both problems with their lines, wherever operators look.
    wait_for(place.loads)
    (loaded,) = place.loads()
    assert loaded["data"]["in_force"] is False
    first, second = loaded["data"]["problems"]
    at = lines(place, "capabilities:", "name: stubborn")
    assert f"{place.file}:{at[0]}:" in first
    assert "'misspelt'" in first
    assert "read_header" in first
    assert f"{place.file}:{at[1]}:" in second
    assert "I will not" in second
    (warning,) = [one for one in daemon.get("/status")["warnings"] if "pipeline" in one]
    row = pipeline_row(daemon)
    assert row["status"] == "fail"
    assert f"{PRE} are refused" in row["cause"]
    for word in ("read_header", "I will not"):
        assert word in warning
        assert word in row["cause"]
    checked = daemon.cli("pipeline", "check", "--json", code=6).json
    assert [one["line"] for one in checked["problems"]] == at

    # A call that the file covers is refused, and says which file; an agent's too.
    refused = project.fail("file.read", path="a.txt")
    assert refused["code"] == "pipeline_not_ready"
    assert str(place.file) in refused["message"]
    model.play("dunnart-closed", call("file.read", path="a.txt"), say("No."))
    say_to(project, begin(project), "dunnart-closed")
    assert "pipeline_not_ready" in str(model.asked("dunnart-closed")[-1]["messages"][-1])

    # With the switch the sound policy runs and the faulty ones are left out.
    text = (daemon.home / "config.toml").read_text(encoding="utf-8")
    daemon.write("config.toml", text + "lenient = true\n")
    hang_up(daemon)
    assert project.call("file.read", path="a.txt")["content"] == "1: one"
    assert "not that" in project.fail("file.read", path="danger.txt")["message"]
    assert pipeline_row(daemon)["status"] == "warn"

    # Mended, without the switch.
    daemon.write("config.toml", text)
    place.write(DENIES, spy("spy"), source=SOURCE)
    hang_up(daemon)
    assert pipeline_row(daemon)["status"] == "ok"
    assert project.call("file.read", path="a.txt")["content"] == "1: one"

    # Faulty again: the plan before works on, also for the second try.
    place.write(*FAULTY, source=SOURCE)
    for _ in range(2):
        assert len(hang_up(daemon)["problems"]) == 2
        assert project.call("file.read", path="a.txt")["content"] == "1: one"
        assert "not that" in project.fail("file.read", path="danger.txt")["message"]
        row = pipeline_row(daemon)
        assert (row["status"], "old file is in force" in row["cause"]) == ("warn", True)


@whole("EX-AMB-24")
@pytest.mark.parametrize("broken", ["missing", "plugins: ["])
def test_a_file_that_cannot_be_read_closes_every_hook_and_the_daemon_still_starts(
    own: Callable[..., Daemon], place: PolicySite, tmp_path: Path, broken: str
) -> None:
    if broken == "missing":
        place.file.unlink()
    else:
        place.file.write_text(broken, encoding="utf-8")
    daemon = own(config=place.config_toml())
    daemon.start()
    project = daemon.load(Project(tmp_path / "work"))
    project.write("a.txt", "one\n")
    assert project.fail("file.read", path="a.txt")["code"] == "pipeline_not_ready"
    row = pipeline_row(daemon)
    assert (row["status"], "every hook" in row["cause"]) == ("fail", True)


@whole("EX-AMB-24")
def test_calls_on_hooks_that_a_faulty_file_does_not_name_go_on(
    own: Callable[..., Daemon], place: PolicySite, tmp_path: Path, model: ModelServer
) -> None:
    place.write({**spy("misspelt", hooks=["agent_pre_invoke"]), "capabilities": ["nonsense"]})
    daemon = own(config=place.config_toml())
    daemon.start()
    project = daemon.load(Project(tmp_path / "work"))
    project.write("a.txt", "one\n")
    assert project.call("file.read", path="a.txt")["content"] == "1: one"
    model.play("possum-closed", say("Never said."))
    run = say_to(project, begin(project), "possum-closed")
    assert run["status"] == "failed"
    assert model.asked("possum-closed") == []


@whole("EX-AMB-18", "EX-AMB-24")
def test_a_policy_after_the_tool_closes_calls_too_while_it_is_faulty(
    own: Callable[..., Daemon], place: PolicySite, tmp_path: Path
) -> None:
    place.write(entry("odd", "Spy", hooks=[POST, "tool_pre_invok"]))
    daemon = own(config=place.config_toml())
    daemon.start()
    project = daemon.load(Project(tmp_path / "work"))
    refused = project.fail("file.create", path="made.txt", content="x")
    assert refused["code"] == "pipeline_not_ready"
    row = pipeline_row(daemon)
    assert POST in row["cause"]
    assert "tool_pre_invok'" in row["cause"]
