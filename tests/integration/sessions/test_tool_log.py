"""Tool calls on record: every dispatch, whatever becomes of it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from fakes.session_lab import SessionLab
from fakes.tool_lab import LabCallers, Spy, ToolLab, cage, make_tool
from kaged.base import JsonValue
from kaged.kernel.requirements import CapabilityRequirement
from kaged.sessions.tool_log import ToolCallLog
from kaged.store.errors import StoreUnavailable
from kaged.store.tool_call_rows import CallChange, ToolCallRecord, ToolCallRows
from kaged.tools import Tool, ToolError, ToolInvocation
from kaged.tools.dispatch import ToolDispatcher
from requirements import requirement

SESSION = "ses_1"


class FailingRows:
    """Rows on a disk that is full as long as the test wants."""

    def __init__(self, rows: ToolCallRows) -> None:
        self._rows = rows
        self.full = False

    async def write(self, changes: Sequence[CallChange]) -> None:
        if self.full:
            raise StoreUnavailable("the disk is full")
        await self._rows.write(changes)


class LoggedTools:
    """A dispatcher whose calls are logged as the daemon does it."""

    def __init__(self, lab: SessionLab, root: Path, tools: Sequence[Tool], **options: Any) -> None:
        self.lab = lab
        self.rows = FailingRows(lab.store.tool_calls)
        self.log = ToolCallLog(
            self.rows,  # type: ignore[arg-type] - as much of the rows as the log uses
            lab.lifecycle,
            lambda params: {"shown": params},
            clock=lab.clock,
        )
        self.tool_lab = ToolLab(root, tools, clock=lab.clock, **options)
        self.tool_lab.dispatcher = ToolDispatcher(
            self.tool_lab.registry,
            LabCallers(self.tool_lab.tools, self.tool_lab.workspace),
            cast("Any", self.tool_lab.audit),
            lab.clock,
            outcomes=(self.log,),
            starts=(self.log,),
        )

    async def call(self, name: str, **params: JsonValue) -> Any:
        return await self.tool_lab.call(name, **params)

    async def calls(self) -> Sequence[ToolCallRecord]:
        await self.log.flush()
        return (await self.lab.store.tool_calls.page(SESSION, None, 100, 0))[0]

    def said(self) -> list[tuple[str, Any]]:
        return [
            (one.name, one.data["request_id"])
            for one in self.lab.events
            if one.name.startswith("tool.")
        ]


async def test_calls_that_work_fail_are_denied_or_unknown_each_have_their_row(
    lab: SessionLab, tmp_path: Path
) -> None:
    fine, broken = Spy({"answer": 42}), Spy()
    broken.fails_with = RuntimeError("boom")
    needs = make_tool("shell.run", requires=[CapabilityRequirement("gpu")])
    policy = cage("ro .", root=tmp_path)
    logged = LoggedTools(
        lab,
        tmp_path,
        [
            make_tool("file.a", handler=fine, properties={"x": {"type": "integer"}}),
            make_tool("file.b", handler=broken),
            needs,
        ],
        policy=policy,
    )
    await logged.call("file.a", x=1)
    for name in ("file.b", "shell.run", "no.such"):
        with pytest.raises(ToolError):
            await logged.call(name)
    calls = await logged.calls()
    assert [(one.request_id, one.tool_name, one.status.value) for one in calls] == [
        ("req_1", "file.a", "completed"),
        ("req_2", "file.b", "failed"),
        ("req_3", "shell.run", "denied"),
        ("req_4", "no.such", "failed"),
    ]
    assert calls[0].params == {"shown": {"x": 1}}
    assert (calls[0].result, calls[0].error) == ({"answer": 42}, None)
    assert all(one.error is not None for one in calls[1:])
    assert {(one.session_id, one.run_id, one.project_id, one.caller) for one in calls} == {
        (SESSION, "run_1", "prj_1", "primary")
    }
    assert logged.said() == [
        (name, f"req_{number}")
        for number in range(1, 5)
        for name in ("tool.started", "tool.finished")
    ]


async def test_a_call_is_on_record_while_it_runs_and_interrupted_when_the_daemon_dies(
    lab: SessionLab, tmp_path: Path
) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def slow(_: ToolInvocation) -> JsonValue:
        begun.set()
        await go_on.wait()
        return {"ok": True}

    logged = LoggedTools(lab, tmp_path, [make_tool("file.slow", handler=slow)])
    async with asyncio.TaskGroup() as group:
        calling = group.create_task(logged.call("file.slow"))
        await begun.wait()
        running = await logged.calls()
        assert [one.status.value for one in running] == ["running"]
        assert running[0].finished_at_ms is None
        lab.clock.advance(2)
        go_on.set()
        await calling
    (done,) = await logged.calls()
    assert done.status == "completed"
    assert done.finished_at_ms == done.started_at_ms + 2000
    begun.clear()
    go_on.clear()
    async with asyncio.TaskGroup() as group:
        cut_off = group.create_task(logged.call("file.slow"))
        await begun.wait()
        assert len(await logged.calls()) == 2
        await lab.reopen()
        await lab.service.recover()
        found, _ = await lab.store.tool_calls.page(SESSION, None, 100, 0)
        assert [one.status.value for one in found] == ["completed", "interrupted"]
        cut_off.cancel()


@requirement("AT-DISP-06", "AT-SESS-03")
async def test_a_cancelled_call_says_so(lab: SessionLab, tmp_path: Path) -> None:
    begun = asyncio.Event()

    async def slow(_: ToolInvocation) -> JsonValue:
        begun.set()
        await asyncio.Event().wait()
        return None

    logged = LoggedTools(lab, tmp_path, [make_tool("file.slow", handler=slow)])
    async with asyncio.TaskGroup() as group:
        calling = group.create_task(logged.call("file.slow"))
        await begun.wait()
        calling.cancel()
    (call,) = await logged.calls()
    assert call.status == "cancelled"
    assert call.error == {"code": "cancelled", "message": "The call was cancelled."}
    assert [name for name, _ in logged.said()] == ["tool.started", "tool.finished"]


async def test_two_calls_under_one_request_id_have_two_rows(
    lab: SessionLab, tmp_path: Path
) -> None:
    logged = LoggedTools(lab, tmp_path, [make_tool("file.a", handler=Spy())])
    context = logged.tool_lab.context
    await asyncio.gather(
        *(logged.tool_lab.dispatcher.dispatch("file.a", {}, context) for _ in range(20))
    )
    calls = await logged.calls()
    assert len(calls) == 20
    assert {one.status.value for one in calls} == {"completed"}


async def test_a_huge_result_is_cut_and_its_event_keeps_the_request_id(
    lab: SessionLab, tmp_path: Path
) -> None:
    logged = LoggedTools(lab, tmp_path, [make_tool("file.a", handler=Spy({"x": "y" * 400_000}))])
    await logged.call("file.a")
    (call,) = await logged.calls()
    assert isinstance(call.result, dict)
    assert call.result["truncated"] is True
    event = lab.events[-1]
    assert event.data["request_id"] == "req_1"
    assert len(str(event.as_json())) < 10_000


async def test_a_full_disk_fails_no_call_and_the_rows_come_later(
    lab: SessionLab, tmp_path: Path
) -> None:
    logged = LoggedTools(lab, tmp_path, [make_tool("file.a", handler=Spy())])
    logged.rows.full = True
    for _ in range(3):
        await logged.call("file.a")
    assert await logged.calls() == []
    logged.rows.full = False
    await logged.call("file.a")
    assert [one.status.value for one in await logged.calls()] == ["completed"] * 4
    await logged.log.close()
    await logged.log.close()
    await logged.call("file.a")
    assert logged.log.lost == 2
