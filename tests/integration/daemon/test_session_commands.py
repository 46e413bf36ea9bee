"""`kaged session`, end to end with a real daemon."""

from __future__ import annotations

from pathlib import Path

import pytest

from fakes.commands import Commands, load_project
from fakes.running_daemon import DaemonProcess

EXPORT = (
    '{"format":"kaged-session","version":1,"session":{"id":"ses_OLD","kind":"primary",'
    '"title":"Brought along","model":"m","parent_session":null,"parent_entry":null,'
    '"created_at":"2025-01-01T00:00:00.000Z"}}\n'
    '{"id":"01JGFJJZ000000000000000000","ts":"2025-01-01T00:00:00.000Z","kind":"header",'
    '"agent":"primary","content":{"version":1,"cwd":"/","model":"m","system_prompt":""}}\n'
    '{"id":"01JGFJJZ01AAAAAAAAAAAAAAAA","ts":"2025-01-01T00:00:01.000Z","kind":"message",'
    '"agent":"primary","content":{"content":[{"type":"text",'
    '"text":"Where \\u001b[31m is the fox?"}]},"role":"user"}\n'
    '{"id":"01JGFJJZ02BBBBBBBBBBBBBBBB","ts":"2025-01-01T00:00:02.000Z","kind":"message",'
    '"agent":"primary","content":{"content":[{"type":"text","text":"Looking."},'
    '{"type":"tool_call","id":"c1","name":"search.text","input":{"pattern":"fox"}}]},'
    '"role":"assistant"}\n'
    '{"id":"01JGFJJZ03CCCCCCCCCCCCCCCC","ts":"2025-01-01T00:00:03.000Z","kind":"message",'
    '"agent":"primary","content":{"content":[{"type":"tool_result_block","call_id":"c1",'
    '"output":"in the den","is_error":false}]},"role":"tool_result"}\n'
    '{"entries":4}\n'
)


@pytest.fixture
def commands(shared: DaemonProcess, tmp_path: Path) -> Commands:
    """Return commands on a loaded project."""
    return load_project(shared, tmp_path / "sample")


def test_without_a_current_session_the_advice_helps(commands: Commands) -> None:
    """`kaged run` begins a session and leaves the current one as it is, so it is no advice."""
    nothing = commands.json("session", "fork", "--switch", expect=3)["error"]
    assert nothing["message"] == "This project has no current session."
    assert "`kaged chat`" in nothing["data"]["fix"]
    ran = commands.run("run", "do it")
    assert ran.returncode == 0, ran.stderr

    fix = commands.json("session", "fork", "--switch", expect=3)["error"]["data"]["fix"]
    assert "kaged run" not in fix
    (advice,) = [part for part in fix.split("`") if part.startswith("kaged session switch ")]
    assert commands.run(*advice.split()[1:]).returncode == 0
    moved = commands.json("session", "fork", "--switch")
    assert moved["current"] == moved["session"]["id"] != moved["from"]


def test_a_sessions_way_through_the_commands(commands: Commands) -> None:
    assert commands.json("session", "show", expect=3)["error"]["code"] == "session_not_found"
    file = commands.root / "old.jsonl"
    file.write_text(EXPORT, encoding="utf-8")
    taken = commands.json("session", "import", str(file))
    session = taken["session"]["id"]
    assert taken["imported_from"] == "ses_OLD"
    assert commands.run("session", "switch", session).stdout == f"Now in {session}.\n"

    shown = commands.run("session", "show").stdout
    assert "Brought along" in shown
    assert "\x1b" not in shown
    assert "→ search.text" in shown
    assert "← in the den" in shown
    assert len(commands.json("session", "show", session, "-n", "0")["entries_shown"]) == 4

    fork = commands.json("session", "fork", "--at", "01jgfjjz01")["session"]["id"]
    moved = commands.json("session", "fork", "--at", "01JGFJJZ02", "--switch")
    assert moved["current"] == moved["session"]["id"] != session
    listed = [line.split("\t") for line in commands.run("session", "list").stdout.splitlines()]
    assert {line[1] for line in listed} == {session, fork, moved["current"]}
    assert [line[1] for line in listed if line[0] == "*"] == [moved["current"]]
    refused = commands.json("session", "fork", "--at", "01JG", expect=7)["error"]
    assert refused["code"] == "entry_ambiguous"

    found = commands.run("session", "search", "fox").stdout
    assert found.startswith(f"{session}\t01JGFJJZ01AAAAAAAAAAAAAAAA\tuser\t2025-01-01 00:00:01\t")
    named = commands.run("session", "title", session, "Foxes").stdout
    assert named == f"{session} is called 'Foxes' now.\n"
    copy = commands.root / "copy.jsonl"
    commands.json("session", "export", session, str(copy))
    assert copy.stat().st_mode & 0o777 == 0o600
    assert commands.run("session", "export", session).stdout == copy.read_text(encoding="utf-8")
    file.write_text(EXPORT[:-3], encoding="utf-8")
    refused = commands.json("session", "import", str(file), expect=6)["error"]
    assert refused["code"] == "session_import_invalid"

    assert commands.run("session", "delete", session).stdout == f"Deleted {session}.\n"
    assert commands.json("session", "show", fork)["entries"] == 2
