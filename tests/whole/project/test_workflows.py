"""Workflows in a running daemon: what agents start, ask about, and cannot start."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from requirements.marker import whole
from whole.harness.daemon import Daemon, wait_for
from whole.harness.model import ModelServer, call, say
from whole.harness.project import Project
from whole.harness.talk import Talk, asked, fresh, play_late, tool_answers

INPUTS: dict[str, Any] = {
    "branch": {"type": "string", "required": True, "description": "Git branch to deploy."},
    "dry_run": {"type": "boolean", "default": False},
    "level": {"type": "enum", "values": ["low", "high"]},
}
FILE = {"table": {"type": "file", "required": True}}
PICTURE = {"picture": {"type": "file"}}
NEVER_MS = 60_000


def declare(project: Project, **workflows: Any) -> None:
    """Write workflows into the project file; each `description` is what the agent is told."""
    project.describe(top={"workflows": workflows})
    project.reload()


def trigger(project: Project, name: str = "deploy", **inputs: Any) -> dict[str, Any]:
    return dict(project.call("kaged.workflow.trigger", name=name, inputs=inputs))


def status(project: Project, run_id: str) -> dict[str, Any]:
    return dict(project.call("kaged.workflow.status", run_id=run_id))


def ended(project: Project, run_id: str) -> dict[str, Any]:
    """Wait for the end of a run and return its status as the tool gives it."""
    wait_for(lambda: project.get(f"/runs/{run_id}")["status"] != "running", run_id)
    return status(project, run_id)


@whole("AT-FLOW-01", "AT-FLOW-02", "AT-FLOW-03", "AT-DSL-14")
def test_workflows_are_listed_as_they_were_loaded(project: Project, talk: Talk) -> None:
    declare(
        project,
        deploy={"description": "Deploy it.", "inputs": INPUTS},
        report={"invokable_by": ["operator", "guest"], "timeout": 5},
    )
    talk = Talk(project, talk.model)
    found = talk.result("kaged.workflow.list")
    assert found["count"] == len(found["workflows"]) == 2
    assert found["workflows"][0] == {
        "name": "deploy",
        "description": "Deploy it.",
        "inputs": {
            "branch": {
                "type": "string",
                "required": True,
                "description": "Git branch to deploy.",
                "default": None,
            },
            "dry_run": {"type": "boolean", "required": False, "description": "", "default": False},
            "level": {
                "type": "enum",
                "required": False,
                "description": "",
                "default": None,
                "values": ["low", "high"],
            },
        },
        "invokable_by": ["operator"],
        "timeout_seconds": 600,
    }
    guests = project.call("kaged.workflow.list", invokable_by="guest")
    assert ([one["name"] for one in guests["workflows"]], guests["count"]) == (["report"], 1)
    assert guests["workflows"][0]["timeout_seconds"] == 5
    assert project.call("kaged.workflow.list", invokable_by="operator")["count"] == 2
    assert project.fail("kaged.workflow.list", invokable_by="all")["code"] == "invalid_params"
    # What was compiled counts, not what a file says by now.
    (project.root / ".kaged" / "project.yaml").unlink()
    assert project.call("kaged.workflow.list") == found


@whole("AT-FLOW-04", "AT-FLOW-07", "AT-FLOW-09", "AT-FLOW-10", "AT-SESS-01")
def test_a_run_goes_on_by_itself_as_a_session_of_its_own(
    daemon: Daemon, project: Project, talk: Talk, model: ModelServer
) -> None:
    word = fresh("deploys")
    declare(project, deploy={"description": f"{word} now.", "inputs": INPUTS})
    play_late(model, word, 1_000, say("Deployed."))
    talk = Talk(project, talk.model)
    made = talk.result("kaged.workflow.trigger", name="deploy", inputs={"branch": "main"})
    assert set(made) == {"run_id", "workflow_name", "status", "created_at"}
    assert (made["workflow_name"], made["status"]) == ("deploy", "running")
    (session,) = project.get("/sessions?kind=workflow")["items"]
    assert (session["id"], session["kind"]) == (made["run_id"], "workflow")
    assert session["status"] == "running"
    after = ended(project, made["run_id"])
    assert after["status"] == "succeeded"
    wait_for(lambda: project.get(f"/sessions/{made['run_id']}")["status"] == "ended")
    assert after["inputs"] == {"branch": "main", "dry_run": False}
    (body,) = asked(model, word)
    assert "- branch: main\n- dry_run: false" in body["messages"][-1]["content"]
    base = sqlite3.connect(f"file:{daemon.home / 'kaged.db'}?mode=ro", uri=True)
    row = base.execute(
        "SELECT invoker_type, invoker_id FROM workflow_runs WHERE run_id = ?", (made["run_id"],)
    ).fetchone()
    base.close()
    assert row == ("operator", "agent:primary")
    for missing in ({"name": "deploy"}, {"inputs": {}}):
        assert project.fail("kaged.workflow.trigger", **missing)["code"] == "invalid_params"


@whole("AT-FLOW-11", "AT-FLOW-12")
def test_the_status_tells_how_a_run_fares(project: Project, model: ModelServer) -> None:
    slow, good, bad = fresh("slow"), fresh("good"), fresh("bad")
    declare(
        project,
        slow={"description": slow},
        good={"description": good},
        bad={"description": bad},
    )
    play_late(model, slow, NEVER_MS, say("Never."))
    model.play(good, say("Good."))
    model.play(bad, {"error": {"message": "the key is wrong"}, "status": 401})
    run_id = trigger(project, "slow")["run_id"]
    running = status(project, run_id)
    assert set(running) == {
        "run_id", "workflow_name", "status", "inputs", "created_at", "completed_at", "duration_ms",
    }  # fmt: skip
    assert (running["run_id"], running["workflow_name"]) == (run_id, "slow")
    assert (running["status"], running["completed_at"], running["duration_ms"]) == (
        "running", None, None,
    )  # fmt: skip
    done = ended(project, trigger(project, "good")["run_id"])
    assert done["status"] == "succeeded"
    assert done["completed_at"] >= done["created_at"]
    assert done["duration_ms"] >= 0
    assert "error" not in done
    failed = ended(project, trigger(project, "bad")["run_id"])
    assert failed["status"] == "failed"
    assert failed["error"]
    assert failed["completed_at"] >= failed["created_at"]
    project.post(f"/runs/{run_id}/cancel")
    assert ended(project, run_id)["status"] == "cancelled"
    assert status(project, run_id)["completed_at"] is not None


@whole("AT-FLOW-05", "AT-FLOW-06")
def test_a_wrong_name_and_every_wrong_input_are_named(daemon: Daemon, project: Project) -> None:
    declare(project, deploy={"description": "Deploy.", "inputs": INPUTS})
    refused = project.fail("kaged.workflow.trigger", name="nope", inputs={})
    assert refused["code"] == "workflow_not_found"
    assert refused["data"]["detail"] == {"name": "nope"}
    wrong = {"dry_run": "yes", "level": "x", "u": 1}
    refused = project.fail("kaged.workflow.trigger", name="deploy", inputs=wrong)
    assert refused["code"] == "invalid_params"
    fields = {one["field"]: one["problem"] for one in refused["data"]["detail"]["fields"]}
    assert set(fields) == {"inputs.branch", "inputs.dry_run", "inputs.level", "inputs.u"}
    # The operator's way in has the same check, word for word.
    path = f"/projects/{project.id}/workflows/deploy/runs"
    other = daemon.error("POST", path, {"inputs": wrong})
    assert other["code"] == "invalid_params"
    assert other["message"] == refused["message"]
    for value in (True, 1, None, ["a"]):
        refused = project.fail("kaged.workflow.trigger", name="deploy", inputs={"branch": value})
        assert refused["code"] == "invalid_params", value
    assert project.get("/runs")["items"] == []


@whole("AT-FLOW-08")
def test_files_come_from_the_operator_only(
    daemon: Daemon, project: Project, model: ModelServer
) -> None:
    word = fresh("imports")
    declare(
        project,
        **{
            "import": {"description": word, "inputs": FILE},
            "annotate": {"description": f"{word}2", "inputs": PICTURE},
        },
    )
    model.play(word, say("Read."), say("Drawn."))
    for name, inputs in (
        ("import", {}),
        ("import", {"table": "x"}),
        ("annotate", {"picture": "x.png"}),
    ):
        refused = project.fail("kaged.workflow.trigger", name=name, inputs=inputs)
        assert refused["code"] == "file_input_not_supported", (name, inputs)
        assert f"POST /api/v1/projects/{{project_id}}/workflows/{name}/runs" in str(refused)
    assert project.get("/runs")["items"] == []
    assert ended(project, trigger(project, "annotate")["run_id"])["status"] == "succeeded"
    table = project.write("t.csv", "a,b\n")
    daemon.cli("workflow", "run", "import", "--file", f"table={table}", "-p", project.id)
    (run,) = [one for one in project.get("/runs")["items"] if one["workflow_name"] == "import"]
    given = ended(project, run["run_id"])["inputs"]["table"]
    assert given.startswith("config:/tmp/")
    assert project.read(f".kaged/{given.removeprefix('config:/')}") == "a,b\n"


@whole("AT-FLOW-13")
def test_a_run_of_another_project_is_not_found(
    daemon: Daemon, project: Project, model: ModelServer, tmp_path: Path
) -> None:
    word = fresh("mine")
    declare(project, deploy={"description": word})
    model.play(word, say("Done."))
    run_id = trigger(project)["run_id"]
    other = daemon.load(Project(tmp_path / "other"))
    for place, wanted in ((project, "x"), (project, "é" * 10), (other, run_id)):
        refused = place.fail("kaged.workflow.status", run_id=wanted)
        assert refused["code"] == "run_not_found"
        assert refused["data"]["detail"]["run_id"] == wanted
    assert ended(project, run_id)["status"] == "succeeded"


@whole("AT-FLOW-14")
def test_a_run_that_takes_too_long_ends_as_failed(project: Project, model: ModelServer) -> None:
    late, fine = fresh("late"), fresh("fine")
    declare(
        project,
        late={"description": late, "timeout_seconds": 1},
        fine={"description": fine, "timeout_seconds": 60},
    )
    play_late(model, late, NEVER_MS, say("Never."))
    model.play(fine, say("In time."))
    failed = ended(project, trigger(project, "late")["run_id"])
    assert failed["status"] == "failed"
    assert "timeout" in failed["error"]
    assert failed["duration_ms"] >= 900  # clocks of processors differ
    assert ended(project, trigger(project, "fine")["run_id"])["status"] == "succeeded"


@whole("AT-FLOW-15", "AT-AMB-06", "AT-AMB-30")
def test_workflows_are_on_for_the_root_and_for_nobody_else(
    daemon: Daemon, project: Project, model: ModelServer
) -> None:
    child = {"model": "default", "system_prompt": "Code.", "tools": {"file.*": {"enabled": True}}}
    project.describe(
        tools={},
        subagents={"coder": child},
        top={"workflows": {"deploy": {"description": "Deploy."}}},
    )
    project.reload()
    names = {"kaged.workflow.list", "kaged.workflow.trigger", "kaged.workflow.status"}
    mine = {one["name"] for one in project.get("/tools")["tools"]}
    others = {"kaged.issue", "kaged.todo", "kaged.ask", "kaged.form", "kaged.checkpoint"}
    assert {one for one in mine if one.startswith("kaged.")} == names | others
    for name, params in (
        ("list", {}),
        ("trigger", {"name": "deploy", "inputs": {}}),
        ("status", {"run_id": "x"}),
    ):
        refused = project.fail(f"kaged.workflow.{name}", "primary.subagents.coder", **params)
        assert refused["code"] == "principal_scope_violation"
    talk, word = Talk(project, model), fresh("child")
    model.play(word, call("kaged.workflow.trigger", name="deploy", inputs={}), say("No."))
    talk.hear(call("agent-coder", message=word), say("ok"))
    assert "principal_scope_violation" in tool_answers(asked(model, word)[-1])[0]
    assert project.get("/runs")["items"] == []


@whole("AT-AUD-24", "AT-AUD-25")
def test_starting_and_asking_are_on_record(
    daemon: Daemon, project: Project, model: ModelServer
) -> None:
    word = fresh("recorded")
    declare(project, deploy={"description": word, "inputs": INPUTS})
    model.play(word, say("Done."))
    run_id = trigger(project, branch="b" * 5000)["run_id"]
    wait_for(lambda: project.get(f"/runs/{run_id}")["status"] != "running")
    before = len(daemon.audit("kaged.workflow.status_checked", project_id=project.id))
    status(project, run_id)
    project.fail("kaged.workflow.status", run_id="x")
    project.fail("kaged.workflow.trigger", name="nope", inputs={})
    (started,) = daemon.audit("kaged.workflow.triggered", project_id=project.id)
    data = started["data"]
    assert (data["run_id"], data["workflow_name"], data["caller"]) == (run_id, "deploy", "primary")
    assert data["inputs"]["dry_run"] is False
    assert "b" * 1001 not in str(data)
    assert "5000" in str(data["inputs"]["branch"])
    (checked,) = daemon.audit("kaged.workflow.status_checked", project_id=project.id)[before:]
    assert checked["data"] == {
        "run_id": run_id, "workflow_name": "deploy", "status": "succeeded", "caller": "primary",
    }  # fmt: skip
    assert started["request_id"] != checked["request_id"]


@whole("AT-SESS-02", "AT-FLOW-11", "AT-FLOW-12")
def test_a_run_that_waits_is_running_and_one_that_was_cut_off_has_failed(
    own: Callable[..., Daemon], model: ModelServer, tmp_path: Path
) -> None:
    daemon = own()
    daemon.start()
    project = daemon.load(Project(tmp_path / "p"))
    waits, hangs = fresh("waits"), fresh("hangs")
    declare(project, waits={"description": waits}, hangs={"description": hangs})
    question = {"id": "q", "title": "Which?", "options": []}
    model.play(waits, call("kaged.ask", questions=[question]), say("Thanks."))
    play_late(model, hangs, NEVER_MS, say("Never."))
    waiting = trigger(project, "waits")["run_id"]
    cut_off = trigger(project, "hangs")["run_id"]
    session = Talk(project, model, waiting)
    request_id = session.waiting()["request_id"]
    wait_for(lambda: [one["status"] for one in session.runs()] == ["paused"])
    wait_for(lambda: asked(model, hangs))
    assert status(project, waiting)["status"] == "running"
    daemon.kill()
    daemon.start()
    daemon.load(project)
    failed = status(project, cut_off)
    assert (failed["status"], failed["error"]) == ("failed", "interrupted")
    assert status(project, waiting)["status"] == "running"
    project.post(f"/interactions/{request_id}/answer", {"answers": {"q": "this"}})
    assert ended(project, waiting)["status"] == "succeeded"
    assert "this" in tool_answers(asked(model, waits)[-1])[0]


@whole("AT-FLOW-04", "AT-DSL-14")
@pytest.mark.parametrize("way", ["agent", "steps"])
def test_a_workflow_is_done_by_the_agent_or_the_steps_it_names(
    project: Project, model: ModelServer, way: str
) -> None:
    child = {"model": "default", "system_prompt": "You deploy.", "cage": "disabled"}
    first, second = fresh("first"), fresh("second")
    agent = "primary.subagents.deployer"
    flow = {
        "agent": {"description": first, "agent": agent},
        "steps": {"steps": [{"message": first, "agent": agent}, {"message": second}]},
    }[way]
    project.describe(subagents={"deployer": child}, top={"workflows": {"deploy": flow}})
    project.reload()
    model.play(first, say("One."))
    model.play(second, say("Two."))
    assert ended(project, trigger(project)["run_id"])["status"] == "succeeded"
    assert asked(model, first)[0]["messages"][0]["content"] == "You deploy."
    prompts = [one["messages"][0]["content"] for one in asked(model, second)]
    assert prompts == (["You help."] if way == "steps" else [])
