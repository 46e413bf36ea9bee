from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from fakes.audit_sink import MemorySink
from fakes.tool_lab import Spy, ToolLab, cage, make_tool, until_health
from kaged.audit import AuditLog, ChainKey
from kaged.base import Ids, JsonValue, SystemClock
from kaged.kernel.policy import FsMode
from kaged.kernel.requirements import FsRequirement
from kaged.tools import ToolError, ToolInvocation, ToolRefused
from requirements import requirement

RO, RW = FsRequirement(FsMode.RO), FsRequirement(FsMode.RW)
CODER = "primary.subagents.coder"


class Renames(ToolRefused):
    code = "rename_scope_exceeds_cage"


class Other(ToolError):
    code = "no_change"


def lab_with(tmp_path: Path, spy: Any, **fields: Any) -> ToolLab:
    tools = [
        make_tool("file.peek", handler=spy, paths=["path"], requires=[RO], required=["path"]),
        make_tool(
            "file.put",
            handler=spy,
            paths=["path"],
            requires=[RW],
            changes=True,
            properties={
                "content": {"type": "string"},
                "env": {"type": "object"},
                "old_string": {"type": "string"},
            },
        ),
        make_tool("kaged.issue", handler=spy, root_only=True),
    ]
    return ToolLab(tmp_path, tools, cage("rw ./src", root=tmp_path), CODER, **fields)


@requirement("AT-AUD-02", "AT-AUD-04", "AT-AUD-05", "AT-AMB-52", "AT-SCOPE-06")
async def test_every_call_has_one_beginning_and_one_end(tmp_path: Path) -> None:
    spy = Spy()
    lab = lab_with(tmp_path, spy)
    await lab.call("file.peek", path="src/a")
    await lab.refusal("file.peek", path="data/a")
    await lab.refusal("file.peek")
    await lab.refusal("no.such", x=1)
    await lab.refusal("kaged.issue")
    spy.fails_with = Other("nothing to do")
    await lab.refusal("file.peek", path="src/a")
    spy.fails_with = Renames("touches ./data", detail={"files": ["./data/a"]})
    await lab.refusal("file.put", path="src/a")
    ends = [name for name in lab.audit.names() if name != "tool.called"]
    assert ends == [
        "tool.completed",
        "tool.denied",
        "tool.completed",
        "tool.completed",
        "tool.denied",
        "tool.completed",
        "tool.denied",
    ]
    called = lab.audit.of("tool.called")
    assert len(called) == 7
    for one in called:
        assert set(one) >= {
            "tool_name",
            "caller",
            "session_id",
            "run_id",
            "request_id",
            "params",
            "project_id",
        }
    assert called[3]["params"] == {"x": 1}
    completed = lab.audit.of("tool.completed")
    assert [one["success"] for one in completed] == [True, False, False, False]
    assert all(one["duration_ms"] >= 0 and one["request_id"] for one in completed)
    denied = lab.audit.of("tool.denied")
    assert denied[0]["tool_name"] == "file.peek"
    assert denied[0]["caller"] == CODER
    assert denied[0]["denied_capability"] == "ro:fs:data/a"
    assert denied[0]["cage_summary"]["fs"] == ["rw:./src"]
    assert denied[1]["denied_capability"] == "root-only:kaged.issue"
    assert denied[2]["error_code"] == "rename_scope_exceeds_cage"
    assert [one["rule"] for one in denied[:2]] == ["tool.fs", "tool.principal_scope"]


@requirement("AT-AUD-02", "AT-AUD-04")
async def test_a_flood_of_refusals_hides_no_call_that_is_let_through(tmp_path: Path) -> None:
    """Refusals beyond a caller's share are only counted; what runs is on record before it runs."""
    known: list[list[str]] = []

    async def looks(call: ToolInvocation) -> JsonValue:
        mine = [one for one in lab.audit.raw if one.request_id == call.context.request_id]
        known.append([one.name for one in mine])
        if call.args["path"] == "src/bad":
            raise Other("nothing to do")
        return {}

    lab = lab_with(tmp_path, looks)
    for _ in range(300):
        await lab.refusal("file.peek", path="data/a")
    assert 0 < len(lab.audit.of("tool.denied")) < 300, "the rest are counted"
    assert len(lab.audit.of("tool.called")) == len(lab.audit.of("tool.denied"))
    flooded = len(lab.audit.raw)
    await lab.call("file.peek", path="src/a")
    await lab.refusal("file.peek", path="src/bad")
    assert known == [["tool.called"], ["tool.called"]]
    assert [(one.name, one.request_id) for one in lab.audit.raw[flooded:]] == [
        ("tool.called", "req_301"),
        ("tool.completed", "req_301"),
        ("tool.called", "req_302"),
        ("tool.completed", "req_302"),
    ]


async def test_events_of_a_call_carry_its_project_and_request(tmp_path: Path) -> None:
    async def writes(call: ToolInvocation) -> JsonValue:
        call.emit("file.written", path="./src/a", bytes=1)
        return {}

    lab = lab_with(tmp_path, writes)
    await lab.call("file.put", path="src/a")
    assert lab.audit.names() == ["tool.called", "file.written", "tool.completed"]
    for event in lab.audit.raw:
        assert (event.project_id, event.request_id) == ("prj_1", "req_1")
    assert lab.audit.of("file.written")[0]["caller"] == CODER


@requirement("AT-AUD-03")
async def test_large_and_secret_values_stay_out_of_the_log(tmp_path: Path) -> None:
    lab = lab_with(tmp_path, Spy())
    content = "canary-" * 150_000
    await lab.call(
        "file.put",
        path="src/a",
        content=content,
        old_string="canary-" * 50,
        env={"TOKEN_OF": "canary-value"},
    )
    (called,) = lab.audit.of("tool.called")
    assert "canary" not in str(called)
    assert str(len(content)) in called["params"]["content"]
    assert "sha256" in called["params"]["content"]
    assert "TOKEN_OF" in called["params"]["env"]


async def test_a_change_waits_until_its_announcement_is_durable(tmp_path: Path) -> None:
    lab = lab_with(tmp_path, Spy())
    await lab.call("file.peek", path="src/a")
    assert lab.audit.flushes == 0
    await lab.call("file.put", path="src/a")
    assert lab.audit.flushes == 1


async def test_a_refused_change_needs_no_disk(tmp_path: Path) -> None:
    lab = lab_with(tmp_path, Spy())
    lab.audit.down = True
    assert (await lab.refusal("file.put", path="data/a")).code == "capability_denied"


async def test_a_log_that_fails_afterwards_takes_no_result_away(tmp_path: Path) -> None:
    async def writes(call: ToolInvocation) -> JsonValue:
        call.emit("file.written", path="./src/a", bytes=1)
        return {"done": True}

    lab = lab_with(tmp_path, writes)
    lab.audit.down_for = {"tool.completed", "file.written"}
    assert await lab.call("file.put", path="src/a") == {"done": True}
    assert lab.audit.names() == ["tool.called"]


@pytest.fixture
async def sink_and_log() -> AsyncIterator[tuple[MemorySink, AuditLog]]:
    sink, clock = MemorySink(), SystemClock()
    log = await AuditLog.open(sink, clock=clock, ids=Ids(clock), key=ChainKey(b"k" * 32))
    yield sink, log
    sink.fail_with = None
    await log.close()


async def test_the_real_log_stops_changes_while_its_disk_is_full(
    tmp_path: Path, sink_and_log: tuple[MemorySink, AuditLog]
) -> None:
    sink, log = sink_and_log
    spy = Spy()
    lab = lab_with(tmp_path, spy)
    lab.dispatcher._audit = log  # the real one in place of the recorder
    sink.fail_with = OSError(28, "No space left on device")
    assert await lab.call("file.peek", path="src/a") == {"ok": True}
    await until_health(log, ok=False)
    error = await lab.refusal("file.put", path="src/a")
    assert error.code == "audit_unavailable"
    assert [call.tool_name for call in spy.calls] == ["file.peek"]
    assert not log.health.ok
    assert await lab.call("file.peek", path="src/a") == {"ok": True}
    sink.fail_with = None
    await until_health(log, ok=True)
    assert await lab.call("file.put", path="src/a") == {"ok": True}
    await log.flush()
    assert sink.names().count("tool.called") == 4


async def test_a_closed_log_stops_changes_and_lets_reads_be(
    tmp_path: Path, sink_and_log: tuple[MemorySink, AuditLog]
) -> None:
    _, log = sink_and_log
    lab = lab_with(tmp_path, Spy())
    lab.dispatcher._audit = log  # the real one in place of the recorder
    await log.close()
    assert await lab.call("file.peek", path="src/a") == {"ok": True}
    assert (await lab.refusal("file.put", path="src/a")).code == "audit_unavailable"
