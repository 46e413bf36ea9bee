"""When language servers are started, shared, lost, given up and stopped, and by which command."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from requirements.marker import whole
from whole.harness.agents import Talk, agent, caged, path_of, rows_of
from whole.harness.code import GUESTS, PlannedServer, span, trust
from whole.harness.daemon import Daemon, wait_for
from whole.harness.model import ModelServer, call, say
from whole.harness.project import Project

READER = path_of("reader")
AT = {"path": "./a.py", "line": 1, "character": 0}
FAKE = str(GUESTS / "fake_lsp_server.py")


@pytest.fixture(scope="module")
def daemon(module_path: Path, model: ModelServer) -> Iterator[Daemon]:
    """Yield a daemon whose operator names a server for Python."""
    plan = module_path / "plan.json"
    plan.write_text('{"capabilities": {"textDocumentSync": 1, "diagnosticProvider": {}}}', "utf-8")
    command = [sys.executable, FAKE, str(plan), str(module_path / "log.jsonl"), "the-operators"]
    config = f"[lsp.servers.python]\ncommand = {json.dumps(command)}\n"
    made = Daemon(module_path / "h", config=config, local=model.local_toml())
    made.start()
    yield made
    made.close()


@pytest.fixture
def server(project: Project) -> PlannedServer:
    """Return a planned server and two agents that may ask it."""
    reader = agent("code.*", "file.*", cage=caged("ro:."))
    made = PlannedServer(project, subagents={"reader": reader})
    project.write("a.py", "ERR\n")
    return made


def gone(pid: int) -> bool:
    """Return whether a process is not there any more."""
    return not Path(f"/proc/{pid}").exists()


@whole("AT-LSP-05", "AT-LSP-52")
def test_nothing_runs_before_the_first_question(server: PlannedServer, daemon: Daemon) -> None:
    server.project.call("file.read", path="a.py")
    before = server.status()
    assert (before["state"], before["pid"], before["open_files"]) == ("not_started", None, 0)
    assert server.received() == []
    server.ask("diagnostics", path="a.py")
    after = server.status()
    assert set(after) >= {
        *("language", "command", "state", "pid", "restart_count", "open_files", "idle_seconds"),
    }
    assert (after["state"], after["restart_count"], after["open_files"]) == ("running", 0, 1)
    assert after["command"] == server.command
    parents: list[int] = []
    pid = after["pid"]
    while pid > 1:
        pid = int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
        parents.append(pid)
    assert daemon.pid in parents
    assert Path(f"/proc/{after['pid']}/root").readlink() == Path("/")
    [row] = rows_of(server.project, "code.lsp.server_spawned")
    assert row["data"]["language"] == "python"
    assert server.ask("status", path="a.py")["count"] == 1
    only = server.ask("status", language="go")["servers"]
    assert [(one["language"], one["state"]) for one in only] == [("go", "not_started")]


@whole("AT-LSP-04")
def test_all_agents_and_sessions_share_one_server(
    server: PlannedServer, model: ModelServer
) -> None:
    model.play("stoat-asks", call("code.lsp", action="diagnostics", path="a.py"), say("Asked."))
    asking = [
        threading.Thread(target=lambda who=who: server.ask("diagnostics", who, path="a.py"))
        for who in ("primary", READER, "primary", READER)
    ]
    for one in asking:
        one.start()
    for one in asking:
        one.join()
    talk = Talk(server.project)
    talk.say("stoat-asks")
    assert [one["error"] for one in talk.calls()] == [None]
    assert server.methods().count("initialize") == 1
    assert len(rows_of(server.project, "code.lsp.server_spawned")) == 1


@whole("AT-LSP-06", "AT-AMB-14")
def test_the_handshake_is_in_order_and_ends_with_the_files_that_were_read(
    server: PlannedServer,
) -> None:
    for name in ("b.py", "c.py", "d.txt"):
        server.project.write(name, "x = 1\n")
    server.project.call("file.read", path="./c.py")
    server.project.call("file.read", READER, path="./a.py")
    server.project.call("file.read", path="./d.txt")
    server.ask("diagnostics", path="./b.py")
    first, second, *rest = server.received()
    root = server.project.root.as_uri()
    assert first["method"] == "initialize"
    assert first["params"]["rootUri"] == root
    assert [one["uri"] for one in first["params"]["workspaceFolders"]] == [root]
    assert second["method"] == "initialized"
    opened = [one for one in rest if one["method"] == "textDocument/didOpen"]
    uris = [one["params"]["textDocument"]["uri"] for one in opened]
    assert sorted(uris) == [server.uri("a.py"), server.uri("b.py"), server.uri("c.py")]
    assert "workspace/didOpen" not in server.methods()
    asked = [one["method"] for one in rest].index("textDocument/diagnostic")
    assert asked > max(n for n, one in enumerate(rest) if one in opened)


@whole("AT-LSP-12")
def test_a_trusted_projects_command_comes_before_the_operators_and_that_before_the_default(
    daemon: Daemon, project: Project
) -> None:
    project.write("a.py", "ERR\n")

    def command(language: str) -> list[str]:
        found = project.call("code.lsp", action="status", language=language)["servers"]
        return list(found[0]["command"])

    project.describe(cage="disabled")
    project.reload()
    assert command("python")[-1] == "the-operators"
    assert command("go")[0] == "gopls"
    assert command("typescript") == ["typescript-language-server", "--stdio"]
    server = PlannedServer(project, "the-projects")
    assert command("python")[-1] == "the-projects"
    daemon.ask("PUT", f"/projects/{project.id}/trust", {"trusted": False})
    status = project.get("/lsp")["servers"]
    shown = next(one for one in status if one["language"] == "python")
    assert shown["command"][-1] == "the-operators"
    # Its agents only read now, so nothing starts anybody's server.
    project.fail("code.lsp", action="diagnostics", path="a.py")
    assert server.received() == []
    trust(project)
    project.call("code.lsp", action="diagnostics", path="a.py")
    status = project.call("code.lsp", action="status", language="python")["servers"][0]
    argv = Path(f"/proc/{status['pid']}/cmdline").read_bytes().split(b"\0")
    assert b"the-projects" in argv


@whole("AT-LSP-16")
def test_a_command_is_started_without_a_shell_and_its_words_stay_as_they_are(
    project: Project,
) -> None:
    project.write("a.py", "ERR\n")
    odd = ["; touch injected", "$(touch injected)", "a b", "*"]
    server = PlannedServer(project, *odd)
    server.ask("diagnostics", path="a.py")
    argv = Path(f"/proc/{server.status()['pid']}/cmdline").read_bytes().split(b"\0")
    assert [one.decode() for one in argv[-5:-1]] == odd
    assert not (project.root / "injected").exists()
    assert not Path("injected").exists()
    server.answer("textDocument/hover", "flood")
    assert server.ask("hover", **AT)["content"] is None


@whole("AT-LSP-18", "AT-LSP-19", "AT-LSP-17")
def test_whatever_the_server_asks_is_answered_and_changes_nothing(server: PlannedServer) -> None:
    edit = {"changes": {server.uri("a.py"): [{"range": span(0, 0, 3), "newText": "hacked"}]}}
    asked: list[dict[str, Any]] = [
        {"id": "c1", "method": "workspace/configuration", "params": {"items": [{}, {}]}},
        {"id": 2, "method": "client/registerCapability", "params": {"registrations": []}},
        {"id": 3, "method": "window/workDoneProgress/create", "params": {"token": "t"}},
        {"method": "$/progress", "params": {"token": "t", "value": {"kind": "end"}}},
        {"id": 4, "method": "workspace/applyEdit", "params": {"edit": edit}},
        {"id": 5, "method": "workspace/workspaceFolders"},
        {"id": 6, "method": "some/unknown", "params": {"text": "ü😀" * 50_000}},
        {"method": "telemetry/event", "params": {}},
    ]
    server.plan(before={"textDocument/hover": asked})
    server.answer("textDocument/hover", {"result": {"contents": "ü😀 int"}})
    assert server.ask("hover", **AT)["content"] == "ü😀 int"
    server.ask("diagnostics", path="./a.py")
    answers = {one["id"]: one for one in server.received() if "method" not in one}
    assert answers["c1"]["result"] == [None, None]
    assert answers[2]["result"] is None
    assert answers[3]["result"] is None
    assert answers[4]["result"]["applied"] is False
    assert [one["uri"] for one in answers[5]["result"]] == [server.project.root.as_uri()]
    assert answers[6]["error"]["code"] == -32601
    assert server.project.read("a.py") == "ERR\n"


@whole("AT-LSP-20")
def test_a_second_question_is_sent_when_the_first_is_done_with(server: PlannedServer) -> None:
    server.ask("diagnostics", path="a.py")
    server.answer("textDocument/hover", "hang")
    server.answer("textDocument/definition", {"result": None})
    socket = server.project.daemon.get("/status")["socket"]
    url = f"http://kaged/api/v1/projects/{server.project.id}/tools/call"
    body = {"agent": "primary", "tool": "code.lsp", "params": {"action": "hover", **AT}}
    second: list[Any] = []
    asking = threading.Thread(target=lambda: second.append(server.ask("definition", **AT)))
    with httpx.Client(transport=httpx.HTTPTransport(uds=socket), timeout=2.0) as client:

        def first() -> None:
            with pytest.raises(httpx.ReadTimeout):
                client.post(url, json=body)

        hanging = threading.Thread(target=first)
        hanging.start()
        wait_for(lambda: "textDocument/hover" in server.methods())
        asking.start()
        hanging.join()
    asking.join()
    assert second == [{"definitions": []}]
    order = server.methods()
    assert order.index("$/cancelRequest") > order.index("textDocument/hover")
    assert order.index("$/cancelRequest") < order.index("textDocument/definition")


@whole("AT-LSP-22", "AT-FAIL-03", "AT-AMB-17")
def test_a_server_that_dies_fails_one_call_and_is_back_for_the_next(server: PlannedServer) -> None:
    server.project.write("b.py", "y = 1\n")
    server.project.call("file.read", path="./b.py")
    server.ask("diagnostics", path="./a.py")
    server.answer("textDocument/hover", "die")
    refused = server.refusal("hover", **AT)
    assert (refused["code"], refused["data"]["number"]) == ("lsp_server_unavailable", -32000)
    server.answer("textDocument/hover", {"result": {"contents": "int"}})
    before = len(server.received())
    assert server.ask("hover", **AT)["content"] == "int"
    again = [str(one.get("method")) for one in server.received()[before:]]
    assert again.count("textDocument/didOpen") == 2
    [row] = rows_of(server.project, "code.lsp.server_crashed")
    assert (row["data"]["language"], row["data"]["exit_code"]) == ("python", 9)
    assert server.status()["restart_count"] == 1


@whole("AT-LSP-23", "AT-LSP-53", "AT-FAIL-03")
def test_a_server_that_keeps_dying_is_given_up_until_it_is_reloaded(
    server: PlannedServer, model: ModelServer
) -> None:
    server.plan(die_at_start=True)
    for _ in range(6):
        refused = server.refusal("diagnostics", path="./a.py")
        assert refused["code"] == "lsp_server_unavailable"
    assert server.methods().count("initialize") == 1 + 3
    assert server.status()["state"] == "failed"
    server.plan(die_at_start=False)
    assert server.refusal("diagnostics", path="./a.py")["code"] == "lsp_server_unavailable"
    assert server.methods().count("initialize") == 4
    model.play("civet-asks", call("code.lsp", action="diagnostics", path="a.py"), say("Asked."))
    talk = Talk(server.project)
    talk.say("civet-asks")
    assert [one["error"] for one in talk.calls()] == [None]
    server.answer("textDocument/hover", "die")
    for _ in range(5):
        server.refusal("hover", **AT)
    assert server.refusal("diagnostics", path="./a.py")["code"] == "lsp_server_unavailable"
    server.plan(answers={})
    before = len(server.received())
    assert server.ask("reload") == {"reloaded": ["python"], "count": 1}
    wait_for(
        lambda: "textDocument/didOpen" in [one.get("method") for one in server.received()[before:]]
    )
    assert server.ask("diagnostics", path="./a.py")["count"] == 1
    first = server.status()
    assert (first["state"], first["restart_count"]) == ("running", 0)
    for selected in ({"language": "python"}, {"path": "./a.py"}):
        assert server.ask("reload", **selected) == {"reloaded": ["python"], "count": 1}
    server.ask("diagnostics", path="./a.py")
    assert server.status()["pid"] != first["pid"]
    assert gone(first["pid"])
    reasons = [one["data"]["reason"] for one in rows_of(server.project, "code.lsp.server_stopped")]
    assert set(reasons) == {"reload"}


@whole("AT-LSP-54", "AT-AMB-16", "AT-LSP-01")
def test_capabilities_come_back_as_the_server_said_them(server: PlannedServer) -> None:
    assert server.ask("status")["count"] >= 1
    said = server.ask("capabilities", path="./a.py")
    plan = json.loads(server.plan_file.read_text("utf-8"))
    assert said["language"] == "python"
    assert said["capabilities"] == plan["capabilities"]
    assert said["server_info"] == {"name": "fake", "version": "1"}
    assert said["position_encoding"] == "utf-16"
    assert server.ask("capabilities", language="python") == said
    assert server.refusal("capabilities")["code"] == "invalid_params"
    assert server.ask("reload") == {"reloaded": ["python"], "count": 1}


@whole("AT-LSP-55", "AT-LSP-56")
def test_raw_requests_are_for_callers_without_a_cage(server: PlannedServer) -> None:
    folds = [{"startLine": 0, "endLine": 3}]
    server.answer("textDocument/foldingRange", {"result": folds})
    ask = {"method": "textDocument/foldingRange", "params": {"x": 1}}
    said = server.ask("request", path="./a.py", **ask)
    assert said == {"method": "textDocument/foldingRange", "result": folds}
    [asked] = server.received("textDocument/foldingRange")
    assert asked["params"] == {"x": 1}
    assert server.ask("request", language="python", **{**ask, "params": [1]})["result"] == folds
    before = server.methods()
    for method in (
        *("initialize", "initialized", "shutdown", "exit", "textDocument/didOpen"),
        *("textDocument/didChange", "textDocument/didClose"),
    ):
        refused = server.refusal("request", language="python", method=method)
        assert refused["code"] == "invalid_params", method
    assert server.refusal("request", language="python")["code"] == "invalid_params"
    for selected in ({"path": "./a.py"}, {"language": "python"}):
        refused = server.refusal("request", READER, **selected, **ask)
        assert refused["code"] == "capability_denied"
    assert server.methods() == before


@whole("AT-LSP-57")
def test_an_error_of_the_server_is_passed_on_and_the_server_stays(server: PlannedServer) -> None:
    server.answer("textDocument/hover", {"error": {"code": -32803, "message": "request failed"}})
    server.ask("diagnostics", path="./a.py")
    pid = server.status()["pid"]
    refused = server.refusal("hover", **AT)
    detail = refused["data"]["detail"]
    assert (detail["code"], detail["message"]) == (-32803, "request failed")
    server.answer("textDocument/hover", {"result": {"contents": "int"}})
    assert server.ask("hover", **AT)["content"] == "int"
    assert (server.status()["pid"], server.status()["restart_count"]) == (pid, 0)


@whole("AT-LSP-58")
def test_the_first_question_waits_while_the_server_loads(server: PlannedServer) -> None:
    loaded = server.log_file.with_name("loaded")

    def progress(kind: str) -> dict[str, Any]:
        return {"method": "$/progress", "params": {"token": 1, "value": {"kind": kind}}}

    server.answer("textDocument/definition", {"result": []})
    server.plan(on_initialized=[progress("begin")], when={str(loaded): [progress("end")]})
    answers: list[Any] = []
    asking = threading.Thread(target=lambda: answers.append(server.ask("definition", **AT)))
    asking.start()
    wait_for(lambda: "textDocument/definition" in server.methods())
    found = [server.place("a.py", 0, 0, 3)]
    server.answer("textDocument/definition", {"result": found})
    assert server.ask("status")["count"]
    assert answers == []
    loaded.touch()
    asking.join()
    [place] = answers[0]["definitions"]
    assert (place["path"], place["line"]) == ("./a.py", 1)


@whole("AT-LSP-07", "AT-LSP-08", "AT-LSP-09", "AT-LSP-21", "AT-FAIL-04")
def test_servers_end_when_they_hang_idle_or_lose_their_project_or_daemon(
    own: Callable[..., Daemon],
) -> None:
    daemon = own(config="[lsp]\nrequest_timeout_seconds = 5\nidle_timeout_seconds = 4\n")
    daemon.start()
    server = PlannedServer(daemon.load(Project(daemon.home.parent / "p")))
    server.project.write("a.py", "ERR\n")

    def reasons() -> list[str]:
        rows = rows_of(server.project, "code.lsp.server_stopped")
        return [one["data"]["reason"] for one in rows]

    server.ask("diagnostics", path="a.py")
    hung = server.status()["pid"]
    server.answer("textDocument/hover", "hang")
    refused = server.refusal("hover", **AT)
    assert (refused["code"], refused["data"]["number"]) == ("lsp_timeout", -32000)
    assert gone(hung)
    assert len(rows_of(server.project, "code.lsp.server_crashed")) == 1
    assert server.ask("diagnostics", path="a.py")["count"] == 1
    unused = server.status()
    assert unused["restart_count"] == 1
    wait_for(lambda: reasons() == ["idle_timeout"])
    assert gone(unused["pid"])
    assert server.methods()[-2:] == ["shutdown", "exit"]
    server.plan(ignore_exit=True)
    assert server.ask("diagnostics", path="a.py")["count"] == 1
    stubborn = server.status()["pid"]
    daemon.ask("DELETE", f"/projects/{server.project.id}")
    wait_for(lambda: gone(stubborn))
    assert reasons() == ["idle_timeout", "project_unload"]
    daemon.load(server.project)
    assert server.ask("diagnostics", path="a.py")["count"] == 1
    last = server.status()["pid"]
    daemon.stop()
    assert gone(last)
    daemon.start()
    assert reasons() == ["idle_timeout", "project_unload", "daemon_shutdown"]
