"""The largest messages that guests may send, of every kind, while others ask for the status."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from whole.harness.daemon import Daemon, wait_for
from whole.harness.guests import STORAGE, Guest
from whole.harness.model import ModelServer
from whole.harness.project import Project
from whole.harness.scripts import Scripts
from whole.harness.status_watch import WORST_S, StatusWatch, held_up_s

LARGE = Path(__file__).parents[2] / "guests" / "large_messages.py"
SHAPES = ("keys", "pairs", "text", "escapes", "digits")
KINDS = ("result", "error", "notification", "sql", "params", "stray", "batch")
PLUGIN = """
from kit import *
from large import large
greet()
HEADS = {
    "result": '{"jsonrpc":"2.0","id":$id,"result":',
    "error": '{"jsonrpc":"2.0","id":$id,"error":{"code":-32000,"message":"m","data":',
    "notification": '{"jsonrpc":"2.0","method":"x.y","params":{"a":',
    "sql": '{"jsonrpc":"2.0","id":$next,"method":"kaged.storage.query","params":{"sql":',
    "params": '{"jsonrpc":"2.0","id":$next,"method":"kaged.storage.query","params":'
              '{"sql":"SELECT 1","params":',
    "stray": '{"jsonrpc":"2.0","id":777777,"result":',
    "batch": "[",
}
asked = 0
def on(message):
    global asked
    kind = message["params"]["kind"]
    asked += kind in ("sql", "params")
    head = HEADS[kind].replace("$id", str(message["id"])).replace("$next", str(asked))
    tail = "]" if kind == "batch" else "}" * (head.count("{"))
    raw((head + large(message["params"]["shape"]) + tail).encode() + b"\\n")
    if kind in ("sql", "params"):
        answer(message, "error" in await_answer(asked))
    elif kind not in ("result", "error"):
        answer(message, True)
serve(on)
"""
SERVER = """
import json, sys
from large_messages import large
def send(text):
    sys.stdout.write(text + "\\n")
    sys.stdout.flush()
lists = 0
TOOL = {"name": "look", "description": "d", "inputSchema": {"type": "object"}}
for line in sys.stdin:
    asked = json.loads(line)
    number = asked.get("id")
    head = '{"jsonrpc":"2.0","id":' + str(number) + ',"result":'
    if asked["method"] == "initialize":
        claims = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {"listChanged": True}},
                  "serverInfo": {"name": "large", "version": "1"}}
        send(head + json.dumps(claims) + "}")
    elif asked["method"] == "tools/list":
        lists += 1
        tools = [{**TOOL, "name": f"tool-{n}", "description": "d" * 500} for n in range(4000)]
        send(head + json.dumps({"tools": [TOOL, *tools]}) + "}")
    elif asked["method"] == "tools/call":
        shape, kind = (asked["params"]["arguments"][one] for one in ("shape", "kind"))
        if kind == "list":
            send(head + json.dumps({"content": [{"type": "text", "text": str(lists)}]}) + "}")
            if shape == "changed":
                send('{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}')
        elif kind == "text":
            text = json.dumps(large(shape, 2_200_000)[:2_000_000])
            send(head + '{"content":[{"type":"text","text":' + text + "}]}}")
        else:
            send(head + '{"content":[],"structuredContent":{"a":' + large(shape) + "}}}")
    elif number is not None:
        send(head + "{}}")
"""
SCRIPT = """
kage.register_command{name='large', description='', handler=function(raw)
  local made = {}
  for n = 1, tonumber(raw) do made[n] = {a = n} end
  return { structured = { value = made } }
end}
kage.register_command{name='long', description='', handler=function(raw)
  return { structured = { value = string.rep('x', tonumber(raw)) } }
end}
kage.register_command{name='store', description='', handler=function(raw)
  for n = 1, tonumber(raw) do kage.store.set('k' .. (n % 100), n) end
  return { structured = { value = kage.store.get('k1') } }
end}
kage.register_command{name='names', description='', handler=function(raw)
  for n = 1, tonumber(raw) do kage.store.set('k' .. n, n) end
  return { structured = { value = #kage.store.keys() } }
end}
kage.register_command{name='count', description='', handler=function(raw)
  return { structured = { value = #kage.store.keys() } }
end}
kage.register_command{name='notes', description='', handler=function(raw)
  for n = 1, tonumber(raw) do kage.notify(string.rep('x', 100000)) end
  return { structured = { value = true } }
end}
"""


@pytest.fixture(scope="module")
def daemon(module_path: Path, model: ModelServer) -> Iterator[Daemon]:
    """Yield a daemon with an MCP server that answers with as much as it may."""
    guests = module_path / "guests"
    guests.mkdir()
    (guests / "server.py").write_text(SERVER, encoding="utf-8")
    (guests / LARGE.name).write_text(LARGE.read_text(encoding="utf-8"), encoding="utf-8")
    argv = json.dumps([sys.executable, str(guests / "server.py")])
    server = (
        f"[mcp.servers.large]\ncommand = {argv}\n"
        f'cage = {{ fs = [{{ mode = "ro", path = "{guests}" }}] }}\n'
    )
    made = Daemon(module_path / "h", config=server, local=model.local_toml())
    made.start()
    yield made
    made.close()


@pytest.fixture
def guest(daemon: Daemon, tmp_path: Path) -> Iterator[Guest]:
    """Yield a running plugin that sends what it is asked to."""
    files = {"large.py": LARGE.read_text(encoding="utf-8")}
    made = Guest(daemon, tmp_path, PLUGIN, files=files, capabilities=STORAGE)
    made.run()
    yield made
    daemon.ask("DELETE", f"/plugins/{made.name}?force=true")


@pytest.mark.parametrize("kind", KINDS)
def test_no_message_of_a_plugin_holds_up_others(daemon: Daemon, guest: Guest, kind: str) -> None:
    def send(shape: str) -> None:
        for _ in range(2):
            body = {"kind": kind, "shape": shape}
            got = daemon.client.post(f"/api/v1/plugins/{guest.name}/call/a.b", json=body)
            assert "unavailable" not in got.text[:100], (shape, got.text[:300])

    spent = {shape: held_up_s(daemon, partial(send, shape)) for shape in SHAPES}
    assert max(spent.values()) < WORST_S, spent
    assert len(guest.rows("plugin.spawned")) == 1


@pytest.mark.parametrize("shape", ["lists", "numbers", "too-many-keys"])
def test_a_message_of_more_values_than_allowed_ends_the_plugin_and_delays_nobody(
    daemon: Daemon, guest: Guest, shape: str
) -> None:
    with StatusWatch(daemon) as watch:
        refused = guest.fail("a.b", kind="result", shape=shape)
        wait_for(lambda: guest.rows("plugin.protocol_violation"), "the record")
    assert refused["code"] == "plugin_unavailable"
    (row,) = guest.rows("plugin.protocol_violation")
    assert row["violation_type"] == "protocol.oversize_message"
    assert "50000 values" in str(row["detail"])
    assert watch.worst_s < WORST_S
    guest.await_rows("plugin.spawned", 2)
    guest.await_state("running")
    assert guest.call("a.b", kind="notification", shape="text") is True


def test_the_lists_and_answers_of_an_mcp_server_hold_up_nobody(
    daemon: Daemon, project: Project
) -> None:
    wait_for(lambda: daemon.get("/mcp/servers/large")["state"] == "running", "the server")

    def ask(shape: str, kind: str) -> None:
        params = {"shape": shape, "kind": kind}
        body = {"agent": "primary", "tool": "large.look", "params": params}
        got = daemon.client.post(f"/api/v1/projects/{project.id}/tools/call", json=body)
        assert "unavailable" not in got.text[:100], (shape, kind, got.text[:300])

    spent = {
        f"{shape} {kind}": held_up_s(daemon, partial(ask, shape, kind))
        for shape in SHAPES
        for kind in ("text", "structured")
    }
    with StatusWatch(daemon) as watch:
        first = project.call("large.look", shape="changed", kind="list")
        wait_for(lambda: project.call("large.look", shape="", kind="list") != first, "the list")
        wait_for(lambda: len(watch.spent_s) > 20)
    spent["list"] = watch.worst_s
    assert max(spent.values()) < WORST_S, spent


@pytest.mark.parametrize(
    ("command", "size"),
    [("large", 11_000), ("long", 4_000_000), ("store", 100_000), ("names", 100_000), ("notes", 10)],
)
def test_what_a_script_returns_keeps_or_shows_holds_up_nobody(
    daemon: Daemon, project: Project, command: str, size: int
) -> None:
    scripts = Scripts(daemon, project)
    try:
        scripts.load(large=SCRIPT)
        found: dict[str, Any] = {}

        def run() -> None:
            found.update(scripts.run(command, str(size)))

        spent_s = held_up_s(daemon, run)
        assert not found["is_error"], found["text"]
        assert spent_s < WORST_S
        if command == "names":
            assert found["structured"]["value"] == size
            scripts.reload()  # another worker reads what the first one kept
            assert scripts.value("count") == {"value": size}
    finally:
        scripts.close()


@pytest.mark.parametrize(("command", "size"), [("large", 30_000), ("long", 5_000_000)])
def test_a_script_that_returns_more_than_a_message_holds_is_told_and_lives(
    daemon: Daemon, project: Project, command: str, size: int
) -> None:
    scripts = Scripts(daemon, project)
    try:
        scripts.load(large=SCRIPT)
        found = scripts.run(command, str(size))
        assert found["is_error"]
        assert "too large" in found["text"]
        assert scripts.value("long", "3") == {"value": "xxx"}
        assert scripts.state("large")["restarts"] == 0
    finally:
        scripts.close()
