"""What the daemon tells policies about each kind of call, in one daemon with a spy on every hook.

Alice comes through a front end that says her role; her agent reads, asks a server outside and uses
her account. The operator calls a tool, a plugin's method, a script and, as an MCP client, a prompt.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from requirements.marker import whole
from whole.harness.daemon import Daemon, wait_for
from whole.harness.mcp import python
from whole.harness.model import ModelServer, call, say
from whole.harness.people import Guest
from whole.harness.plugin import PluginFolder
from whole.harness.policies import CAPABILITIES, FIRED, POST, PRE, PolicySite, spy
from whole.harness.project import Project
from whole.harness.scripts import Scripts
from whole.harness.services import FRONT_END, Bridge, Desk, Person, capability, operation

CALCULATOR = Path(__file__).parents[2] / "guests" / "mcp_tool_server.py"
LIBRARIES = next(one for one in sys.path if one.endswith("site-packages"))
SERVER = (
    f"[mcp.servers.calc]\ncommand = {json.dumps([sys.executable, str(CALCULATOR)])}\n"
    f'env = {{ PYTHONPATH = "{LIBRARIES}" }}\n'
    f'cage = {{ fs = [{{ mode = "ro", path = "{LIBRARIES}" }}, '
    f'{{ mode = "ro", path = "{CALCULATOR}" }}], limits = {{ memory_mb = 1024 }} }}\n'
)
FACTS = (
    'environment = "production"\nclassification = "internal"\nheaders = ["X-Tenant"]\n'
    '[pipeline.classifications]\nsecret-desk = "restricted"\n'
    '[auth.front_end]\nroles = "X-Kaged-Roles"\nclaims = { department = "X-Department" }\n'
    '[people.alice]\nteams = ["crew"]\noperations = ["gog.email.*"]\n'
    "[people.bob]\n"
)
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = f"00-{TRACE}-00f067aa0ba902b7-01"
ALICE = Person("alice", "private", "chat-alice")


@pytest.fixture(scope="module")
def desk(module_path: Path, model: ModelServer, site: PolicySite) -> Iterator[Desk]:
    plan = {"definitions": [capability("gog.email", operation("ping", requires_auth=False))]}
    gog = Bridge(module_path, "gog", plan)
    config = FRONT_END + gog.toml() + SERVER + site.config_toml() + FACTS
    traits = model.local_toml(traits=["fast"])
    made = Desk(Daemon(module_path / "h", config=config, local=traits), module_path / "desk")
    made.project.describe(
        cage={
            "fs": [{"mode": "rw", "path": "."}],
            "capabilities": ["shell", "services"],
        },
        tools={
            "shell.*": {"enabled": True},
            "file.*": {"enabled": True},
            "calc.*": {"enabled": True},
        },
    )
    made.open()
    site.daemon = made.daemon
    wait_for(site.loads)
    servers = "/mcp/servers"
    wait_for(lambda: made.daemon.get(servers)["servers"][0]["state"] == "running", "the server")
    made.project.write("a.txt", "one\n")
    yield made
    made.close()


@pytest.fixture(scope="module")
def alice(desk: Desk) -> Iterator[Guest]:
    said = {"X_Kaged_Roles": "clerk", "X_Department": "post", "X_Tenant": "acme", "X_Other": "no"}
    made = Guest(desk.daemon, ALICE, traceparent=PARENT, **said)
    yield made
    made.close()


def put(site: PolicySite) -> None:
    """Let a spy with every capability stand on every hook."""
    site.put(spy("spy", *CAPABILITIES, hooks=[*FIRED]))


def seen(site: PolicySite, hook: str, name: str = "") -> dict[str, Any]:
    """Return the one view that the spy has of a hook, of one tool."""
    rows = [
        one["extensions"]
        for one in site.seen("spy", hook)
        if not name or one["payload"]["name"] == name
    ]
    assert len(rows) == 1, [one["payload"] for one in site.seen("spy", hook)]
    return dict(rows[0])


def subject(view: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = view["security"]["subject"]
    return found


def is_hers(view: dict[str, Any], *, source: str = "agent") -> None:
    """See that a view has everything that is known about Alice and her request."""
    assert subject(view) == {
        "id": "alice",
        "type": "user",
        "roles": ["clerk"],
        "teams": ["crew"],
        "claims": {"department": "post"},
        "permissions": ["operation:gog.email.*", "project:*"],
    }
    assert view["request"]["environment"] == "production"
    assert view["request"]["trace_id"] == TRACE
    assert len(view["request"]["span_id"]) == 16
    assert view["http"] == {"headers": {"x-tenant": "acme"}}
    assert view["security"]["classification"] == "internal"
    assert view["provenance"]["source"] == source
    assert view["framework"]["framework_version"]


MODEL = {"model_id": "gpt-4o", "provider": "openai", "capabilities": ["fast"]}


@whole("EX-SLOT-04", "EX-SLOT-06", "EX-SLOT-07", "EX-SLOT-12")
def test_a_run_tells_who_asks_with_which_model_for_every_hook(
    desk: Desk, site: PolicySite, model: ModelServer, alice: Guest
) -> None:
    put(site)
    model.play(
        "marmot-facts",
        call("file.read", path="a.txt"),
        call("calc.add", a=1, b=2),
        say("Read."),
    )
    home = f"/projects/{desk.project.id}"
    session = alice.post(f"{home}/sessions")["id"]
    alice.post(f"{home}/sessions/{session}/message", {"text": "marmot-facts"})
    wait_for(lambda: site.seen("spy", "agent_post_invoke"), "the end of the run")
    for hook in FIRED:
        if hook.startswith("resource"):
            continue
        for row in site.seen("spy", hook):
            view = row["extensions"]
            is_hers(view)
            assert view["llm"] == MODEL, hook
            assert view["meta"]["properties"]["model_alias"] == "default"
            assert view["agent"]["session_id"] == session
            chain = view["delegation"]["chain"]
            assert [one["subject_id"] for one in chain] == ["alice"]
    own = seen(site, PRE, "file.read")
    assert own["security"]["objects"]["file.read"] == {
        "managed_by": "host",
        "permissions": ["fs:ro:caller"],
        "trust_domain": "kaged",
        "data_scope": [desk.project.id],
    }
    assert own["security"]["data"] == {}
    assert own["mcp"]["tool"]["input_schema"]["properties"]["path"]
    outside = seen(site, PRE, "calc.add")
    assert outside["security"]["objects"]["calc.add"]["trust_domain"] == "calc"
    assert outside["security"]["data"]["calc.add"]["apply_labels"] == ["untrusted"]
    assert outside["mcp"]["tool"]["server_id"] == "calc"
    assert seen(site, POST, "calc.add")["security"]["labels"] == ["untrusted"]
    (asked, *_) = site.seen("spy", "cmf.llm_output")
    assert asked["extensions"]["completion"]["tokens"]["total_tokens"] > 0
    spans = {one["extensions"]["request"]["span_id"] for one in site.seen("spy", PRE)}
    assert len(spans) == 2, "each call is a span of its own"


@whole("EX-SLOT-09")
def test_what_a_server_says_of_its_tool_is_shown_and_cannot_speak_for_the_host(
    desk: Desk, site: PolicySite
) -> None:
    put(site)
    desk.project.call("calc.add", a=1, b=2)
    tool = seen(site, PRE)["mcp"]["tool"]
    assert tool["annotations"] == {
        "title": "Sum",
        "readOnlyHint": True,
        "openWorldHint": False,
        "net": False,
        "changes": True,
    }
    assert tool["title"] == "Sum"
    assert "a" in tool["input_schema"]["properties"]


def test_calls_of_the_operator_have_a_trace_and_headers_of_their_own(
    desk: Desk, site: PolicySite
) -> None:
    put(site)
    body = {"agent": "primary", "tool": "file.read", "params": {"path": "a.txt"}}
    at = f"/projects/{desk.project.id}/tools/call"
    given = (
        {"traceparent": PARENT, "x-tenant": "own"},
        {"traceparent": "00-" + "0" * 32 + "-00f067aa0ba902b7-01"},
        {"traceparent": "no trace"},
    )
    for headers in given:
        desk.daemon.post(at, body, headers=headers)
    first, second, third = [one["extensions"] for one in site.seen("spy", PRE)]
    assert first["request"]["trace_id"] == TRACE
    assert first["http"] == {"headers": {"x-tenant": "own"}}
    traces = {one["request"]["trace_id"] for one in (first, second, third)}
    assert len(traces) == 3, "what is no trace is not taken, and none is given twice"
    assert {len(one) for one in traces} == {32}
    assert second["http"] == {"headers": {}}
    assert first["llm"] is None
    assert subject(first)["permissions"] == ["operation:*", "project:*"]


def test_a_program_with_a_token_of_its_own_cannot_say_headers(desk: Desk, site: PolicySite) -> None:
    put(site)
    token = desk.daemon.cli("service-account", "create", "robot").out.strip()
    robot = Guest(desk.daemon, Person(), token=token, X_Tenant="forged", traceparent=PARENT)
    body = {"agent": "primary", "tool": "file.read", "params": {"path": "a.txt"}}
    robot.post(f"/projects/{desk.project.id}/tools/call", body)
    robot.close()
    view = seen(site, PRE)
    assert view["http"] is None
    assert view["request"]["trace_id"] == TRACE
    assert (subject(view)["id"], subject(view)["type"]) == ("service:robot", "service")


def test_an_mcp_clients_call_prompt_and_resource(desk: Desk, site: PolicySite) -> None:
    put(site)
    python(
        desk.daemon,
        desk.project,
        ("callTool", {"name": "file_read", "arguments": {"path": "a.txt"}}),
        ("getPrompt", {"name": "calc.explain", "arguments": {"topic": "pi"}}),
        ("readResource", {"uri": "kaged://mcp/calc/calc%3A%2F%2Fconstants%2Fpi"}),
        transport="http",
    )
    for hook in (PRE, "prompt_pre_fetch", "resource_pre_fetch"):
        view = seen(site, hook)
        assert view["request"]["environment"] == "production"
        assert len(view["request"]["trace_id"]) == 32
        assert view["http"] == {"headers": {}}
        assert view["security"]["classification"] == "internal"
        assert subject(view)["permissions"] == ["operation:*", "project:*"]
    for hook, kind in (("prompt_pre_fetch", "prompt"), ("resource_pre_fetch", "resource")):
        view = seen(site, hook)
        assert view["mcp"][kind]["server_id"] == "calc"
        assert view["security"]["objects"]["calc"]["trust_domain"] == "calc"
        assert view["security"]["data"]["calc"]["apply_labels"] == ["untrusted"]


def test_a_method_of_a_plugin(
    desk: Desk, site: PolicySite, alice: Guest, module_path: Path
) -> None:
    put(site)
    folder = PluginFolder(
        desk.daemon, module_path / "stub", ECHO, capabilities=["kaged:storage:read"]
    )
    folder.run()
    alice.post("/plugins/stub/call/a.b", {"q": 1})
    view = seen(site, PRE, "stub.a.b")
    is_hers(view, source="daemon")
    profile = view["security"]["objects"]["stub.a.b"]
    assert profile["trust_domain"] == "stub"
    assert len(profile["permissions"]) == 1


def test_an_operation_on_an_account_has_the_roles_that_the_front_end_said(
    desk: Desk, site: PolicySite, alice: Guest
) -> None:
    put(site)
    job = {"conversations": [[{"method": "capability.invoke", "params": PING}]]}
    desk.project.write("job.json", json.dumps(job))
    body = {
        "agent": "primary",
        "tool": "shell.bash",
        "params": {"command": "python3 caller.py job.json"},
    }
    alice.post(f"/projects/{desk.project.id}/tools/call", body)
    for hook in (PRE, POST):
        view = seen(site, hook, "gog.email.ping")
        is_hers(view)
        assert view["agent"]["agent_id"] == "primary"
        assert view["meta"]["properties"]["project_id"] == desk.project.id
        assert view["security"]["objects"]["gog.email.ping"] == {
            "managed_by": "host",
            "permissions": ["operation:gog.email.ping"],
            "trust_domain": "gog",
            "data_scope": ["alice"],
        }
    assert seen(site, POST, "gog.email.ping")["security"]["labels"] == ["untrusted"]


ECHO = {"on": {"a.b": [{"echo": True}]}}
PING = {"capability": "gog.email", "operation": "ping", "input": {}}


def test_what_a_script_reaches_for(desk: Desk, site: PolicySite) -> None:
    put(site)
    scripts = Scripts(desk.daemon, desk.project)
    assert scripts.eval("return kage.fs.read('a.txt')", stem="reads") == "one\n"
    view = seen(site, PRE, "kage.fs.read")
    assert (subject(view)["id"], subject(view)["type"]) == ("lua:reads", "service")
    assert view["request"]["environment"] == "production"
    assert len(view["request"]["trace_id"]) == 32
    assert view["security"]["classification"] == "internal"
    assert view["mcp"]["tool"]["annotations"] == {"net": False, "changes": False}
    assert view["provenance"]["source"] == "script"
    assert seen(site, POST, "kage.fs.read")["request"] == view["request"]
    refuse = "PluginResult(continue_processing=False, violation=PluginViolation("
    site.put(
        {
            "name": "no-files",
            "kind": "Returns",
            "hooks": [PRE],
            "config": {"gives": f"{refuse}reason='no files', description='', code='c'))"},
        }
    )
    shown = scripts.run("eval")
    assert shown["is_error"]
    assert "no files" in json.dumps(shown)


def test_another_projects_classification_is_its_own(
    desk: Desk, site: PolicySite, module_path: Path
) -> None:
    put(site)
    other = desk.daemon.load(Project(module_path / "secret-desk"))
    other.write("a.txt", "two\n")
    other.call("file.read", path="a.txt")
    assert seen(site, PRE)["security"]["classification"] == "restricted"
