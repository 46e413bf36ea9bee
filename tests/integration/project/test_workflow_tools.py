"""`kaged.workflow.*` as the root agent uses it, on a real store.

What carries a run out is the agent loop; here a fake stands in for it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fakes.work_lab import PROJECT, WorkLab, until, work_lab
from kaged.base import Ids, JsonValue, KagedError, ManualClock
from kaged.store.run_rows import RunStatus
from kaged.toolbox.project.uploads import Upload
from requirements import requirement

DEPLOY: dict[str, Any] = {"name": "deploy", "inputs": {"branch": "main"}}


async def finished(lab: WorkLab, run_id: str) -> Any:
    """Let a run end and return its status."""
    lab.runner.go_on.set()
    await until(lambda: not len(lab.tasks))
    return await lab.call("kaged.workflow.status", run_id=run_id)


async def start(lab: WorkLab, **params: Any) -> str:
    return str((await lab.call("kaged.workflow.trigger", **(params or DEPLOY)))["run_id"])


@requirement("AT-FLOW-01", "AT-FLOW-02", "AT-FLOW-03")
async def test_workflows_are_listed_from_memory(lab: WorkLab) -> None:
    await lab.store.close()
    found = await lab.call("kaged.workflow.list")
    assert found["count"] == len(found["workflows"]) == 4
    deploy = found["workflows"][0]
    assert deploy == {
        "name": "deploy",
        "description": "Build and deploy the project to production.",
        "inputs": {
            "branch": {
                "type": "string", "required": True, "description": "Git branch to deploy.",
                "default": None,
            },
            "dry_run": {
                "type": "boolean", "required": False, "description": "", "default": False,
            },
            "level": {
                "type": "enum", "required": False, "description": "", "default": None,
                "values": ["low", "high"],
            },
        },
        "invokable_by": ["operator"],
        "timeout_seconds": 600,
    }  # fmt: skip
    guests = await lab.call("kaged.workflow.list", invokable_by="guest")
    assert [one["name"] for one in guests["workflows"]] == ["report"]
    assert guests["count"] == 1
    operators = await lab.call("kaged.workflow.list", invokable_by="operator")
    assert operators["count"] == 4
    wrong = await lab.refusal("kaged.workflow.list", invokable_by="anyone")
    assert wrong.code == "invalid_params"


@requirement("AT-FLOW-04", "AT-FLOW-09")
async def test_a_run_is_started_and_goes_on_by_itself(lab: WorkLab, clock: ManualClock) -> None:
    made = await lab.call("kaged.workflow.trigger", **DEPLOY)
    assert set(made) == {"run_id", "workflow_name", "status", "created_at"}
    assert (made["workflow_name"], made["status"]) == ("deploy", "running")
    assert made["created_at"] == 1_767_225_600
    await lab.runner.begun.wait()
    (run,) = lab.runner.started
    assert run.run_id == made["run_id"]
    assert (run.invoker_type, run.invoker_id) == ("operator", "agent:primary")
    assert run.inputs == {"branch": "main", "dry_run": False}
    session = await lab.store.sessions.get(PROJECT, run.run_id)
    assert (session.kind, session.status) == ("workflow", "running")
    status = await lab.call("kaged.workflow.status", run_id=run.run_id)
    assert status["inputs"] == {"branch": "main", "dry_run": False}
    await finished(lab, run.run_id)
    assert (await lab.store.sessions.get(PROJECT, run.run_id)).status == "ended"
    for missing in ({"name": "deploy"}, {"inputs": {}}):
        refused = await lab.refusal("kaged.workflow.trigger", **missing)
        assert refused.code == "invalid_params"


@requirement("AT-FLOW-05", "AT-FAIL-22")
async def test_an_undeclared_workflow_is_not_found(lab: WorkLab) -> None:
    refused = await lab.refusal("kaged.workflow.trigger", name="nope", inputs={})
    assert (refused.code, refused.number) == ("workflow_not_found", -32000)
    assert refused.detail == {"name": "nope"}


@requirement("AT-FLOW-06", "AT-FAIL-23")
async def test_every_wrong_input_is_named(lab: WorkLab) -> None:
    refused = await lab.refusal(
        "kaged.workflow.trigger", name="deploy", inputs={"dry_run": "yes", "level": "x", "u": 1}
    )
    assert refused.code == "invalid_params"
    assert isinstance(refused.detail, dict)
    problems = {one["field"]: one["problem"] for one in refused.detail["fields"]}  # type: ignore[index,union-attr]  # JSON
    assert set(problems) == {"inputs.branch", "inputs.dry_run", "inputs.level", "inputs.u"}
    assert problems["inputs.branch"] == "is required"
    for value in (True, 1, None, ["a"], "\ud800"):
        wrong = {"name": "deploy", "inputs": {"branch": value}}
        assert (await lab.refusal("kaged.workflow.trigger", **wrong)).code == "invalid_params"
    assert lab.runner.started == []
    # The operator's way in has the same check.
    with pytest.raises(KagedError) as raised:
        await lab.work.workflows.trigger(
            PROJECT, "deploy", {"dry_run": "yes"}, "operator", files={}
        )
    assert raised.value.code == "invalid_params"


@requirement("AT-FLOW-08", "AT-FAIL-24")
async def test_files_cannot_come_through_the_tool(lab: WorkLab) -> None:
    for params in (
        {"name": "import", "inputs": {}},
        {"name": "import", "inputs": {"table": "x"}},
        {"name": "annotate", "inputs": {"picture": "x.png"}},
    ):
        refused = await lab.refusal("kaged.workflow.trigger", **params)
        assert refused.code == "file_input_not_supported"
        assert f"POST /api/v1/projects/{{project_id}}/workflows/{params['name']}/runs" in (
            str(refused)
        )
    await start(lab, name="annotate", inputs={})


async def test_files_come_through_the_operators_way_in(lab: WorkLab) -> None:
    trigger = lab.work.workflows.trigger
    files = {"table": Upload("../../etc/t.csv", b"a,b\n")}
    await trigger(PROJECT, "import", {}, "operator", files=files)
    await lab.runner.begun.wait()
    path = str(lab.runner.started[0].inputs["table"])
    assert path.startswith("config:/tmp/upload_")
    assert path.endswith("/t.csv")
    written = lab.root / ".kaged" / path.removeprefix("config:/")
    assert written.read_bytes() == b"a,b\n"
    for name, inputs, given in (
        ("import", {}, {}),
        ("import", {"table": "text"}, files),
        ("deploy", {"branch": "b"}, {"branch": Upload("x", b"")}),
        ("deploy", {"branch": "b"}, {"other": Upload("x", b"")}),
    ):
        with pytest.raises(KagedError) as raised:
            await trigger(PROJECT, name, dict(inputs), "operator", files=given)
        assert raised.value.code == "invalid_params"


async def test_the_status_tells_how_a_run_fares(lab: WorkLab, clock: ManualClock) -> None:
    run_id = await start(lab)
    running = await lab.call("kaged.workflow.status", run_id=run_id)
    assert running == {
        "run_id": run_id, "workflow_name": "deploy", "status": "running",
        "inputs": {"branch": "main", "dry_run": False}, "created_at": 1_767_225_600,
        "completed_at": None, "duration_ms": None,
    }  # fmt: skip
    clock.advance(120)
    ended = await finished(lab, run_id)
    assert (ended["status"], ended["completed_at"]) == ("succeeded", 1_767_225_720)
    assert ended["duration_ms"] == 120_000
    assert "error" not in ended
    lab.runner.fails_with = KagedError("the tests are red")
    failed = await finished(lab, await start(lab))
    lab.runner.go_on.clear()
    assert (failed["status"], failed["error"]) == ("failed", "the tests are red")
    cancelled = await start(lab)
    await lab.work.workflows.cancel(PROJECT, cancelled)
    assert (await lab.call("kaged.workflow.status", run_id=cancelled))["status"] == "cancelled"
    assert {status.value for status in RunStatus} == {
        "running", "succeeded", "failed", "cancelled",
    }  # fmt: skip


async def test_a_run_that_breaks_inside_tells_no_secrets(lab: WorkLab) -> None:
    lab.runner.fails_with = ZeroDivisionError("/home/me/secret")
    failed = await finished(lab, await start(lab))
    assert failed["status"] == "failed"
    assert "secret" not in failed["error"]
    assert "ZeroDivisionError" in failed["error"]
    assert lab.failures == []


async def test_a_result_that_cannot_be_kept_is_left_out(lab: WorkLab) -> None:
    lab.runner.result = "x" * 300_000
    assert "left_out" in (await finished(lab, await start(lab)))["result"]


@requirement("AT-FLOW-13", "AT-FAIL-25")
async def test_an_unknown_run_is_not_found(lab: WorkLab) -> None:
    run_id = await start(lab)
    for wanted, project in (("x", PROJECT), ("é" * 10, PROJECT), (run_id, "prj_2")):
        refused = await lab.refusal_with(
            "kaged.workflow.status", {"run_id": wanted}, project_id=project
        )
        assert (refused.code, refused.number) == ("run_not_found", -32000)
        assert isinstance(refused.detail, dict)
        assert refused.detail["run_id"] == wanted


async def test_a_run_that_takes_too_long_ends_as_failed(lab: WorkLab, clock: ManualClock) -> None:
    run_id = await start(lab, name="report", inputs={})
    await lab.runner.begun.wait()
    clock.advance(5)
    assert (await lab.call("kaged.workflow.status", run_id=run_id))["status"] == "running"
    clock.advance(1)
    late = await lab.call("kaged.workflow.status", run_id=run_id)
    assert late["status"] == "failed"
    assert late["error"].startswith("timeout")
    await until(lambda: not len(lab.tasks))
    assert lab.runner.cancelled == [run_id]
    lab.runner.go_on.set()
    assert await lab.call("kaged.workflow.status", run_id=run_id) == late


@requirement("AT-FLOW-15")
async def test_workflows_are_for_the_root_agent(lab: WorkLab) -> None:
    run_id = await start(lab)
    other = lab.other("primary.subagents.coder")
    for name, params in (
        ("list", {}), ("trigger", DEPLOY), ("status", {"run_id": run_id}),
    ):  # fmt: skip
        refused = await other.refusal(f"kaged.workflow.{name}", **params)
        assert refused.code == "principal_scope_violation"
    assert len(lab.runner.started) <= 1


@requirement("AT-AUD-24", "AT-AUD-25")
async def test_starting_and_asking_are_on_record(lab: WorkLab) -> None:
    run_id = await start(lab, name="deploy", inputs={"branch": "b" * 5000})
    await lab.call("kaged.workflow.status", run_id=run_id)
    (started,) = lab.audit.of("kaged.workflow.triggered")
    assert (started["run_id"], started["workflow_name"], started["caller"]) == (
        run_id, "deploy", "primary",
    )  # fmt: skip
    assert set(started["inputs"]) == {"branch", "dry_run"}
    assert "b" * 2000 not in str(started)
    (asked,) = lab.audit.of("kaged.workflow.status_checked")
    assert (asked["run_id"], asked["workflow_name"], asked["status"], asked["caller"]) == (
        run_id, "deploy", "running", "primary",
    )  # fmt: skip
    await lab.refusal("kaged.workflow.status", run_id="x")
    await lab.refusal("kaged.workflow.trigger", name="nope", inputs={})
    assert lab.audit.names().count("kaged.workflow.triggered") == 1
    assert lab.audit.names().count("kaged.workflow.status_checked") == 1


async def test_without_a_runner_nothing_is_started_or_stored(
    tmp_path: Path, clock: ManualClock, ids: Ids
) -> None:
    async with work_lab(tmp_path, clock, ids, has_runner=False) as lab:
        refused = await lab.refusal("kaged.workflow.trigger", **DEPLOY)
        assert refused.code == "workflow_runner_missing"
        assert (await lab.work.workflows.runs(PROJECT, 10, 0))["total"] == 0
        assert (await lab.call("kaged.workflow.list"))["count"] == 4


async def test_runs_that_a_dead_daemon_left_are_ended_at_the_next_start(
    tmp_path: Path, clock: ManualClock, ids: Ids
) -> None:
    async with work_lab(tmp_path, clock, ids) as first:
        run_id = await start(first)
        await first.runner.begun.wait()
        assert await first.work.workflows.recover() == 0
    async with work_lab(tmp_path, clock, ids) as second:
        await second.work.workflows.recover()
        ended = await second.call("kaged.workflow.status", run_id=run_id)
        assert ended["status"] == "failed"
        assert ended["error"] == "interrupted"


async def test_a_run_that_waits_is_taken_up_by_the_next_daemon_until_its_time_is_up(
    tmp_path: Path, clock: ManualClock, ids: Ids
) -> None:
    async with work_lab(tmp_path, clock, ids) as first:
        run_id = await start(first)
        await first.runner.begun.wait()
        first.runner.waiting.add(run_id)
    async with work_lab(tmp_path, clock, ids) as second:
        second.runner.waiting.add(run_id)
        assert await second.work.workflows.recover() == 1
        await second.runner.begun.wait()
        assert (await second.call("kaged.workflow.status", run_id=run_id))["status"] == "running"
    clock.advance(1_000_000)
    async with work_lab(tmp_path, clock, ids) as third:
        third.runner.waiting.add(run_id)
        await third.work.workflows.recover()
        late = await third.call("kaged.workflow.status", run_id=run_id)
        assert (late["status"], third.runner.started) == ("failed", [])
        assert late["error"].startswith("timeout")


def _raises() -> JsonValue:
    raise KagedError("The model was cut off.")


@requirement("AT-FLOW-14")
@pytest.mark.parametrize("when_cancelled", [lambda: "made it", _raises], ids=["returns", "raises"])
async def test_a_run_has_timed_out_whatever_it_makes_of_being_cancelled_for_it(
    tmp_path: Path, clock: ManualClock, ids: Ids, when_cancelled: Callable[[], JsonValue]
) -> None:
    async with work_lab(tmp_path, clock, ids) as first:
        run_id = await start(first)
        await first.runner.begun.wait()
        first.runner.waiting.add(run_id)
    clock.advance(600 - 0.01)  # so that its own timer is up in a moment
    async with work_lab(tmp_path, clock, ids) as second:
        second.runner.waiting.add(run_id)
        second.runner.when_cancelled = when_cancelled
        await second.work.workflows.recover()
        await until(lambda: not len(second.tasks))
        late = await second.call("kaged.workflow.status", run_id=run_id)
        assert second.runner.cancelled == [run_id]
        assert (late["status"], "result" in late) == ("failed", False)
        assert late["error"].startswith("timeout")


async def test_runs_are_listed_newest_first(lab: WorkLab) -> None:
    started = [await start(lab) for _ in range(3)]
    found = await lab.work.workflows.runs(PROJECT, 2, 0)
    assert [one["run_id"] for one in found["runs"]] == [started[2], started[1]]  # type: ignore[index,union-attr]  # JSON
    assert found["total"] == 3
    ended = await lab.work.workflows.cancel(PROJECT, started[0])
    assert (await lab.work.workflows.cancel(PROJECT, started[0])) == ended
