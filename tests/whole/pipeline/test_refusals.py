"""What a refusal of a policy tells: to callers by HTTP, MCP and command, and to the audit log.

And what a person sees of a call that waits for them: in `kaged run`, with the command to answer.
"""

from __future__ import annotations

import concurrent.futures
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from whole.harness.daemon import PATIENCE_S, Daemon, wait_for
from whole.harness.mcp import python
from whole.harness.model import ModelServer, call, say
from whole.harness.people import FRONT_END, Guest, Person
from whole.harness.plugin import PluginFolder
from whole.harness.policies import PRE, PolicySite, gives, spy
from whole.harness.project import Project
from whole.harness.screen import ENTER, Screen
from whole.harness.talk import fresh

LATER = gives(
    "PluginResult(continue_processing=False, retry_delay_ms=90_500, violation=PluginViolation("
    "reason='closed', description='The archive opens at nine.', code='closed_now'))"
    " if payload.name in ('file.read', 'stub.a.b') else None",
    name="hours",
)
ASKS = gives(
    "PluginResult(continue_processing=False, violation=PluginViolation("
    "reason='look first', description='', code='approval_required'))"
    " if payload.name == 'file.write' and 'approved:asks' not in ext.meta.tags else None",
    name="asks",
)
WORDS = "the policy hours refused: closed (The archive opens at nine.)"


@pytest.fixture(scope="module")
def settings() -> str:
    return FRONT_END


@pytest.fixture(scope="module")
def stub(daemon: Daemon, module_path: Path) -> PluginFolder:
    made = PluginFolder(daemon, module_path / "stub", {"on": {"a.b": [{"echo": True}]}})
    made.run()
    return made


@pytest.fixture(scope="module")
def ann(daemon: Daemon) -> Iterator[Guest]:
    made = Guest(daemon, Person("ann", "private", "chat-ann"))
    yield made
    made.close()


def read(project: Project, daemon: Daemon) -> httpx.Response:
    """Ask for a file that policies keep."""
    body = {"agent": "primary", "tool": "file.read", "params": {"path": "a.txt"}}
    return daemon.client.post(f"/api/v1/projects/{project.id}/tools/call", json=body)


def is_told(data: dict[str, Any]) -> None:
    assert data["policy"] == "hours"
    assert data["description"] == "The archive opens at nine."
    assert data["reason_code"] == "closed_now"
    assert data["retry_after_s"] == 91


def test_a_refusal_carries_the_description_and_when_to_try_again(
    daemon: Daemon, shared: Project, site: PolicySite
) -> None:
    site.put(LATER)
    got = read(shared, daemon)
    assert got.headers["retry-after"] == "91"
    error = got.json()["error"]
    assert error["message"] == WORDS
    assert error["data"]["fix"] == "try again in 90.5 s"
    is_told(error["data"])
    (_, answer) = python(
        daemon, shared, ("callTool", {"name": "file_read", "arguments": {"path": "a.txt"}})
    )
    assert answer["result"]["isError"]
    is_told(answer["result"]["_meta"]["kaged/error"])
    assert WORDS in answer["result"]["content"][0]["text"]
    done = daemon.cli("tool", "call", "file.read", "path=a.txt", cwd=shared.root, code=None)
    assert done.code != 0
    assert WORDS in done.err
    assert "try again in 90.5 s" in done.err
    # Another call is not affected, and has no such header.
    site.put(spy("spy"))
    assert "retry-after" not in read(shared, daemon).headers


def test_a_refused_method_call_is_on_record_with_method_plugin_and_person(
    daemon: Daemon, site: PolicySite, stub: PluginFolder, ann: Guest
) -> None:
    site.put(LATER)
    got = ann.ask("POST", "/plugins/stub/call/a.b", {"q": 1})
    assert got.status_code == 403
    assert got.headers["retry-after"] == "91"
    is_told(got.json()["error"]["data"])
    stub.fail("a.b", q=1)
    rows = daemon.audit("plugin.method_denied")
    assert rows[0]["data"]["operator_id"] == "ann"
    assert rows[0]["data"]["operator_id"] != rows[1]["data"]["operator_id"]
    for row in rows:
        assert (row["data"]["name"], row["data"]["method"]) == ("stub", "a.b")
        assert (row["data"]["denied_by"], row["data"]["hook"]) == ("hours", PRE)
    assert rows[0]["request_id"] == got.json()["error"]["request_id"]
    called = [one["data"]["request_id"] for one in daemon.audit("plugin.method_called")]
    assert rows[0]["request_id"] not in called


@pytest.mark.parametrize("command", ["run", "chat"])
def test_a_call_that_waits_is_answered_where_its_run_is_followed(
    daemon: Daemon, shared: Project, site: PolicySite, model: ModelServer, command: str
) -> None:
    site.put(ASKS)
    word = fresh()
    model.play(word, call("file.write", path=f"{word}.txt", content="x\n"), say("Written."))
    words = ("run", f"{word} please") if command == "run" else ("chat", "--new")
    with Screen(daemon, *words, cwd=shared.root) as screen:
        if command == "chat":
            screen.until("/help")
            screen.type(f"{word} please", ENTER)
        screen.until("waits for a person: Let primary call file.write?", "1. yes", "3. no")
        assert not (shared.root / f"{word}.txt").exists()
        screen.type("1", ENTER)
        screen.until("Written.", "completed in 2 steps")
        screen.type("\x04")
        assert screen.wait() == 0
    assert (shared.root / f"{word}.txt").exists()


def test_a_call_that_waits_is_shown_with_the_command_to_answer_and_counts_once(
    daemon: Daemon, shared: Project, site: PolicySite, model: ModelServer
) -> None:
    limit = {
        "name": "limit",
        "kind": "kaged.pipeline.policies.SubjectRateLimit",
        "hooks": [PRE],
        "capabilities": ["read_subject"],
        "config": {"rate": "2/d", "tools": ["file.write"]},
    }
    site.put(limit, ASKS)
    for number, word in enumerate(("dormouse-one", "dormouse-two", "dormouse-three")):
        model.play(word, call("file.write", path=f"w{number}.txt", content="x\n"), say("Done."))
        question: dict[str, Any] = {}
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            run = pool.submit(daemon.cli, "run", word, cwd=shared.root)

            def asked() -> list[dict[str, Any]]:
                found = daemon.get("/inbox?kind=call_approval&state=pending")["items"]
                return list(found)

            if number < 2:
                (question,) = wait_for(asked, "the question")
                daemon.cli("inbox", "choose", question["id"], "yes")
            done = run.result(PATIENCE_S)
        if number < 2:
            assert "waits for a person: Let primary call file.write?" in done.err
            assert f"kaged inbox choose {question['id']} yes|session|no" in done.err
            assert "look first" in done.err.lower()
            assert (shared.root / f"w{number}.txt").exists()
    # The third is refused by the limit: the two that waited were counted once each.
    assert not (shared.root / "w2.txt").exists()
    denied = daemon.audit("tool.denied")[-1]["data"]
    assert denied["denied_by"] == "limit"
    assert "too many calls" in json.dumps(denied)
