"""Free ids in requests: entries, runs, sessions, sequence numbers and pages of a second person."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from whole.harness.daemon import wait_for
from whole.harness.model import ModelServer, call, say
from whole.harness.people import Guest
from whole.harness.project import Project
from whole.harness.talk import fresh

Come = Callable[..., Guest]


class _Talked(NamedTuple):
    """A person with a session in which something was done."""

    who: Guest
    session: str
    run: str
    word: str
    entries: list[str]
    export: list[dict[str, Any]]


@pytest.fixture
def talked(project: Project, model: ModelServer, guest: Come) -> Callable[[str], _Talked]:
    """Return who lets somebody talk in private, and in whose words a secret is."""

    def talk(name: str) -> _Talked:
        who, word = guest(fresh(name)), fresh("secret")
        file = f"{word}.txt"
        model.play(word, call("file.create", path=file, content=word), say(f"{word} is done."))
        place = f"/projects/{project.id}/sessions"
        session = str(who.post(place)["id"])
        run = str(who.post(f"{place}/{session}/message", {"text": f"{word} please"})["run_id"])

        def ended() -> bool:
            runs = who.get(f"{place}/{session}/runs")["items"]
            return [one["status"] for one in runs] == ["completed"]

        wait_for(ended, "the run")
        entries = [one["id"] for one in who.get(f"{place}/{session}/entries")["items"]]
        export = who.ask("GET", f"{place}/{session}/export").text.splitlines()
        return _Talked(who, session, run, word, entries, [json.loads(one) for one in export])

    return talk


def test_entries_of_others_are_no_place_to_fork_at_and_no_cursor(
    project: Project, talked: Callable[[str], _Talked]
) -> None:
    ann, bob = talked("ann"), talked("bob")
    place = f"/projects/{project.id}/sessions/{bob.session}"
    for entry in ann.entries:
        refusal = bob.who.refused("POST", f"{place}/fork", {"at": entry})
        assert refusal == (404, "entry_not_found")
        # A prefix of it is one of nobody's either.
        assert bob.who.refused("POST", f"{place}/fork", {"at": entry[:-2]})[0] in {404, 409}
        got = bob.who.ask("GET", f"{place}/entries?after={entry}&limit=500")
        assert ann.word not in got.text
        got = bob.who.ask("GET", f"{place}/entries?after={entry}&tail=true")
        assert ann.word not in got.text
    assert bob.who.get(f"/projects/{project.id}/sessions")["total"] == 1


def test_a_file_that_claims_to_continue_somebody_elses_session_shows_none_of_it(
    project: Project, talked: Callable[[str], _Talked]
) -> None:
    ann, bob = talked("ann"), talked("bob")
    place = f"/projects/{project.id}/sessions"
    for fault in ("parent", "ids", "id", "owner"):
        lines = json.loads(json.dumps(bob.export))
        text = "\n".join(map(json.dumps, lines))
        if fault == "parent":
            for one in lines:
                content = one.get("content")
                for holder in (one, content if isinstance(content, dict) else {}):
                    holder.update(parent_session=ann.session, parent_entry=ann.entries[-1])
            text = "\n".join(map(json.dumps, lines))
        elif fault == "ids":
            for own, hers in zip(bob.entries, ann.entries, strict=True):
                text = text.replace(own, hers)
        elif fault == "id":
            text = text.replace(bob.session, ann.session)
        else:
            for one in lines:
                one.update(owner=ann.who.person.user, chat_id=ann.who.person.chat_id)
            text = "\n".join(map(json.dumps, lines))
        got = bob.who.raw("POST", f"/api/v1{place}/import", content=text.encode())
        assert ann.word not in got.text, fault
        for one in bob.who.get(place)["items"]:
            shown = bob.who.ask("GET", f"{place}/{one['id']}/entries?limit=500").text
            assert ann.word not in shown, fault
    # Hers is as it was, and she sees nothing that he brought.
    listed = ann.who.get(place)["items"]
    assert [one["id"] for one in listed] == [ann.session]
    entries = ann.who.get(f"{place}/{ann.session}/entries")["items"]
    assert [one["id"] for one in entries] == ann.entries


def test_runs_and_sessions_of_others_are_not_undone_or_listed_by_their_ids(
    project: Project, talked: Callable[[str], _Talked]
) -> None:
    ann, bob = talked("ann"), talked("bob")
    place = f"/projects/{project.id}/undo"
    for query in (
        f"?session_id={ann.session}",
        f"?run_id={ann.run}",
        f"?session_id={ann.session[:9]}",
    ):
        got = bob.who.ask("GET", f"{place}{query}")
        assert ann.word not in got.text, query
        assert got.is_error or got.json()["steps"] == [], query
    for body in (
        {"session_id": ann.session},
        {"run_id": ann.run},
        {"session_id": bob.session, "run_id": ann.run},
        {"session_id": ann.session, "run_id": bob.run},
    ):
        got = bob.who.ask("POST", place, body)
        assert ann.word not in got.text, body
        assert (project.root / f"{ann.word}.txt").exists(), body
    assert (project.root / f"{bob.word}.txt").exists()
    # With no id at all it is his own last step.
    done = bob.who.post(place, {})
    assert [one["path"] for one in done["files"]] == [f"./{bob.word}.txt"]
    assert (project.root / f"{ann.word}.txt").exists()


def test_old_sequence_numbers_and_topics_of_others_bring_none_of_their_events(
    project: Project, talked: Callable[[str], _Talked]
) -> None:
    ann, bob = talked("ann"), talked("bob")
    for query in (
        "?after=0",
        f"?after=0&topics=session:{ann.session}",
        f"?after=0&topics=session:{ann.session},session:{bob.session}",
        "?after=0&topics=audit,tool,project,daemon,attention",
    ):
        with bob.who.listening(query) as heard:
            later = talked("later")
            word = fresh("mine")
            wanted = "topics" not in query or bob.session in query
            place = f"/projects/{project.id}/sessions"
            bob.who.ask("PATCH", f"{place}/{bob.session}", {"title": word})
            if wanted:
                events = heard.until(lambda event, word=word: word in json.dumps(event))
            else:
                # What he asked for has nothing for him; a mark or the end of the wait tells so.
                events = heard.until_quiet(1.0)
        told = json.dumps(events)
        for other in (ann, later):
            assert other.word not in told, query
            assert other.session not in told, query


def test_pages_and_inbox_numbers_of_others_are_nobodys(
    project: Project, model: ModelServer, guest: Come
) -> None:
    ann, bob, word = guest(fresh("ann")), guest(fresh("bob")), fresh("question")
    question = {"questions": [{"id": "q", "title": f"{word}?", "options": ["yes", "no"]}]}
    model.play(word, call("kaged.ask", **question), say("On."))
    session = str(ann.post(f"/projects/{project.id}/sessions")["id"])
    ann.post(f"/projects/{project.id}/sessions/{session}/message", {"text": f"{word} please"})
    wait_for(lambda: ann.get("/inbox")["items"], "the question")
    [asked] = ann.get("/inbox")["items"]
    own = ann.get("/inbox?limit=1")
    for cursor in {own.get("next_cursor"), asked["id"], "0", "1"} - {None}:
        for name in ("cursor", "offset", "after"):
            got = bob.ask("GET", f"/inbox?{name}={cursor}&limit=1")
            assert word not in got.text, (name, cursor)
            assert asked["id"] not in got.text.replace(str(cursor), ""), (name, cursor)
    for answer in ({"answer": {"q": "yes"}}, {"choice": "yes"}, {"answers": {"q": "yes"}}):
        got = bob.ask("POST", f"/inbox/{asked['id']}/answer", answer)
        assert got.status_code in {404, 422}, got.text
        assert word not in got.text
    assert ann.get(f"/inbox/{asked['id']}")["state"] == "pending"
