"""`agent.turn` and `agent.input` of work that goes on after an answer and after a restart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from whole.harness.conversation import begin, ended, say_to, send
from whole.harness.daemon import Daemon, wait_for
from whole.harness.model import ModelServer, call, say
from whole.harness.policies import PRE, PolicySite, spy
from whole.harness.project import Project

QUESTION = {"questions": [{"id": "q", "title": "Which?", "options": []}]}
READS = call("file.read", path="a.txt")


@pytest.fixture
def watched(site: PolicySite, shared: Project) -> Project:
    """Return the module's project under a policy that notes where agents are."""
    site.put(spy("spy", "read_agent", hooks=[PRE, "agent_pre_invoke", "cmf.llm_output"]))
    return shared


def places(site: PolicySite, hook: str) -> list[tuple[str, int | None, str | None]]:
    """Return agent, turn and input at each call of a hook, oldest first."""
    found: list[dict[str, Any]] = [one["extensions"]["agent"] for one in site.seen("spy", hook)]
    return [(one["agent_id"], one["turn"], one["input"]) for one in found]


def answer(project: Project, session: str) -> dict[str, Any]:
    """Answer what the session asks and wait for the end of the run that goes on."""
    (asked,) = wait_for(lambda: project.get("/interactions?status=pending")["items"])
    project.post(f"/interactions/{asked['request_id']}/answer", {"answers": {"q": "this"}})

    def done() -> list[dict[str, Any]]:
        rows = project.get(f"/sessions/{session}/runs")["items"]
        return [one for one in rows[:1] if one["cause"] == "answer" and one["ended_at"]]

    return wait_for(done)[0]


def test_the_count_goes_on_after_an_answer_and_begins_anew_with_a_message(
    watched: Project, site: PolicySite, model: ModelServer
) -> None:
    model.play("numbat-asks", READS, call("kaged.ask", **QUESTION), READS, say("Done."))
    session = begin(watched)
    assert say_to(watched, session, "numbat-asks")["status"] == "paused"
    assert answer(watched, session)["status"] == "completed"
    assert [turn for _, turn, _ in places(site, "cmf.llm_output")] == [1, 2, 3, 4]
    assert {one[2] for one in places(site, PRE)} == {"numbat-asks"}
    assert [turn for _, turn, _ in places(site, PRE)] == [1, 2, 3]
    model.play("numbat-again", say("Once more."))
    say_to(watched, session, "numbat-again")
    assert places(site, "cmf.llm_output")[-1][1:] == (1, "numbat-again")


def test_a_subagent_is_told_what_its_caller_asked_and_counts_its_own_turns(
    watched: Project, site: PolicySite, model: ModelServer
) -> None:
    model.play("bilby-below", READS, say("Read."))
    model.play("bilby-above", READS, call("agent-reader", message="bilby-below"), say("Done."))
    say_to(watched, begin(watched), "bilby-above")
    assert places(site, "agent_pre_invoke") == [
        ("primary", None, "bilby-above"),
        ("primary/reader", None, "bilby-below"),
    ]
    assert places(site, PRE) == [
        ("primary", 1, "bilby-above"),
        ("primary", 2, "bilby-above"),
        ("primary/reader", 1, "bilby-below"),
    ]


def test_the_count_goes_on_after_a_restart(
    daemon: Daemon, watched: Project, site: PolicySite, model: ModelServer, module_path: Path
) -> None:
    cage = {"fs": [{"mode": "rw", "path": "."}], "capabilities": ["shell"]}
    project = daemon.load(Project(module_path / "long", cage=cage))
    project.write("a.txt", "one\n")
    model.play("quoll-cut", READS, call("shell.bash", command="sleep 600"), READS, say("Done."))
    session = begin(project)
    run = send(project, session, "quoll-cut")
    wait_for(lambda: len(places(site, PRE)) == 2)
    loads = len(site.loads())
    daemon.kill()
    daemon.start()
    wait_for(lambda: len(site.loads()) > loads)
    daemon.load(project)
    assert ended(project, session, run)["status"] == "interrupted"
    resumed = project.post(f"/sessions/{session}/resume")["run_id"]
    assert ended(project, session, resumed)["status"] == "completed"
    assert [turn for _, turn, _ in places(site, "cmf.llm_output")] == [1, 2, 3, 4]
    assert {one[2] for one in places(site, "cmf.llm_output")} == {"quoll-cut"}
