"""The store's queries select exactly what the kernel's decision allows."""

from __future__ import annotations

import contextlib
import itertools

from fakes.store_home import StoreHome
from kaged.kernel.identity import Actor, VouchedBy
from kaged.kernel.ownership import AccessAction, Audience, Ownership, may, may_answer
from kaged.sessions.lifecycle import Lifecycle
from kaged.sessions.transcript import Transcript
from kaged.store.inbox_rows import RequestDraft, RequestFilter, RequestKind
from kaged.store.run_rows import RunDraft
from kaged.store.work_errors import RunNotFound, SessionNotFound

PEOPLE = ("ann", "bob", "")
PROJECTS = (None, frozenset({"prj_1"}), frozenset({"prj_2"}), frozenset[str]())
CHATS = (None, "c-1", "c-2")
ACTORS = [
    Actor.operator("op", VouchedBy.UNIX),
    Actor.operator(None, VouchedBy.INSECURE),
    *(
        Actor(name, VouchedBy.BEARER, chat_type, chat_id, is_person=True)
        for name, chat_type, chat_id in itertools.product(PEOPLE, (None, "private", "group"), CHATS)
    ),
    *(
        Actor("ann", VouchedBy.BEARER, "private", "c-1", is_person=True, projects=projects)
        for projects in PROJECTS
    ),
    *(
        Actor("bob", VouchedBy.BEARER, "group", "c-1", is_person=True, projects=projects)
        for projects in PROJECTS
    ),
]
THINGS = [
    Ownership(*one, "prj_1") for one in itertools.product((None, *PEOPLE), CHATS, tuple(Audience))
]


async def test_lists_and_look_ups_of_sessions_agree_with_the_decision(home: StoreHome) -> None:
    store = await home.store()
    transcript = Transcript(store, Lifecycle(), clock=home.clock, ids=home.ids)
    made = {
        (await transcript.create("prj_1", cwd="/", model=None, ownership=thing)).id: thing
        for thing in THINGS
    }
    for actor in ACTORS:
        allowed = {id_ for id_, thing in made.items() if may(actor, AccessAction.SEE, thing)}
        listed, total = await store.sessions.page("prj_1", None, 200, 0, actor)
        family = await store.sessions.family("prj_1", 200, actor)
        assert {one.id for one in listed} == {one.id for one in family} == allowed, actor
        assert total == len(allowed)
        found: set[str] = set()
        for id_ in made:
            try:
                found.add((await store.sessions.beginning_with("prj_1", id_, actor)).id)
            except SessionNotFound:
                continue
        assert found == allowed, actor
        for action in AccessAction:
            allowed = {id_ for id_, thing in made.items() if may(actor, action, thing)}
            assert await store.sessions.allowed(made, actor, action) == allowed, (actor, action)
    assert len((await store.sessions.page("prj_1", None, 200, 0))[0]) == len(THINGS)


async def test_lists_of_requests_agree_with_the_decision(home: StoreHome) -> None:
    store = await home.store()
    asked = dict(enumerate(itertools.product((None, *PEOPLE), CHATS)))
    for number, (owner, chat) in asked.items():
        await store.inbox.add(
            RequestDraft(
                f"ask_{number}", RequestKind.QUESTION, "?", owner=owner, asked_in=chat,
                subject={"run_id": "r", "caller": "primary", "payload": {}},
                project_id="prj_1", chat_id="ses_1", slot=f"slot-{number}",
            )
        )  # fmt: skip
    for actor in ACTORS:
        allowed = {f"ask_{id_}" for id_, (owner, chat) in asked.items()
                   if may_answer(actor, owner, chat, "prj_1")}  # fmt: skip
        wanted = RequestFilter(actor=actor)
        listed, total = await store.inbox.page(wanted, 100, 0)
        questions, _ = await store.interactions.page("prj_1", None, 100, 0, actor)
        assert {one.id for one in listed} == {one.request_id for one in questions} == allowed
        assert total == len(allowed)
        assert {one.id for one in listed if wanted.takes(one)} == allowed


async def test_workflow_runs_are_listed_and_found_as_the_decision_says(home: StoreHome) -> None:
    store = await home.store()
    draft = RunDraft("prj_1", "report", {}, "guest", "x", 60)
    made = {(await store.runs.create(draft, thing)).run_id: thing for thing in THINGS}
    for actor in ACTORS:
        allowed = {id_ for id_, thing in made.items() if may(actor, AccessAction.SEE, thing)}
        listed, total = await store.runs.page("prj_1", 200, 0, actor)
        assert {one.run_id for one in listed} == allowed, actor
        assert total == len(allowed)
    for actor, action in itertools.product(ACTORS[-8:], AccessAction):
        found: set[str] = set()
        for id_ in made:
            with contextlib.suppress(RunNotFound):
                found.add((await store.runs.get("prj_1", id_, actor, action)).run_id)
        assert found == {id_ for id_, thing in made.items() if may(actor, action, thing)}
