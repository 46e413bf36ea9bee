"""What commands and routes refuse about projects, cages, schemas and scripts, by its code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from whole.harness.conversation import begin
from whole.harness.daemon import Daemon, exactly, wait_for
from whole.harness.model import ModelServer, call, say
from whole.harness.plugin import PluginFolder
from whole.harness.project import Project
from whole.harness.talk import Talk

NOBODY = "req_01M7GH81G7BG8J23XEEGRHP5VB"
CONSENT = "consent_01ARZ3NDEKTSV4RRFFQ69G5FAV"
QUESTION = {"id": "c", "title": "Which?", "options": ["a", "b"]}


def refused(daemon: Daemon, *words: str, cwd: Path | None = None) -> str:
    """Run a command that has to fail with a fix; returns its code."""
    done = daemon.cli(*words, "--json", cwd=cwd, code=None)
    assert done.code != 0, done
    error: dict[str, Any] = json.loads(done.err)["error"]
    assert error["data"]["fix"], error
    return str(error["code"])


def test_commands_that_make_files_leave_what_is_there(daemon: Daemon, tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    taken.mkdir()
    (taken / ".kaged").write_text("precious", encoding="utf-8")
    assert refused(daemon, "project", "init", str(taken)) == "project_init_refused"
    assert refused(daemon, "plugin", "new", str(taken)) == "plugin_scaffold_refused"
    assert refused(daemon, "plugin", "new", str(tmp_path / "x"), "--name", "A B") == (
        "plugin_scaffold_refused"
    )
    assert [one.name for one in taken.iterdir()] == [".kaged"]
    assert (taken / ".kaged").read_text(encoding="utf-8") == "precious"


def bad_targets(folder: Path) -> dict[Path, str]:
    """Return places that no new file can be written to, each with what is said about it."""
    (folder / "there").write_text("mine", encoding="utf-8")
    (folder / "folder").mkdir()
    (folder / "closed").mkdir(mode=0o555)
    (folder / "link").symlink_to(folder / "elsewhere")
    return {
        folder / "there": "file_exists",
        folder / "folder": "file_exists",
        folder / "link": "file_exists",
        folder / "none" / "x": "file_write_failed",
        folder / "there" / "x": "file_write_failed",
        folder / "closed" / "x": "file_write_failed",
        folder / ("n" * 300): "file_write_failed",
    }


def test_exports_go_to_new_files_only_and_say_what_is_wrong_with_a_place(
    daemon: Daemon, project: Project, tmp_path: Path
) -> None:
    session = begin(project)
    folder = tmp_path / "targets"
    folder.mkdir()
    for place, code in bad_targets(folder).items():
        for words in (
            ("audit", "export"),
            ("audit", "export", "--offline"),
            ("session", "export", session),
        ):
            assert refused(daemon, *words, str(place), cwd=project.root) == code, (words, place)
        archived = "archive_target_exists" if code == "file_exists" else "archive_unwritable"
        assert refused(daemon, "backup", str(place)) == archived, place
    assert (folder / "there").read_text(encoding="utf-8") == "mine"
    # What fails in the middle leaves nothing that would be in the way of the next try.
    fresh = folder / "fresh"
    nobody = "ses_01ARZ3NDEKTSV4RRFFQ69G5FAV"
    assert refused(daemon, "session", "export", nobody, str(fresh), cwd=project.root) == (
        "session_not_found"
    )
    daemon.cli("session", "export", session, str(fresh), cwd=project.root)
    assert fresh.stat().st_mode & 0o777 == 0o600
    names = {"there", "folder", "closed", "link", "fresh"}
    assert {one.name for one in folder.iterdir()} == names


def test_a_path_with_a_nul_is_refused_as_a_bad_request(daemon: Daemon) -> None:
    digest = "sha256:" + "a" * 64
    for path, more in (
        ("/plugins", {"digest": digest}),
        ("/plugins/preview", {}),
        ("/plugins/demo/export", {}),
    ):
        refusal = daemon.error("POST", path, {"path": "/tmp/a\0b", **more})
        assert refusal["code"] == "invalid_request", (path, refusal)


def test_files_that_cannot_be_read_are_told_apart_from_bugs(
    daemon: Daemon, project: Project, tmp_path: Path
) -> None:
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe")
    commands = (
        ("audit", "verify"),
        ("session", "import"),
        ("issue", "create", "Title", "--body-file"),
    )
    for words in commands:
        for place, code in {
            tmp_path / "none": "file_not_found",
            tmp_path: "file_unreadable",
            binary / "x": "file_unreadable",
        }.items():
            assert refused(daemon, *words, str(place), cwd=project.root) == code, (words, place)
    assert refused(daemon, *commands[-1], str(binary), cwd=project.root) == "invalid_params"


def test_names_that_nobody_has_are_told(daemon: Daemon, project: Project) -> None:
    assert refused(daemon, "schema", "nonsense") == "schema_not_found"
    assert refused(daemon, "cage", "explain", "nobody", cwd=project.root) == "cage_not_found"
    assert refused(daemon, "pipeline", "check") == "pipeline_file_not_found"
    assert refused(daemon, "pipeline", "check", "absent.yaml") == "pipeline_file_not_found"
    assert refused(daemon, "tool", "list", "-p", "no-such") == "project_not_found"


def test_an_agent_without_a_cage_has_none_to_go_into(daemon: Daemon, project: Project) -> None:
    project.describe(cage="disabled")
    project.reload()
    done = daemon.cli("cage", "shell", "primary", cwd=project.root, code=None, stdin="")
    assert done.code != 0
    assert "agent_uncaged" in done.err


def test_a_name_of_an_agent_and_a_plugin_needs_its_kind(daemon: Daemon, project: Project) -> None:
    folder = PluginFolder(daemon, project.root.with_name("primary"), name="primary")
    folder.install()
    assert refused(daemon, "cage", "explain", "primary", cwd=project.root) == "cage_ambiguous"
    daemon.cli("cage", "explain", "primary", "--kind", "agent", cwd=project.root)
    daemon.cli("plugin", "uninstall", "primary")


def test_two_projects_of_one_name_need_an_id(daemon: Daemon, tmp_path: Path) -> None:
    first, second = (daemon.load(Project(tmp_path / folder / "twin")) for folder in "ab")
    assert refused(daemon, "tool", "list", "-p", "twin") == "project_ambiguous"
    daemon.cli("tool", "list", "-p", second.id)
    daemon.ask("DELETE", f"/projects/{first.id}")
    daemon.cli("tool", "list", "-p", "twin")


def test_what_becomes_of_projects_is_on_record(daemon: Daemon, tmp_path: Path) -> None:
    project = daemon.load(Project(tmp_path / "kept"))
    for trusted in (False, True):
        daemon.ask("PUT", f"/projects/{project.id}/trust", {"trusted": trusted})
    rows = exactly(3, lambda: daemon.audit("project.trusted", project_id=project.id))
    assert [one["data"]["trusted"] for one in rows] == [True, False, True]
    daemon.ask("DELETE", f"/projects/{project.id}")
    (row,) = exactly(1, lambda: daemon.audit("project.unloaded", project_id=project.id))
    assert row["data"]["root"] == str(project.root)
    for root, code in (
        (str(tmp_path / "absent"), "project_root_invalid"),
        ("relative", "project_root_invalid"),
    ):
        assert daemon.error("POST", "/projects", {"root": root, "trust": True})["code"] == code
    broken = Project(tmp_path / "broken")
    broken.write(".kaged/project.yaml", "version: [")
    assert (
        daemon.error("POST", "/projects", {"root": str(broken.root), "trust": True})["code"]
        == "config_invalid"
    )

    def failed() -> list[dict[str, Any]]:
        rows = daemon.audit("project.load_failed")
        return [one for one in rows if one["data"]["root"] == str(broken.root)]

    assert exactly(1, failed)[0]["data"]["reason"] == "config_invalid"


@pytest.mark.parametrize(
    ("method", "path", "body", "code"),
    [
        ("POST", "/lua/commands", {"name": "nothing"}, "lua_command_not_found"),
        ("POST", "/lua/dialogs/none", {"answer": None}, "lua_dialog_not_found"),
        ("GET", f"/interactions/{NOBODY}", None, "interaction_not_found"),
        ("POST", f"/interactions/{NOBODY}/answer", {}, "interaction_not_found"),
        ("DELETE", f"/interactions/{NOBODY}", None, "interaction_not_found"),
    ],
)
def test_what_a_project_does_not_have_is_not_found(
    daemon: Daemon, project: Project, method: str, path: str, body: Any, code: str
) -> None:
    error = daemon.error(method, f"/projects/{project.id}{path}", body)
    assert (error["status"], error["code"]) == (404, code)


def test_requests_and_consents_that_nobody_asked_for_are_not_found(daemon: Daemon) -> None:
    answer = {"digest": "0" * 64, "answer": {"choice": "yes"}}
    error = daemon.error("POST", f"/inbox/{NOBODY}/answer", answer)
    assert (error["status"], error["code"]) == (404, "inbox_request_not_found")
    error = daemon.error("POST", f"/consents/{CONSENT}", {"allowed": True})
    assert (error["status"], error["code"]) == (404, "plugin_consent_unknown")


def test_a_question_is_answered_once_or_withdrawn_and_both_are_on_record(
    daemon: Daemon, project: Project, model: ModelServer
) -> None:
    base = f"/projects/{project.id}/interactions"
    talk = Talk(project, model)
    talk.hear(call("kaged.ask", questions=[QUESTION]), say("Thanks."))
    asked = talk.waiting()["request_id"]
    talk.answer(asked, answers={"c": "a"})
    again = daemon.error("POST", f"{base}/{asked}/answer", {"answers": {"c": "b"}})
    assert (again["status"], again["code"]) == (409, "interaction_closed")
    other = Talk(project, model)
    other.hear(call("kaged.ask", questions=[QUESTION]), say("Then not."))
    daemon.ask("DELETE", f"{base}/{other.waiting()['request_id']}")
    wait_for(lambda: "interaction_withdrawn" in str(other.entries()), "the withdrawal")
    for event, count in (("inbox.asked", 2), ("inbox.answered", 1), ("inbox.withdrawn", 1)):
        exactly(count, lambda name=event: daemon.audit(name, project_id=project.id), event)


def test_an_export_of_the_log_is_itself_in_the_log(daemon: Daemon, tmp_path: Path) -> None:
    before = len(daemon.audit("audit.exported"))
    daemon.cli("audit", "export", str(tmp_path / "log.jsonl"))
    (row,) = exactly(1, lambda: daemon.audit("audit.exported")[before:])
    assert row["data"]["rows"] > 0
    daemon.cli("audit", "verify", str(tmp_path / "log.jsonl"))
