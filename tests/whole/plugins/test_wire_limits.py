"""What is too large for a line, too slow for a hook, or an answer without a word."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from requirements.marker import whole
from whole.harness.daemon import KAGED, Daemon, exactly, wait_for
from whole.harness.guests import STORAGE, Guest
from whole.harness.model import ModelServer, call, say
from whole.harness.project import Project

LIMIT = 4 * 1024 * 1024
TOOL = {"name": "look", "description": "Looks.", "parameters_schema": {"type": "object"}}
MEASURES = """
from kit import *
greet()
def on(message):
    answer(message, len(message["params"].get("text", "")))
serve(on)
"""


def over_mcp(daemon: Daemon, project: Project, tool: str, arguments: Any) -> dict[str, Any]:
    """Call a tool as an MCP client does that writes its messages itself; returns the answer."""
    who = {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "by-hand", "version": "1"},
    }
    messages = [
        {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": who},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {
            "jsonrpc": "2.0",
            "id": 2,
            "method": "tools/call",
            "params": {"name": tool, "arguments": arguments},
        },
    ]
    daemon.get("/status")
    with subprocess.Popen(
        [KAGED, "mcp"],
        cwd=project.root,
        env=daemon.env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as client:
        assert client.stdin is not None
        assert client.stdout is not None
        for message in messages:
            client.stdin.write(json.dumps(message, separators=(",", ":")) + "\n")
            client.stdin.flush()
        for line in client.stdout:
            got: dict[str, Any] = json.loads(line)
            if got.get("id") == 2:
                client.stdin.close()
                return got
    raise AssertionError("no answer")


@whole("PH-AMB-33", "PH-ERR-04")
def test_the_host_writes_no_line_beyond_the_limit_either(daemon: Daemon, tmp_path: Path) -> None:
    guest = Guest(daemon, tmp_path, MEASURES, tools=[TOOL])
    guest.run()
    project = Project(tmp_path / "p")
    project.describe(plugins={"it": {"package": guest.name}})
    daemon.load(project)
    guest.await_heard("projects.activated")
    full = f"{guest.name}.look"
    names = {one["name"]: one for one in project.get("/tools")["tools"]}
    assert full in names
    # As much as a client may send, which is less than it is with the host's own context in it.
    large = LIMIT - 150
    small = over_mcp(daemon, project, full.replace(".", "_"), {"text": "x" * 1000})
    assert "error" not in small, small
    assert small["result"]["isError"] is False
    got = over_mcp(daemon, project, full.replace(".", "_"), {"text": "x" * large})
    assert len(guest.heard(full)) == 1, "the large one was not sent"
    returned = guest.rows("plugin.method_returned")[-1]
    assert (returned["success"], returned["error_code"]) == (False, -32602)
    assert "invalid_params" in json.dumps(got), got
    assert guest.state()["state"] == "running"
    assert len(guest.rows("plugin.spawned")) == 1


@whole("PH-AMB-33")
def test_an_answer_of_the_host_that_is_too_long_is_an_error_instead(
    daemon: Daemon, tmp_path: Path
) -> None:
    asks = """
from kit import *
greet()
def on(message):
    ask(1, "kaged.storage.exec", {"sql": "CREATE TABLE t (a TEXT)"})
    for number in range(2, 7):
        ask(number, "kaged.storage.exec",
            {"sql": "INSERT INTO t VALUES (?)", "params": ["x" * 1000000]})
    answer(message, [ask(7, "kaged.storage.query", {"sql": "SELECT a FROM t"}),
                     ask(8, "kaged.storage.query", {"sql": "SELECT length(a) AS n FROM t"})])
serve(on)
"""
    guest = Guest(daemon, tmp_path, asks, capabilities=STORAGE)
    guest.run()
    too_long, short = guest.call()
    assert too_long["id"] == 7
    assert "result" not in too_long
    assert too_long["error"]["code"] < 0
    assert short["result"]["rows"] == [{"n": 1_000_000}] * 5
    assert max(map(len, guest.heard_bytes().split(b"\n"))) <= LIMIT


SLOW_HOOK = """
from kit import *
greet()
late = []
def on(message):
    method = message["method"]
    if method == "kaged.hook.on_session_start":
        late.append(message)
    else:
        for one in late:
            answer(one, {"inject": "TOO LATE TO COUNT"})
        late.clear()
        answer(message, "alive")
serve(on)
"""


@whole("PH-AMB-40")
def test_a_hook_that_takes_too_long_is_done_without_and_nobody_is_killed_for_it(
    daemon: Daemon, model: ModelServer, tmp_path: Path
) -> None:
    guest = Guest(
        daemon, tmp_path, SLOW_HOOK, tools=[TOOL], hooks=["on_session_start"], hook_timeout_sec=1
    )
    guest.run()
    pid = guest.state()["pid"]
    project = Project(tmp_path / "p")
    project.describe(plugins={"it": {"package": guest.name}})
    daemon.load(project)
    guest.await_heard("projects.activated")
    word = f"late-{guest.name}"
    model.play(word, call(f"{guest.name}.look"), say("done"))
    daemon.cli("run", f"{word} please", cwd=project.root)
    assert len(guest.heard("kaged.hook.on_session_start")) == 1
    assert len(model.asked(word)) == 2
    assert "TOO LATE" not in json.dumps(model.asked(word))
    assert guest.state()["metrics"]["hook_timeouts"] == 1
    assert guest.state()["pid"] == pid
    assert guest.state()["state"] == "running"
    assert guest.call() == "alive"
    assert guest.rows("plugin.crashed") == []
    wait_for(lambda: guest.logged("plugin.answer_ignored"))


WORDLESS = """
from kit import *
greet()
while True:
    message = receive()
    if message["method"] == "shutdown":
        os._exit(0)
    if "id" in message:
        put({"jsonrpc": "2.0", "id": message["id"]})
"""


@whole("PH-AMB-59")
def test_an_answer_without_a_word_is_null_for_settings_hooks_tools_and_methods(
    daemon: Daemon, model: ModelServer, tmp_path: Path
) -> None:
    guest = Guest(
        daemon,
        tmp_path,
        WORDLESS,
        tools=[TOOL],
        hooks=["on_session_start"],
        config_schema={"type": "object", "properties": {"a": {"type": "integer", "default": 1}}},
    )
    assert guest.run()["state"] == "running", "settings taken"
    assert guest.call() is None
    project = Project(tmp_path / "p")
    project.describe(plugins={"it": {"package": guest.name}})
    daemon.load(project)
    guest.await_heard("projects.activated")
    assert project.call(f"{guest.name}.look") is None
    word = f"wordless-{guest.name}"
    model.play(word, say("hello"))
    assert "hello" in daemon.cli("run", f"{word} please", cwd=project.root).out
    assert len(guest.heard("kaged.hook.on_session_start")) == 1
    assert guest.state()["metrics"]["hook_timeouts"] == 0
    assert exactly(0, lambda: guest.rows("plugin.protocol_violation", "plugin.crashed")) == []
