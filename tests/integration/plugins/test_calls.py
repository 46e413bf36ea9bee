"""Calls, notifications and hostile output of running caged plugins."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fakes.plugin_lab import PluginLab
from kaged.base import KagedError
from kaged.plugins.states import PluginState
from kaged.wire.errors import InternalError, RpcError
from kaged.wire.framing import Unsendable
from raising import raises_code
from requirements import requirement

OK = {"result": "ok"}


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o777)
    return folder


@requirement("PH-METH-20", "PH-AUD-03", "PH-AUD-04", "PH-CTX-01", "PH-CTX-02", "PH-CTX-12")
async def test_a_call_returns_its_result_and_is_audited_as_a_pair(lab: PluginLab) -> None:
    plugin = await lab.running({"on": {"a.b": [{"echo": True}]}})
    result = await lab.call(plugin, filter="web")
    context = result.pop("_context")
    assert result == {"filter": "web"}
    assert list(context) == ["operator_id", "project_id", "agent_path", "session_id", "request_id"]
    called, returned = (
        await lab.until_event("plugin.method_called"),
        await lab.until_event("plugin.method_returned"),
    )
    assert called == {
        "name": "stub",
        "method": "a.b",
        "request_id": context["request_id"],
        "operator_id": "op",
        "project_id": None,
    }
    assert returned["request_id"] == context["request_id"]
    assert returned["success"] is True
    assert isinstance(returned["duration_ms"], float)
    assert (returned["name"], returned["method"]) == ("stub", "a.b")


@requirement("PH-METH-19", "PH-CTX-04", "PH-CTX-05", "PH-CTX-06", "PH-CTX-07")
async def test_agent_calls_carry_all_three_ids_and_daemon_calls_none(lab: PluginLab) -> None:
    plugin = await lab.running({"on": {"a.b": [{"echo": True}]}})
    agent = lab.context(
        project_id="music", agent_path="primary.subagents.researcher", session_id="ses_1"
    )
    seen: Any = await plugin.call_method("a.b", {}, agent)
    assert seen["_context"] == agent.to_wire()
    first = (await lab.call(plugin))["_context"]
    second = (await lab.call(plugin))["_context"]
    assert (first["project_id"], first["agent_path"], first["session_id"]) == (None, None, None)
    assert first["request_id"]
    assert first["request_id"] != second["request_id"]


@requirement("PH-METH-26")
async def test_any_payload_passes_for_a_declared_method(lab: PluginLab) -> None:
    plugin = await lab.running({"on": {"a.b": [{"result": [1, {"deep": [None, True, "x"]}]}]}})
    assert await lab.call(plugin, anything={"goes": [1.5]}) == [1, {"deep": [None, True, "x"]}]


@requirement("PH-WIRE-04", "PH-WIRE-03")
async def test_newlines_in_parameters_travel_as_one_line(lab: PluginLab, shared: Path) -> None:
    log = shared / "log"
    plugin = await lab.running(
        {"log": str(log), "on": {"a.b": [{"echo": True}]}}, capabilities=[f"write:fs:{shared}"]
    )
    text = "one\ntwo\r\nthree \u2028 ü 🦊"
    assert (await lab.call(plugin, text=text))["text"] == text
    raw = log.read_bytes()
    assert raw.endswith(b"\n")
    assert [json.loads(line)["method"] for line in raw.split(b"\n")[:-1]] == [
        "initialize",
        "initialized",
        "a.b",
    ]


@requirement("PH-WIRE-12", "PH-WIRE-13", "PH-AUD-07", "PH-FAIL-07")
async def test_noise_on_stdout_is_reported_and_dropped(lab: PluginLab) -> None:
    plugin = await lab.running({"on": {"a.b": [{"noise": "hello " * 200}, OK]}})
    assert await lab.call(plugin) == "ok"
    noise = await lab.until_event("plugin.stdout_noise")
    assert noise["name"] == "stub"
    assert noise["line"].startswith("hello")
    assert len(noise["line"]) <= 200
    assert plugin.state is PluginState.RUNNING
    assert lab.logged("plugin.stdout_noise")


@requirement("PH-WIRE-27")
@pytest.mark.parametrize(
    "line",
    [
        '{"jsonrpc":"2.0","id":$id,"result":NaN}',
        '{"jsonrpc":"2.0","id":$id,"result":Infinity}',
        '{"jsonrpc":"2.0","id":$id,"result":' + "[" * 10_000 + "]" * 10_000 + "}",
        "\udcff\udcfe",
    ],
    ids=["nan", "infinity", "deep", "utf8"],
)
async def test_what_is_not_json_is_noise_and_the_next_call_works(lab: PluginLab, line: str) -> None:
    script = (
        "import json, sys\n"
        f"bad = {line.encode('utf-8', 'surrogateescape')!r}\n"
        "def say(i, r):\n"
        "    text = json.dumps({'jsonrpc': '2.0', 'id': i, 'result': r})\n"
        "    print(text, end='\\r\\n', flush=True)\n"
        "for line in sys.stdin:\n"
        "    m = json.loads(line)\n"
        "    if m['method'] == 'initialize':\n"
        "        say(m['id'], {'name': 'stub', 'version': '1.0.0', 'api_version': 1,"
        " 'methods': ['a.b']})\n"
        "    elif m['method'] == 'a.b':\n"
        "        sys.stdout.buffer.write(bad.replace(b'$id', str(m['id']).encode()) + b'\\n')\n"
        "        sys.stdout.flush()\n"
        "        say(m['id'], 'after')\n"
        "    elif m['method'] == 'shutdown':\n"
        "        break\n"
    )
    plugin = await lab.running(files={"main.py": script}, methods=["a.b"])
    assert await lab.call(plugin) == "after"  # ended by CR LF, which is harmless
    await lab.until_event("plugin.stdout_noise")
    assert plugin.state is PluginState.RUNNING


@requirement("PH-AMB-32")
async def test_a_malformed_message_is_refused_and_ends_its_call(lab: PluginLab) -> None:
    plugin = await lab.running({"on": {"a.b": [{"raw": '{"id":$id,"result":1}'}], "c.d": [OK]}})
    with pytest.raises(RpcError) as caught:
        await lab.call(plugin)
    assert caught.value.number == -32603
    assert await lab.call(plugin, "c.d") == "ok"


@requirement("PH-WIRE-26")
async def test_answers_to_nothing_are_ignored(lab: PluginLab, shared: Path) -> None:
    log = shared / "log"
    foreign = [
        {"raw": '{"jsonrpc":"2.0","id":9999,"result":1}'},
        {"raw": '{"jsonrpc":"2.0","id":null,"result":1}'},
        {"raw": '{"jsonrpc":"2.0","id":0,"result":1}'},
    ]
    plugin = await lab.running(
        {"log": str(log), "on": {"a.b": [*foreign, OK], "c.d": [OK]}},
        capabilities=[f"write:fs:{shared}"],
    )
    assert await lab.call(plugin) == "ok"
    assert await lab.call(plugin, "c.d") == "ok"
    messages = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    assert [m["method"] for m in messages] == ["initialize", "initialized", "a.b", "c.d"]
    assert len(lab.logged("plugin.answer_ignored")) == 3


@requirement("PH-WIRE-07", "PH-WIRE-08", "PH-AMB-38")
async def test_an_oversize_line_kills_before_it_ends(lab: PluginLab) -> None:
    script_line = "x" * (5 * 1024 * 1024)
    plugin = await lab.running({"on": {"a.b": [{"noise": script_line}, {"hang": True}]}})
    with raises_code("plugin_unavailable"):
        await lab.call(plugin)
    await lab.until(plugin, PluginState.CRASHED)
    violation = await lab.until_event("plugin.protocol_violation")
    assert violation["violation_type"] == "protocol.oversize_message"
    names = await lab.names()
    assert names[-1] == "plugin.crashed"
    assert lab.naps[-1] == 1.0  # a restart with backoff is pending


async def test_the_limit_itself_passes_and_our_own_lines_obey_it(lab: PluginLab) -> None:
    limit = 4 * 1024 * 1024
    script = (
        "import json, sys\n"
        "def say(i, r):\n"
        "    sys.stdout.write(json.dumps({'jsonrpc': '2.0', 'id': i, 'result': r}) + '\\n')\n"
        "    sys.stdout.flush()\n"
        "for line in sys.stdin:\n"
        "    m = json.loads(line)\n"
        "    if m['method'] == 'initialize':\n"
        "        say(m['id'], {'name': 'stub', 'version': '1.0.0', 'api_version': 1,"
        " 'methods': ['a.b']})\n"
        "    elif m['method'] == 'a.b':\n"
        "        empty = len(json.dumps({'jsonrpc': '2.0', 'id': m['id'], 'result': ''}))\n"
        "        say(m['id'], 'x' * (m['params']['size'] - empty))\n"
        "    elif m['method'] == 'shutdown':\n"
        "        break\n"
    )
    plugin = await lab.running(files={"main.py": script}, methods=["a.b"])
    assert len(await lab.call(plugin, size=limit)) > limit - 100
    with pytest.raises(Unsendable):
        await lab.call(plugin, pad="y" * limit)
    with raises_code("plugin_unavailable"):
        await lab.call(plugin, size=limit + 1)
    await lab.until(plugin, PluginState.CRASHED)


@requirement("PH-WIRE-09", "PH-WIRE-10", "PH-WIRE-11")
async def test_stderr_is_logged_line_by_line_and_never_parsed(lab: PluginLab) -> None:
    fake = '{"jsonrpc":"2.0","id":2,"result":"from stderr"}\n'
    chatter = "x" * 100 + "\n"
    plugin = await lab.running(
        {"on": {"a.b": [{"stderr": "one\ntwo\n" + fake + chatter * 30_000}, OK]}}
    )
    assert await lab.call(plugin) == "ok"
    lines = [entry for entry in lab.logged("plugin.stderr") if entry["plugin"] == "stub"]
    assert [entry["line"] for entry in lines[:3]] == ["one", "two", fake.strip()]


@requirement("PH-WIRE-19", "PH-METH-12", "PH-METH-25")
@pytest.mark.parametrize("method", ["kaged.nothing", "other.method", "a.b"])
async def test_unknown_host_methods_are_refused(lab: PluginLab, method: str) -> None:
    plugin = await lab.running({"on": {"a.b": [{"ask": [method, {}]}]}})
    answer = await lab.call(plugin)
    assert answer["error"]["code"] == -32601
    assert plugin.state is PluginState.RUNNING


@requirement("PH-NOTIF-01", "PH-NOTIF-02", "PH-NOTIF-04", "PH-AUD-05", "PH-WIRE-22")
async def test_notifications_are_audited_and_forwarded_and_never_answered(
    lab: PluginLab, shared: Path
) -> None:
    log = shared / "log"
    plugin = await lab.running(
        {
            "log": str(log),
            "on": {"a.b": [{"notify": ["x.y", {"n": 3}, 1]}, OK], "c.d": [OK]},
        },
        capabilities=[f"write:fs:{shared}"],
    )
    await lab.call(plugin)
    await lab.call(plugin, "c.d")
    assert lab.notifications == [("stub", "x.y", {"n": 3})]
    event = await lab.until_event("plugin.notification")
    assert (event["name"], event["notification_type"]) == ("stub", "x.y")
    messages = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    assert [m["method"] for m in messages] == ["initialize", "initialized", "a.b", "c.d"]


@requirement("PH-AMB-49", "PH-NOTIF-01")
async def test_undeclared_names_pass_with_a_warning_and_illegal_ones_do_not(
    lab: PluginLab,
) -> None:
    plugin = await lab.running(
        {
            "on": {
                "a.b": [
                    {"notify": ["un.declared", {}, 1]},
                    {"notify": ["Catalog", {}, 1]},
                    {"notify": ["kaged.x", {}, 1]},
                    OK,
                ]
            }
        }
    )
    await lab.call(plugin)
    assert [kind for _, kind, _ in lab.notifications] == ["un.declared"]
    violations = await lab.seen("plugin.protocol_violation")
    assert [data["violation_type"] for _, data in violations] == ["notification_name"] * 2
    assert lab.logged("plugin.notification_undeclared")
    assert plugin.state is PluginState.RUNNING


class TestHangs:
    @pytest.fixture
    async def lab(self, tmp_path: Path) -> Any:
        made = PluginLab(tmp_path, request_timeout_s=2.0)
        await made.open()
        yield made
        await made.close()

    @requirement("PH-METH-22", "PH-FAIL-02", "PH-ERR-05")
    async def test_a_hanging_call_fails_and_the_plugin_is_restarted(self, lab: PluginLab) -> None:
        from kaged.plugins.parts import HostSettings

        assert HostSettings(daemon_version="1").request_timeout_s == 30.0
        plugin = await lab.running({"on": {"a.b": [{"hang": True}], "c.d": [OK]}})
        assert plugin.conversation is not None
        old_pid = plugin.conversation.pid
        with pytest.raises(InternalError) as caught:
            await lab.call(plugin)
        assert caught.value.number == -32603
        await lab.until(plugin, PluginState.CRASHED)
        returned = await lab.until_event("plugin.method_returned")
        assert returned["success"] is False
        crash = await lab.until_event("plugin.crashed")
        assert crash["reason"] == "hang"
        await lab.napping(2)
        assert lab.naps[-1] == 1.0
        lab.wake(2)
        await lab.until(plugin, PluginState.RUNNING)
        assert plugin.conversation is not None
        assert plugin.conversation.pid != old_pid
        assert await lab.call(plugin, "c.d") == "ok"

    @requirement("PH-FAIL-11")
    async def test_a_plugin_that_closes_its_input_ends_as_a_crash(self, lab: PluginLab) -> None:
        # The sandbox holds the other end of the pipe too, so only the missing answer shows it.
        plugin = await lab.running({"on": {"a.b": [{"close_stdin": True}]}})
        with pytest.raises(KagedError) as caught:
            await lab.call(plugin)
        assert isinstance(caught.value, InternalError) or caught.value.code == "plugin_unavailable"
        await lab.until(plugin, PluginState.CRASHED)
        await lab.until_event("plugin.crashed")
