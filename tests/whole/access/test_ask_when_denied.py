"""A refused call becomes a question, and each answer is worth exactly what it says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from whole.access.conftest import Asking, reads
from whole.harness.conversation import ended
from whole.harness.daemon import Daemon, wait_for
from whole.harness.model import call, calls
from whole.harness.talk import tool_answers

NOTES, OTHER = "notes/n.txt", "notes/other.txt"
OK, DENIED = "completed", "denied"


def test_once_is_for_that_call_and_no_other(asking: Asking) -> None:
    session, run = asking.begin(reads(NOTES))
    one = asking.question()
    assert one["title"] == "Let primary read ./notes/n.txt?"
    assert one["choices"] == ["once", "run", "session", "always", "no"]
    assert "  - read ./notes/n.txt" in one["details"]
    asking.answer(one, "once")
    assert asking.calls(session, run) == [OK]
    # The next call of the same session asks again.
    assert asking.asked("no", reads(NOTES), session=session)[1] == [DENIED]


def test_a_run_s_grant_ends_with_the_run(asking: Asking) -> None:
    session, found = asking.asked("run", reads(NOTES), reads(NOTES), reads("src/a.txt"))
    assert found == [OK, OK, OK]
    assert asking.project.get(f"/sessions/{session}/grants")["items"] == []
    assert asking.asked("no", reads(NOTES), session=session)[1] == [DENIED]


def test_a_session_s_grant_outlives_the_daemon_and_no_other_session_has_it(
    own: Callable[..., Daemon], asking_on: Callable[..., Asking]
) -> None:
    daemon = own()
    daemon.start()
    asking = asking_on(daemon)
    session, found = asking.asked("session", reads(NOTES))
    assert found == [OK]
    daemon.restart()
    assert asking.unasked(reads(NOTES), session=session) == [OK]
    # Exactly that file: the one beside it is a question of its own.
    assert asking.asked("no", reads(OTHER), session=session)[1] == [DENIED]
    assert asking.asked("no", reads(NOTES))[1] == [DENIED]


def test_always_is_written_into_the_project_file_as_it_was_shown(asking: Asking) -> None:
    before = asking.project.read(".kaged/project.yaml")
    session, run = asking.begin(reads(NOTES))
    one = asking.question()
    added = "      - { mode: ro, path: notes/n.txt }"
    assert f"  +{added}" in one["details"], one["details"]
    asking.answer(one, "always")
    assert asking.calls(session, run) == [OK]
    after = asking.project.read(".kaged/project.yaml")
    assert [line for line in after.splitlines() if line not in before.splitlines()] == [added]
    assert [line for line in before.splitlines() if line not in after.splitlines()] == []
    shown = asking.daemon.get(f"/projects/{asking.project.id}")
    assert shown["trusted"], "what was agreed to is what the file asks for now"
    # A session that begins later has it; nothing else came along.
    assert asking.unasked(reads(NOTES)) == [OK]
    assert asking.asked("no", reads(OTHER))[1] == [DENIED]


def test_always_writes_nothing_when_the_file_has_changed_meanwhile(asking: Asking) -> None:
    session, run = asking.begin(reads(NOTES))
    one = asking.question()
    file = asking.project.root / ".kaged" / "project.yaml"
    text = file.read_text(encoding="utf-8").replace("allow: []", 'allow: ["evil.test:443"]')
    file.write_text(text, encoding="utf-8")
    body = {"digest": one["digest"], "answer": {"choice": "always"}}
    refused = asking.daemon.error("POST", f"/inbox/{one['id']}/answer", body)
    assert refused["code"] == "project_ask_changed"
    assert file.read_text(encoding="utf-8") == text
    # The question still waits, for another answer.
    asking.answer(asking.question(), "no")
    assert asking.calls(session, run) == [DENIED]


def test_no_is_asked_once_in_a_run(asking: Asking) -> None:
    session, found = asking.asked("no", reads(NOTES), reads(NOTES), reads("src/a.txt"))
    assert found == [DENIED, DENIED, OK]
    rows = asking.daemon.audit("access.refused", project_id=asking.project.id)
    assert [one["data"]["reason"] for one in rows] == ["no"]
    assert rows[0]["data"]["grants"] == ["ro:path:notes/n.txt"]
    assert rows[0]["data"]["session_id"] == session


def test_calls_that_lack_the_same_ask_one_question(asking: Asking) -> None:
    twice = calls(("file.read", {"path": NOTES}), ("file.read", {"path": NOTES}))
    assert asking.asked("once", twice)[1] == [OK, OK]
    assert len(asking.daemon.audit("inbox.asked", project_id=asking.project.id)) == 1


def test_a_run_asks_a_bounded_number_of_questions(asking: Asking) -> None:
    for number in range(21):
        asking.project.write(f"many/f{number:02}.txt", "x\n")
    turns = [reads(f"many/f{number:02}.txt") for number in range(21)]
    session, run = asking.begin(*turns)
    for _ in range(20):
        asking.answer(asking.question(), "once")
    assert asking.calls(session, run) == [OK] * 20 + [DENIED]


def test_a_write_asks_for_a_write_and_reading_was_not_enough(asking: Asking) -> None:
    session, found = asking.asked("session", reads(NOTES))
    assert found == [OK]
    writes = call("file.write", path=NOTES, content="changed\n")
    place, run = asking.begin(writes, session=session)
    one = asking.question()
    assert one["title"] == "Let primary read and change ./notes/n.txt?"
    asking.answer(one, "once")
    assert asking.calls(place, run) == [OK]
    assert asking.project.read(NOTES) == "changed\n"


def test_a_tool_and_a_named_grant_are_asked_for_one_after_the_other(asking: Asking) -> None:
    session, run = asking.begin(call("shell.bash", command="cat src/a.txt", cwd="src"))
    one = asking.question()
    assert one["title"] == "Let primary use the tool shell.bash?"
    asking.answer(one, "session")
    two = wait_for(lambda: [got for got in asking.waiting() if got["id"] != one["id"]], "shell")[0]
    assert two["title"] == "Let primary read and change ./src and 1 more?"
    assert "  - use tools that ask for the grant shell" in two["details"]
    asking.answer(two, "session")
    assert asking.calls(session, run) == [OK]
    again = call("shell.bash", command="echo again", cwd="src")
    assert asking.unasked(again, session=session) == [OK]


def test_a_subagent_s_question_says_who_asks_and_is_for_it_alone(asking: Asking) -> None:
    session, run = asking.begin(call("agent-helper", message="helpword look"))
    asking.model.play("helpword", reads(NOTES))
    one = asking.question()
    assert one["title"] == "Let the subagent primary.subagents.helper read ./notes/n.txt?"
    asking.answer(one, "session")
    asking.calls(session, run)
    # The agent above it has not got it.
    assert asking.asked("no", reads(NOTES), session=session)[1] == [DENIED]


def test_what_can_never_be_granted_is_not_asked_for(asking: Asking) -> None:
    hook = call("file.write", path=".git/hooks/pre-commit", content="#!/bin/sh\n")
    cage = call("file.write", path=".kaged/project.yaml", content="x")
    outside = reads("../elsewhere.txt")
    found = asking.unasked(hook, cage, outside)
    assert OK not in found


def test_an_agent_that_does_not_ask_is_refused_as_ever(
    daemon: Daemon, asking_on: Callable[..., Asking], asking: Asking
) -> None:
    text = asking.project.read(".kaged/project.yaml").replace("on_denied: ask", "on_denied: deny")
    silent = asking_on(daemon, text)
    assert silent.unasked(reads(NOTES)) == [DENIED]


def test_a_call_without_an_agent_in_between_is_refused_as_ever(asking: Asking) -> None:
    assert asking.project.fail("file.read", path=NOTES)["code"] == "capability_denied"
    assert asking.waiting() == []


def test_nobody_answers_and_the_call_stays_refused(
    own: Callable[..., Daemon], asking_on: Callable[..., Asking]
) -> None:
    daemon = own(config="[tools]\nask_seconds = 1\n")
    daemon.start()
    asking = asking_on(daemon)
    session, run = asking.begin(reads(NOTES), reads(NOTES))
    assert asking.calls(session, run) == [DENIED, DENIED]
    rows = daemon.audit("access.refused", project_id=asking.project.id)
    assert [one["data"]["reason"] for one in rows] == ["expired"]


def test_a_canceled_run_leaves_no_question(asking: Asking) -> None:
    session, run = asking.begin(reads(NOTES))
    one = asking.question()
    asking.project.post(f"/sessions/{session}/cancel")
    assert ended(asking.project, session, run)["status"] == "cancelled"
    assert asking.waiting() == []
    body = {"digest": one["digest"], "answer": {"choice": "session"}}
    refused = asking.daemon.error("POST", f"/inbox/{one['id']}/answer", body)
    assert refused["code"] == "inbox_request_closed"
    assert asking.project.get(f"/sessions/{session}/grants")["items"] == []


def test_a_grant_is_shown_and_can_be_taken_back(asking: Asking) -> None:
    session, _ = asking.asked("session", reads(NOTES))
    (shown,) = asking.project.get(f"/sessions/{session}/grants")["items"]
    assert (shown["agent"], shown["words"], shown["scope"]) == (
        "primary",
        "read ./notes/n.txt",
        "session",
    )
    where = ("-p", asking.project.id)
    listed = asking.daemon.cli("session", "grants", session, *where).out
    assert shown["id"] in listed
    explained = asking.daemon.cli(
        "cage", "explain", "primary", "--project", str(asking.project.root)
    ).out
    assert f"read ./notes/n.txt (in session {session}, {shown['id']})" in explained
    told = asking.daemon.cli("project", "show", str(asking.project.root))
    assert f"read ./notes/n.txt (in session {session}, {shown['id']})" in told.out + told.err
    done = asking.daemon.cli("session", "revoke", shown["id"], "-s", session, *where).out
    assert "Took back" in done
    again = asking.daemon.cli("session", "revoke", shown["id"], "-s", session, *where, code=3)
    assert "access_grant_not_found" in again.err
    assert asking.daemon.audit("access.taken_back", project_id=asking.project.id)
    assert asking.asked("no", reads(NOTES), session=session)[1] == [DENIED]


def test_the_agent_is_told_of_a_refusal_in_the_usual_words(asking: Asking) -> None:
    session, run = asking.begin(reads(NOTES))
    asking.answer(asking.question(), "no")
    asking.calls(session, run)
    bodies: list[Any] = [one for one in asking.model.asked("asking") if tool_answers(one)]
    assert "not allowed: ro:fs:notes/n.txt" in tool_answers(bodies[-1])[-1]
