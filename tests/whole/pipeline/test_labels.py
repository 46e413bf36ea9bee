"""Labels stay with the session whose data they are on, and later calls are judged by them.

An agent reads a file of customers. From then on nothing may leave through tools that reach the
network: in the same run, in the next one, after a compaction, a fork or a restart, and not by way
of a subagent either.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from whole.harness.conversation import begin, entries, say_to
from whole.harness.daemon import Daemon, wait_for
from whole.harness.model import ModelServer, call, say
from whole.harness.policies import PRE, PolicySite, spy
from whole.harness.project import Project
from whole.pipeline.egress import CLASSIFIER, GUARD

CALCULATOR = Path(__file__).parents[2] / "guests" / "mcp_tool_server.py"
LIBRARIES = next(one for one in sys.path if one.endswith("site-packages"))
READS, LEAVES = call("file.read", path="customers.txt"), call("shell.bash", command="true")
NET_CAGE = {
    "fs": [{"mode": "rw", "path": "."}],
    "net": {"allow": ["127.0.0.1:9"]},
    "capabilities": ["shell"],
}


@pytest.fixture(scope="module")
def settings() -> str:
    """Return two outside servers: one as it comes, one whose results the operator trusts."""
    command = json.dumps([sys.executable, str(CALCULATOR)])
    rest = (
        f'env = {{ PYTHONPATH = "{LIBRARIES}" }}\n'
        f'cage = {{ fs = [{{ mode = "ro", path = "{LIBRARIES}" }}, '
        f'{{ mode = "ro", path = "{CALCULATOR}" }}], limits = {{ memory_mb = 1024 }} }}\n'
    )
    return (
        f"[mcp.servers.calc]\ncommand = {command}\n{rest}"
        f'[mcp.servers.house]\ncommand = {command}\nlabels = ["house"]\n{rest}'
    )


@pytest.fixture(scope="module")
def office(daemon: Daemon, site: PolicySite, module_path: Path) -> Project:
    """Return a project whose agents reach one address, with the guard in force."""
    site.put(CLASSIFIER, GUARD, spy("spy", "read_labels", hooks=[PRE, "cmf.llm_input"]))
    helper = {"model": "default", "system_prompt": "You help.", "cage": NET_CAGE, "tools": TOOLS}
    made = daemon.load(Project(module_path / "office", cage=NET_CAGE, subagents={"helper": helper}))
    made.write("customers.txt", "ada@example.org\n")
    made.write("hours.txt", "We open at nine.\n")
    return made


TOOLS = {"file.*": {"enabled": True}, "shell.*": {"enabled": True}}


def outcomes(project: Project, session: str) -> list[tuple[str, str]]:
    """Return how the tool calls of a session ended, oldest first."""
    rows = wait_for(lambda: project.get(f"/sessions/{session}/tool-calls")["items"])
    return [
        (one["tool_name"], one["status"]) for one in sorted(rows, key=lambda one: one["request_id"])
    ]


def run(project: Project, model: ModelServer, word: str, *turns: Any, session: str = "") -> str:
    """Let an agent do something; returns the session."""
    model.play(word, *turns, say("Done."))
    place = session or begin(project)
    assert say_to(project, place, word)["status"] == "completed"
    return place


def leaving(project: Project, session: str) -> list[str]:
    """Return how the attempts to leave ended."""
    return [status for name, status in outcomes(project, session) if name == "shell.bash"]


@pytest.fixture
def labelled(office: Project, model: ModelServer, request: pytest.FixtureRequest) -> str:
    """Return a session in which the agent has read the customers."""
    word = f"marmot-{request.node.name}"
    model.play(word, READS, say("Read."))
    session = begin(office)
    say_to(office, session, word)
    return session


def test_a_command_without_labelled_data_passes(office: Project, model: ModelServer) -> None:
    session = run(office, model, "lynx-plain", call("file.read", path="hours.txt"), LEAVES)
    assert leaving(office, session) == ["completed"]


def test_what_was_read_does_not_leave_in_the_same_run(
    daemon: Daemon, office: Project, model: ModelServer
) -> None:
    session = run(office, model, "lynx-same", LEAVES, READS, LEAVES)
    assert leaving(office, session) == ["completed", "denied"]
    last = [one for one in daemon.audit("tool.denied") if one["data"]["denied_by"] == "egress"][-1]
    assert "data labelled pii may not leave" in last["data"]["detail"]
    (row,) = [
        one["data"]
        for one in daemon.audit("session.labelled")
        if one["data"]["session_id"] == session
    ]
    assert (row["labels"], row["source"]) == (["pii"], "file.read")


def test_the_next_run_is_held_to_it_and_another_session_is_not(
    office: Project, model: ModelServer, labelled: str
) -> None:
    run(office, model, "lynx-next", LEAVES, session=labelled)
    assert leaving(office, labelled) == ["denied"]
    other = run(office, model, "lynx-other", LEAVES)
    assert leaving(office, other) == ["completed"]


def test_a_label_is_written_once(office: Project, model: ModelServer, labelled: str) -> None:
    run(office, model, "lynx-twice", READS, READS, session=labelled)
    kinds = [one["content"].get("kind") for one in entries(office, labelled)]
    assert kinds.count("kaged.labels") == 1


def test_a_fork_has_the_labels_of_what_it_shares(
    office: Project, model: ModelServer, labelled: str
) -> None:
    all_entries = entries(office, labelled)
    asked = next(one["id"] for one in all_entries if one["role"] == "user")
    before = office.post(f"/sessions/{labelled}/fork", {"at": asked})["session"]["id"]
    after = office.post(f"/sessions/{labelled}/fork", {"at": all_entries[-1]["id"]})["session"][
        "id"
    ]
    run(office, model, "lynx-before", LEAVES, session=before)
    run(office, model, "lynx-after", LEAVES, session=after)
    assert (leaving(office, before), leaving(office, after)) == (["completed"], ["denied"])


def test_a_compaction_takes_the_words_and_leaves_the_label(
    daemon: Daemon, office: Project, model: ModelServer, labelled: str
) -> None:
    for number in range(4):
        run(office, model, f"lynx-talk-{number}", session=labelled)
    daemon.cli("session", "compact", labelled, "--project", str(office.root))
    assert any(one["kind"] == "compaction" for one in entries(office, labelled))
    run(office, model, "lynx-compacted", LEAVES, session=labelled)
    assert leaving(office, labelled) == ["denied"]


def test_a_subagent_is_held_to_what_its_caller_read_and_the_other_way_round(
    office: Project, model: ModelServer, labelled: str
) -> None:
    model.play("okapi-down", LEAVES, say("Tried."))
    run(office, model, "lynx-down", call("agent-helper", message="okapi-down"), session=labelled)
    assert leaving(office, labelled) == ["denied"]
    model.play("okapi-up", READS, say("Read."))
    up = run(office, model, "lynx-up", call("agent-helper", message="okapi-up"), LEAVES)
    assert leaving(office, up) == ["denied"]


def test_policies_of_the_model_see_the_labels_too(
    office: Project, model: ModelServer, site: PolicySite
) -> None:
    before = len(site.seen("spy", "cmf.llm_input"))
    run(office, model, "lynx-model", READS)
    seen = site.seen("spy", "cmf.llm_input")[before:]
    labels = [one["extensions"]["security"]["labels"] for one in seen]
    assert labels[0] == []
    assert labels[-1] == ["pii"]


def test_results_of_outside_servers_are_untrusted_unless_the_operator_says_otherwise(
    daemon: Daemon, office: Project, model: ModelServer, site: PolicySite
) -> None:
    wait_for(lambda: all(one["tools"] for one in daemon.get("/mcp/servers")["servers"]))
    add = {"a": 1, "b": 2}
    run(office, model, "lynx-calc", call("calc.add", **add), call("file.read", path="hours.txt"))
    assert _last_labels(site, "file.read") == ["untrusted"]
    run(office, model, "lynx-house", call("house.add", **add), call("file.read", path="hours.txt"))
    assert _last_labels(site, "file.read") == ["house"]


def _last_labels(site: PolicySite, tool: str) -> list[str]:
    seen = [one for one in site.seen("spy", PRE) if one["payload"]["name"] == tool]
    labels: list[str] = seen[-1]["extensions"]["security"]["labels"]
    return labels


def test_a_restart_keeps_them(
    daemon: Daemon, office: Project, model: ModelServer, site: PolicySite, labelled: str
) -> None:
    daemon.kill()
    daemon.start()
    wait_for(site.loads)
    run(office, model, "lynx-restart", LEAVES, session=labelled)
    assert leaving(office, labelled) == ["denied"]
