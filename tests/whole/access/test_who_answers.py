"""Where the questions of refused calls reach people: commands, terminals, chats of theirs, MCP."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from whole.access.conftest import Asking, reads
from whole.harness.conversation import ended
from whole.harness.daemon import Daemon, wait_for
from whole.harness.model import say
from whole.harness.people import FRONT_END, Guest, Person
from whole.harness.plugin_terminal import at_terminal
from whole.harness.talk import fresh

NOTES = "notes/n.txt"
WAITING = 9


def test_run_without_a_terminal_says_how_to_answer_and_leaves(asking: Asking) -> None:
    word = fresh("pipe")
    asking.model.play(word, reads(NOTES), say("It says the notes."))
    where = ("-p", str(asking.project.root))
    done = asking.daemon.cli("run", word, *where, code=WAITING)
    one = asking.question()
    assert one["title"] in done.err
    assert f"kaged answer {one['id']} --choose once|run|session|always|no" in done.err
    listed = asking.daemon.cli("inbox").out
    assert f"kaged answer {one['id']} --choose once" in listed
    assert one["id"] in asking.daemon.cli("answer", *where, code=WAITING).out
    answered = asking.daemon.cli("answer", one["id"], "--choose", "once", "--follow", *where)
    assert "It says the notes." in answered.out
    assert asking.waiting() == []


def test_run_at_a_terminal_asks_there(asking: Asking) -> None:
    word = fresh("tty")
    asking.model.play(word, reads(NOTES), say("It says the notes."))
    words = ("run", word, "-p", str(asking.project.root))
    code, screen = at_terminal(asking.daemon, *words, answer="session", question="press Enter.")
    assert code == 0, screen
    assert "read ./notes/n.txt" in screen
    assert "+      - { mode: ro, path: notes/n.txt }" in screen
    assert "It says the notes." in screen


def test_chat_asks_as_well(asking: Asking) -> None:
    word = fresh("chat")
    asking.model.play(word, reads(NOTES), say("It says the notes."))
    words = ("chat", "--new", "-p", str(asking.project.root))
    seen = chat(
        asking.daemon, words, [("> ", word), ("press Enter.", "once"), ("completed", "/quit")]
    )
    assert "It says the notes." in seen


def chat(daemon: Daemon, words: tuple[str, ...], script: list[tuple[str, str]]) -> str:
    """Type into a command on a terminal what belongs to each thing that it shows."""
    import os
    import pty
    import select
    import subprocess

    from whole.harness.daemon import KAGED, PATIENCE_S

    Daemon.spoken += 1
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [KAGED, *words],
        env={**daemon.env, "NO_COLOR": "1", "TERM": "dumb", "COLUMNS": "200"},
        cwd=daemon.home,
        stdin=follower,
        stdout=follower,
        stderr=follower,
        close_fds=True,
    )
    os.close(follower)
    text, seen = "", 0
    while True:
        ready, _, _ = select.select([leader], [], [], PATIENCE_S)
        assert ready, text
        try:
            piece = os.read(leader, 65536)
        except OSError:
            break
        if not piece:
            break
        text += piece.decode("utf-8", "replace")
        if script and script[0][0] in text[seen:]:
            seen = len(text)
            os.write(leader, f"{script.pop(0)[1]}\n".encode())
    os.close(leader)
    assert process.wait(PATIENCE_S) == 0, text
    return text


def test_a_person_is_asked_and_nobody_else_may_answer(
    own: Callable[..., Daemon], asking_on: Callable[..., Asking]
) -> None:
    daemon = own(config=FRONT_END)
    daemon.start()
    asking = asking_on(daemon)
    ann = Guest(daemon, Person("ann", "private", "p-ann"))
    bob = Guest(daemon, Person("bob", "private", "p-bob"))
    place = f"/projects/{asking.project.id}/sessions"

    def tell(session: str) -> str:
        word = fresh("annasks")
        asking.model.play(word, reads(NOTES), say("Done."))
        return str(ann.post(f"{place}/{session}/message", {"text": word})["run_id"])

    session = str(ann.post(place, {})["id"])
    run = tell(session)
    (one,) = wait_for(lambda: ann.get("/inbox?kind=access&state=pending")["items"], "hers")
    # What a project file asks for is the operator's to agree to.
    assert one["choices"] == ["once", "run", "session", "no"]
    assert not any("always:" in line and "by this change" in line for line in one["details"])
    answer = {"digest": one["digest"], "answer": {"choice": "session"}}
    assert bob.get("/inbox?kind=access")["items"] == []
    assert bob.refused("POST", f"/inbox/{one['id']}/answer", answer)[0] == 404
    wrong = {"digest": one["digest"], "answer": {"choice": "always"}}
    assert ann.refused("POST", f"/inbox/{one['id']}/answer", wrong)[1] == "inbox_answer_invalid"
    ann.post(f"/inbox/{one['id']}/answer", answer)
    assert ended(asking.project, session, run)["status"] == "completed"

    # It is hers, in her session: what the operator does in the same one asks anew.
    granted = ann.get(f"{place}/{session}/grants")["items"]
    assert [(got["owner"], got["granted_by"]) for got in granted] == [("ann", "ann")]
    run = tell(session)
    assert ended(asking.project, session, run)["status"] == "completed"
    assert ann.get("/inbox?kind=access&state=pending")["items"] == []
    word = fresh("operator")
    asking.model.play(word, reads(NOTES), say("Done."))
    run = str(daemon.post(f"{place}/{session}/message", {"text": word})["run_id"])
    one = asking.question()
    assert one["owner"] is None
    assert ann.get("/inbox?kind=access&state=pending")["items"] == []
    asking.answer(one, "no")
    assert ended(asking.project, session, run)["status"] == "completed"
    # She takes back what is hers; nobody else's session is there for others.
    assert bob.refused("GET", f"{place}/{session}/grants")[0] == 404
    gone = ann.raw("DELETE", f"/api/v1{place}/{session}/grants/{granted[0]['id']}")
    assert gone.json() == {"taken_back": True}
    assert ann.get(f"{place}/{session}/grants")["items"] == []
    ann.close()
    bob.close()


def test_json_output_says_that_it_waits(asking: Asking) -> None:
    word = fresh("json")
    asking.model.play(word, reads(NOTES), say("Done."))
    done = asking.daemon.cli("run", word, "--json", "-p", str(asking.project.root), code=WAITING)
    events: list[dict[str, Any]] = [json.loads(line) for line in done.out.splitlines()]
    one = asking.question()
    assert [got["id"] for got in events if got["event"] == "attention.required"] == [one["id"]]
    assert events[-1]["event"] == "run.result"
    assert events[-1]["status"] == "paused"
    asking.answer(one, "no")
