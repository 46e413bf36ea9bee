"""Breakpoints, steps and what can be seen, with a planned adapter that logs what it is asked."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from fakes.dap_lab import DapLab, stopped
from fakes.tool_lab import cage
from requirements import requirement


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[DapLab]:
    made = DapLab(tmp_path)
    yield made
    await made.close()


def frame(lab: DapLab, number: int, name: str, line: int, path: str = "main.fake") -> Any:
    source = {"path": str(lab.root.resolve() / path)}
    return {"id": 9000 + number, "name": name, "line": line, "column": 5, "source": source}


def stack(lab: DapLab, *frames: Any) -> None:
    lab.answer("stackTrace", {"body": {"stackFrames": list(frames), "totalFrames": len(frames)}})


@pytest.mark.parametrize("together", [False, True])
async def test_a_breakpoint_may_move_and_be_verified_later(lab: DapLab, together: bool) -> None:
    """The event follows its answer, in a packet of its own or in the same one."""
    await lab.launched()
    lab.plan(together=together)
    lab.answer("setBreakpoints", {"body": {"breakpoints": [{"id": 5, "verified": False}]}})
    later = {"breakpoint": {"id": 5, "verified": True, "line": 2}, "reason": "changed"}
    lab.after("setBreakpoints", {"event": "breakpoint", "body": later})
    await lab.debug("set_breakpoint", path="./main.fake", line=1)
    await lab.debug("threads")
    (shown,) = (await lab.debug("list_breakpoints"))["breakpoints"]
    assert shown["verified"] is True
    lab.after("setBreakpoints")
    lab.after("continue", stopped("breakpoint"))
    stack(lab, frame(lab, 0, "main", 2))
    assert (await lab.debug("continue"))["breakpoint_id"] == 1


async def test_breakpoints_set_at_once_do_not_mix_up_their_answers(lab: DapLab) -> None:
    await lab.launched()
    at = {"path": "./main.fake"}
    made = await asyncio.gather(
        *(lab.debug("set_breakpoint", line=line, **at) for line in (3, 1, 2))
    )
    assert sorted((one["breakpoint_id"], one["actual_line"]) for one in made) == [
        (1, 3),
        (2, 1),
        (3, 2),
    ]


async def test_a_step_that_the_adapter_refuses_leaves_the_program_stopped(lab: DapLab) -> None:
    await lab.launched()
    lab.answer("next", {"error": "cannot step here"})
    refusal = await lab.tool_lab.refusal("debug", action="step_over")
    assert (refusal.code, "cannot step here" in refusal.message) == ("dap_request_failed", True)
    stack(lab, frame(lab, 0, "main", 2))
    assert (await lab.debug("stack_trace"))["total_frames"] == 1


@requirement("AT-DAP-43")
async def test_places_outside_the_cage_or_project_have_no_source(
    lab: DapLab, tmp_path: Path
) -> None:
    lab.write("src/main.fake", "seen\n")
    lab.write("lib/other.fake", "canary-3\n")
    lab.after("configurationDone", stopped("entry"))
    from kaged.toolbox.dap import backend

    policy = cage("ro ./src", root=lab.root, capabilities=["exec"])
    caged = lab.tool_lab_for(policy)
    real = backend.launch_uncaged

    async def outside(policy: Any, plan: Any, cwd: str) -> Any:
        # Where the planned adapter runs is not this test's business.
        return await real(lab.spawner, plan, cwd, {}, "dap_test")

    lab.bridge.launcher = outside
    given = {"runtime": "fake", "script": "./src/main.fake", "cwd": "./src"}
    await caged.call("debug", action="launch", **given)
    library = {**frame(lab, 0, "f", 1), "source": {"path": str(tmp_path / "lib.py")}}
    for shown, path in (
        (frame(lab, 0, "f", 1, "lib/other.fake"), "./lib/other.fake"),
        (library, "lib.py"),
    ):
        stack(lab, shown)
        lab.after("next", stopped("step"))
        said = await caged.call("debug", action="step_over")
        assert said["location"] == {"path": path, "line": 1, "column": 4}
        assert "canary-3" not in json.dumps(said)
