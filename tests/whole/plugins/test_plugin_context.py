"""`_context`: for whom a plugin is called, on every way by which it can be called."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from requirements.marker import whole
from whole.harness.daemon import PATIENCE_S, Daemon, wait_for
from whole.harness.guests import Guest
from whole.harness.model import ModelServer, call, say
from whole.harness.project import Project

FIVE = {"operator_id", "project_id", "agent_path", "session_id", "request_id"}
TOOL = {"name": "look", "description": "Looks.", "parameters_schema": {"type": "object"}}
ECHOES = """
from kit import *
greet()
def on(message):
    if message["method"].startswith("kaged.hook."):
        answer(message, {})
    else:
        answer(message, message["params"])
serve(on)
"""


@dataclass
class Used:
    """A project with a subagent, both of which use the plugin."""

    guest: Guest
    project: Project

    def contexts(self, method: str) -> list[dict[str, Any]]:
        """Return the contexts of the calls of a method."""
        return [one["params"]["_context"] for one in self.guest.heard(method)]


@pytest.fixture(scope="module")
def used(daemon: Daemon, module_path: Path) -> Used:
    """Return a plugin in use."""
    guest = Guest(
        daemon,
        module_path,
        ECHOES,
        name="context",
        tools=[TOOL],
        hooks=["on_session_start", "pre_compact", "post_compact"],
    )
    guest.run()
    project = Project(module_path / "p")
    declared = {"it": {"package": "context"}}
    below = {
        "model": "default",
        "description": "Looks things up.",
        "system_prompt": "Look.",
        "plugins": declared,
        "cage": {"fs": []},
    }
    project.describe(
        plugins=declared,
        subagents={"researcher": {**below, "subagents": {"deep": below}}},
    )
    daemon.load(project)
    guest.await_heard("projects.activated")
    return Used(guest, project)


@whole("PH-CTX-01", "PH-CTX-02", "PH-CTX-04", "PH-AMB-56")
def test_a_call_of_the_daemons_own_has_no_project_agent_or_session(
    daemon: Daemon, used: Used
) -> None:
    for got in (used.guest.call(), daemon.get("/plugins/context/call/a.b")["result"]):
        context = got["_context"]
        assert set(context) == FIVE
        assert context["operator_id"] == "operator"
        assert (context["project_id"], context["agent_path"], context["session_id"]) == (None,) * 3


@whole("PH-CTX-07", "PH-AMB-01", "PH-CTX-12")
def test_every_request_has_an_id_of_its_own_that_the_audit_trail_knows(
    daemon: Daemon, used: Used
) -> None:
    ids = [used.guest.call()["_context"]["request_id"] for _ in range(3)]
    assert all(isinstance(one, str) and one for one in ids)
    assert len(set(ids)) == 3
    for one in ids:
        rows = daemon.audit("plugin.method_called", "plugin.method_returned", request_id=one)
        assert [row["data"]["request_id"] for row in rows] == [one, one]
        called = rows[0]["data"]
        assert {"operator_id", "project_id"} <= set(called)
        assert not {"user_id", "project"} & set(called)


@whole("PH-CTX-10")
@pytest.mark.parametrize(
    "forged",
    [
        {"operator_id": "somebody-else", "request_id": "mine"},
        "text",
        None,
        {"agent_path": "primary", "project_id": "x", "session_id": "y"},
    ],
)
def test_a_context_that_the_caller_sends_is_replaced(used: Used, forged: Any) -> None:
    context = used.guest.call(_context=forged, other=1)["_context"]
    assert set(context) == FIVE
    assert context["operator_id"] == "operator"
    assert context["agent_path"] is None
    assert context["request_id"] != "mine"
    assert used.contexts("a.b")[-1] == context


@whole("PH-CTX-10")
def test_nor_can_an_agent_forge_the_context_of_a_tool(used: Used) -> None:
    forged = {"operator_id": "somebody-else", "agent_path": "primary.subagents.other"}
    before = len(used.guest.heard("context.look"))
    refused = used.project.fail("context.look", _context=forged)
    assert refused["code"] == "invalid_params"
    assert "_context" in refused["message"]
    assert len(used.guest.heard("context.look")) == before


@whole("PH-CTX-05", "PH-CTX-04", "PH-CTX-08")
@pytest.mark.parametrize(
    "agent",
    [
        "primary",
        "primary.subagents.researcher",
        "primary.subagents.researcher.subagents.deep",
    ],
)
def test_a_tool_is_told_the_path_of_its_agent(used: Used, agent: str) -> None:
    context = used.project.call("context.look", agent)["_context"]
    assert set(context) == FIVE
    assert context["agent_path"] == agent
    assert context["project_id"] == used.project.id
    assert isinstance(context["session_id"], str)
    assert context["session_id"]


@whole("PH-CTX-06", "PH-CTX-09", "PH-CTX-01", "PH-METH-18")
def test_hooks_and_tools_of_a_run_name_its_session(
    daemon: Daemon, used: Used, model: ModelServer
) -> None:
    word = "context-of-a-run"
    model.play(word, call("context.look", what="this"), say("done"))
    before = len(used.contexts("context.look"))
    ran = daemon.cli("run", f"{word} please", "--json", cwd=used.project.root)
    tool = used.contexts("context.look")[before:]
    hooks = used.contexts("kaged.hook.on_session_start")
    assert len(tool) == 1
    assert hooks
    for context in (*tool, hooks[-1]):
        assert set(context) == FIVE
        assert context["operator_id"] == "operator"
        assert context["project_id"] == used.project.id
        assert context["agent_path"] == "primary"
        assert context["session_id"] in ran.out
    assert tool[0]["session_id"] == hooks[-1]["session_id"]
    sessions = used.project.get("/sessions")["items"]
    assert tool[0]["session_id"] in {one["id"] for one in sessions}
    assert used.guest.heard("context.look")[-1]["params"]["what"] == "this"
    # A call over HTTP that names the session is made for it.
    headers = {"X-Kaged-Session": tool[0]["session_id"]}
    named = daemon.post("/plugins/context/call/a.b", {}, headers=headers)["result"]["_context"]
    assert named["session_id"] == tool[0]["session_id"]
    assert (named["project_id"], named["agent_path"]) == (used.project.id, "primary")


@whole("PH-AMB-56")
def test_a_session_that_is_not_there_cannot_be_named(daemon: Daemon, used: Used) -> None:
    before = len(used.guest.heard("a.b"))
    headers = {"X-Kaged-Session": "ses_01M7KR9T2HCHRR9F3FBMN1B8JW"}
    got = daemon.client.post("/api/v1/plugins/context/call/a.b", json={}, headers=headers)
    assert got.is_error
    assert len(used.guest.heard("a.b")) == before


@whole("PH-AMB-17")
def test_the_project_of_a_call_is_the_one_that_was_activated(used: Used) -> None:
    (told, *_) = used.guest.heard("projects.activated")
    used.project.call("context.look")
    assert used.contexts("context.look")[-1]["project_id"] == told["params"]["project"]


@whole("PH-CTX-08", "PH-CTX-12", "PH-CTX-02", "PH-AMB-15")
def test_no_call_has_a_context_in_part_and_no_system_message_has_one(used: Used) -> None:
    # The last test that uses this plugin: everything it ever heard.
    used.guest.call()
    seen = 0
    for message in used.guest.heard():
        method, params = message.get("method", ""), message.get("params", {})
        if method in {"a.b", "context.look"} or method.startswith("kaged.hook."):
            context = params["_context"]
            assert set(context) == FIVE
            three = [context[name] for name in ("project_id", "agent_path", "session_id")]
            assert all(three) or three == [None] * 3, context
            assert context["request_id"]
            seen += 1
        else:
            assert "_context" not in params, method
    assert seen >= 10


@whole("PH-CTX-11")
def test_a_plugin_may_take_no_notice_of_its_context(daemon: Daemon, tmp_path: Path) -> None:
    blind = ECHOES.replace('answer(message, message["params"])', "answer(message, 42)")
    guest = Guest(daemon, tmp_path, blind, tools=[TOOL])
    guest.run()
    assert guest.call(a=1) == 42
    project = Project(tmp_path / "p")
    project.describe(plugins={"it": {"package": guest.name}})
    daemon.load(project)
    guest.await_heard("projects.activated")
    assert project.call(f"{guest.name}.look") == 42


def who(daemon: Daemon, base: str, token: str | None, **headers: str) -> Any:
    """Return the operator that a plugin is told about a call over TCP."""
    given = {"Authorization": f"Bearer {token}"} if token else {}
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    got = httpx.post(
        f"{base}/api/v1/plugins/asked/call/a.b",
        json={},
        headers={**given, **named},
        trust_env=False,
        timeout=30,
    )
    assert got.status_code == 200, got.text
    return got.json()["result"]["_context"]["operator_id"]


@pytest.fixture
def open_daemon(own: Callable[..., Daemon], tmp_path: Path) -> Callable[[str], Daemon]:
    """Return a starter of daemons with this `[auth]`, each with the plugin `asked`."""

    def start(auth: str) -> Daemon:
        daemon = own(config=f"[auth]\n{auth}\n")
        daemon.start()
        assert Guest(daemon, tmp_path, ECHOES, name="asked").run()["state"] == "running"
        return daemon

    return start


@whole("PH-CTX-03")
def test_the_operator_is_who_a_trusted_proxy_names(open_daemon: Callable[[str], Daemon]) -> None:
    daemon = open_daemon('operator = "alice"\ntrusted_proxies = ["127.0.0.1"]')
    token = daemon.token
    assert who(daemon, daemon.url, token) == "alice"
    assert who(daemon, daemon.url, token, X_Kaged_User_Id="bob") == "bob"
    without = httpx.post(
        f"{daemon.url}/api/v1/plugins/asked/call/a.b",
        json={},
        headers={"X-Kaged-User-Id": "bob"},
        trust_env=False,
        timeout=PATIENCE_S,
    )
    assert without.status_code == 401, "a name is no credential"
    # The socket is no proxy: the kernel says who is there.
    got = daemon.post("/plugins/asked/call/a.b", {}, headers={"X-Kaged-User-Id": "bob"})
    assert got["result"]["_context"]["operator_id"] == "alice"
    daemon.stop()
    config = daemon.home / "config.toml"
    text = config.read_text(encoding="utf-8").replace('["127.0.0.1"]', '["192.0.2.1"]')
    daemon.write("config.toml", text)
    daemon.start()
    wait_for(lambda: daemon.get("/plugins/asked")["state"] == "running")
    assert who(daemon, daemon.url, daemon.token, X_Kaged_User_Id="bob") == "alice"


@whole("PH-CTX-03", "PH-AMB-16")
def test_in_insecure_mode_there_is_no_operator(open_daemon: Callable[[str], Daemon]) -> None:
    daemon = open_daemon('mode = "insecure"\ntrusted_proxies = ["127.0.0.1"]')
    assert who(daemon, daemon.url, None) is None
    got = httpx.post(
        f"{daemon.url}/api/v1/plugins/asked/call/a.b", json={}, trust_env=False, timeout=30
    ).json()
    assert set(got["result"]["_context"]) == FIVE
