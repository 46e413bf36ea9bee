"""What the daemon refuses about plugins, by its code; and consent to them, on record."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from whole.harness.daemon import Daemon, exactly, wait_for
from whole.harness.model import ModelServer, call, say
from whole.harness.plugin import PluginFolder
from whole.harness.project import Project
from whole.harness.talk import Talk, fresh

Maker = Callable[..., PluginFolder]
TOOL = {"name": "recall", "description": "Recalls.", "parameters_schema": {"type": "object"}}


def asked(project: Project, **declared: Any) -> dict[str, Any]:
    """Declare a plugin; returns the question that comes of it."""
    project.describe(plugins={"mine": declared})
    project.reload()
    (one,) = project.daemon.get(f"/consents?project_id={project.id}")["items"]
    return dict(one)


def test_a_source_that_is_not_allowed_or_not_there_stays_a_question(
    daemon: Daemon, project: Project, tmp_path: Path
) -> None:
    for source, code in (
        (f"git+file://{tmp_path}/none", "plugin_source_not_allowed"),
        ("./absent", "plugin_source_unavailable"),
    ):
        one = asked(project, package="gull", source=source)
        body = {"allowed": True, "digest": "0" * 64}
        refused = daemon.error("POST", f"/consents/{one['id']}", body)
        assert refused["code"] == code
        (again,) = daemon.get(f"/consents?project_id={project.id}")["items"]
        assert again["id"] == one["id"]


def test_a_question_and_each_answer_to_it_are_on_record(
    daemon: Daemon, project: Project, tmp_path: Path
) -> None:
    folder = PluginFolder(daemon, project.root / "here", name="heron")
    one = asked(project, package="heron", source="./here")
    daemon.post(f"/consents/{one['id']}", {"allowed": False})
    body = {"allowed": True, "digest": one["prompt"]["digest"]}
    daemon.post(f"/consents/{one['id']}", body)
    (row,) = exactly(1, lambda: folder.audit("plugin.consent_requested"))
    assert (row["data"]["name"], row["data"]["source"]) == ("heron", "./here")
    rows = exactly(2, lambda: folder.audit("plugin.consent_answered"))
    assert [one["data"]["allowed"] for one in rows] == [False, True]
    assert {one["data"]["consent_id"] for one in rows} == {one["id"]}


def test_a_plugin_that_a_session_uses_is_not_taken_from_under_it(
    daemon: Daemon, project: Project, plugin: Maker, model: ModelServer
) -> None:
    used = plugin({"on": {"a.b": [{"result": 1}]}})
    used.run()
    project.describe(cage="disabled", plugins={"mine": {"package": used.name}})
    project.reload()
    talk, word = Talk(project, model), fresh()
    model.play(word, call("shell.bash", command="touch begun; sleep 600"), say("Done."))
    run = talk.tell(f"{word} please")
    wait_for((project.root / "begun").exists, "the run")
    refused = daemon.error("DELETE", f"/plugins/{used.name}")
    assert (refused["status"], refused["code"]) == (409, "plugin_in_use")
    assert used.call() == 1
    talk.post("/cancel")
    talk.end(run)
    daemon.ask("DELETE", f"/plugins/{used.name}")


def test_a_name_that_gives_its_tools_none_is_refused_whole(daemon: Daemon, tmp_path: Path) -> None:
    """Tools are called `plugin.name`, and a plugin of one letter is too short for that."""
    folder = PluginFolder(daemon, tmp_path / "q", name="q", tools=[TOOL])
    error = daemon.error("POST", "/plugins/preview", {"path": str(folder.root)})
    (problem,) = error["data"]["problems"]
    assert (problem["key_path"], problem["code"]) == ("name", "tool_name_invalid")
    folder.write(name="qq", tools=[TOOL])
    assert daemon.post("/plugins/preview", {"path": str(folder.root)})["name"] == "qq"


def test_an_error_number_of_the_plugins_own_is_passed_on(plugin: Maker) -> None:
    one = plugin({"on": {"a.b": [{"error": [7, "seven"]}]}})
    one.run()
    for _ in range(2):
        refused = one.fail()
        assert refused["code"] == "rpc_error"
        assert refused["data"]["number"] == 7, refused
        assert "seven" in refused["message"]
