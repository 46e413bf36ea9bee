"""Commands in the background: a handle, later output by offset, and an end that comes surely."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from whole.harness.conversation import begin, say_to
from whole.harness.daemon import Daemon, wait_for
from whole.harness.model import ModelServer, call, say
from whole.harness.project import Project
from whole.harness.talk import fresh, tool_answers

CAGE = {"fs": [{"mode": "rw", "path": "."}], "capabilities": ["shell"]}


@pytest.fixture
def shop(daemon: Daemon, tmp_path: Path) -> Project:
    """Return a project whose agent has a cage with a shell, and a subagent that has one, too."""
    helper = {
        "model": "default",
        "system_prompt": "You help.",
        "cage": CAGE,
        "tools": {"shell.*": {"enabled": True}},
    }
    return daemon.load(Project(tmp_path / "shop", cage=CAGE, subagents={"helper": helper}))


def start(shop: Project, command: str, **more: Any) -> str:
    """Start a command in the background; returns its handle."""
    found = shop.call("shell.bash", command=command, background=True, **more)
    assert set(found) == {"stdout", "stderr", "handle"}
    return str(found["handle"])


def read(shop: Project, handle: str, **more: Any) -> dict[str, Any]:
    """Read what a command has written."""
    found: dict[str, Any] = shop.call("shell.jobs", action="read", handle=handle, **more)
    return found


def alive(mark: str) -> list[str]:
    """Return the processes of this machine that have a word in their command line."""
    found = []
    for one in Path("/proc").iterdir():
        if one.name.isdecimal() and int(one.name) != os.getpid():
            try:
                words = (one / "cmdline").read_bytes()
            except OSError:
                continue
            if mark.encode() in words:
                found.append(one.name)
    return found


def test_output_is_read_on_from_where_the_last_read_ended(shop: Project) -> None:
    handle = start(shop, "echo one; echo zwölf; until [ -e go ]; do sleep 0.05; done; echo last")
    wait_for(lambda: read(shop, handle)["output_bytes"] >= 10, "the first lines")
    first = read(shop, handle)
    assert (first["output"], first["running"]) == ("one\nzwölf\n", True)
    again = read(shop, handle, offset=first["next_offset"])
    assert (again["output"], again["next_offset"]) == ("", first["next_offset"])
    shop.write("go", "")
    end = read(shop, handle, offset=first["next_offset"], wait=30_000)
    assert (end["output"], end["running"], end["exit_code"]) == ("last\n", False, 0)
    assert not end["stopped"]


def test_a_command_is_listed_and_stopped_with_all_that_it_started(shop: Project) -> None:
    mark = fresh("marked").replace("-", "")
    handle = start(shop, f"sh -c 'sleep 600; : {mark}' & sh -c 'sleep 600; : {mark}'")
    wait_for(lambda: len(alive(mark)) >= 1, "the command")
    (listed,) = shop.call("shell.jobs")["commands"]
    assert (listed["handle"], listed["running"]) == (handle, True)
    done = shop.call("shell.jobs", action="stop", handle=handle)
    assert (done["running"], done["stopped"]) == (False, True)
    wait_for(lambda: not alive(mark), "its end")
    # Stopping it twice is no error, and what it wrote can still be read.
    assert shop.call("shell.jobs", action="stop", handle=handle)["stopped"]
    assert read(shop, handle)["output"] == ""


def test_turns_and_runs_pass_and_it_goes_on_until_its_session_is_gone(
    shop: Project, model: ModelServer
) -> None:
    word, mark = fresh("bg"), fresh("kept").replace("-", "")
    command = f"sh -c 'sleep 600; : {mark}'"
    model.play(word, call("shell.bash", command=command, background=True), say("Started."))
    session = begin(shop, current=False)
    assert say_to(shop, session, word)["status"] == "completed"
    later = fresh("later")
    model.play(later, call("shell.jobs"), say("Seen."))
    say_to(shop, session, later)
    (answer,) = [tool_answers(one)[-1] for one in model.asked(later) if tool_answers(one)][-1:]
    assert '"running":true' in answer
    assert alive(mark)
    # Whoever calls tools without that session does not have it.
    assert shop.call("shell.jobs")["commands"] == []
    shop.daemon.ask("DELETE", f"/projects/{shop.id}/sessions/{session}")
    wait_for(lambda: not alive(mark), "its end with the session")


def test_another_agent_of_the_session_does_not_know_the_handle(shop: Project) -> None:
    handle = start(shop, "sleep 600")
    helper = "primary.subagents.helper"
    error = shop.fail("shell.jobs", helper, action="read", handle=handle)
    assert error["code"] == "command_not_found"
    assert shop.call("shell.jobs", helper)["commands"] == []
    shop.call("shell.jobs", action="stop", handle=handle)


def test_a_session_has_eight_at_a_time(shop: Project) -> None:
    handles = [start(shop, "sleep 600") for _ in range(8)]
    error = shop.fail("shell.bash", command="sleep 600", background=True)
    assert error["code"] == "too_many_commands"
    shop.call("shell.jobs", action="stop", handle=handles[0])
    handles[0] = start(shop, "sleep 600")
    for one in handles:
        shop.call("shell.jobs", action="stop", handle=one)
    rows = shop.daemon.audit("shell.backgrounded", "shell.stopped", project_id=shop.id)
    names = [one["event"] for one in rows]
    assert (names.count("shell.backgrounded"), names.count("shell.stopped")) == (9, 9)


def test_unloading_the_project_ends_it(shop: Project) -> None:
    mark = fresh("unloaded").replace("-", "")
    start(shop, f"sh -c 'sleep 600; : {mark}'")
    wait_for(lambda: alive(mark), "the command")
    shop.daemon.ask("DELETE", f"/projects/{shop.id}")
    wait_for(lambda: not alive(mark), "its end with the project")


def test_it_ends_when_its_time_is_over(own: Callable[..., Daemon], tmp_path: Path) -> None:
    daemon = own(config="[tools.limits]\nbackground_seconds = 1\n")
    daemon.start()
    shop = daemon.load(Project(tmp_path / "short", cage=CAGE))
    handle = start(shop, "echo begun; sleep 600")
    end = read(shop, handle, wait=30_000)
    assert (end["running"], end["timed_out"], end["output"]) == (False, True, "begun\n")
