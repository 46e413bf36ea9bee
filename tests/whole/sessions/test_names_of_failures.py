"""Failures that the tools' authors had no name for, each brought about in a running daemon."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from requirements.marker import whole
from whole.harness.daemon import Daemon, wait_for
from whole.harness.model import ModelServer, call, calls, say
from whole.harness.plugin import PluginFolder
from whole.harness.project import Project
from whole.harness.talk import Talk, asked, tool_answers

FAKE = Path(__file__).parents[2] / "guests" / "fake_lsp_server.py"
LAUNCH = {"action": "launch", "runtime": "python", "script": "a.py"}


@pytest.fixture(scope="module")
def troubled(module_path: Path, model: ModelServer) -> Iterator[Daemon]:
    """Yield a daemon with a language server that does not answer what it is asked about words."""
    plan = module_path / "plan.json"
    capabilities = {"hoverProvider": True, "definitionProvider": True, "textDocumentSync": 1}
    failure = {"error": {"code": -32803, "message": "not today"}}
    answers = {"textDocument/hover": "hang", "textDocument/definition": failure}
    plan.write_text(json.dumps({"capabilities": capabilities, "answers": answers}), "utf-8")
    command = [sys.executable, str(FAKE), str(plan), str(module_path / "heard.jsonl")]
    made = Daemon(
        module_path / "t",
        config=(
            "[lsp]\nrequest_timeout_seconds = 1\n"
            f"[lsp.servers.python]\ncommand = {json.dumps(command)}\n"
            '[dap.adapters.absent]\ntype = "absent"\nadapter = ["no-such-adapter"]\n'
        ),
        local=model.local_toml(),
    )
    made.start()
    yield made
    made.close()


@whole("AT-AMB-18")
def test_a_server_that_does_not_answer_is_a_timeout_and_a_reload_a_reason_to_stop(
    troubled: Daemon, tmp_path: Path
) -> None:
    project = Project(tmp_path / "p", cage="disabled")
    project.write("a.py", "x = 1\n")
    troubled.load(project)
    hover = {"action": "hover", "path": "a.py", "line": 1, "character": 0}
    assert project.fail("code.lsp", **hover)["code"] == "lsp_timeout"
    failed = project.fail("code.lsp", **{**hover, "action": "definition"})
    assert failed["code"] == "lsp_request_failed"
    assert "not today" in str(failed)
    project.call("code.lsp", action="capabilities", language="python")
    project.call("code.lsp", action="reload", language="python")
    rows = troubled.audit("code.lsp.server_stopped", project_id=project.id)
    assert [one["data"]["reason"] for one in rows][-1:] == ["reload"]


@whole("AT-AMB-18")
def test_what_a_debugger_cannot_do_now_has_a_name_each(
    troubled: Daemon, model: ModelServer, tmp_path: Path
) -> None:
    project = Project(tmp_path / "p", cage="disabled")
    project.write("a.py", "import time\nopen('begun', 'w').close()\ntime.sleep(60)\n")
    troubled.load(project)
    made = Talk(project, model).use(
        ("debug", {**LAUNCH, "runtime": "absent"}),
        ("debug", {**LAUNCH, "stop_on_entry": False}),
        ("debug", LAUNCH),
        ("shell.bash", {"command": "while [ ! -e begun ]; do sleep 0.02; done"}),
        ("debug", {"action": "stack_trace"}),
        ("debug", {"action": "disassemble", "memory_reference": "0x1", "instruction_count": 1}),
    )
    assert [one["error"] and one["error"]["code"] for one in made] == [
        "dap_adapter_not_found",
        None,
        "dap_session_active",
        None,
        "dap_not_stopped",
        "dap_unsupported",
    ]


@whole("AT-AMB-18")
def test_what_a_debugged_program_cannot_say_is_a_failure_and_the_session_goes_on(
    troubled: Daemon, model: ModelServer, tmp_path: Path
) -> None:
    project = Project(tmp_path / "p", cage="disabled")
    project.write("a.py", "x = 1\n")
    troubled.load(project)
    evaluate = {"action": "evaluate", "expression": "1 / 0"}
    made = Talk(project, model).use(
        ("debug", LAUNCH),
        ("debug", evaluate),
        ("debug", {**evaluate, "expression": "6 * 7"}),
    )
    codes = [one["error"] and one["error"]["code"] for one in made]
    assert codes == [None, "dap_request_failed", None]
    assert "42" in str(made[2]["result"])


@whole("AT-AMB-18")
def test_a_file_that_cannot_be_parsed_and_a_second_question_have_names(
    troubled: Daemon, model: ModelServer, tmp_path: Path
) -> None:
    project = Project(tmp_path / "p", cage="disabled")
    project.write("bad.py", "def (:\n  ]]\n")
    troubled.load(project)
    rewrites = {"print($A)": "log($A)"}
    refused = project.fail("edit.ast", rewrites=rewrites, lang="python", path="bad.py")
    assert refused["code"] == "parse_error"
    talk = Talk(project, model)
    pause = ("kaged.checkpoint", {"message": "May I?"})
    run = talk.hear(calls(pause, pause), say("Well."))
    talk.answer(talk.waiting()["request_id"], decision="approve")
    answers = tool_answers(asked(model, run["word"])[-1])
    assert "interaction_pending" in answers[1]


@whole("AT-AMB-18")
def test_a_tool_whose_plugin_has_died_has_a_name_for_that_and_the_run_goes_on(
    troubled: Daemon, model: ModelServer, tmp_path: Path
) -> None:
    tool = {"name": "recall", "description": "Recalls.", "parameters_schema": {"type": "object"}}
    behaviour = {"on": {"gone.recall": [{"exit": 3}]}}
    folder = PluginFolder(
        troubled, tmp_path / "gone", behaviour, name="gone", tools=[tool], methods=["a.b"]
    )
    assert folder.run()["state"] == "running"
    project = Project(tmp_path / "p", plugins={"gone": {"package": "@kaged/gone"}})
    troubled.load(project)
    wait_for(lambda: project.get("")["readiness"]["state"] == "open")
    talk = Talk(project, model)
    run = talk.hear(call("gone.recall"), say("Without it, then."))
    assert run["status"] == "completed"
    (answer,) = tool_answers(asked(model, run["word"])[-1])
    assert "plugin_unavailable" in answer
    assert talk.calls()[0]["error"]["code"] == "plugin_unavailable"
