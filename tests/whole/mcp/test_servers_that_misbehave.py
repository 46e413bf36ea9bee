"""Outside MCP servers that fail, change or lie; and clients that ask for what is not there."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from whole.harness.daemon import Daemon, wait_for
from whole.harness.mcp import command, typescript
from whole.harness.model import ModelServer
from whole.harness.project import Project
from whole.harness.scripts import Scripts
from whole.harness.talk import Talk

GUESTS = Path(__file__).parents[2] / "guests"
ROGUE = GUESTS / "rogue_mcp_server.py"
CALCULATOR = GUESTS / "mcp_tool_server.py"
LIBRARIES = next(one for one in sys.path if one.endswith("site-packages"))
MODES = ("dies", "fails", "garbage", "huge", "nonsense", "refuses", "rug", "typed")
CALLS = 32


def rogue(mode: str, state: Path, **settings: Any) -> str:
    """Return the section of a server that does one thing wrong; it is named after that."""
    name = settings.pop("name", mode)
    rules = f'{{ mode = "ro", path = "{ROGUE}" }}, {{ mode = "rw", path = "{state}" }}'
    lines = "".join(f"{key} = {json.dumps(value)}\n" for key, value in settings.items())
    argv = json.dumps([sys.executable, str(ROGUE), mode, str(state)])
    return f"[mcp.servers.{name}]\ncommand = {argv}\n{lines}cage = {{ fs = [{rules}] }}\n"


@pytest.fixture(scope="module")
def state(module_path: Path) -> Path:
    """Return the folder that the servers may write."""
    made = module_path / "state"
    made.mkdir()
    return made


@pytest.fixture(scope="module")
def daemon(module_path: Path, model: ModelServer, state: Path) -> Iterator[Daemon]:
    """Yield a daemon with a server for each way to misbehave, and a good one."""
    sections = [rogue(mode, state) for mode in MODES]
    sections += [
        rogue("good", state, name="narrow", allow_tools=["e*", "w*"], deny_tools=["wh*"]),
        rogue("huge", state, name="short", max_output_kb=1),
        rogue("rug", state, name="follows", changed_tools="follow"),
        '[mcp.servers.absent]\ncommand = ["/nonexistent/program"]\n',
        (
            f"[mcp.servers.calc]\ncommand = {json.dumps([sys.executable, str(CALCULATOR)])}\n"
            f'env = {{ PYTHONPATH = "{LIBRARIES}" }}\n'
            f'cage = {{ fs = [{{ mode = "ro", path = "{LIBRARIES}" }}, '
            f'{{ mode = "ro", path = "{CALCULATOR}" }}], limits = {{ memory_mb = 1024 }} }}\n'
        ),
    ]
    made = Daemon(module_path / "h", config="".join(sections), local=model.local_toml())
    made.start()
    try:
        wait_for(lambda: not starting(made), f"the servers: {made.log()[-500:]}")
        yield made
    finally:
        made.close()


def starting(daemon: Daemon) -> list[str]:
    """Return the servers that still have to come up."""
    found = {one["name"]: one["state"] for one in daemon.get("/mcp/servers")["servers"]}
    wanted = (*MODES, "narrow", "short", "follows", "calc")
    return [name for name in wanted if found.get(name) != "running"]


def rows(daemon: Daemon, event: str, server: str) -> list[dict[str, Any]]:
    """Return the data of the audit rows of an event about one server, oldest first."""
    return [one["data"] for one in daemon.audit(event) if one["data"]["server"] == server]


@pytest.mark.parametrize(
    ("tool", "code"),
    [
        ("fails.echo", "mcp_call_failed"),
        ("refuses.echo", "mcp_call_failed"),
        ("nonsense.echo", "mcp_answer_invalid"),
        ("typed.echo", "mcp_answer_invalid"),
        ("dies.echo", "mcp_server_unavailable"),
        ("absent.echo", "tool_not_found"),
    ],
)
def test_a_failure_of_a_server_has_a_code(project: Project, tool: str, code: str) -> None:
    assert project.fail(tool)["code"] == code


def test_an_answer_that_breaks_its_schema_is_on_record_and_a_right_one_is_not(
    daemon: Daemon, project: Project
) -> None:
    project.fail("typed.echo")
    count = len(rows(daemon, "mcp.answer_invalid", "typed"))
    assert count
    project.call("typed.echo", text="right")
    assert len(rows(daemon, "mcp.answer_invalid", "typed")) == count


def test_a_server_that_dies_is_started_again_and_one_that_never_starts_is_given_up(
    daemon: Daemon, project: Project
) -> None:
    wait_for(lambda: not starting(daemon))
    project.fail("dies.echo")
    wait_for(lambda: rows(daemon, "mcp.server_crashed", "dies"), "the crash")
    wait_for(lambda: not starting(daemon), "the next start")
    assert len(rows(daemon, "mcp.server_started", "dies")) >= 2
    wait_for(lambda: rows(daemon, "mcp.server_failed", "absent"), "the end of patience")
    assert daemon.get("/mcp/servers/absent")["state"] == "failed"


def test_a_changed_tool_waits_for_a_yes_unless_the_operator_follows_changes(
    daemon: Daemon, project: Project, state: Path
) -> None:
    """Both servers change at once: they read the same file."""
    project.call("rug.echo", text="change")
    wait_for(lambda: rows(daemon, "mcp.tool_changed", "rug"), "the change")
    assert project.fail("rug.echo", path="x")["code"] == "tool_not_found"
    asked = wait_for(lambda: daemon.get("/inbox?kind=mcp_tools&state=pending")["items"])[0]
    wrong = {"digest": "0" * 64, "answer": {"choice": "yes"}}
    refused = daemon.error("POST", f"/inbox/{asked['id']}/answer", wrong)
    assert (refused["status"], refused["code"]) == (409, "inbox_request_changed")
    unfit = {"digest": asked["digest"], "answer": {"choice": "perhaps"}}
    refused = daemon.error("POST", f"/inbox/{asked['id']}/answer", unfit)
    assert (refused["status"], refused["code"]) == (422, "inbox_answer_invalid")
    daemon.post("/mcp/servers/rug/approve")
    assert rows(daemon, "mcp.tools_approved", "rug")[-1]["how"] == "operator"
    assert project.call("rug.echo", path="x")
    project.call("follows.echo", text="change")
    wait_for(lambda: rows(daemon, "mcp.tool_changed", "follows"), "the followed change")
    assert project.call("follows.echo", path="x")


def test_the_operator_chooses_tools_and_how_much_of_an_answer_is_handed_on(
    project: Project,
) -> None:
    assert project.call("narrow.echo", text="hello")
    assert project.fail("narrow.where")["code"] == "tool_not_found"
    assert len(json.dumps(project.call("short.echo"))) < 4096
    assert len(json.dumps(project.call("huge.echo"))) > 100_000


def test_a_restart_by_the_operator_is_on_record_with_its_stop(daemon: Daemon) -> None:
    wait_for(lambda: not starting(daemon))
    daemon.post("/mcp/servers/calc/restart")
    wait_for(lambda: not starting(daemon))
    assert len(rows(daemon, "mcp.server_restarted", "calc")) == 1
    assert len(rows(daemon, "mcp.server_stopped", "calc")) == 1
    refused = daemon.error("POST", "/mcp/servers/nobody/restart")
    assert (refused["status"], refused["code"]) == (404, "mcp_server_not_found")


# -- clients ----------------------------------------------------------------------------------


def test_a_client_reads_prompts_and_resources_and_hears_which_are_not_there(
    daemon: Daemon, project: Project
) -> None:
    wait_for(lambda: not starting(daemon))
    project.post("/issues", {"title": "Mend it", "body": "Soon."})
    _, good, wrong, issue, missing = typescript(
        daemon,
        project,
        ("getPrompt", {"name": "calc.explain", "arguments": {"topic": "cages"}}),
        ("getPrompt", {"name": "nobody.nothing"}),
        ("readResource", {"uri": "kaged://issues/1"}),
        ("readResource", {"uri": "kaged://issues/77"}),
    )
    assert "Explain cages" in str(good["result"])
    assert "mcp_prompt_not_found" in wrong["error"]["message"]
    assert "Mend it" in str(issue["result"])
    assert "mcp_resource_not_found" in missing["error"]["message"]
    fetched = daemon.audit("mcp.prompt_fetched", project_id=project.id)
    assert [one["data"]["prompt"] for one in fetched][:1] == ["explain"]
    read = daemon.audit("mcp.resource_read", project_id=project.id)
    assert [one["data"]["success"] for one in read] == [True, False]
    came = daemon.audit("mcp.client_came", project_id=project.id)
    assert [one["data"]["client"] for one in came] == ["foreign 1.0.0"]
    left = wait_for(lambda: daemon.audit("mcp.client_left", project_id=project.id), "its leave")
    assert left[0]["data"]["session_id"] == came[0]["data"]["session_id"]


def test_one_client_has_so_many_calls_running_and_no_more(daemon: Daemon, project: Project) -> None:
    project.describe(cage="disabled")
    project.reload()
    with subprocess.Popen(
        command(project), env=daemon.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as client:
        assert client.stdin is not None
        assert client.stdout is not None
        Daemon.spoken += 1

        def send(method: str, **message: Any) -> None:
            line = json.dumps({"jsonrpc": "2.0", "method": method, **message})
            assert client.stdin is not None
            client.stdin.write(line.encode() + b"\n")
            client.stdin.flush()

        def hear() -> dict[str, Any]:
            assert client.stdout is not None
            said: dict[str, Any] = {}
            while "id" not in said:
                said = json.loads(client.stdout.readline())
            return said

        hello = {"protocolVersion": "2025-06-18", "capabilities": {},
                 "clientInfo": {"name": "eager", "version": "1"}}  # fmt: skip
        send("initialize", id=0, params=hello)
        assert hear()["id"] == 0
        send("notifications/initialized")
        waits = {"command": "until [ -e go ]; do sleep 0.1; done"}
        for number in range(1, CALLS + 3):
            send("tools/call", id=number, params={"name": "shell_bash", "arguments": waits})
        refused = [hear()["result"]["_meta"]["kaged/error"]["code"] for _ in range(2)]
        assert refused == ["mcp_too_many_calls"] * 2
        project.write("go", "")
        done = [hear()["result"] for _ in range(CALLS)]
        assert [one for one in done if one["isError"]] == []


def test_an_agent_that_is_not_there_is_not_served(daemon: Daemon, project: Project) -> None:
    argv = command(project, "primary.subagents.nobody")
    done = daemon.cli(*argv[1:], code=None, stdin="")
    assert done.code != 0
    assert "agent_not_found" in done.err


def test_a_client_hears_that_the_daemon_stopped(own: Callable[..., Daemon], tmp_path: Path) -> None:
    daemon = own()
    daemon.start()
    project = daemon.load(Project(tmp_path / "p"))
    with subprocess.Popen(
        command(project), env=daemon.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as client:  # fmt: skip
        assert client.stdin is not None
        assert client.stdout is not None
        hello = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
            "protocolVersion": "2025-06-18", "capabilities": {},
            "clientInfo": {"name": "patient", "version": "1"}}}  # fmt: skip
        client.stdin.write(json.dumps(hello).encode() + b"\n")
        client.stdin.flush()
        assert b"kaged" in client.stdout.readline()
        daemon.stop()
        _, said = client.communicate(timeout=60.0)
        assert client.returncode != 0
        assert b"mcp_stream_ended" in said


def test_a_script_hears_how_far_a_tool_is(
    daemon: Daemon, project: Project, model: ModelServer
) -> None:
    scripts = Scripts(daemon, project)
    scripts.load(
        ear="seen = {}\n"
        "kage.on('tool_update', function(event) seen[#seen + 1] = event.structured end)\n"
        "kage.register_command{name='seen', description='', handler=function()\n"
        "return {structured = {list = seen}} end}\n"
    )
    assert Talk(project, model).result("calc.count", upto=3)

    def heard() -> list[Any]:
        found = scripts.value("seen")["list"]
        return found if isinstance(found, list) and len(found) >= 3 else []

    told = wait_for(heard, "all three")
    assert [(one["done"], one["total"]) for one in told] == [(1, 3), (2, 3), (3, 3)]
    scripts.close()
