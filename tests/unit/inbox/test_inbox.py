"""The inbox: one answer, by the right person, to exactly what was shown."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from fakes.store_home import StoreHome
from kaged.audit import AuditEvent
from kaged.base import Ids, JsonObject, KagedError, ManualClock, Tasks
from kaged.inbox import (
    NO,
    YES,
    AnsweredBy,
    CheckedAnswer,
    Inbox,
    InboxRequest,
    RequestDraft,
    RequestFilter,
    RequestKind,
    RequestPending,
    RequestState,
    chosen_yes,
)
from kaged.kernel.identity import Actor, VouchedBy

OPERATOR = Actor.operator("op", VouchedBy.UNIX)
EVERYTHING = RequestFilter()


def person(name: str) -> Actor:
    return Actor(name, VouchedBy.BEARER, is_person=True)


class Lab:
    """An inbox on a real store with one kind that is stored and one that is held."""

    def __init__(self, home: StoreHome, inbox_rows: Any, clock: ManualClock) -> None:
        self.home = home
        self.clock = clock
        self.recorded: list[AuditEvent] = []
        self.announced: list[tuple[str, JsonObject]] = []
        self.heard: list[InboxRequest] = []
        self.discarded = 0
        self.begun = asyncio.Event()
        self.go_on = asyncio.Event()
        self.go_on.set()
        self.done = asyncio.Event()
        self.inbox = Inbox(
            inbox_rows,
            record=self._record,
            post=self.recorded.append,
            announce=lambda name, data: self.announced.append((name, data)),
            clock=clock,
        )
        self.inbox.register(self, RequestKind.ACCOUNT_APPROVAL, RequestKind.TRUST)

    async def check(self, request: InboxRequest, answer: Any) -> CheckedAnswer:
        return CheckedAnswer({"yes": chosen_yes(request, answer)}, discard=self._discard)

    async def on_answer(self, request: InboxRequest, by: AnsweredBy) -> None:
        self.begun.set()
        await self.go_on.wait()
        self.heard.append(request)
        self.done.set()

    def event(self, request: InboxRequest) -> JsonObject:
        return {"own": request.id}

    async def _record(self, event: AuditEvent) -> None:
        self.recorded.append(event)

    async def _discard(self) -> None:
        self.discarded += 1

    def names(self) -> list[str]:
        return [one.name for one in self.recorded]

    async def code_of(self, answering: Any) -> str:
        with pytest.raises(KagedError) as caught:
            await answering
        return caught.value.code


def draft(**changes: Any) -> RequestDraft:
    fields: dict[str, Any] = {
        "id": "req_1",
        "kind": RequestKind.ACCOUNT_APPROVAL,
        "title": "Send a mail?",
        "details": ["to: bob"],
        "choices": (YES, NO),
        "owner": "alice",
    }
    return RequestDraft(**{**fields, **changes})


@pytest.fixture
async def lab(tmp_path: Path, clock: ManualClock, ids: Ids) -> AsyncGenerator[Lab]:
    home = StoreHome(tmp_path, clock, ids)
    store = await home.store()
    made = Lab(home, store.inbox, clock)
    yield made
    await made.inbox.close()
    await home.close()


async def ask(lab: Lab, **changes: Any) -> InboxRequest:
    made = await lab.inbox.ask(draft(**changes))
    assert made is not None
    return made


async def test_a_request_is_asked_answered_and_carried_out_once(lab: Lab) -> None:
    made = await ask(lab)
    closed = await lab.inbox.answer(made.id, person("alice"), made.digest, {"choice": YES})
    assert (closed.state, closed.answer, closed.answered_by) == (
        RequestState.ANSWERED, {"yes": True}, "alice",
    )  # fmt: skip
    assert lab.heard == [closed]
    assert lab.names() == ["inbox.asked", "inbox.answered"]
    assert [name for name, _ in lab.announced] == ["attention.required", "attention.ended"]
    assert "details" not in lab.announced[0][1]
    again = lab.inbox.answer(made.id, person("alice"), made.digest, {"choice": NO})
    assert await lab.code_of(again) == "inbox_request_closed"
    assert lab.heard == [closed]


@pytest.mark.parametrize("held", [False, True])
async def test_of_two_answers_at_once_one_wins(lab: Lab, held: bool) -> None:
    made = lab.inbox.hold(draft()) if held else await ask(lab)
    both = await asyncio.gather(
        *(lab.inbox.answer(made.id, OPERATOR, made.digest, {"choice": one}) for one in (YES, NO)),
        return_exceptions=True,
    )
    assert sorted(getattr(one, "code", type(one).__name__) for one in both) == [
        "InboxRequest", "inbox_request_closed",
    ]  # fmt: skip
    assert len(lab.heard) == 1
    assert lab.names() == ["inbox.asked", "inbox.answered"]


async def test_an_answer_to_something_else_is_refused(lab: Lab) -> None:
    shown = await ask(lab)
    asked = await lab.inbox.ask_again(draft(details=["to: mallory"]))
    assert asked.digest != shown.digest
    late = lab.inbox.answer(shown.id, OPERATOR, shown.digest, {"choice": YES})
    assert await lab.code_of(late) == "inbox_request_changed"
    assert (await lab.inbox.get(shown.id, OPERATOR)).state is RequestState.PENDING
    assert lab.heard == []


@pytest.mark.parametrize(
    "changes",
    [
        {"title": "Another?"},
        {"details": []},
        {"choices": (YES,)},
        {"subject": {"a": 1}},
        {"owner": "bob"},
        {"project_id": "prj_1"},
        {"chat_id": "c"},
        {"kind": RequestKind.TRUST},
        {"answer_schema": {}},
    ],
)
def test_the_digest_covers_everything_that_a_yes_means(changes: dict[str, Any]) -> None:
    assert draft(**changes).digest != draft().digest
    assert draft(id="req_2", slot="elsewhere", expires_at_ms=1).digest == draft().digest


async def test_an_answer_is_carried_out_though_whoever_gave_it_hung_up(lab: Lab) -> None:
    made = await ask(lab)
    lab.go_on.clear()
    answer = lab.inbox.answer(made.id, OPERATOR, made.digest, {"choice": YES})
    answering = Tasks("test").start(answer, "answer")
    await lab.begun.wait()
    answering.cancel()
    with pytest.raises(asyncio.CancelledError):
        await answering
    lab.go_on.set()
    await lab.done.wait()
    assert [one.answer for one in lab.heard] == [{"yes": True}]


async def test_an_answer_that_does_not_fit_changes_nothing(lab: Lab) -> None:
    made = await ask(lab)
    wrong = lab.inbox.answer(made.id, OPERATOR, made.digest, {"choice": "maybe"})
    assert await lab.code_of(wrong) == "inbox_answer_invalid"
    assert (await lab.inbox.get(made.id, OPERATOR)).state is RequestState.PENDING


@pytest.mark.parametrize("held", [False, True])
async def test_what_has_expired_cannot_be_answered(lab: Lab, held: bool) -> None:
    due = draft(expires_at_ms=lab.clock.now_ms() + 1000)
    made = lab.inbox.hold(due) if held else await lab.inbox.ask(due)
    assert made is not None
    lab.clock.advance(1.0)
    late = lab.inbox.answer(made.id, OPERATOR, made.digest, {"choice": YES})
    assert await lab.code_of(late) == "inbox_request_closed"
    found, total = await lab.inbox.list(OPERATOR, EVERYTHING, 10, 0)
    assert [one.state for one in found] == [RequestState.EXPIRED]
    assert total == 1
    await lab.inbox.expire()
    assert lab.names() == ["inbox.asked", "inbox.expired"]
    assert [one.state for one in lab.heard] == [RequestState.EXPIRED]


async def test_what_was_withdrawn_cannot_be_answered(lab: Lab) -> None:
    made = await ask(lab)
    await lab.inbox.withdraw(made.id, AnsweredBy("op"))
    late = lab.inbox.answer(made.id, OPERATOR, made.digest, {"choice": YES})
    assert await lab.code_of(late) == "inbox_request_closed"
    assert lab.names() == ["inbox.asked", "inbox.withdrawn"]


async def test_another_person_neither_sees_nor_answers_a_request(lab: Lab) -> None:
    made = await ask(lab)
    await ask(lab, id="req_2", owner=None)
    for stranger in (person("bob"), Actor(None, VouchedBy.BEARER, is_person=True)):
        assert await lab.inbox.list(stranger, EVERYTHING, 10, 0) == ([], 0)
        for request_id in (made.id, "req_2"):
            tried = lab.inbox.answer(request_id, stranger, made.digest, {"choice": YES})
            assert await lab.code_of(tried) == "inbox_request_not_found"
    assert lab.heard == []
    found, total = await lab.inbox.list(person("alice"), EVERYTHING, 10, 0)
    assert ([one.id for one in found], total) == (["req_1"], 1)
    assert (await lab.inbox.list(OPERATOR, EVERYTHING, 10, 0))[1] == 2


async def test_one_request_waits_in_a_slot(lab: Lab) -> None:
    made = await ask(lab, slot="here")
    with pytest.raises(RequestPending):
        await ask(lab, id="req_2", slot="here")
    await lab.inbox.answer(made.id, OPERATOR, made.digest, {"choice": NO})
    assert (await ask(lab, id="req_2", slot="here")).state is RequestState.PENDING


async def test_what_is_held_and_what_is_stored_is_one_list(lab: Lab) -> None:
    for number in range(3):
        lab.clock.advance(1.0)
        await ask(lab, id=f"stored_{number}")
        lab.inbox.hold(draft(id=f"held_{number}", kind=RequestKind.TRUST, project_id="prj_1"))
    seen: list[str] = []
    for offset in (0, 2, 4, 6):
        found, total = await lab.inbox.list(OPERATOR, EVERYTHING, 2, offset)
        seen += [one.id for one in found]
        assert total == 6
    assert seen == ["held_2", "held_1", "held_0", "stored_2", "stored_1", "stored_0"]
    trust = RequestFilter(kinds=(RequestKind.TRUST,), project_id="prj_1")
    assert (await lab.inbox.list(OPERATOR, trust, 10, 0))[1] == 3


async def test_stored_requests_outlive_the_process_and_held_ones_do_not(lab: Lab, ids: Ids) -> None:
    made = await ask(lab)
    lab.inbox.hold(draft(id="held"))
    await lab.home.close()
    second = Lab(lab.home, (await lab.home.store()).inbox, lab.clock)
    found, _ = await second.inbox.list(OPERATOR, EVERYTHING, 10, 0)
    assert [one.id for one in found] == [made.id]
    await second.inbox.answer(made.id, OPERATOR, made.digest, {"choice": YES})
    assert second.heard[0].answer == {"yes": True}
