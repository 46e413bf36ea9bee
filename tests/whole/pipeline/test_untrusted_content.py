"""After untrusted content a call with effects waits for a person, switched on by one line."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from whole.harness.conversation import begin, ended, send
from whole.harness.daemon import Daemon, wait_for
from whole.harness.model import ModelServer, call, say
from whole.harness.project import Project

CALCULATOR = Path(__file__).parents[2] / "guests" / "mcp_tool_server.py"
LIBRARIES = next(one for one in sys.path if one.endswith("site-packages"))
SERVER = (
    f"[mcp.servers.calc]\ncommand = {json.dumps([sys.executable, str(CALCULATOR)])}\n"
    f'env = {{ PYTHONPATH = "{LIBRARIES}" }}\n'
    f'cage = {{ fs = [{{ mode = "ro", path = "{LIBRARIES}" }}, '
    f'{{ mode = "ro", path = "{CALCULATOR}" }}], limits = {{ memory_mb = 1024 }} }}\n'
)
OUTSIDE = call("calc.add", a=1, b=2)
READS = call("file.read", path="notes.txt")


def writes(name: str) -> dict[str, Any]:
    """Return a turn that writes a file."""
    return call("file.write", path=name, content="new\n")


def runs(daemon: Daemon) -> bool:
    """Return whether the outside server is there."""
    return any(one["state"] == "running" for one in daemon.get("/mcp/servers")["servers"])


@pytest.fixture(scope="module")
def daemon(module_path: Path, model: ModelServer) -> Iterator[Daemon]:
    """Yield a daemon with the one line, and an outside server."""
    config = f'[pipeline]\nuntrusted = "ask"\n{SERVER}'
    made = Daemon(module_path / "h", config=config, local=model.local_toml())
    made.start()
    wait_for(lambda: runs(made), "the server")
    yield made
    made.close()


@pytest.fixture(scope="module")
def desk(daemon: Daemon, module_path: Path) -> Project:
    """Return a project to work in."""
    made = daemon.load(Project(module_path / "desk"))
    made.write("notes.txt", "Nothing.\n")
    return made


def waiting(daemon: Daemon) -> list[dict[str, Any]]:
    """Return the calls that wait for a person."""
    found: list[dict[str, Any]] = daemon.get("/inbox?kind=call_approval&state=pending")["items"]
    return found


def started(project: Project, model: ModelServer, word: str, *turns: Any) -> tuple[str, str]:
    """Let an agent begin; returns the session and the run."""
    model.play(word, *turns, say("Done."))
    session = begin(project)
    return session, send(project, session, word)


def statuses(project: Project, session: str) -> dict[str, str]:
    """Return how the calls of a session that write files ended, by file."""
    rows = project.get(f"/sessions/{session}/tool-calls")["items"]
    return {
        str(one["params"]["path"]): str(one["status"])
        for one in rows
        if one["tool_name"] == "file.write"
    }


def test_without_untrusted_content_nobody_is_asked(
    daemon: Daemon, desk: Project, model: ModelServer
) -> None:
    session, run = started(desk, model, "heron-plain", READS, writes("plain.txt"))
    assert ended(desk, session, run)["status"] == "completed"
    assert statuses(desk, session) == {"plain.txt": "completed"}
    assert waiting(daemon) == []


def test_a_call_waits_and_each_answer_counts_for_what_it_says(
    daemon: Daemon, desk: Project, model: ModelServer
) -> None:
    names = ("one.txt", "two.txt", "three.txt", "four.txt")
    session, run = started(desk, model, "heron-waits", OUTSIDE, READS, *map(writes, names))
    (first,) = wait_for(lambda: waiting(daemon), "the first question")
    assert first["title"] == "Let primary call file.write?"
    assert "the session has read untrusted content" in first["details"][0]
    assert '"path": "one.txt"' in first["details"][1]
    assert first["choices"] == ["yes", "session", "no"]
    assert not (desk.root / "one.txt").exists()
    daemon.cli("inbox", "choose", first["id"], "no")
    (second,) = wait_for(lambda: waiting(daemon), "the second question")
    assert "two.txt" in second["details"][1]
    daemon.cli("inbox", "choose", second["id"], "yes")
    (third,) = wait_for(lambda: waiting(daemon), "the third question")
    assert "three.txt" in third["details"][1]
    daemon.cli("inbox", "choose", third["id"], "session")
    assert ended(desk, session, run)["status"] == "completed"
    assert statuses(desk, session) == {
        "one.txt": "denied",
        "two.txt": "completed",
        "three.txt": "completed",
        "four.txt": "completed",
    }
    assert [name for name in names if (desk.root / name).exists()] == [*names[1:]]
    denied = [one["data"] for one in daemon.audit("tool.denied")][-1]
    assert denied["denied_by"] == "untrusted-content"
    events = [one["data"]["kind"] for one in daemon.audit("inbox.answered")]
    assert events.count("call_approval") == 3


def test_an_answer_for_one_session_is_none_for_another(
    daemon: Daemon, desk: Project, model: ModelServer
) -> None:
    session, run = started(desk, model, "heron-other", OUTSIDE, writes("other.txt"))
    (asked,) = wait_for(lambda: waiting(daemon), "the question")
    wrong = daemon.cli("inbox", "choose", asked["id"], "maybe", code=None)
    assert wrong.code != 0
    assert "one of: yes, session, no" in wrong.err
    daemon.cli("inbox", "choose", asked["id"], "no")
    ended(desk, session, run)
    assert statuses(desk, session) == {"other.txt": "denied"}


def test_a_run_that_is_cancelled_takes_its_question_back(
    daemon: Daemon, desk: Project, model: ModelServer
) -> None:
    session, run = started(desk, model, "heron-cancel", OUTSIDE, writes("cancelled.txt"))
    (asked,) = wait_for(lambda: waiting(daemon), "the question")
    desk.post(f"/sessions/{session}/cancel")
    ended(desk, session, run)
    wait_for(lambda: waiting(daemon) == [], "the end of the question")
    again = daemon.cli("inbox", "choose", asked["id"], "yes", code=None)
    assert again.code != 0
    assert not (desk.root / "cancelled.txt").exists()


@pytest.mark.parametrize(("line", "words"), [('untrusted = "deny"', "has effects"), (
    'untrusted = "ask"\nask_seconds = 1', "nobody agreed in time")])  # fmt: skip
def test_it_is_refused_where_nobody_is_asked_or_nobody_answers(
    own: Callable[..., Daemon], tmp_path: Path, model: ModelServer, line: str, words: str
) -> None:
    made = own(config=f"[pipeline]\n{line}\n{SERVER}")
    made.start()
    wait_for(lambda: runs(made), "the server")
    project = made.load(Project(tmp_path / "p"))
    word = f"heron-{'deny' if 'deny' in line else 'late'}"
    session, run = started(project, model, word, OUTSIDE, writes("a.txt"))
    ended(project, session, run)
    assert statuses(project, session) == {"a.txt": "denied"}
    assert words in json.dumps(project.get(f"/sessions/{session}/tool-calls"))
    assert waiting(made) == []
