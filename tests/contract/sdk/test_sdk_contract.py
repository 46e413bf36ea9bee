"""One conversation script for every SDK: the same plugin must answer alike in each language."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from fakes import runtimes
from fakes.plugin_talk import PluginTalk
from requirements import requirement

SAMPLES = Path(__file__).parents[2] / "fakes" / "sample_plugins"


@pytest.fixture(params=["python", "node", "bun"])
def talk(request: pytest.FixtureRequest) -> PluginTalk:
    if request.param == "python":
        return PluginTalk([sys.executable, SAMPLES / "sample.py"])
    runtime = runtimes.bun() if request.param == "bun" else runtimes.node()
    return PluginTalk([runtime, SAMPLES / "sample.mjs"])


@requirement("PH-SDK-03", "PH-SDK-04", "PH-SDK-07")
async def test_handshake_reports_what_the_plugin_is(talk: PluginTalk) -> None:
    async with talk:
        answer = await talk.handshake()
    result = answer["result"]
    assert (result["name"], result["version"], result["api_version"]) == ("sample", "1.2.3", 1)
    assert {"echo.say", "sample.wait", "store.all"} <= set(result["methods"])
    assert not [name for name in result["methods"] if name.startswith("kaged.")]
    assert result["notifications"] == ["catalog.updated"]
    assert result["capabilities_used"] == []
    notification = talk.received[-1]
    assert notification == {
        "jsonrpc": "2.0",
        "method": "catalog.updated",
        "params": {"entries_added": 3},
    }


@pytest.mark.parametrize("change", [{"plugin_name": "other"}, {"api_version": 2}])
@requirement("PH-SDK-04")
async def test_a_wrong_greeting_is_answered_with_an_error(
    talk: PluginTalk, change: dict[str, object]
) -> None:
    async with talk:
        params = {"daemon_version": "0.1.0", "api_version": 1, "plugin_name": "sample", **change}
        assert await talk.error_code(1, "initialize", params) == -32602


@requirement("PH-SDK-20")
async def test_what_is_sent_right_after_start_waits_for_initialized(talk: PluginTalk) -> None:
    async with talk:
        answer = await talk.greet()
        assert answer["id"] == 1
        # Were the notification not held back, it would be the next line instead of this answer.
        assert await talk.error_code(2, "echo.say") == -32002
        talk.send({"jsonrpc": "2.0", "method": "initialized", "params": {}})
        assert (await talk.receive())["method"] == "catalog.updated"


@requirement("PH-HAND-20", "PH-ERR-08")
async def test_calls_before_initialized_do_not_run(talk: PluginTalk) -> None:
    async with talk:
        assert await talk.error_code(1, "echo.say") == -32002
        await talk.greet()
        assert await talk.error_code(2, "gate.open") == -32002


@requirement("PH-SDK-05", "PH-SDK-06", "PH-CTX-11")
async def test_calls_reach_their_handler_without_the_context(talk: PluginTalk) -> None:
    context = {
        "operator_id": "op",
        "project_id": "p",
        "agent_path": "primary",
        "session_id": "s",
        "request_id": "r",
    }
    async with talk:
        await talk.handshake()
        answer = await talk.request(2, "echo.say", {"filter": "web\n", "_context": context})
        assert answer["result"] == {
            "params": {"filter": "web\n"},
            "agent_path": "primary",
            "operator": "op",
        }
        assert await talk.error_code(3, "no.such") == -32601


@requirement("PH-SDK-17")
async def test_tools_and_hooks_have_handlers_by_name(talk: PluginTalk) -> None:
    context = {"agent_path": "primary"}
    async with talk:
        await talk.handshake()
        tool = await talk.request(2, "sample.retain", {"content": "x", "_context": context})
        assert tool["result"]["params"] == {"content": "x"}
        hook = await talk.request(3, "kaged.hook.on_session_start", {"_context": context})
        assert hook["result"] == {"inject": "hello primary"}


@requirement("PH-SDK-18")
async def test_the_reserved_config_member_is_not_a_parameter(talk: PluginTalk) -> None:
    async with talk:
        await talk.handshake()
        answer = await talk.request(2, "echo.say", {"a": 1, "_config": {"x": 2}})
        assert answer["result"]["params"] == {"a": 1}


@requirement("PH-SDK-13", "PH-SDK-11")
async def test_slow_calls_overlap_and_ping_is_answered_meanwhile(talk: PluginTalk) -> None:
    async with talk:
        await talk.handshake()
        for n in range(10):
            talk.send({"jsonrpc": "2.0", "id": 10 + n, "method": "sample.wait", "params": {"n": n}})
        assert (await talk.request(2, "ping"))["result"] == {"status": "ok"}
        talk.send({"jsonrpc": "2.0", "id": 3, "method": "gate.open", "params": {}})
        answers = [await talk.receive() for _ in range(11)]
    results = {answer["id"]: answer["result"] for answer in answers}
    assert results.pop(3) is None
    assert results == {10 + n: {"n": n} for n in range(10)}


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        pytest.param("domain", -32000, marks=requirement("PH-ERR-06")),
        pytest.param("own", -32050),
        pytest.param("params", -32602, marks=requirement("PH-ERR-04")),
        pytest.param("reserved", -32603, marks=requirement("PH-ERR-14")),
        pytest.param("bug", -32603),
    ],
)
async def test_errors_of_handlers_have_their_code(talk: PluginTalk, kind: str, code: int) -> None:
    async with talk:
        await talk.handshake()
        answer = await talk.request(2, "fail.now", {"kind": kind})
    assert answer["error"]["code"] == code
    if kind == "domain":
        assert answer["error"]["message"] == "out of cheese"
        assert answer["error"]["data"] == {"cheese": 0}


@requirement("PH-SDK-14", "PH-SDK-09", "PH-SDK-15")
async def test_stray_prints_and_logs_stay_off_the_wire(talk: PluginTalk) -> None:
    async with talk:
        await talk.handshake()
        # The next line is the answer itself: nothing was printed in between.
        assert (await talk.request(2, "print.noise"))["result"] == "printed"
        talk.send({"jsonrpc": "2.0", "method": "shutdown"})
        stderr = await talk.stderr()
    assert "this is not JSON" in stderr
    assert '"msg": "flushed"' in stderr or '"msg":"flushed"' in stderr


@requirement("PH-METH-27")
async def test_raw_bytes_never_go_on_the_wire(talk: PluginTalk) -> None:
    async with talk:
        await talk.handshake()
        assert await talk.error_code(2, "bytes.raw") == -32603


@requirement("PH-SDK-08")
async def test_storage_calls_travel_to_the_host_and_back(talk: PluginTalk) -> None:
    async with talk:
        await talk.handshake()
        ask = await talk.request(2, "store.all")
        assert (ask["id"], ask["method"]) == (1, "kaged.storage.exec")
        assert ask["params"] == {"sql": "INSERT INTO t VALUES (?)", "params": ["x"]}
        talk.send({"jsonrpc": "2.0", "id": 1, "result": {"rows_affected": 1}})
        ask = await talk.receive()
        assert (ask["id"], ask["method"]) == (2, "kaged.storage.query")
        talk.send({"jsonrpc": "2.0", "id": 2, "result": {"rows": [{"a": "x"}], "columns": ["a"]}})
        ask = await talk.receive()
        assert (ask["id"], ask["method"]) == (3, "kaged.storage.schema")
        talk.send({"jsonrpc": "2.0", "id": 3, "result": {"tables": ["t"]}})
        answer = await talk.receive()
    assert answer["result"] == {"touched": 1, "rows": [{"a": "x"}], "tables": ["t"]}


async def test_a_refused_storage_call_raises_in_the_handler(talk: PluginTalk) -> None:
    async with talk:
        await talk.handshake()
        await talk.request(2, "store.all")
        talk.send({"jsonrpc": "2.0", "id": 1, "error": {"code": -32003, "message": "denied"}})
        answer = await talk.receive()
    assert answer["id"] == 2
    assert "denied" in answer["error"]["message"]


@requirement("PH-SDK-12", "PH-ERR-10")
async def test_config_updates_are_taken_or_refused(talk: PluginTalk) -> None:
    async with talk:
        await talk.greet()
        # The one call that may come before initialized (PH-AMB-13), wrapped or bare (PH-AMB-14).
        assert "result" in await talk.request(2, "config.update", {"config": {"a": 1}})
        assert "result" in await talk.request(3, "config.update", {"a": 1})
        assert await talk.error_code(4, "config.update", {"config": {"bad": True}}) == -32004
        assert await talk.error_code(5, "config.update", {"config": {"buggy": True}}) == -32004


@requirement("PH-METH-02")
async def test_every_system_method_is_accepted(talk: PluginTalk) -> None:
    async with talk:
        await talk.handshake()
        assert "result" in await talk.request(2, "ping")
        assert "result" in await talk.request(3, "config.update", {"config": {}})
        project = {"project": "music", "config": {}}
        assert "result" in await talk.request(4, "projects.activated", project)
        assert "result" in await talk.request(5, "projects.deactivated", {"project": "music"})
        talk.send({"jsonrpc": "2.0", "method": "shutdown", "params": {}})
        assert await talk.exit_code() == 0


@requirement("PH-SDK-10", "PH-METH-03")
async def test_shutdown_flushes_and_exits_with_zero(talk: PluginTalk) -> None:
    async with talk:
        await talk.handshake()
        talk.send({"jsonrpc": "2.0", "method": "shutdown", "params": {}})
        stderr = await talk.stderr()
        assert await talk.exit_code() == 0
    assert "flushed" in stderr


async def test_a_host_that_vanishes_ends_the_plugin(talk: PluginTalk) -> None:
    async with talk:
        await talk.handshake()
        assert talk.process.stdin is not None
        talk.process.stdin.close()
        assert await talk.exit_code() == 0


@requirement("PH-ERR-01", "PH-ERR-02")
async def test_broken_input_is_answered_and_survived(talk: PluginTalk) -> None:
    async with talk:
        await talk.handshake()
        for raw, code in (
            (b"{broken\n", -32700),
            (b"\xff\xfe\n", -32700),
            (b'[{"jsonrpc":"2.0","id":5,"method":"gate.open"}]\n', -32600),
            (b"5\n", -32600),
            (b'{"id":7,"method":"ping"}\n', -32600),
            (b'{"jsonrpc":"2.0","id":{},"method":"ping"}\n', -32600),
        ):
            talk.send_bytes(raw)
            answer = await talk.receive()
            assert answer["error"]["code"] == code, raw
            assert answer["id"] == (7 if b'"id":7' in raw else None)
        assert (await talk.request(2, "ping"))["result"] == {"status": "ok"}


@requirement("PH-WIRE-21", "PH-WIRE-26")
async def test_notifications_and_foreign_responses_are_never_answered(talk: PluginTalk) -> None:
    async with talk:
        await talk.handshake()
        talk.send({"jsonrpc": "2.0", "method": "no.such", "params": {}})
        talk.send({"jsonrpc": "2.0", "method": "fail.now", "params": {"kind": "bug"}})
        for foreign in (9999, None, 0):
            talk.send({"jsonrpc": "2.0", "id": foreign, "result": {}})
            talk.send({"jsonrpc": "2.0", "id": foreign, "error": {"code": 1, "message": "x"}})
        assert (await talk.request(2, "ping"))["id"] == 2


async def test_split_and_joined_lines_are_put_together(talk: PluginTalk) -> None:
    async with talk:
        await talk.handshake()
        text = '{"jsonrpc":"2.0","id":2,"method":"echo.say","params":{"t":"grüße 🦊"}}\r\n'
        for byte in text.encode():
            talk.send_bytes(bytes([byte]))
        assert (await talk.receive())["result"]["params"] == {"t": "grüße 🦊"}
        talk.send_bytes(
            b'{"jsonrpc":"2.0","id":3,"method":"ping"}\n{"jsonrpc":"2.0","id":4,"method":"ping"}\n'
        )
        assert {(await talk.receive())["id"], (await talk.receive())["id"]} == {3, 4}


async def _play_storage(talk: PluginTalk, *answers: dict[str, object]) -> list[tuple[str, object]]:
    """Answer the plugin's requests in order; return what it asked."""
    asked: list[tuple[str, object]] = []
    for answer in answers:
        ask = await talk.receive()
        asked.append((ask["method"].removeprefix("kaged.storage."), ask["params"]))
        talk.send({"jsonrpc": "2.0", "id": ask["id"], **answer})
    return asked


async def test_a_batch_is_one_transaction(talk: PluginTalk) -> None:
    async with talk:
        await talk.handshake()
        talk.send({"jsonrpc": "2.0", "id": 2, "method": "store.batch", "params": {}})
        asked = await _play_storage(
            talk,
            {"result": {"transaction": "txn_1"}},
            {"result": {"rows_affected": 0, "queued": 1}},
            {"result": {"rows_affected": 0, "queued": 2}},
            {"result": {"rows_affected": 4, "statements": [1, 3]}},
        )
        answer = await talk.receive()
    assert [name for name, _ in asked] == ["begin", "exec", "exec", "commit"]
    assert asked[1][1] == {
        "sql": "INSERT INTO t VALUES (?)",
        "params": ["x"],
        "transaction": "txn_1",
    }
    assert asked[2][1] == {"sql": "DELETE FROM t", "params": [], "transaction": "txn_1"}
    assert asked[3][1] == {"transaction": "txn_1"}
    assert answer["result"] == {"rows_affected": 4, "statements": [1, 3]}


async def test_a_refused_statement_rolls_the_batch_back(talk: PluginTalk) -> None:
    async with talk:
        await talk.handshake()
        talk.send({"jsonrpc": "2.0", "id": 2, "method": "store.batch", "params": {"second": "x"}})
        asked = await _play_storage(
            talk,
            {"result": {"transaction": "txn_1"}},
            {"result": {"rows_affected": 0, "queued": 1}},
            {"error": {"code": -32602, "message": "no SQL"}},
            # The rollback fails as well; the first error is the one that is told.
            {"error": {"code": -32000, "message": "there is no open transaction"}},
        )
        answer = await talk.receive()
    assert [name for name, _ in asked] == ["begin", "exec", "exec", "rollback"]
    assert "no SQL" in answer["error"]["message"]


@pytest.mark.parametrize(("fail", "end"), [(False, "commit"), (True, "rollback")])
async def test_a_block_is_committed_or_rolled_back(talk: PluginTalk, fail: bool, end: str) -> None:
    async with talk:
        await talk.handshake()
        talk.send({"jsonrpc": "2.0", "id": 2, "method": "store.block", "params": {"fail": fail}})
        asked = await _play_storage(
            talk,
            {"result": {"transaction": "txn_1"}},
            {"result": {"rows_affected": 0, "queued": 1}},
            {"result": {"rows_affected": 1, "statements": [1]}},
        )
        answer = await talk.receive()
    assert [name for name, _ in asked] == ["begin", "exec", end]
    assert ("error" in answer) is fail


async def test_a_cancelled_call_ends_its_handler_and_no_other(talk: PluginTalk) -> None:
    async with talk:
        await talk.handshake()
        for n in (1, 2):
            talk.send({"jsonrpc": "2.0", "id": 10 + n, "method": "wait.long", "params": {"n": n}})
            assert (await talk.receive())["params"] == {"started": n}
        talk.send({"jsonrpc": "2.0", "method": "kaged.cancel", "params": {"id": 99}})
        talk.send({"jsonrpc": "2.0", "method": "kaged.cancel", "params": {"id": 11}})
        heard = [await talk.receive(), await talk.receive()]
        assert {"cancelled": 1} in [message.get("params") for message in heard]
        assert 11 in [message.get("id") for message in heard]
        assert (await talk.request(3, "ping"))["result"] == {"status": "ok"}


async def test_a_hundred_calls_at_once_are_all_answered(talk: PluginTalk) -> None:
    async with talk:
        await talk.handshake()
        lines = [
            b'{"jsonrpc":"2.0","id":%d,"method":"echo.say","params":{"n":%d}}\n' % (n, n)
            for n in range(100, 200)
        ]
        talk.send_bytes(b"".join(lines))
        answers = [await talk.receive() for _ in lines]
    assert {answer["id"]: answer["result"]["params"] for answer in answers} == {
        n: {"n": n} for n in range(100, 200)
    }
