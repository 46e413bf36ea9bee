"""Workflows carried out by the loop, each as a session of its own."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from fakes.loop_lab import PROJECT, LoopLab, loop_lab
from fakes.played_model import PlayedModel, call, hang, say
from fakes.work_lab import until
from kaged.base import ManualClock
from kaged.models.errors import ModelUnavailable
from kaged.store.run_rows import RunDraft
from kaged.toolbox.project.answers import OperatorAnswer
from requirements import requirement

WAIT_S = 30
PROJECT_FILE = """
primary:
  model: default
  system_prompt: You lead.
  subagents:
    deployer: {model: small, system_prompt: You deploy.}
workflows:
  deploy:
    description: Ship the branch.
    agent: primary.subagents.deployer
    timeout_seconds: 60
    inputs:
      branch: {type: string, required: true}
      dry_run: {type: boolean, default: false}
  report:
    description: Tell how things are.
    steps:
      - message: Look at {{what}}.
      - message: Sum {{what}} up.
        agent: primary.subagents.deployer
    inputs:
      what: {type: string, default: everything}
"""


async def trigger(lab: LoopLab, name: str, **inputs: Any) -> str:
    done = await lab.work.workflows.trigger(PROJECT, name, inputs, "agent:primary")
    result = done.result
    assert isinstance(result, dict)
    assert result["status"] == "running"
    return str(result["run_id"])


async def ended(lab: LoopLab, run_id: str) -> Any:
    async with asyncio.timeout(WAIT_S):
        while True:
            status: Any = (await lab.work.workflows.status(PROJECT, run_id)).result
            if status["status"] != "running":
                return status


@requirement("AT-FLOW-10", "AT-FLOW-11", "AT-FLOW-07")
async def test_a_workflow_is_a_session_that_goes_on_by_itself(tmp_path: Path) -> None:
    """Triggering returns at once; the run's agent gets description and inputs."""
    gate = asyncio.Event()

    async def slow(request: Any) -> Any:
        await asyncio.wait_for(gate.wait(), WAIT_S)
        return say("Shipped.")

    small = PlayedModel(slow, alias="small")
    async with loop_lab(tmp_path, models={"small": small}, project=PROJECT_FILE) as lab:
        run_id = await trigger(lab, "deploy", branch="main")
        await asyncio.wait_for(small.asked.wait(), WAIT_S)
        status: Any = (await lab.work.workflows.status(PROJECT, run_id)).result
        assert (status["status"], status["completed_at"]) == ("running", None)
        assert status["inputs"] == {"branch": "main", "dry_run": False}
        session = await lab.store.sessions.of_id(run_id)
        assert (session.kind, session.status) == ("workflow", "running")

        gate.set()
        status = await ended(lab, run_id)

        assert (status["status"], status["result"]) == ("succeeded", {"text": "Shipped."})
        assert status["duration_ms"] is not None
        assert small.texts(0) == [
            "system: You deploy.",
            "user: Ship the branch.\n\nInputs:\n- branch: main\n- dry_run: false",
        ]
        assert (await lab.store.sessions.of_id(run_id)).status == "ended"
        found, _ = await lab.store.agent_runs.page(run_id, 5, 0)
        assert [(one.cause, one.status) for one in found] == [("workflow", "completed")]


async def test_steps_go_one_after_another_to_their_agents(tmp_path: Path) -> None:
    """With the inputs in place of their names."""
    root, small = PlayedModel(say("Seen.")), PlayedModel(say("Sum."), alias="small")
    async with loop_lab(tmp_path, root, models={"small": small}, project=PROJECT_FILE) as lab:
        status = await ended(lab, await trigger(lab, "report"))
        assert status["result"] == {"text": "Sum."}
        assert root.texts(0)[-1].startswith("user: Look at everything.")
        assert small.texts(0)[1:] == ["user: Sum everything up."]


@requirement("AT-FLOW-12")
async def test_a_workflow_whose_run_fails_says_why(tmp_path: Path) -> None:
    """Null times while it runs; an error when it failed."""
    root = PlayedModel(ModelUnavailable("The model is gone."))
    async with loop_lab(tmp_path, root, project=PROJECT_FILE) as lab:
        run_id = await trigger(lab, "report")
        first: Any = await lab.store.runs.get(PROJECT, run_id)
        assert first.completed_at_ms is None
        status = await ended(lab, run_id)
        assert status["status"] == "failed"
        assert "The model is gone." in status["error"]
        assert status["duration_ms"] is not None


@requirement("AT-FLOW-14")
async def test_a_workflow_beyond_its_time_ends_as_failed(tmp_path: Path) -> None:
    """Its run is cancelled, down to the model."""
    small = PlayedModel(hang(), alias="small")
    async with loop_lab(tmp_path, models={"small": small}, project=PROJECT_FILE) as lab:
        run_id = await trigger(lab, "deploy", branch="main")
        await asyncio.wait_for(small.asked.wait(), WAIT_S)
        assert isinstance(lab.clock, ManualClock)
        lab.clock.advance(61)
        status = await ended(lab, run_id)
        assert status["status"] == "failed"
        assert "timeout" in status["error"]
        await until(lambda: small.closed > 0)


@requirement("AT-SESS-02")
async def test_a_workflow_that_asks_counts_as_running_and_one_cut_off_as_failed(
    tmp_path: Path,
) -> None:
    """paused shows as running, interrupted as failed with that error."""
    ask = {"questions": [{"id": "q", "title": "Which?", "options": []}]}
    root = PlayedModel(say("", call("kaged_ask", ask)), say("Seen."))
    small = PlayedModel(say("Sum."), hang(), alias="small")
    async with loop_lab(tmp_path, root, models={"small": small}, project=PROJECT_FILE) as lab:
        run_id = await trigger(lab, "report")
        await until(lambda: bool(lab.told("run.ended")))
        (run,), _ = await lab.store.agent_runs.page(run_id, 1, 0)
        assert run.status == "paused"
        status: Any = (await lab.work.workflows.status(PROJECT, run_id)).result
        assert status["status"] == "running"
        request_id = str(lab.announced[0][1]["request_id"])
        await lab.work.interactions.answer(
            PROJECT, request_id, OperatorAnswer({"q": "x"}), "operator"
        )
        assert (await ended(lab, run_id))["status"] == "succeeded"

        cut = await trigger(lab, "deploy", branch="b")
        await until(lambda: len(small.requests) == 2)
    async with loop_lab(tmp_path, project=PROJECT_FILE) as lab:
        # Two daemons before: the last one ended in order, the one before it was killed.
        killed = await lab.store.runs.create(RunDraft(PROJECT, "deploy", {}, "agent", "x", 900))
        await lab.service.recover()
        await lab.work.workflows.recover()
        for run_id in (cut, killed.run_id):
            status = (await lab.work.workflows.status(PROJECT, run_id)).result
            assert (status["status"], status["error"]) == ("failed", "interrupted")


async def test_a_workflow_that_waits_for_an_answer_outlives_its_daemon(tmp_path: Path) -> None:
    """Asked by one, answered to the next; the step goes on, then those behind it."""
    ask = {"questions": [{"id": "q", "title": "Which?", "options": []}]}
    root = PlayedModel(say("", call("kaged_ask", ask)))
    async with loop_lab(tmp_path, root, project=PROJECT_FILE) as lab:
        run_id = await trigger(lab, "report")
        await until(lambda: bool(lab.told("run.ended")))
        request_id = str(lab.announced[0][1]["request_id"])
    root, small = PlayedModel(say("Seen.")), PlayedModel(say("Sum."), alias="small")
    async with loop_lab(tmp_path, root, models={"small": small}, project=PROJECT_FILE) as lab:
        await lab.service.recover()
        assert await lab.work.workflows.recover() == 1
        status: Any = (await lab.work.workflows.status(PROJECT, run_id)).result
        assert status["status"] == "running"
        await lab.work.interactions.answer(
            PROJECT, request_id, OperatorAnswer({"q": "x"}), "operator"
        )
        end = await ended(lab, run_id)
        assert (end["status"], end["result"]) == ("succeeded", {"text": "Sum."})
        assert (len(root.requests), len(small.requests)) == (1, 1)  # no step was made twice
        assert await lab.work.workflows.recover() == 0


@requirement("AT-FLOW-04", "AT-FLOW-09", "AT-AMB-06")
async def test_the_root_agent_starts_a_workflow_and_asks_how_it_fares(tmp_path: Path) -> None:
    """Through its tools, from another session."""
    root = PlayedModel(
        say("", call("kaged_workflow_trigger", {"name": "deploy", "inputs": {"branch": "b"}})),
        say("Started."),
    )
    small = PlayedModel(say("Shipped."), alias="small")
    async with loop_lab(tmp_path, root, models={"small": small}, project=PROJECT_FILE) as lab:
        assert (await lab.talk("Ship it")).text == "Started."
        runs: Any = await lab.work.workflows.runs(PROJECT, 5, 0)
        status = await ended(lab, runs["runs"][0]["run_id"])
        assert status["status"] == "succeeded"
        record = await lab.store.runs.get(PROJECT, status["run_id"])
        assert (record.invoker_type, record.invoker_id) == ("operator", "agent:primary")


async def test_the_operator_ends_a_workflow(tmp_path: Path) -> None:
    """And its run with it."""
    small = PlayedModel(hang(), alias="small")
    async with loop_lab(tmp_path, models={"small": small}, project=PROJECT_FILE) as lab:
        run_id = await trigger(lab, "deploy", branch="main")
        await asyncio.wait_for(small.asked.wait(), WAIT_S)
        await lab.work.workflows.cancel(PROJECT, run_id)
        assert (await ended(lab, run_id))["status"] == "cancelled"
        await until(lambda: bool(lab.told("run.ended")))
        assert lab.told("run.ended")[0].data["status"] == "cancelled"
