"""`kaged.ask`, `kaged.form` and `kaged.checkpoint`, and the operator's answers."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fakes.work_lab import PROJECT, SESSION, WorkLab, until, work_lab
from kaged.base import Ids, KagedError, ManualClock
from kaged.kernel.identity import Actor, VouchedBy
from kaged.store.interaction_rows import InteractionStatus
from kaged.toolbox.project import project_tools
from kaged.toolbox.project.answers import CheckpointDecision, OperatorAnswer
from kaged.toolbox.project.interactions import answer_json
from kaged.toolbox.project.uploads import Upload
from requirements import requirement

OPERATOR = Actor.operator("op", VouchedBy.UNIX)

QUESTIONS: list[Any] = [
    {"id": "colour", "title": "Which colour?", "options": ["red", "blue"]},
    {"id": "sizes", "title": "Which sizes?", "options": ["s", "m", "l"], "multiple": True},
    {"id": "why", "title": "Why?", "options": [], "description": "In a sentence."},
]
ANSWERS: dict[str, Any] = {"colour": "red", "sizes": ["s", "l"], "why": "it is nice"}
FIELDS: list[dict[str, Any]] = [
    {"name": "title", "label": "Title", "type": "text", "required": True},
    {"name": "story", "label": "Story", "type": "multiline"},
    {"name": "count", "label": "Count", "type": "number"},
    {"name": "urgent", "label": "Urgent?", "type": "boolean"},
    {"name": "size", "label": "Size", "type": "select", "options": ["s", "m"]},
    {"name": "logo", "label": "Logo", "type": "file", "required": True},
]


async def asked(lab: WorkLab, name: str, **params: Any) -> tuple[asyncio.Task[Any], str]:
    """Ask, and return the waiting call with the id of the question."""
    before = len(lab.announced)
    call = lab.tasks.start(lab.call(name, **params), "call")
    await until(lambda: len(lab.announced) > before or call.done())
    if call.done():
        call.result()
    return call, str(lab.announced[-1][1]["request_id"])


async def answer(lab: WorkLab, request_id: str, **given: Any) -> None:
    await lab.work.interactions.answer(PROJECT, request_id, OperatorAnswer(**given), "operator")


async def problems(lab: WorkLab, request_id: str, **given: Any) -> dict[str, str]:
    with pytest.raises(KagedError) as raised:
        await answer(lab, request_id, **given)
    assert raised.value.code == "interaction_answer_invalid"
    return {one["field"]: one["problem"] for one in raised.value.data["problems"]}  # type: ignore[index,union-attr]  # JSON


@requirement("AT-ASK-01", "AT-ASK-02", "AT-AMB-42")
@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("kaged.ask", {"questions": []}),
        ("kaged.ask", {}),
        ("kaged.ask", {"questions": [QUESTIONS[0], {**QUESTIONS[1], "id": "colour"}]}),
        ("kaged.ask", {"questions": [{"title": "t", "options": []}]}),
        ("kaged.ask", {"questions": [{"id": "a", "options": []}]}),
        ("kaged.ask", {"questions": [{"id": "a", "title": "t"}]}),
        ("kaged.ask", {"questions": [{"id": " ", "title": "t", "options": []}]}),
        ("kaged.ask", {"questions": [{"id": "a", "title": "t", "options": [1]}]}),
        ("kaged.ask", {"questions": [{"id": "a", "title": "t", "options": [], "multiple": 1}]}),
        ("kaged.ask", {"questions": [{"id": "a", "title": "t", "options": [], "x": 1}]}),
        ("kaged.form", {"fields": []}),
        ("kaged.form", {"fields": [FIELDS[0], FIELDS[0]]}),
        ("kaged.form", {"fields": [{"name": "a", "label": "A", "type": "colour"}]}),
        ("kaged.form", {"fields": [{"name": "a", "label": "A", "type": "select"}]}),
        ("kaged.form", {"fields": [{"name": "a", "label": "A", "type": "text", "options": ["x"]}]}),
        ("kaged.form", {"fields": [{"name": "a", "type": "text"}]}),
        ("kaged.checkpoint", {}),
        ("kaged.checkpoint", {"message": ""}),
        ("kaged.checkpoint", {"message": " "}),
        ("kaged.checkpoint", {"message": "m", "detail": 3}),
        ("kaged.checkpoint", {"message": "\ud800"}),
    ],
)
async def test_questions_that_make_no_sense_are_refused(
    lab: WorkLab, name: str, params: dict[str, Any]
) -> None:
    assert (await lab.refusal_with(name, params)).code == "invalid_params"
    assert lab.announced == []


@requirement("AT-ASK-01", "AT-ASK-02")
async def test_ask_and_form_are_for_the_root_agent(lab: WorkLab) -> None:
    tools = {tool.definition.name: tool.definition for tool in project_tools(lab.work)}
    assert tools["kaged.ask"].principal_scope == "root-only"
    assert tools["kaged.form"].principal_scope == "root-only"
    types: Any = tools["kaged.form"].parameters["properties"]
    assert set(types["fields"]["items"]["properties"]["type"]["enum"]) >= {
        "text", "multiline", "number", "boolean", "select", "file",
    }  # fmt: skip
    call, request_id = await asked(lab, "kaged.ask", questions=[QUESTIONS[2]])
    payload: Any = lab.announced[0][1]["payload"]
    assert payload["questions"][0]["multiple"] is False
    await answer(lab, request_id, answers={"why": "so"})
    await call


async def test_a_question_pauses_the_session_until_it_is_answered(lab: WorkLab) -> None:
    call, request_id = await asked(lab, "kaged.ask", questions=QUESTIONS)
    name, event = lab.announced[0]
    assert name == "attention.required"
    assert [one["id"] for one in event["payload"]["questions"]] == ["colour", "sizes", "why"]  # type: ignore[index,union-attr,call-overload]  # JSON
    session = await lab.store.sessions.get(PROJECT, SESSION)
    assert session.status == "checkpoint"
    assert str(session.detail).startswith("interaction:ask:")
    await answer(lab, request_id, answers=ANSWERS)
    assert await call == {"request_id": request_id, "kind": "ask", "answers": ANSWERS}
    session = await lab.store.sessions.get(PROJECT, SESSION)
    assert (session.status, session.detail) == ("idle", None)
    assert lab.announced[-1][0] == "attention.ended"
    record = await lab.work.interactions.get(PROJECT, request_id, OPERATOR)
    assert (record.status, record.answered_by) == (InteractionStatus.ANSWERED, "operator")
    assert record.delivered_at_ms is not None


async def test_the_agent_loop_gets_a_signal_and_then_the_answer(lab: WorkLab) -> None:
    lab.loop_runs = True
    signal = await lab.call("kaged.form", fields=[FIELDS[1]])
    request_id = signal["interaction_requested"]["request_id"]
    assert signal == {
        "interaction_requested": {
            "kind": "form",
            "request_id": request_id,
            "payload": {
                "fields": [{**FIELDS[1], "description": "", "required": False, "options": []}]
            },
        }
    }
    await answer(lab, request_id, answers={"story": "once\nupon"})
    assert lab.answered == [request_id]
    (undelivered,) = await lab.store.interactions.undelivered(SESSION)
    assert answer_json(undelivered) == {
        "request_id": request_id,
        "kind": "form",
        "answers": {"story": "once\nupon"},
    }


@requirement("AT-ASK-05")
async def test_an_answer_that_does_not_fit_changes_nothing(lab: WorkLab) -> None:
    call, request_id = await asked(lab, "kaged.ask", questions=QUESTIONS)
    assert await problems(lab, request_id, answers={**ANSWERS, "colour": ["red", "blue"]}) == {
        "colour": "takes one choice only"
    }
    found = await problems(
        lab, request_id, answers={"colour": "green", "sizes": ["s", "s"], "other": 1}
    )
    assert set(found) == {"colour", "sizes", "why", "other"}
    for wrong in (1, True, None, "", [], [1], {"a": 1}, [""]):
        assert "why" in await problems(lab, request_id, answers={**ANSWERS, "why": wrong})
    assert "decision" in await problems(
        lab, request_id, answers=ANSWERS, decision=CheckpointDecision.APPROVE
    )
    session = await lab.store.sessions.get(PROJECT, SESSION)
    assert session.status == "checkpoint"
    assert not call.done()
    await answer(lab, request_id, answers={**ANSWERS, "colour": ["blue"]})
    assert (await call)["answers"]["colour"] == "blue"


@requirement("AT-ASK-05")
async def test_the_fields_of_a_form_are_checked_by_type(lab: WorkLab) -> None:
    call, request_id = await asked(lab, "kaged.form", fields=FIELDS)
    logo = {"logo": Upload("logo.png", b"png")}
    found = await problems(lab, request_id, answers={})
    assert set(found) == {"title", "logo"}
    for field, wrong in (
        ("title", 1), ("title", "two\nlines"), ("story", ["x"]), ("count", "5"), ("count", True),
        ("count", float("inf")), ("urgent", "yes"), ("urgent", 1), ("size", "xl"),
        ("logo", "a path"), ("unknown", 1), ("story", "\ud800"), ("story", "x" * 70_000),
    ):  # fmt: skip
        assert field in await problems(
            lab, request_id, answers={"title": "t", field: wrong}, files=logo
        ), (field, wrong)
    assert "title" in await problems(
        lab, request_id, answers={"title": "t"}, files={**logo, "title": Upload("x", b"")}
    )
    assert not (lab.root / ".kaged").exists()
    given = {"title": "t", "count": 2.5, "urgent": False, "size": "m", "story": ""}
    await answer(lab, request_id, answers=given, files=logo)
    assert (await call)["answers"] == {
        "title": "t", "count": 2.5, "urgent": False, "size": "m",
        "logo": f"config:/tmp/{request_id}/logo.png",
    }  # fmt: skip


@requirement("AT-ASK-06")
async def test_uploads_land_in_the_folder_of_their_question(lab: WorkLab) -> None:
    fields = [{"name": f"f{n}", "label": "F", "type": "file"} for n in range(6)]
    names = ["../x", "/etc/passwd", "..", "a\\b\x00c.txt", "x", "é" * 300 + ".png"]
    call, request_id = await asked(lab, "kaged.form", fields=fields)
    files = {f"f{n}": Upload(name, str(n).encode()) for n, name in enumerate(names)}
    await answer(lab, request_id, files=files)
    answers = (await call)["answers"]
    place = lab.root / ".kaged" / "tmp" / request_id
    assert answers["f0"] == f"config:/tmp/{request_id}/x"
    assert answers["f4"] == f"config:/tmp/{request_id}/x-2"
    for number in range(6):
        path = lab.root / ".kaged" / answers[f"f{number}"].removeprefix("config:/")
        assert path.parent == place
        assert path.read_bytes() == str(number).encode()
    everything = {str(one) for one in lab.root.parent.rglob("*") if one.is_file()}
    assert len([one for one in everything if one.startswith(str(place))]) == 6
    assert not (lab.root / "x").exists()
    assert not (lab.root / ".kaged" / "tmp" / "x").exists()


@pytest.mark.parametrize("planted", [".kaged", ".kaged/tmp", ".kaged/tmp/{id}"])
async def test_a_planted_link_does_not_lead_uploads_elsewhere(
    lab: WorkLab, tmp_path: Path, planted: str
) -> None:
    call, request_id = await asked(lab, "kaged.form", fields=[FIELDS[5]])
    outside = tmp_path / "outside"
    outside.mkdir()
    link = lab.root / planted.format(id=request_id)
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(outside)
    with pytest.raises(KagedError) as raised:
        await answer(lab, request_id, files={"logo": Upload("logo.png", b"x")})
    assert raised.value.code == "upload_refused"
    assert list(outside.iterdir()) == []
    link.unlink()
    await answer(lab, request_id, files={"logo": Upload("logo.png", b"x")})
    assert (await call)["answers"]["logo"] == f"config:/tmp/{request_id}/logo.png"
    assert (lab.root / ".kaged" / "tmp" / request_id).stat().st_mode & 0o777 == 0o700


@requirement("AT-AMB-05")
async def test_a_subagent_may_pause_at_a_checkpoint(lab: WorkLab) -> None:
    other = lab.other("primary.subagents.coder")
    call = lab.tasks.start(
        other.call("kaged.checkpoint", message="About to delete it.", detail="all of it"), "call"
    )
    await until(lambda: bool(lab.announced))
    event: Any = lab.announced[0][1]
    assert event["payload"] == {"message": "About to delete it.", "detail": "all of it"}
    assert event["caller"] == "primary.subagents.coder"
    session = await lab.store.sessions.get(PROJECT, SESSION)
    assert session.status == "checkpoint"
    assert not call.done()
    await answer(lab, event["request_id"], decision=CheckpointDecision.APPROVE, text="go on")
    assert await call == {
        "request_id": event["request_id"], "kind": "checkpoint", "decision": "approve",
        "text": "go on",
    }  # fmt: skip
    assert (await lab.store.sessions.get(PROJECT, SESSION)).status == "idle"


async def test_the_decision_of_a_checkpoint_is_checked(lab: WorkLab) -> None:
    call, request_id = await asked(lab, "kaged.checkpoint", message="May I?")
    assert "decision" in await problems(lab, request_id)
    assert "text" in await problems(lab, request_id, decision=CheckpointDecision.REPLY, text=" ")
    assert "a" in await problems(
        lab, request_id, decision=CheckpointDecision.APPROVE, answers={"a": 1}
    )
    await answer(lab, request_id, decision=CheckpointDecision.REJECT)
    assert (await call)["decision"] == "reject"


async def test_a_session_asks_one_thing_at_a_time(lab: WorkLab) -> None:
    call, request_id = await asked(lab, "kaged.ask", questions=[QUESTIONS[2]])
    for name, params in (
        ("kaged.ask", {"questions": QUESTIONS}), ("kaged.form", {"fields": FIELDS}),
        ("kaged.checkpoint", {"message": "m"}),
    ):  # fmt: skip
        refused = await lab.refusal_with(name, params)
        assert (refused.code, refused.number) == ("interaction_pending", -32000)
        assert refused.detail == {"request_id": request_id}
    assert await lab.store.interactions.pending_of(SESSION) == request_id
    # Another session is not held up by it.
    lab.loop_runs = True
    await lab.call_with("kaged.checkpoint", {"message": "m"}, session_id="ses_2")
    await answer(lab, request_id, answers={"why": "so"})
    await call
    assert await lab.store.interactions.pending_of(SESSION) is None


async def test_a_request_id_that_was_used_before_does_not_lose_a_question(lab: WorkLab) -> None:
    lab.loop_runs = True
    known: set[str] = set()
    for request_id in ("req_same", "req_same", "../etc"):
        asked = await lab.lab.dispatcher.dispatch(
            "kaged.checkpoint",
            {"message": "m"},
            replace(lab.lab.context, request_id=request_id, session_id=f"ses_{len(known)}"),
        )
        assert isinstance(asked, dict)
        known.add(str(asked["interaction_requested"]["request_id"]))  # type: ignore[index,call-overload]  # JSON
    assert len(known) == 3
    assert "../etc" not in known


async def test_of_many_questions_at_once_one_gets_through(lab: WorkLab) -> None:
    lab.loop_runs = True
    found = await asyncio.gather(
        *(lab.call("kaged.checkpoint", message=f"m{n}") for n in range(20)),
        return_exceptions=True,
    )
    refused = [one for one in found if isinstance(one, BaseException)]
    assert len(refused) == 19
    assert {getattr(one, "code", "") for one in refused} == {"interaction_pending"}


@requirement("AT-ASK-11")
async def test_a_question_outlives_the_daemon(tmp_path: Path, clock: ManualClock, ids: Ids) -> None:
    async with work_lab(tmp_path, clock, ids) as first:
        call, request_id = await asked(first, "kaged.ask", questions=QUESTIONS)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
    async with work_lab(tmp_path, clock, ids) as second:
        assert (await second.store.sessions.get(PROJECT, SESSION)).status == "checkpoint"
        refused = await second.refusal("kaged.checkpoint", message="m")
        assert refused.code == "interaction_pending"
        listed = await second.work.interactions.page(
            PROJECT, InteractionStatus.PENDING, 10, 0, OPERATOR
        )
        assert listed["total"] == 1
        waiting = second.tasks.start(second.work.interactions.wait(PROJECT, request_id), "wait")
        await answer(second, request_id, answers=ANSWERS)
        assert (await waiting)["answers"] == ANSWERS
        assert (await second.store.sessions.get(PROJECT, SESSION)).status == "idle"
        # Also when nobody waits at that moment, it is there to be fetched.
        assert (await second.work.interactions.wait(PROJECT, request_id))["answers"] == ANSWERS


async def test_a_question_is_answered_once(lab: WorkLab) -> None:
    call, request_id = await asked(lab, "kaged.checkpoint", message="m")
    done = await asyncio.gather(
        *(answer(lab, request_id, decision=CheckpointDecision.APPROVE) for _ in range(10)),
        return_exceptions=True,
    )
    assert [one for one in done if one is None] == [None]
    codes = {getattr(one, "code", "") for one in done if one is not None}
    assert codes == {"interaction_closed"}
    await call
    with pytest.raises(KagedError) as raised:
        await answer(lab, "req_none", decision=CheckpointDecision.APPROVE)
    assert raised.value.code == "interaction_not_found"
    with pytest.raises(KagedError) as raised:
        await lab.work.interactions.get("prj_2", request_id, OPERATOR)
    assert raised.value.code == "interaction_not_found"


async def test_a_withdrawn_question_ends_the_wait(lab: WorkLab) -> None:
    call, request_id = await asked(lab, "kaged.checkpoint", message="m")
    await lab.work.interactions.withdraw(PROJECT, request_id, "operator")
    with pytest.raises(KagedError) as raised:
        await call
    assert raised.value.code == "interaction_withdrawn"
    assert (await lab.store.sessions.get(PROJECT, SESSION)).status == "idle"


@requirement("AT-AUD-30")
async def test_pauses_are_on_record(lab: WorkLab) -> None:
    call, request_id = await asked(lab, "kaged.checkpoint", message="m")
    (found,) = lab.audit.of("kaged.interaction.requested")
    assert (found["request_id"], found["kind"], found["session_id"]) == (
        request_id, "checkpoint", SESSION,
    )  # fmt: skip
    assert request_id == lab.audit.of("tool.called")[0]["request_id"]
    await answer(lab, request_id, decision=CheckpointDecision.APPROVE)
    await call
    other = lab.other("primary.subagents.coder")
    refused = await other.refusal("kaged.ask", questions=QUESTIONS)
    assert refused.code == "principal_scope_violation"
