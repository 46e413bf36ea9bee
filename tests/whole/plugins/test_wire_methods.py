"""Methods between the daemon and its plugins: who owns which name, and who is told what when."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from requirements.marker import whole
from whole.harness.daemon import Daemon, exactly, wait_for
from whole.harness.guests import STORAGE, Guest
from whole.harness.project import Project

ASKS = """
from kit import *
greet()
number = 0

def on(message):
    global number
    params = message["params"]
    if message["method"] == "a.ask":
        number += 1
        got = ask(number, params["method"], params.get("params", {}))
        got.pop("jsonrpc")
        got.pop("id")
        answer(message, got)
    elif message["method"] == "a.echo":
        answer(message, params)
    else:
        answer(message, params["wanted"])
serve(on)
"""
METHODS = ["a.ask", "a.echo", "a.give"]
TOOL = {"name": "look", "description": "Looks.", "parameters_schema": {"type": "object"}}


@pytest.fixture(scope="module")
def asker(daemon: Daemon, module_path: Path) -> Guest:
    """Return a plugin that asks the host whatever it is told to ask."""
    made = Guest(daemon, module_path, ASKS, name="asker", methods=METHODS, capabilities=STORAGE)
    assert made.run()["state"] == "running"
    return made


@pytest.fixture(scope="module")
def other(daemon: Daemon, module_path: Path) -> Guest:
    """Return a second plugin, with a table of its own and one tool."""
    made = Guest(
        daemon,
        module_path,
        ASKS,
        name="other",
        methods=["a.ask", "other.run"],
        capabilities=STORAGE,
        tools=[TOOL],
    )
    assert made.run()["state"] == "running"
    asked(made, "kaged.storage.exec", sql="CREATE TABLE mine (a)")
    return made


def asked(guest: Guest, method: str, **params: Any) -> Any:
    """Let a plugin ask the host; returns the answer's `result` or `error`."""
    body = {"method": method, "params": params}
    return guest.daemon.post(f"/plugins/{guest.name}/call/a.ask", body)["result"]


def test_a_large_call_arrives_whole_however_its_body_is_cut(daemon: Daemon, asker: Guest) -> None:
    body = b'{"text": "' + b"t" * 400_000 + b'"}'
    head = (
        b"POST /api/v1/plugins/asker/call/a.echo HTTP/1.1\r\nHost: kaged\r\n"
        b"Content-Type: application/json\r\nConnection: close\r\n"
        + f"Content-Length: {len(body)}\r\n\r\n".encode()
    )
    for cut in (0, 1, 200_000, 350_000):
        with socket.socket(socket.AF_UNIX) as link:
            link.connect(str(wait_for(lambda: next(daemon.home.rglob("*.sock"), None))))
            link.sendall(head)
            daemon.get("/status")  # the head was read by now
            for piece in (body[:cut], body[cut:]):
                link.sendall(piece)
            got = b"".join(iter(lambda sock=link: sock.recv(1 << 20), b""))
        assert got.startswith(b"HTTP/1.1 200"), got[:200]
        assert got.count(b"t" * 400_000) == 1


@whole("PH-METH-17", "PH-METH-20")
def test_a_call_over_http_is_a_request_whose_result_is_the_answer(
    daemon: Daemon, asker: Guest
) -> None:
    answered = daemon.client.post("/api/v1/plugins/asker/call/a.give", json={"wanted": {"n": [1]}})
    assert answered.json() == {"result": {"n": [1]}}
    request = asker.heard("a.give")[-1]
    assert request["params"]["wanted"] == {"n": [1]}
    request_id = answered.headers["X-Request-Id"]
    rows = daemon.audit("plugin.method_called", "plugin.method_returned", request_id=request_id)
    assert [one["event"] for one in rows] == ["plugin.method_called", "plugin.method_returned"]
    called, returned = (one["data"] for one in rows)
    assert called == {
        "name": "asker",
        "method": "a.give",
        "request_id": request_id,
        "operator_id": "operator",
        "project_id": None,
    }
    assert (returned["method"], returned["success"]) == ("a.give", True)
    assert "error_code" not in returned


@whole("PH-AMB-50")
def test_get_passes_words_and_post_passes_json(daemon: Daemon, asker: Guest) -> None:
    got = daemon.get("/plugins/asker/call/a.echo?limit=5&name=x%20y&flag=true")["result"]
    got.pop("_context")
    assert got == {"limit": "5", "name": "x y", "flag": "true"}
    sent = daemon.post("/plugins/asker/call/a.echo", {"limit": 5, "flag": True})["result"]
    sent.pop("_context")
    assert sent == {"limit": 5, "flag": True}


@whole("PH-METH-26")
@pytest.mark.parametrize(
    "payload",
    [None, True, 0, -1.5, "", "text\0with\x1fcontrols", [], [[[]]], {}, {"": {"deep": [None]}}],
)
def test_any_json_goes_in_and_comes_out(asker: Guest, payload: Any) -> None:
    assert asker.call("a.give", wanted=payload) == payload
    assert asker.heard("a.give")[-1]["params"]["wanted"] == payload


@whole("PH-METH-21", "PH-METH-01", "PH-ERR-03")
@pytest.mark.parametrize(
    "method", ["no.such", "ping", "initialize", "shutdown", "config.update", "kaged.storage.exec"]
)
def test_only_declared_methods_can_be_called(daemon: Daemon, asker: Guest, method: str) -> None:
    asker.call("a.give", wanted=1)
    before = len(asker.heard())
    got = daemon.client.post(f"/api/v1/plugins/asker/call/{method}", json={})
    assert got.status_code in {404, 422}, got.text
    if "." in method:
        assert got.json()["error"]["data"]["number"] == -32601
    exactly(before, asker.heard, "nothing was sent")


@whole("PH-METH-12", "PH-METH-01", "PH-METH-25", "PH-ERR-03")
@pytest.mark.parametrize(
    "method",
    ["kaged.nothing", "other.run", "a.ask", "other.look", "plugins.call", "initialize", "x"],
)
def test_a_plugin_reaches_the_hosts_methods_and_nobody_else(
    asker: Guest, other: Guest, method: str
) -> None:
    asked(other, "kaged.storage.schema")
    before = len(other.heard())
    got = asked(asker, method, name="other", sql="SELECT 1")
    assert got["error"]["code"] == -32601, got
    exactly(before, other.heard, "the other plugin heard nothing")
    assert asked(asker, "kaged.storage.schema")["result"] is not None


@whole("PH-METH-09", "PH-METH-10", "PH-METH-11")
def test_storage_answers_with_counts_rows_columns_and_plain_names(
    daemon: Daemon, tmp_path: Path
) -> None:
    guest = Guest(daemon, tmp_path, ASKS, methods=["a.ask"], capabilities=STORAGE)
    guest.run()
    made = asked(guest, "kaged.storage.exec", sql="CREATE TABLE presets (id INTEGER, name TEXT)")
    assert isinstance(made["result"]["rows_affected"], int)
    sql = "INSERT INTO presets VALUES (?, ?), (?, ?)"
    added = asked(guest, "kaged.storage.exec", sql=sql, params=[1, "one", 2, "two"])
    assert added == {"result": {"rows_affected": 2}}
    changed = asked(guest, "kaged.storage.exec", sql="UPDATE presets SET name = 'x' WHERE id = 2")
    assert changed == {"result": {"rows_affected": 1}}
    query = "SELECT name, id FROM presets WHERE id >= ? ORDER BY id"
    assert asked(guest, "kaged.storage.query", sql=query, params=[1])["result"] == {
        "rows": [{"name": "one", "id": 1}, {"name": "x", "id": 2}],
        "columns": ["name", "id"],
    }
    assert asked(guest, "kaged.storage.schema") == {"result": {"tables": ["presets"]}}
    gone = asked(guest, "kaged.storage.exec", sql="DELETE FROM presets")
    assert gone == {"result": {"rows_affected": 2}}
    for sql in ("DELETE FROM presets", "SELECT 1; SELECT 2"):
        assert "error" in asked(guest, "kaged.storage.query", sql=sql)


@whole("PH-METH-13", "PH-ERR-04")
@pytest.mark.parametrize("method", ["kaged.storage.exec", "kaged.storage.query"])
@pytest.mark.parametrize(
    "params", [{}, {"sql": 5}, {"sql": None}, {"sql": "SELECT 1", "params": {}}, {"params": []}]
)
def test_storage_refuses_wrong_parameters(
    asker: Guest, method: str, params: dict[str, Any]
) -> None:
    assert asked(asker, method, **params)["error"]["code"] == -32602


@whole("PH-METH-13")
def test_absent_parameters_of_a_query_are_an_empty_list(asker: Guest) -> None:
    assert asked(asker, "kaged.storage.query", sql="SELECT 1 AS n")["result"]["rows"] == [{"n": 1}]


@whole("PH-ERR-09", "PH-AMB-29", "PH-CAP-08", "PH-CAP-09")
@pytest.mark.parametrize(
    ("capabilities", "allowed"),
    [
        ([], set[str]()),
        (["kaged:storage:read"], {"query", "schema"}),
        (["kaged:storage:write"], {"query", "schema", "exec"}),
    ],
    ids=["none", "read", "write"],
)
def test_storage_asks_for_its_capability(
    daemon: Daemon, tmp_path: Path, capabilities: list[str], allowed: set[str]
) -> None:
    guest = Guest(daemon, tmp_path, ASKS, methods=["a.ask"], capabilities=capabilities)
    guest.run()
    statements = {"query": "SELECT 1 AS n", "exec": "CREATE TABLE t (a)", "schema": ""}
    for name, sql in statements.items():
        got = asked(guest, f"kaged.storage.{name}", **({"sql": sql} if sql else {}))
        if name in allowed:
            assert "result" in got, (name, got)
        else:
            assert got["error"]["code"] == -32003, (name, got)
    assert guest.state()["state"] == "running"


@whole("PH-ERR-09", "PH-FAIL-06")
def test_the_table_of_another_plugin_is_out_of_reach_and_trying_is_on_record(
    asker: Guest, other: Guest
) -> None:
    before = len(asker.rows("plugin.storage_denied"))
    tries = ("SELECT * FROM plugin_other_mine", "SELECT * FROM sqlite_master")
    for sql in tries:
        assert asked(asker, "kaged.storage.query", sql=sql)["error"]["code"] == -32003, sql
    exactly(before + len(tries), lambda: asker.rows("plugin.storage_denied"))
    assert asker.state()["state"] == "running"
    assert asker.rows("plugin.crashed") == []
    assert asked(other, "kaged.storage.query", sql="SELECT * FROM mine")["result"]["rows"] == []


NAMES = {
    "presets.list": True,
    "a.b.c.d": True,
    "a1.b_2": True,
    "search.run": True,
    "list": False,
    "a.b.c.d.e": False,
    "Presets.list": False,
    "pre-sets.list": False,
    "a..b": False,
    "1a.b": False,
    "a.b.": False,
    ".a.b": False,
    "a.bé": False,
    "kaged.foo": False,
    "system.foo": False,
    "config.update": False,
    "projects.activated": False,
    "projects.deactivated": False,
}


@whole("PH-METH-15", "PH-METH-16", "PH-AMB-22")
@pytest.mark.parametrize(("method", "fine"), NAMES.items())
def test_names_of_methods_have_two_to_four_small_segments_of_the_plugins_own(
    daemon: Daemon, tmp_path: Path, method: str, fine: bool
) -> None:
    guest = Guest(daemon, tmp_path, methods=[method])
    body = {"path": str(guest.root)}
    if fine:
        assert daemon.post("/plugins/preview", body)["digest"]
        return
    refused = daemon.error("POST", "/plugins/preview", body)
    assert refused["code"] == "config_invalid", refused
    assert any("methods" in str(one) for one in refused["data"]["problems"]), refused


@whole("PH-AMB-22")
def test_a_tool_and_a_method_do_not_share_a_name(daemon: Daemon, tmp_path: Path) -> None:
    tool = {**TOOL, "name": "list"}
    clash = Guest(daemon, tmp_path, name="presets", tools=[tool], methods=["presets.list"])
    refused = daemon.error("POST", "/plugins/preview", {"path": str(clash.root)})
    assert refused["code"] == "config_invalid"
    assert "presets.list" in str(refused["data"]["problems"])
    system = Guest(
        daemon, tmp_path, name="config", tools=[{**TOOL, "name": "update"}], methods=["a.b"]
    )
    refused = daemon.error("POST", "/plugins/preview", {"path": str(system.root)})
    assert "config.update" in str(refused["data"]["problems"])


@whole("PH-METH-07", "PH-METH-08", "PH-AMB-14", "PH-AMB-15")
def test_plugins_are_told_when_a_project_comes_is_read_again_and_goes(
    daemon: Daemon, tmp_path: Path
) -> None:
    schema = {"type": "object", "properties": {"tag": {"type": "string", "default": "none"}}}
    guest = Guest(daemon, tmp_path, ASKS, methods=["a.echo"], config_schema=schema)
    guest.run()
    project = Project(tmp_path / "p")
    project.describe(plugins={"it": {"package": guest.name, "config": {"tag": "one"}}})
    daemon.load(project)
    guest.await_heard("projects.activated")
    project.reload()
    for told in guest.await_heard("projects.activated", 2):
        assert told["params"] == {"project": project.id, "config": {"tag": "one"}}
        assert isinstance(told["id"], int)
    daemon.ask("DELETE", f"/projects/{project.id}")
    (gone,) = guest.await_heard("projects.deactivated")
    assert gone["params"] == {"project": project.id}
    assert isinstance(gone["id"], int)
    assert guest.state()["projects"] == []
    exactly(2, lambda: guest.heard("projects.activated"))
    exactly(1, lambda: guest.heard("projects.deactivated"))
    # A project that does without it from now on is gone for it as well.
    daemon.load(project)
    guest.await_heard("projects.activated", 3)
    project.describe()
    project.reload()
    assert guest.await_heard("projects.deactivated", 2)[-1]["params"] == {"project": project.id}


KNOB = {
    "tag": {
        "type": "text",
        "label": "Tag",
        "binds_to": "config.tag",
        "default": "none",
    }
}


@whole("PH-METH-05", "PH-METH-06", "PH-ERR-10")
def test_changed_settings_are_delivered_and_a_refusal_is_told_to_who_changed_them(
    daemon: Daemon, tmp_path: Path
) -> None:
    picky = """
from kit import *
request = receive()
answer(request, hello())
while True:
    message = receive()
    if message["method"] == "config.update":
        if message["params"]["config"].get("tag") == "bad":
            fail(message, -32004, "not that tag")
        else:
            answer(message, {})
    elif message["method"] == "shutdown":
        os._exit(0)
    elif "id" in message:
        answer(message, {"status": "ok"})
"""
    properties = {
        "tag": {"type": "string", "default": "none"},
        "size": {"type": "integer", "default": 3},
    }
    schema = {"type": "object", "properties": properties}
    guest = Guest(daemon, tmp_path, picky, config_schema=schema, knobs=KNOB)
    guest.run()
    project = Project(tmp_path / "p")
    project.describe(plugins={"it": {"package": guest.name, "config": {"tag": "one"}}})
    daemon.load(project)

    def configs() -> list[Any]:
        return [one["params"] for one in guest.heard("config.update")]

    wait_for(lambda: {"config": {"tag": "one", "size": 3}} in configs())
    project.describe(plugins={"it": {"package": guest.name, "config": {"tag": "two"}}})
    project.reload()
    wait_for(lambda: configs()[-1] == {"config": {"tag": "two", "size": 3}})
    path = f"/plugins/{guest.name}/knobs/tag"
    turned = {"project_id": project.id, "agent_path": "primary", "value": "three"}
    assert daemon.ask("PUT", path, turned)["delivered"] is True
    assert configs()[-1] == {"config": {"tag": "three", "size": 3}}
    refused = daemon.ask("PUT", path, {**turned, "value": "bad"})
    assert (refused["delivered"], refused["code"]) == (False, "config_invalid")
    assert "not that tag" in refused["note"]
    assert guest.state()["state"] == "running"
    assert len(guest.rows("plugin.spawned")) == 1
    assert guest.call() == {"status": "ok"}


@whole("PH-METH-18", "PH-AMB-18", "PH-AMB-19")
def test_a_tool_travels_under_its_full_name_and_methods_are_no_tools(
    daemon: Daemon, tmp_path: Path
) -> None:
    program = ASKS.replace("greet()", 'greet(methods=["a.echo", f"{NAME}.look"])')
    program = program.replace('params["wanted"]', "params")
    guest = Guest(daemon, tmp_path, program, methods=["a.echo"], tools=[TOOL])
    full = f"{guest.name}.look"
    guest.run()
    assert guest.logged("plugin.handshake_warned") == []
    project = Project(tmp_path / "p")
    project.describe(plugins={"it": {"package": guest.name}})
    daemon.load(project)
    guest.await_heard("projects.activated")
    got = project.call(full, what="this", deep={"a": 1})
    request = guest.heard(full)[-1]
    context = request["params"].pop("_context")
    assert request["params"] == {"what": "this", "deep": {"a": 1}}
    assert context["agent_path"] == "primary"
    assert got["what"] == "this"
    tools = {one["name"] for one in project.get("/tools")["tools"]}
    assert full in tools
    assert not [one for one in tools if "echo" in one]
