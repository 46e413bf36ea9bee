"""Errors on the wire: what a plugin's caller gets, and what the SDK answers inside a real cage.

The SDK's plugin is run by a go-between, a program of the test that stands between the daemon and
the plugin in the same cage: it passes lines on, keeps them, and slips in lines of its own.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from requirements.marker import whole
from whole.harness.daemon import Daemon, exactly, wait_for
from whole.harness.guests import Guest
from whole.harness.project import Project

FAILS = """
from kit import *
greet()
def on(message):
    error = message["params"]["error"]
    put({"jsonrpc": "2.0", "id": message["id"], "error": error})
serve(on)
"""
NAMED = {
    -32700: ("rpc_parse_error", 502),
    -32600: ("invalid_request", None),
    -32601: ("method_not_found", 404),
    -32602: ("invalid_params", 400),
    -32603: ("internal_error", None),
    -32000: ("plugin_error", 502),
    -32001: ("capability_denied", 403),
    -32002: ("not_initialized", None),
    -32003: ("storage_access_denied", 403),
    -32004: ("config_invalid", None),
    -32005: ("resource_busy", 503),
    -32006: ("not_applicable", None),
}


@pytest.fixture(scope="module")
def failing(daemon: Daemon, module_path: Path) -> Guest:
    """Return a plugin whose method fails as it is told."""
    made = Guest(daemon, module_path, FAILS, name="failing", methods=["a.b"])
    assert made.run()["state"] == "running"
    return made


@whole("PH-METH-24", "PH-WIRE-23", "PH-ERR-12", "PH-ERR-11", "PH-AMB-50")
@pytest.mark.parametrize("number", NAMED)
@pytest.mark.parametrize("data", [None, {"why": ["this", 1]}, "words", False])
def test_an_error_of_a_plugin_reaches_its_caller_unchanged(
    failing: Guest, number: int, data: Any
) -> None:
    error: dict[str, Any] = {"code": number, "message": f"my words {number}"}
    if data is not None:
        error["data"] = data
    got = failing.fail(error=error)
    code, status = NAMED[number]
    assert (got["code"], got["message"]) == (code, f"my words {number}")
    assert status is None or got["status"] == status
    assert got["data"]["number"] == number
    assert got["data"].get("detail") == data
    assert got["data"]["retryable"] is (number == -32005)
    assert failing.state()["state"] == "running"
    returned = failing.rows("plugin.method_returned")[-1]
    assert (returned["success"], returned["error_code"]) == (False, number)


@whole("PH-ERR-11")
def test_the_host_does_not_try_again_when_a_plugin_is_busy(failing: Guest) -> None:
    before = len(failing.heard("a.b"))
    failing.fail(error={"code": -32005, "message": "an install is running"})
    exactly(before + 1, lambda: failing.heard("a.b"))


@whole("PH-ERR-13", "PH-ERR-14", "PH-AMB-41")
@pytest.mark.parametrize(
    ("number", "reserved"),
    [
        (-32050, False),
        (-32007, False),
        (-32099, False),
        (-32700, False),
        (-32600, False),
        (1, False),
        (-32100, True),
        (-32500, True),
        (-40000, True),
    ],
)
def test_numbers_kept_for_kaged_are_passed_on_with_a_warning(
    failing: Guest, number: int, reserved: bool
) -> None:
    before = len(failing.logged("plugin.error_code_reserved"))
    got = failing.fail(error={"code": number, "message": "mine", "data": {"a": 1}})
    assert (got["data"]["number"], got["message"]) == (number, "mine")
    assert got["data"]["detail"] == {"a": 1}
    warnings = failing.logged("plugin.error_code_reserved")[before:]
    assert len(warnings) == int(reserved)
    assert not reserved or str(number) in warnings[0]


@whole("PH-ERR-07")
@pytest.mark.parametrize(
    ("tool", "params"),
    [
        ("file.read", {"path": "a.txt"}),
        ("file.write", {"path": "b.txt", "content": "x"}),
        ("search.grep", {"pattern": "x"}),
        ("shell.bash", {"command": "true"}),
    ],
)
def test_a_call_without_the_capability_for_it_is_a_denial(
    daemon: Daemon, tmp_path: Path, tool: str, params: dict[str, Any]
) -> None:
    project = Project(tmp_path / "p", cage={"fs": []})
    project.write("a.txt", "x")
    daemon.load(project)
    refused = project.fail(tool, **params)
    assert (refused["code"], refused["data"]["number"]) == ("capability_denied", -32001)
    assert not (project.root / "b.txt").exists()


GO_BETWEEN = """
import json, os, subprocess, sys, threading
inside = subprocess.Popen([sys.executable, "author.py"], stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE)
diary = open(os.environ["DIARY"], "ab", buffering=0)
said = open(os.environ["DIARY"] + ".said", "ab", buffering=0)
slipped_in = {"initialize": os.environ["EARLY"].encode(), "c.d": os.environ["LATE"].encode()}

def pass_in():
    for line in sys.stdin.buffer:
        diary.write(line)
        method = json.loads(line).get("method")
        if method in slipped_in:
            inside.stdin.write(line if method == "initialize" else b"")
            inside.stdin.write(slipped_in[method])
            inside.stdin.write(line if method != "initialize" else b"")
        else:
            inside.stdin.write(line)
        inside.stdin.flush()
    inside.stdin.close()

threading.Thread(target=pass_in, daemon=True).start()
for line in inside.stdout:
    said.write(line)
    number = json.loads(line).get("id")
    # What answers a slipped-in line is not for the host.
    if not isinstance(number, str) and number is not None:
        sys.stdout.buffer.write(line)
        sys.stdout.buffer.flush()
os._exit(inside.wait())
"""
AUTHOR = """
import sys
sys.path.insert(0, "/opt/kaged/sdk/python")
from kaged.sdk import ConfigInvalid, InvalidParams, Plugin, PluginError, base64_text
plugin = Plugin("sdk-guest", "1.0.0")

@plugin.method("a.b")
def fails(params, context):
    how = params["how"]
    if how == "plugin":
        raise PluginError("generic", detail={"why": "details"})
    if how == "domain":
        raise PluginError("domain", number=-32050)
    if how == "params":
        raise InvalidParams("wrong")
    if how == "reserved":
        try:
            raise PluginError("forbidden", number=-32100)
        except Exception as error:
            return {"refused": type(error).__name__ + ": " + str(error)}
    if how == "bytes":
        return {"data": b"raw"}
    if how == "base64":
        return {"data": base64_text(bytes([0, 255, 10]))}
    if how == "late":
        raise KeyError("unexpected")
    return params

@plugin.method("c.d")
def quiet(params, context):
    return [context.operator_id, context.project_id]

@plugin.config
def configure(config):
    if config.get("tag") == "bad":
        raise ConfigInvalid("not that tag")

plugin.start()
"""
EARLY = [
    '{"jsonrpc":"2.0","id":"early","method":"a.b","params":{"how":"plugin"}}',
]
LATE = [
    "this is no JSON",
    '[{"jsonrpc":"2.0","id":"batched","method":"a.b","params":{}}]',
    '{"id":"nameless","method":"a.b"}',
    '{"jsonrpc":"2.0","id":"unknown","method":"no.such","params":{}}',
    '{"jsonrpc":"2.0","method":"no.such","params":{}}',
    '{"jsonrpc":"2.0","id":null,"result":{}}',
    '{"jsonrpc":"2.0","id":9999,"result":{}}',
    '{"jsonrpc":"2.0","id":"bare","method":"config.update","params":{"tag":"bad"}}',
    '{"jsonrpc":"2.0","id":"wrapped","method":"config.update","params":{"config":{"tag":"bad"}}}',
    '{"jsonrpc":"2.0","method":"config.update","params":{"config":{"tag":"bad"}}}',
    '{"jsonrpc":"2.0","id":"health","method":"ping","params":{}}',
]


@pytest.fixture(scope="module")
def sdk_guest(daemon: Daemon, module_path: Path) -> Guest:
    """Return a plugin on the Python SDK behind a go-between."""
    made = Guest(
        daemon,
        module_path,
        GO_BETWEEN,
        files={"author.py": AUTHOR},
        name="sdk-guest",
        env={"EARLY": "\n".join([*EARLY, ""]), "LATE": "\n".join([*LATE, ""])},
        config_schema={"type": "object", "properties": {"tag": {"type": "string"}}},
        health_interval_sec=5,
    )
    assert made.run()["state"] == "running"
    return made


def said(guest: Guest, number: str) -> dict[str, Any]:
    """Wait for what the SDK answered to a line that was slipped in."""
    path = guest.shared / "diary.said"

    def look() -> dict[str, Any]:
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        return next((one for one in lines if one.get("id") == number), {})

    return wait_for(look, number)


@whole("PH-HAND-20", "PH-ERR-08")
def test_the_sdk_refuses_a_call_before_initialized(sdk_guest: Guest) -> None:
    assert said(sdk_guest, "early")["error"]["code"] == -32002
    assert sdk_guest.call(how="echo")["how"] == "echo", "the same call works now"


@whole("PH-ERR-01", "PH-ERR-02", "PH-WIRE-16", "PH-WIRE-21")
def test_the_sdk_refuses_what_is_no_message_and_answers_no_notification(sdk_guest: Guest) -> None:
    assert sdk_guest.call("c.d") == ["operator", None]
    assert said(sdk_guest, "unknown")["error"]["code"] == -32601
    assert said(sdk_guest, "nameless")["error"]["code"] == -32600
    assert said(sdk_guest, "health")["result"] == {"status": "ok"}
    for number in ("bare", "wrapped"):
        assert said(sdk_guest, number)["error"]["code"] == -32004
    path = sdk_guest.shared / "diary.said"
    lines = exactly(
        len(path.read_text(encoding="utf-8").splitlines()),
        lambda: path.read_text(encoding="utf-8").splitlines(),
    )
    answers = [json.loads(line) for line in lines]
    nobodys = sorted(one["error"]["code"] for one in answers if one.get("id") is None)
    assert nobodys == [-32700, -32600]
    assert not [one for one in answers if one.get("id") in {"batched", 9999}]
    assert sdk_guest.state()["state"] == "running"


@whole("PH-ERR-06", "PH-ERR-04", "PH-ERR-05", "PH-ERR-14")
def test_what_an_author_raises_is_what_the_caller_gets(sdk_guest: Guest) -> None:
    generic = sdk_guest.fail(how="plugin")
    assert generic["data"]["number"] == -32000
    assert generic["data"]["detail"] == {"why": "details"}
    assert sdk_guest.fail(how="domain")["data"]["number"] == -32050
    assert sdk_guest.fail(how="params")["data"]["number"] == -32602
    assert sdk_guest.fail(how="late")["data"]["number"] == -32603
    refused = sdk_guest.call(how="reserved")["refused"]
    assert "-32100" in refused
    assert "reserved" in refused


@whole("PH-METH-27")
def test_bytes_never_reach_the_wire_as_they_are(sdk_guest: Guest) -> None:
    assert sdk_guest.call(how="base64") == {"data": "AP8K"}
    assert sdk_guest.fail(how="bytes")["data"]["number"] == -32603
    text = (sdk_guest.shared / "diary.said").read_bytes()
    assert b"\x00" not in text
    text.decode("utf-8")
    assert sdk_guest.state()["state"] == "running"


@whole("PH-ERR-10", "PH-AMB-13", "PH-METH-02")
def test_the_sdk_takes_every_system_message_and_its_author_may_refuse_settings(
    daemon: Daemon, sdk_guest: Guest, tmp_path: Path
) -> None:
    project = Project(tmp_path / "p")
    project.describe(plugins={"it": {"package": "sdk-guest", "config": {"tag": "bad"}}})
    daemon.load(project)
    (update,) = (
        one
        for one in wait_for(lambda: sdk_guest.heard("config.update")[1:])
        if one["params"]["config"] == {"tag": "bad"}
    )
    path = sdk_guest.shared / "diary.said"
    refused = wait_for(
        lambda: next(
            (
                one
                for one in map(json.loads, path.read_text(encoding="utf-8").splitlines())
                if one.get("id") == update["id"]
            ),
            None,
        )
    )
    assert refused is not None
    assert refused["error"]["code"] == -32004
    assert "not that tag" in refused["error"]["message"]
    assert sdk_guest.state()["state"] == "running"
    daemon.ask("DELETE", f"/projects/{project.id}")
    sdk_guest.await_heard("projects.deactivated")
    sdk_guest.await_heard("ping")
    daemon.post("/plugins/sdk-guest/disable")
    heard = [one["method"] for one in sdk_guest.heard()]
    assert set(heard) >= {
        "initialize",
        "initialized",
        "ping",
        "config.update",
        "projects.activated",
        "projects.deactivated",
        "shutdown",
    }
    assert heard[-1] == "shutdown"
    answers = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    asked = {one["id"]: one["method"] for one in sdk_guest.heard() if "id" in one}
    results = {asked[one["id"]] for one in answers if one.get("id") in asked and "result" in one}
    assert results >= {"initialize", "ping", "config.update"}
    assert results >= {"projects.activated", "projects.deactivated"}
    assert sdk_guest.rows("plugin.health_fail") == []
    assert sdk_guest.rows("plugin.exited")[-1]["exit_code"] == 0
