"""Issues in a running daemon: what agents file, find, comment and move, and what they cannot."""

from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from requirements.marker import whole
from whole.harness.daemon import Daemon, wait_for
from whole.harness.disk import full_disk
from whole.harness.model import call, calls, say
from whole.harness.project import Project
from whole.harness.talk import Talk, tool_answers

ULID = re.compile(r"[0-9A-HJKMNP-TV-Z]{26}")
SUMMARY = {
    "id", "number", "title", "status", "assignment", "created_by", "created_at", "updated_at",
}  # fmt: skip
DETAIL = {
    "id", "number", "title", "body", "original_body", "status", "assignment", "created_by",
    "created_at", "updated_at", "resolved_at", "resolved_by", "updates",
}  # fmt: skip
STATUSES = ("open", "triaged", "assigned", "in_progress", "resolved", "rejected", "reopened")
WORK = {"triaged", "assigned", "in_progress", "resolved", "rejected"}
LEGAL = {
    "open": WORK,
    "reopened": WORK,
    "resolved": {"reopened"},
    "rejected": {"reopened"},
    "triaged": WORK - {"triaged"},
    "assigned": WORK - {"assigned"},
    "in_progress": WORK - {"in_progress"},
}
WAYS = {"open": (), "reopened": ("resolved", "reopened")}


def issue(project: Project, action: str, **params: Any) -> Any:
    return project.call("kaged.issue", action=action, **params)


def file(project: Project, title: str = "A title", body: str = "A body.") -> int:
    return int(issue(project, "create", title=title, body=body)["number"])


def move(project: Project, number: int, *path: str) -> None:
    for to in path:
        issue(project, "transition", number=number, to=to, comment="so")


def titles(project: Project, **wanted: Any) -> list[str]:
    return [one["title"] for one in issue(project, "list", **wanted)["issues"]]


@whole("AT-ISSUE-01", "AT-AMB-01")
def test_the_tool_and_its_former_names_do_the_same_and_only_one_is_offered(
    project: Project, talk: Talk
) -> None:
    number = file(project, "One")
    assert project.call("kaged.issue.list") == issue(project, "list")
    assert project.call("kaged.issue.get", number=number) == issue(project, "get", number=number)
    assert project.call("kaged.issue.create", title="Two", body="b")["number"] == number + 1
    assert project.call("kaged.issue.comment", number=number, body="c")["issue_number"] == number
    moved = project.call("kaged.issue.transition", number=number, to="triaged")
    assert (moved["from"], moved["to"]) == ("open", "triaged")
    for wrong in ({"action": "update"}, {"action": "update", "number": 1}, {}):
        assert project.fail("kaged.issue", **wrong)["code"] == "invalid_params"
    run = talk.hear(say("Hello."))
    (body,) = talk.model.asked(run["word"])
    offered = [one["function"]["name"] for one in body["tools"]]
    assert [one for one in offered if "issue" in one] == ["kaged_issue"]
    listed = [one["name"] for one in project.get("/tools")["tools"]]
    assert [one for one in listed if "issue" in one] == ["kaged.issue"]


@whole("AT-ISSUE-01")
def test_a_subagent_has_no_issues(project: Project) -> None:
    child = {"model": "default", "system_prompt": "Code.", "cage": "disabled"}
    project.describe(subagents={"coder": {**child, "tools": {"file.*": {"enabled": True}}}})
    project.reload()
    for name, params in (
        ("kaged.issue", {"action": "list"}),
        ("kaged.issue.create", {"title": "t", "body": "b"}),
    ):
        refused = project.fail(name, "primary.subagents.coder", **params)
        assert refused["code"] == "principal_scope_violation"
    assert issue(project, "list")["total"] == 0


@whole("AT-ISSUE-02", "AT-AMB-02", "AT-AUD-15")
def test_agents_have_no_way_to_edit_an_issue(daemon: Daemon, project: Project) -> None:
    number = file(project, "Title", "Body")
    for name in ("kaged.issue.update", "kaged.issue.edit", "kaged.issue.delete"):
        refused = project.fail(name, number=number, title="Other")
        assert (refused["code"], refused["data"]["number"]) == ("tool_not_found", -32601)
    for action in ("get", "comment", "transition", "list"):
        more = {"get": {}, "list": {}, "comment": {"body": "b"}, "transition": {"to": "triaged"}}
        for field in ("title", "assignment"):
            params: dict[str, Any] = {**more[action], field: "primary"}
            if action != "list":
                params["number"] = number
            refused = project.fail("kaged.issue", action=action, **params)
            assert refused["code"] == "invalid_params", (action, field)
    found = issue(project, "get", number=number)
    assert (found["title"], found["body"], found["assignment"]) == ("Title", "Body", None)
    assert found["updates"] == []
    issue(project, "comment", number=number, body="b")
    move(project, number, "triaged")
    assert daemon.audit("kaged.issue.updated", project_id=project.id) == []
    daemon.ask("PATCH", f"/projects/{project.id}/issues/{number}", {"title": "New", "body": "N"})
    (row,) = daemon.audit("kaged.issue.updated", project_id=project.id)
    assert row["data"]["issue_id"] == found["id"]
    assert sorted(row["data"]["updated_fields"]) == ["body", "title"]
    assert row["data"]["caller"] == "operator"


@whole("AT-ISSUE-03", "AT-ISSUE-04", "AT-ISSUE-06", "AT-SESS-12")
def test_a_list_is_of_one_status_or_of_everything_that_is_not_done(project: Project) -> None:
    for status in STATUSES:
        number = file(project, status)
        assert issue(project, "get", number=number)["status"] == "open"
        move(project, number, *WAYS.get(status, (status,)))
    for status in STATUSES:
        found = issue(project, "list", status=status, limit=100, search=f"{status[:4]}*")
        assert [one["title"] for one in found["issues"]] == [status]
        assert [one["status"] for one in found["issues"]] == [status]
    assert set(titles(project)) == set(STATUSES) - {"resolved", "rejected"}
    found = issue(project, "list")
    assert (found["limit"], found["offset"], found["total"]) == (25, 0, 5)


@whole("AT-ISSUE-03")
@pytest.mark.parametrize(
    "wrong",
    [
        {"limit": 101},
        {"limit": 0},
        {"limit": "ten"},
        {"status": "closed"},
        {"offset": -1},
        {"search": 5},
        {"colour": "red"},
    ],
)
def test_a_list_takes_only_what_it_says(project: Project, wrong: dict[str, Any]) -> None:
    refused = project.fail("kaged.issue", action="list", **wrong)
    assert refused["code"] == "invalid_params"
    assert refused["data"]["detail"]["fields"][0]["field"] == next(iter(wrong))


@whole("AT-ISSUE-04", "AT-ISSUE-05")
def test_one_resolved_and_three_open_are_three(project: Project) -> None:
    numbers = [file(project, name) for name in "abcd"]
    move(project, numbers[1], "resolved")
    found = issue(project, "list")
    assert set(found) == {"issues", "total", "limit", "offset"}
    assert [set(one) for one in found["issues"]] == [SUMMARY] * 3
    assert [one["title"] for one in found["issues"]] == ["d", "c", "a"]
    assert found["total"] == 3
    part = issue(project, "list", limit=2)
    assert (len(part["issues"]), part["total"], part["limit"]) == (2, 3, 2)
    beyond = issue(project, "list", offset=3)
    assert (beyond["issues"], beyond["total"], beyond["offset"]) == ([], 3, 3)


@whole("AT-ISSUE-07")
def test_a_search_finds_words_of_title_and_body(project: Project) -> None:
    file(project, "Refactor auth module", "Split token validation from the Über-session.")
    file(project, "Dark mode", "prefers-color-scheme")
    move(project, file(project, "Tokens expire", "too early"), "triaged")
    assert titles(project, search="validation") == ["Refactor auth module"]
    assert titles(project, search="AUTH token") == ["Refactor auth module"]
    assert titles(project, search="token*", status="triaged") == ["Tokens expire"]
    assert sorted(titles(project, search="dark OR expire")) == ["Dark mode", "Tokens expire"]
    assert titles(project, search='"mode dark"') == []
    found = issue(project, "list", search="token*", limit=1, offset=1)
    assert (len(found["issues"]), found["total"]) == (1, 2)
    project.daemon.ask(
        "PATCH", f"/projects/{project.id}/issues/2", {"title": "Night", "body": "moon"}
    )
    assert titles(project, search="dark") == []
    assert titles(project, search="moon") == ["Night"]
    # What is done is not among what a search without a status finds, as in a list without one.
    move(project, 2, "resolved")
    assert titles(project, search="moon") == []
    assert titles(project, search="moon", status="resolved") == ["Night"]


@whole("AT-ISSUE-07")
@pytest.mark.parametrize("search", ['"', '"""', "***", "-auth", "NOT a", "()", "\x00", "a" * 501])
def test_a_search_that_means_nothing_is_refused(project: Project, search: str) -> None:
    refused = project.fail("kaged.issue", action="list", search=search)
    assert refused["code"] == "invalid_params"
    assert "search" in str(refused["data"]["detail"])


@whole("AT-ISSUE-08", "AT-ISSUE-09")
def test_pages_leave_nothing_out_and_what_changed_last_comes_first(project: Project) -> None:
    for number in range(30):
        file(project, f"issue {number}")
    everything = issue(project, "list", limit=100)["issues"]
    assert [one["number"] for one in everything] == list(range(30, 0, -1))
    pages = [titles(project, limit=10, offset=offset) for offset in (0, 10, 20)]
    assert pages[1] == [one["title"] for one in everything[10:20]]
    assert len({title for page in pages for title in page}) == 30
    issue(project, "comment", number=3, body="look")
    assert titles(project, limit=2) == ["issue 2", "issue 29"]
    move(project, 7, "triaged")
    assert titles(project, limit=3) == ["issue 6", "issue 2", "issue 29"]


@whole("AT-ISSUE-10", "AT-ISSUE-14")
def test_each_project_has_issues_of_its_own(
    daemon: Daemon, project: Project, tmp_path: Path
) -> None:
    other = daemon.load(Project(tmp_path / "other"))
    assert file(project, "here") == file(other, "there") == 1
    assert (titles(project), titles(other)) == (["here"], ["there"])
    issue(other, "comment", number=1, body="only there")
    move(other, 1, "triaged")
    found = issue(project, "get", number=1)
    assert (found["title"], found["status"], found["updates"]) == ("here", "open", [])
    file(project, "second")
    for number in (2, 9999):
        for params in (
            {"action": "get"},
            {"action": "comment", "body": "b"},
            {"action": "transition", "to": "triaged"},
        ):
            refused = other.fail("kaged.issue", number=number, **params)
            assert refused["code"] == "issue_not_found", (number, params)
            assert refused["data"]["detail"] == {"number": number}
            assert str(number) in refused["message"]
    assert issue(project, "get", number=2)["status"] == "open"


@whole("AT-ISSUE-11", "AT-ISSUE-12", "AT-ISSUE-18", "AT-ISSUE-27")
def test_an_agent_files_comments_and_moves_and_gets_the_whole_history(
    project: Project, talk: Talk
) -> None:
    made = talk.result("kaged.issue", action="create", title="Title", body="Body")
    number = made["number"]
    talk.use(
        ("kaged.issue", {"action": "transition", "number": number, "to": "triaged"}),
        ("kaged.issue", {"action": "comment", "number": number, "body": "second"}),
    )
    path = f"/projects/{project.id}/issues/{number}"
    for field, value in (("title", "T2"), ("body", "B2"), ("assignment", "primary")):
        project.daemon.ask("PATCH", path, {field: value})
    found = talk.result("kaged.issue", action="get", number=number)
    assert set(found) == DETAIL
    assert (found["id"], found["title"], found["body"]) == (made["id"], "T2", "B2")
    assert (found["original_body"], found["assignment"]) == ("Body", "primary")
    assert found["created_by"] == "agent:primary"
    updates = found["updates"]
    assert [one["kind"] for one in updates] == [
        "status_change", "comment", "title_edit", "body_edit", "assignment_change",
    ]  # fmt: skip
    keys = {"id", "author", "kind", "body", "metadata", "visibility", "created_at"}
    assert [set(one) for one in updates] == [keys] * 5
    assert updates[0]["metadata"] == {"old_status": "open", "new_status": "triaged"}
    authors = [one["author"] for one in updates]
    assert authors[:2] == ["agent:primary"] * 2
    assert "agent:primary" not in authors[2:]
    times = [found["created_at"], *(one["created_at"] for one in updates), found["updated_at"]]
    assert times == sorted(times)
    assert all(type(one) is int and 1_700_000_000 < one < 5_000_000_000 for one in times)
    known = [found["id"], *(one["id"] for one in updates)]
    assert known == sorted(known)
    assert all(ULID.fullmatch(one) for one in known)


@whole("AT-ISSUE-13", "AT-ISSUE-19")
def test_a_note_for_operators_is_kept_as_one_and_the_root_reads_it(
    project: Project, talk: Talk
) -> None:
    number = file(project)
    made = issue(project, "comment", number=number, body="for all")
    assert set(made) == {"update_id", "issue_number", "created_at"}
    assert made["issue_number"] == number
    issue(project, "comment", number=number, body="inside", visibility="operator_only")
    project.daemon.cli(
        "issue", "comment", str(number), "between us", "--internal", "-p", project.id
    )
    updates = talk.result("kaged.issue", action="get", number=number)["updates"]
    assert [(one["kind"], one["body"], one["visibility"]) for one in updates] == [
        ("comment", "for all", "all"),
        ("comment", "inside", "operator_only"),
        ("comment", "between us", "operator_only"),
    ]
    assert updates[0]["id"] == made["update_id"]
    wrong = project.fail(
        "kaged.issue", action="comment", number=number, body="x", visibility="none"
    )
    assert wrong["code"] == "invalid_params"


@whole("AT-ISSUE-15", "AT-ISSUE-16")
def test_titles_and_bodies_have_limits_and_a_refused_issue_is_none(project: Project) -> None:
    made = issue(project, "create", title="x" * 200, body="é" * 8192)
    assert set(made) == {"id", "number", "status", "created_at"}
    assert (made["number"], made["status"]) == (1, "open")
    found = issue(project, "get", number=1)
    assert (found["id"], found["title"], found["body"]) == (made["id"], "x" * 200, "é" * 8192)
    for title, body in (
        ("x" * 201, "b"),
        ("", "b"),
        (" \n", "b"),
        ("t", "x" * 16385),
        ("t", "é" * 8193),
        (None, "b"),
        ("t", None),
    ):
        params = {"title": title, "body": body}
        given = {key: value for key, value in params.items() if value is not None}
        refused = project.fail("kaged.issue", action="create", **given)
        assert refused["code"] == "invalid_params", (title, body)
    assert issue(project, "list")["total"] == 1
    assert file(project) == 2, "a refused issue took a number"


@whole("AT-ISSUE-17", "AT-ISSUE-27")
def test_numbers_have_no_holes_and_no_doubles_when_twenty_file_at_once(project: Project) -> None:
    def create(number: int) -> dict[str, Any]:
        return dict(issue(project, "create", title=f"t{number}", body="b"))

    with ThreadPoolExecutor(20) as pool:
        made = sorted(pool.map(create, range(20)), key=lambda one: one["number"])
    assert [one["number"] for one in made] == list(range(1, 21))
    assert [one["id"] for one in made] == sorted(one["id"] for one in made)
    assert len(set(titles(project, limit=100))) == 20


@whole("AT-ISSUE-17", "AT-ISSUE-18")
def test_issues_filed_in_one_step_of_the_model_have_numbers_in_a_row(
    project: Project, talk: Talk
) -> None:
    wanted = [
        ("kaged.issue", {"action": "create", "title": f"t{n}", "body": "b"}) for n in range(5)
    ]
    talk.hear(calls(*wanted), say("Filed."))
    assert sorted(one["result"]["number"] for one in talk.calls()) == [1, 2, 3, 4, 5]
    assert {one["created_by"] for one in issue(project, "list")["issues"]} == {"agent:primary"}


@whole("AT-ISSUE-19", "AT-ISSUE-20")
@pytest.mark.parametrize("body", ["", " ", "\n\t", "x" * 16385, "é" * 8193])
def test_a_comment_says_something_and_not_too_much(project: Project, body: str) -> None:
    number = file(project)
    refused = project.fail("kaged.issue", action="comment", number=number, body=body)
    assert refused["code"] == "invalid_params"
    assert issue(project, "get", number=number)["updates"] == []
    issue(project, "comment", number=number, body="x" * 16384)


@whole("AT-ISSUE-22", "AT-ISSUE-23", "AT-AMB-03", "AT-AMB-04")
@pytest.mark.parametrize("current", STATUSES)
def test_every_pair_of_statuses_is_a_move_or_is_refused_with_the_legal_ones(
    project: Project, current: str
) -> None:
    for to in STATUSES[1:]:
        number = file(project)
        move(project, number, *WAYS.get(current, (current,)))
        params = {"action": "transition", "number": number, "to": to, "comment": "why"}
        if to in LEGAL[current]:
            moved = project.call("kaged.issue", **params)
            assert (moved["from"], moved["to"]) == (current, to)
            assert issue(project, "get", number=number)["status"] == to
            continue
        refused = project.fail("kaged.issue", **params)
        assert refused["code"] == "invalid_transition", (current, to)
        assert set(refused["data"]["detail"]["legal"]) == LEGAL[current]
        assert issue(project, "get", number=number)["status"] == current
    assert project.fail("kaged.issue", action="transition", number=1, to="open")["code"] == (
        "invalid_params"
    )


@whole("AT-ISSUE-21", "AT-ISSUE-24", "AT-ISSUE-26")
def test_an_end_needs_a_reason_and_a_move_with_one_is_two_updates(project: Project) -> None:
    number = file(project)
    for to, message in (
        ("rejected", "Rejection requires an explanatory comment."),
        ("resolved", None),
    ):
        for comment in ({}, {"comment": " \n"}):
            refused = project.fail(
                "kaged.issue", action="transition", number=number, to=to, **comment
            )
            assert refused["code"] == "invalid_params", (to, comment)
            assert message is None or refused["message"] == message
    refused = project.fail(
        "kaged.issue", action="transition", number=number, to="triaged", comment="é" * 8193
    )
    assert refused["code"] == "invalid_params"
    found = issue(project, "get", number=number)
    assert (found["status"], found["updates"]) == ("open", [])
    moved = issue(project, "transition", number=number, to="triaged")
    assert set(moved) == {"number", "from", "to", "updated_at"}
    assert (moved["number"], moved["from"], moved["to"]) == (number, "open", "triaged")
    move(project, number, "rejected")
    updates = issue(project, "get", number=number)["updates"]
    assert [(one["kind"], one["body"]) for one in updates] == [
        ("status_change", None),
        ("status_change", None),
        ("comment", "so"),
    ]
    assert updates[1]["metadata"] == {"old_status": "triaged", "new_status": "rejected"}


@whole("AT-ISSUE-25")
def test_resolving_is_signed_and_reopening_takes_the_signature_back(
    project: Project, talk: Talk
) -> None:
    number = file(project)
    params = {"action": "transition", "number": number, "comment": "fixed"}
    talk.result("kaged.issue", **params, to="resolved")
    found = issue(project, "get", number=number)
    assert (found["resolved_by"], type(found["resolved_at"])) == ("agent:primary", int)
    assert found["resolved_at"] >= found["created_at"]
    talk.result("kaged.issue", **params, to="reopened")
    found = issue(project, "get", number=number)
    assert (found["resolved_by"], found["resolved_at"]) == (None, None)
    talk.result("kaged.issue", **params, to="rejected")
    assert issue(project, "get", number=number)["status"] == "rejected"


@whole("AT-ISSUE-28", "AT-ISSUE-29", "AT-ISSUE-30")
def test_operators_edit_and_the_first_body_is_kept(daemon: Daemon, project: Project) -> None:
    project.describe(top={"workflows": {"deploy": {"description": "Deploys."}}})
    project.reload()
    number = file(project, "Title", "first")
    path = f"/projects/{project.id}/issues/{number}"
    edited = daemon.ask("PATCH", path, {"body": "second", "title": "x" * 200})
    assert set(edited) == {"number", "updated_fields", "updated_at"}
    assert (edited["number"], sorted(edited["updated_fields"])) == (number, ["body", "title"])
    daemon.ask("PATCH", path, {"body": "third"})
    session = project.post("/sessions", {})["id"]
    for assignment in ("primary", "workflow:deploy", f"session:{session}", None):
        daemon.ask("PATCH", path, {"assignment": assignment})
        assert issue(project, "get", number=number)["assignment"] == assignment
    before = issue(project, "get", number=number)
    assert (before["body"], before["original_body"]) == ("third", "first")
    kinds = [one["kind"] for one in before["updates"]]
    assert sorted(kinds[:2]) == ["body_edit", "title_edit"]
    assert kinds[2:] == ["body_edit", *["assignment_change"] * 4]
    refused = daemon.error("PATCH", path, {"assignment": "workflow:nope"})
    assert refused["code"] == "invalid_assignment"
    assert "nope" in str(refused["data"])
    for wrong in ({}, {"title": "x" * 201}, {"title": ""}, {"body": "é" * 8193}):
        assert daemon.error("PATCH", path, wrong)["status"] in (400, 422), wrong
    for wrong in ("somebody", "workflow:", "agent:x"):
        assert daemon.error("PATCH", path, {"assignment": wrong})["status"] >= 400, wrong
    assert issue(project, "get", number=number) == before


@whole("AT-ISSUE-31", "AT-ISSUE-26")
def test_issues_are_there_after_a_restart_and_after_a_kill(
    own: Callable[..., Daemon], tmp_path: Path
) -> None:
    daemon = own()
    daemon.start()
    project = daemon.load(Project(tmp_path / "p"))
    file(project, "Kept", "for later")
    with full_disk(daemon):
        path = f"/projects/{project.id}/issues/1/transition"
        refused = daemon.error("POST", path, {"to": "resolved", "comment": "so"})
        assert refused["status"] == 503
    wait_for(lambda: daemon.get("/status")["audit"]["ok"])
    found = issue(project, "get", number=1)
    assert (found["status"], found["updates"], found["resolved_at"]) == ("open", [], None)
    move(project, 1, "resolved")
    before = issue(project, "get", number=1)
    daemon.restart()
    daemon.load(project)
    assert issue(project, "get", number=1) == before
    file(project, "Second")
    move(project, 2, "rejected")
    second = issue(project, "get", number=2)
    daemon.kill()
    daemon.start()
    daemon.load(project)
    assert issue(project, "get", number=2) == second
    assert [one["kind"] for one in second["updates"]] == ["status_change", "comment"]
    assert titles(project, search="later", status="resolved") == ["Kept"]
    assert file(project, "Third") == 3


@whole("AT-ISSUE-14", "AT-ISSUE-23")
def test_the_model_is_told_what_went_wrong_and_how_to_do_better(
    project: Project, talk: Talk
) -> None:
    number = file(project)
    run = talk.hear(
        call("kaged.issue", action="get", number=9999),
        call("kaged.issue", action="transition", number=number, to="reopened"),
        say("Oh."),
    )
    first, second = tool_answers(talk.model.asked(run["word"])[-1])
    assert "issue_not_found" in first
    assert "9999" in first
    assert "invalid_transition" in second
    assert all(one in second for one in LEGAL["open"])
    assert run["status"] == "completed"
