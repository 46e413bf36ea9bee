"""`kaged.issue` as the root agent uses it, on a real store."""

from __future__ import annotations

import asyncio
import contextlib
import re
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select

from fakes.work_lab import PROJECT, SESSION, WorkLab, work_lab
from kaged.base import Ids, KagedError, ManualClock
from kaged.store import issue_rows
from kaged.store.issue_rows import IssueUpdate
from kaged.store.schema import issue_updates, issues
from kaged.toolbox.project import project_tools
from kaged.toolbox.project.issue_states import MOVES, IssueStatus
from kaged.tools import InvalidToolParams
from requirements import requirement

ULID = re.compile(r"[0-9A-HJKMNP-TV-Z]{26}")
SUMMARY = {
    "id", "number", "title", "status", "assignment", "created_by", "created_at", "updated_at",
}  # fmt: skip


async def titles(lab: WorkLab, **wanted: Any) -> list[str]:
    found = await lab.call("kaged.issue", action="list", **wanted)
    return [one["title"] for one in found["issues"]]


async def move(lab: WorkLab, number: int, *path: str) -> None:
    for to in path:
        await lab.call("kaged.issue", action="transition", number=number, to=to, comment="so")


async def rows(lab: WorkLab) -> tuple[int, int]:
    """Count the issues and updates in the store."""
    return await lab.store.read(
        lambda conn: (
            int(conn.execute(select(func.count()).select_from(issues)).scalar() or 0),
            int(conn.execute(select(func.count()).select_from(issue_updates)).scalar() or 0),
        )
    )


@requirement("AT-ISSUE-01", "AT-AMB-01")
async def test_the_tool_and_its_former_names_do_the_same(lab: WorkLab) -> None:
    number = await lab.file("One", "text")
    assert await lab.call("kaged.issue.list") == await lab.call("kaged.issue", action="list")
    one = await lab.call("kaged.issue", action="get", number=number)
    assert await lab.call("kaged.issue.get", number=number) == one
    made = await lab.call("kaged.issue.create", title="Two", body="")
    assert made["number"] == number + 1
    await lab.call("kaged.issue.comment", number=number, body="hello")
    moved = await lab.call("kaged.issue.transition", number=number, to="triaged")
    assert (moved["from"], moved["to"]) == ("open", "triaged")
    assert (await lab.refusal("kaged.issue", action="update", number=1)).code == "invalid_params"
    assert (await lab.refusal("kaged.issue")).code == "invalid_params"
    tools = {tool.definition.name: tool for tool in project_tools(lab.work)}
    assert tools["kaged.issue"].definition.principal_scope == "root-only"
    assert not [name for name in tools if name.startswith("kaged.issue.")]
    assert not [name for name in lab.lab.registry.names() if name.startswith("kaged.issue.")]


@requirement("AT-ISSUE-02", "AT-AMB-02")
async def test_agents_have_no_way_to_edit_an_issue(lab: WorkLab) -> None:
    number = await lab.file("Title", "Body")
    for name in ("kaged.issue.update", "kaged.issue.edit", "kaged.issue.delete"):
        refused = await lab.refusal(name, number=number, title="Other")
        assert (refused.code, refused.number) == ("tool_not_found", -32601)
    for action in ("get", "comment", "transition", "list"):
        params: dict[str, Any] = {"number": number, "body": "b", "to": "triaged"}
        for field in ("title", "assignment"):
            refused = await lab.refusal_with(
                "kaged.issue", {"action": action, field: "primary", **params}
            )
            assert refused.code == "invalid_params", (action, field)
    found = await lab.call("kaged.issue", action="get", number=number)
    assert (found["title"], found["body"], found["assignment"]) == ("Title", "Body", None)
    assert found["updates"] == []


@pytest.mark.parametrize(
    "params",
    [
        {"action": "fly"},
        {"action": "get"},
        {"action": "create", "title": "t"},
        {"action": "create", "body": "b"},
        {"action": "comment", "number": 1},
        {"action": "comment", "body": "b"},
        {"action": "transition", "number": 1},
        {"action": "transition", "to": "triaged"},
        {"action": "get", "number": 0},
        {"action": "get", "number": "1"},
        {"action": "get", "number": True},
        {"action": "get", "number": 10**30},
        {"action": "list", "offset": -1},
        {"action": "list", "limit": 0},
        {"action": "transition", "number": 1, "to": "open"},
        {"action": "get", "number": 1, "colour": "red"},
    ],
)
async def test_parameters_that_do_not_fit_the_action_are_refused(
    lab: WorkLab, params: dict[str, Any]
) -> None:
    await lab.file()
    refused = await lab.refusal_with("kaged.issue", params)
    assert refused.code == "invalid_params"
    assert isinstance(refused.detail, dict)
    assert refused.detail["fields"]
    assert await rows(lab) == (1, 0)


@requirement("AT-ISSUE-03")
async def test_list_takes_only_what_it_says(lab: WorkLab) -> None:
    for wrong in ({"limit": 101}, {"limit": 0}, {"status": "closed"}, {"offset": -1}):
        assert (await lab.refusal("kaged.issue", action="list", **wrong)).code == "invalid_params"
    for status in IssueStatus:
        await lab.call("kaged.issue", action="list", status=status.value, limit=100, search="a")
    found = await lab.call("kaged.issue", action="list")
    assert (found["limit"], found["offset"]) == (25, 0)
    assert (await lab.call("kaged.issue", action="list", limit=1, offset=7))["offset"] == 7


@requirement("AT-ISSUE-04", "AT-ISSUE-06")
async def test_without_a_status_everything_that_is_not_done_is_listed(lab: WorkLab) -> None:
    for path in ((), ("triaged",), ("resolved", "reopened"), ("resolved",), ("rejected",)):
        await move(lab, await lab.file("/".join(path) or "open"), *path)
    assert set(await titles(lab)) == {"open", "triaged", "resolved/reopened"}
    assert await titles(lab, status="triaged") == ["triaged"]
    assert await titles(lab, status="resolved") == ["resolved"]
    assert await titles(lab, status="rejected") == ["rejected"]
    assert await titles(lab, status="reopened") == ["resolved/reopened"]


@requirement("AT-ISSUE-05")
async def test_a_list_has_these_fields_and_counts_past_the_page(lab: WorkLab) -> None:
    for name in "abc":
        await lab.file(name)
    found = await lab.call("kaged.issue", action="list")
    assert set(found) == {"issues", "total", "limit", "offset"}
    assert [set(one) for one in found["issues"]] == [SUMMARY] * 3
    assert found["total"] == 3
    part = await lab.call("kaged.issue", action="list", limit=2)
    assert (len(part["issues"]), part["total"], part["limit"]) == (2, 3, 2)
    beyond = await lab.call("kaged.issue", action="list", offset=3)
    assert (beyond["issues"], beyond["total"]) == ([], 3)


@requirement("AT-ISSUE-07")
async def test_search_finds_words_of_title_and_body(lab: WorkLab) -> None:
    await lab.file("Refactor auth module", "Split token validation from the Über-session.")
    await lab.file("Dark mode", "prefers-color-scheme")
    third = await lab.file("Tokens expire", "too early")
    await move(lab, third, "triaged")
    assert await titles(lab, search="validation") == ["Refactor auth module"]
    assert await titles(lab, search="AUTH token") == ["Refactor auth module"]
    assert await titles(lab, search="uber-session") == ["Refactor auth module"]
    assert await titles(lab, search="token*", status="triaged") == ["Tokens expire"]
    assert sorted(await titles(lab, search="dark OR expire")) == ["Dark mode", "Tokens expire"]
    assert await titles(lab, search="token* -auth") == ["Tokens expire"]
    assert await titles(lab, search='"dark mode"') == ["Dark mode"]
    assert await titles(lab, search='"mode dark"') == []
    assert await titles(lab, search="title:dark") == []
    found = await lab.call("kaged.issue", action="list", search="token*", limit=1, offset=1)
    assert (len(found["issues"]), found["total"]) == (1, 2)
    assert len(await titles(lab, search="")) == 3
    await move(lab, 2, "resolved")
    assert await titles(lab, search="dark OR expire") == ["Tokens expire"]
    assert await titles(lab, search="dark OR expire", status="resolved") == ["Dark mode"]


@requirement("AT-ISSUE-07")
@pytest.mark.parametrize("search", ['"', '"""', "***", "-auth", "NOT a", "()", "\x00", "a" * 501])
async def test_a_search_that_means_nothing_is_refused_politely(lab: WorkLab, search: str) -> None:
    await lab.file()
    refused = await lab.refusal("kaged.issue", action="list", search=search)
    assert refused.code == "invalid_params"
    assert "search" in str(refused.detail)


@pytest.mark.parametrize(
    "search",
    ["a AND", "AND", "(a", "a)", "a:b", "^a", "a NEAR(b c)", "é̂", "x\x00y", "%_", "{a b}:c"],
)
async def test_no_search_is_a_syntax_error_of_the_database(lab: WorkLab, search: str) -> None:
    await lab.file("a b c", "x y")
    with contextlib.suppress(InvalidToolParams):
        await lab.call("kaged.issue", action="list", search=search)


async def test_the_search_sees_what_a_body_says_now(lab: WorkLab) -> None:
    number = await lab.file("One", "alpha")
    await lab.work.issues.update(PROJECT, number, "operator", title="Uno", body="beta")
    assert await titles(lab, search="alpha") == []
    assert await titles(lab, search="one") == []
    assert await titles(lab, search="beta uno") == ["Uno"]


@requirement("AT-ISSUE-08")
async def test_pages_do_not_overlap_and_leave_nothing_out(lab: WorkLab) -> None:
    for number in range(30):
        await lab.file(f"issue {number}")
    pages = [await titles(lab, limit=10, offset=offset) for offset in (0, 10, 20)]
    assert [len(page) for page in pages] == [10, 10, 10]
    assert pages[1] == (await titles(lab, limit=100))[10:20]
    assert len({title for page in pages for title in page}) == 30


@requirement("AT-ISSUE-09")
async def test_what_was_changed_last_comes_first(lab: WorkLab, clock: ManualClock) -> None:
    numbers = [await lab.file(name) for name in "abc"]
    assert await titles(lab) == ["c", "b", "a"]
    await lab.call("kaged.issue", action="comment", number=numbers[0], body="look")
    assert await titles(lab) == ["a", "c", "b"]
    clock.advance(60)
    await move(lab, numbers[1], "triaged")
    assert await titles(lab) == ["b", "a", "c"]


@requirement("AT-ISSUE-10")
async def test_each_project_has_issues_of_its_own(lab: WorkLab) -> None:
    async def there(**params: Any) -> Any:
        return await lab.call_with("kaged.issue", params, project_id="prj_2")

    assert await lab.file("here") == 1
    assert (await there(action="create", title="there", body=""))["number"] == 1
    assert await titles(lab) == ["here"]
    assert [one["title"] for one in (await there(action="list"))["issues"]] == ["there"]
    await there(action="comment", number=1, body="only there")
    await there(action="transition", number=1, to="triaged")
    found = await lab.call("kaged.issue", action="get", number=1)
    assert (found["title"], found["status"], found["updates"]) == ("here", "open", [])
    await lab.file("second")
    for params in (
        {"action": "get"}, {"action": "comment", "body": "b"},
        {"action": "transition", "to": "triaged"},
    ):  # fmt: skip
        refused = await lab.refusal_with("kaged.issue", {**params, "number": 2}, project_id="prj_2")
        assert refused.code == "issue_not_found"


@requirement("AT-ISSUE-11", "AT-ISSUE-12", "AT-ISSUE-18", "AT-ISSUE-27")
async def test_get_gives_an_issue_with_its_history(lab: WorkLab, clock: ManualClock) -> None:
    number = await lab.file("Title", "Body")
    clock.advance(10)
    await move(lab, number, "triaged")
    clock.advance(10)
    await lab.call("kaged.issue", action="comment", number=number, body="second")
    for field, value in (("title", "T2"), ("body", "B2"), ("assignment", "primary")):
        await lab.work.issues.update(PROJECT, number, "operator", **{field: value})
    found = await lab.call("kaged.issue", action="get", number=number)
    assert set(found) == {
        "id", "number", "title", "body", "original_body", "status", "assignment", "created_by",
        "created_at", "updated_at", "resolved_at", "resolved_by", "updates",
    }  # fmt: skip
    assert found["created_by"] == "agent:primary"
    assert [one["kind"] for one in found["updates"]] == [
        "status_change", "comment", "comment", "title_edit", "body_edit", "assignment_change",
    ]  # fmt: skip
    first = found["updates"][0]
    assert set(first) == {
        "id", "author", "kind", "body", "metadata", "visibility", "created_at",
    }  # fmt: skip
    assert first["metadata"] == {"old_status": "open", "new_status": "triaged"}
    assert {one["author"] for one in found["updates"][:3]} == {"agent:primary"}
    times = [one["created_at"] for one in found["updates"]]
    assert times == sorted(times)
    assert found["created_at"] == 1_767_225_600
    assert all(type(value) is int for value in (found["updated_at"], *times))
    known = [found["id"], *(one["id"] for one in found["updates"])]
    assert known == sorted(known)
    assert all(ULID.fullmatch(one) for one in known)


@requirement("AT-ISSUE-13", "AT-ISSUE-19")
async def test_comments_can_be_for_operators_only_and_the_root_sees_them(lab: WorkLab) -> None:
    number = await lab.file()
    await lab.store.sessions.ensure(SESSION, PROJECT)
    made = await lab.call("kaged.issue", action="comment", number=number, body="for all")
    assert set(made) == {"update_id", "issue_number", "created_at"}
    assert made["issue_number"] == number
    await lab.call(
        "kaged.issue", action="comment", number=number, body="inside", visibility="operator_only"
    )
    updates = (await lab.call("kaged.issue", action="get", number=number))["updates"]
    assert [(one["kind"], one["body"], one["visibility"]) for one in updates] == [
        ("comment", "for all", "all"), ("comment", "inside", "operator_only"),
    ]  # fmt: skip
    assert updates[0]["id"] == made["update_id"]
    guests = await lab.work.issues.get(PROJECT, number, internal=False)
    of_people = await lab.work.issues.shown_in("ses_of_nobody", PROJECT, number)
    for shown in (guests, of_people):
        assert [one["body"] for one in shown["updates"]] == ["for all"]  # type: ignore[index,union-attr]  # JSON
    wrong = await lab.refusal(
        "kaged.issue", action="comment", number=number, body="x", visibility="nobody"
    )
    assert wrong.code == "invalid_params"


@requirement("AT-ISSUE-14", "AT-FAIL-16")
async def test_an_unknown_number_is_told_back(lab: WorkLab) -> None:
    for params in (
        {"action": "get"}, {"action": "comment", "body": "b"},
        {"action": "transition", "to": "triaged"},
    ):  # fmt: skip
        refused = await lab.refusal("kaged.issue", number=9999, **params)
        assert (refused.code, refused.number) == ("issue_not_found", -32000)
        assert "9999" in str(refused)
        assert refused.detail == {"number": 9999}


@requirement("AT-ISSUE-15")
async def test_a_new_issue_is_open(lab: WorkLab) -> None:
    made = await lab.call("kaged.issue", action="create", title="x" * 200, body="é" * 8192)
    assert set(made) == {"id", "number", "status", "created_at"}
    assert (made["number"], made["status"]) == (1, "open")
    found = await lab.call("kaged.issue", action="get", number=1)
    assert (found["id"], found["body"]) == (made["id"], "é" * 8192)


@requirement("AT-ISSUE-16")
@pytest.mark.parametrize(
    ("title", "body"),
    [
        ("x" * 201, "b"), ("", "b"), ("t", "x" * 16385), ("t", "é" * 8193), (" \n", "b"),
        ("lone \ud800", "b"), ("t", "lone \udfff"),
    ],
)  # fmt: skip
async def test_titles_and_bodies_have_limits(lab: WorkLab, title: str, body: str) -> None:
    refused = await lab.refusal("kaged.issue", action="create", title=title, body=body)
    assert refused.code == "invalid_params"
    assert (await lab.call("kaged.issue", action="list"))["total"] == 0


@requirement("AT-ISSUE-17", "AT-ISSUE-27")
async def test_numbers_have_no_holes_and_no_doubles_under_load(lab: WorkLab) -> None:
    async def create(number: int) -> Any:
        return await lab.call("kaged.issue", action="create", title=f"t{number}", body="")

    made = await asyncio.gather(*(create(number) for number in range(50)))
    assert sorted(one["number"] for one in made) == list(range(1, 51))
    by_number = sorted(made, key=lambda one: one["number"])
    assert [one["id"] for one in by_number] == sorted(one["id"] for one in made)


@requirement("AT-ISSUE-20")
@pytest.mark.parametrize("body", ["", " ", "\n\t", "x" * 16385])
async def test_a_comment_says_something(lab: WorkLab, body: str) -> None:
    number = await lab.file()
    refused = await lab.refusal("kaged.issue", action="comment", number=number, body=body)
    assert refused.code == "invalid_params"
    assert await rows(lab) == (1, 0)


@requirement("AT-ISSUE-21")
async def test_a_transition_is_written_down(lab: WorkLab, clock: ManualClock) -> None:
    number = await lab.file()
    clock.advance(5)
    moved = await lab.call("kaged.issue", action="transition", number=number, to="triaged")
    assert moved == {"number": 1, "from": "open", "to": "triaged", "updated_at": 1_767_225_605}
    found = await lab.call("kaged.issue", action="get", number=number)
    assert (found["status"], len(found["updates"])) == ("triaged", 1)


@requirement("AT-ISSUE-22", "AT-ISSUE-23", "AT-AMB-03", "AT-AMB-04", "AT-FAIL-17")
async def test_every_pair_of_statuses_is_a_move_or_is_refused_with_the_legal_ones(
    lab: WorkLab,
) -> None:
    work = {"triaged", "assigned", "in_progress", "resolved", "rejected"}
    legal = {
        "open": work, "reopened": work, "resolved": {"reopened"}, "rejected": {"reopened"},
        "triaged": work - {"triaged"}, "assigned": work - {"assigned"},
        "in_progress": work - {"in_progress"},
    }  # fmt: skip
    ways = {"open": (), "reopened": ("resolved", "reopened")}
    for current, targets in legal.items():
        for to in (status.value for status in IssueStatus if status is not IssueStatus.OPEN):
            number = await lab.file()
            await move(lab, number, *ways.get(current, (current,)))
            params = {"action": "transition", "number": number, "to": to, "comment": "why"}
            if to in targets:
                moved = await lab.call_with("kaged.issue", params)
                assert (moved["from"], moved["to"]) == (current, to)
                assert await lab.status_of(number) == to
                continue
            refused = await lab.refusal_with("kaged.issue", params)
            assert refused.code == "invalid_transition", (current, to)
            assert isinstance(refused.detail, dict)
            assert set(refused.detail["legal"]) == targets  # type: ignore[arg-type]  # JSON
            assert await lab.status_of(number) == current
    assert {status.value: set(moves) for status, moves in MOVES.items()} == legal


@requirement("AT-ISSUE-24")
async def test_an_end_needs_a_comment(lab: WorkLab) -> None:
    number = await lab.file()
    for to, message in (
        ("rejected", "Rejection requires an explanatory comment."),
        ("resolved", "Resolution requires an explanatory comment."),
    ):
        for comment in ({}, {"comment": " \n"}):
            refused = await lab.refusal(
                "kaged.issue", action="transition", number=number, to=to, **comment
            )
            assert refused.code == "invalid_params"
            assert refused.as_json()["message"] == message
    long = await lab.refusal(
        "kaged.issue", action="transition", number=number, to="triaged", comment="é" * 8193
    )
    assert long.code == "invalid_params"
    assert await lab.status_of(number) == "open"
    assert await rows(lab) == (1, 0)


@requirement("AT-ISSUE-25")
async def test_resolving_is_signed_and_reopening_takes_it_back(
    lab: WorkLab, clock: ManualClock
) -> None:
    number = await lab.file()
    clock.advance(7)
    await move(lab, number, "resolved")
    found = await lab.call("kaged.issue", action="get", number=number)
    assert (found["resolved_at"], found["resolved_by"]) == (1_767_225_607, "agent:primary")
    await move(lab, number, "reopened")
    found = await lab.call("kaged.issue", action="get", number=number)
    assert (found["resolved_at"], found["resolved_by"]) == (None, None)


@requirement("AT-ISSUE-26")
async def test_a_transition_is_all_or_nothing(
    lab: WorkLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = await lab.file()
    await lab.call(
        "kaged.issue", action="transition", number=number, to="triaged", comment="because"
    )
    updates = (await lab.call("kaged.issue", action="get", number=number))["updates"]
    assert [(one["kind"], one["body"]) for one in updates] == [
        ("status_change", None), ("comment", "because"),
    ]  # fmt: skip
    before = await rows(lab)
    calls = 0

    def breaks(*args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise RuntimeError("the disk went away")
        return IssueUpdate(*args)

    monkeypatch.setattr(issue_rows, "IssueUpdate", breaks)
    refused = await lab.refusal(
        "kaged.issue", action="transition", number=number, to="resolved", comment="done"
    )
    assert refused.code == "internal_error"
    assert calls == 2
    assert await rows(lab) == before
    assert await lab.status_of(number) == "triaged"


@requirement("AT-ISSUE-28", "AT-ISSUE-29", "AT-ISSUE-30")
async def test_operators_edit_what_agents_cannot(lab: WorkLab, clock: ManualClock) -> None:
    number = await lab.file("Title", "first")
    clock.advance(3)
    update = lab.work.issues.update
    done = await update(PROJECT, number, "operator", body="second", assignment="workflow:deploy")
    assert done.result == {
        "number": number,
        "updated_fields": ["body", "assignment"],
        "updated_at": 1_767_225_603,
    }
    await update(PROJECT, number, "operator", body="third", title="New")
    found = await lab.call("kaged.issue", action="get", number=number)
    assert (found["title"], found["body"], found["original_body"]) == ("New", "third", "first")
    assert found["assignment"] == "workflow:deploy"
    assert sorted(one["kind"] for one in found["updates"]) == [
        "assignment_change", "body_edit", "body_edit", "title_edit",
    ]  # fmt: skip
    assert {one["author"] for one in found["updates"]} == {"operator"}
    for good in ("primary", "session:ses_01ABC", None):
        await update(PROJECT, number, "operator", assignment=good)
        found = await lab.call("kaged.issue", action="get", number=number)
        assert found["assignment"] == good
    for wrong, code in (
        ({}, "invalid_params"),
        ({"title": "x" * 201}, "invalid_params"),
        ({"title": ""}, "invalid_params"),
        ({"body": "x" * 16385}, "invalid_params"),
        ({"assignment": "workflow:nope"}, "invalid_assignment"),
        ({"assignment": "somebody"}, "invalid_assignment"),
        ({"assignment": "session:"}, "invalid_assignment"),
    ):
        with pytest.raises(KagedError) as raised:
            await update(PROJECT, number, "operator", **wrong)
        assert raised.value.code == code, wrong
    with pytest.raises(KagedError, match="no workflow 'nope'") as raised:
        await update(PROJECT, number, "operator", assignment="workflow:nope")
    assert raised.value.data["workflows"] == ["annotate", "deploy", "import", "report"]


@requirement("AT-ISSUE-31")
async def test_issues_are_there_after_a_restart(
    tmp_path: Path, clock: ManualClock, ids: Ids
) -> None:
    async with work_lab(tmp_path, clock, ids) as first:
        number = await first.file("Kept", "in the database")
        before = await first.call("kaged.issue", action="get", number=number)
    assert (tmp_path / "kaged.db").is_file()
    async with work_lab(tmp_path, clock, ids) as second:
        assert await second.call("kaged.issue", action="get", number=number) == before


@requirement("AT-AUD-14", "AT-AUD-16", "AT-AUD-17")
async def test_changes_of_issues_are_on_record(lab: WorkLab) -> None:
    number = await lab.file("Title", "Body")
    made = await lab.call(
        "kaged.issue", action="comment", number=number, body="b", visibility="operator_only"
    )
    await move(lab, number, "triaged")
    issue_id = (await lab.call("kaged.issue", action="get", number=number))["id"]
    common = {"issue_id": issue_id, "caller": "primary", "project_id": PROJECT}
    assert lab.audit.of("kaged.issue.created") == [
        {**common, "number": 1, "title": "Title", "request_id": "req_1"}
    ]
    assert lab.audit.of("kaged.issue.commented") == [
        {
            **common, "update_id": made["update_id"], "visibility": "operator_only",
            "request_id": "req_2",
        }
    ]  # fmt: skip
    assert lab.audit.of("kaged.issue.transitioned") == [
        {**common, "from_status": "open", "to_status": "triaged", "request_id": "req_3"}
    ]


@requirement("AT-AUD-15")
async def test_no_call_of_an_agent_is_recorded_as_an_edit(lab: WorkLab) -> None:
    number = await lab.file()
    await move(lab, number, "triaged", "resolved", "reopened")
    await lab.call("kaged.issue", action="comment", number=number, body="b")
    await lab.refusal("kaged.issue.update", number=number, title="t")
    assert "kaged.issue.updated" not in lab.audit.names()
    done = await lab.work.issues.update(PROJECT, number, "operator", title="t")
    assert done.event == "kaged.issue.updated"
    assert done.facts["updated_fields"] == ["title"]


async def test_failed_changes_are_not_recorded_as_done(lab: WorkLab) -> None:
    await lab.refusal("kaged.issue", action="create", title="", body="")
    await lab.refusal("kaged.issue", action="comment", number=1, body="b")
    await lab.refusal("kaged.issue", action="transition", number=1, to="triaged")
    assert not [name for name in lab.audit.names() if name.startswith("kaged.issue")]


async def test_a_change_that_cannot_be_recorded_is_not_made_but_reads_go_on(lab: WorkLab) -> None:
    number = await lab.file()
    lab.audit.down = True
    refused = await lab.refusal("kaged.issue", action="comment", number=number, body="b")
    assert refused.code == "audit_unavailable"
    assert (await lab.call("kaged.issue", action="get", number=number))["updates"] == []


@requirement("AT-SCOPE-04", "AT-SCOPE-07", "AT-FAIL-15", "AT-CTX-03")
@pytest.mark.parametrize("caller", ["primary.subagents.primary", "Primary", "primary.subagents.a"])
async def test_only_the_root_agent_has_issues(lab: WorkLab, caller: str) -> None:
    await lab.file()
    assert (await lab.call("kaged.issue", action="list"))["total"] == 1
    other = lab.other(caller)
    for name in ("kaged.issue", "kaged.issue.create", "kaged.issue.list"):
        refused = await other.refusal(name, action="list")
        assert (refused.code, refused.number) == ("principal_scope_violation", -32001)
    assert "tool.denied" in other.audit.names()
    assert await rows(lab) == (1, 0)
