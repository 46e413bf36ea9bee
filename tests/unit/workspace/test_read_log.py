"""What an agent has seen, and what that is good for. And who hears of it: the change feed."""

from __future__ import annotations

import pytest
import structlog

from kaged.workspace import ChangeFeed, ChangeKind, FileChange, ProjectPath, ReadLog
from kaged.workspace.errors import FileChangedSinceRead, FileNotRead

PATH = ProjectPath("./a", "/p/a", "a")


def test_only_the_content_that_was_seen_counts() -> None:
    log = ReadLog()
    with pytest.raises(FileNotRead, match=r"^Read the file before overwriting it\.$"):
        log.require("s", "primary", PATH, "1")
    log.note("s", "primary", "/p/a", "1")
    log.require("s", "primary", PATH, "1")
    with pytest.raises(FileChangedSinceRead):
        log.require("s", "primary", PATH, "2")
    log.note("s", "primary", "/p/a", "2")
    log.require("s", "primary", PATH, "2")


def test_sessions_and_agents_are_apart() -> None:
    log = ReadLog()
    log.note("s", "primary", "/p/a", "1")
    for session_id, caller in (("s", "primary.subagents.x"), ("t", "primary")):
        with pytest.raises(FileNotRead):
            log.require(session_id, caller, PATH, "1")
    log.note("t", "primary", "/p/a", "1")
    log.forget_session("s")
    assert log.sha_of("s", "primary", "/p/a") is None
    assert log.sha_of("t", "primary", "/p/a") == "1"
    assert len(log) == 1


def test_the_log_is_bounded_and_forgets_the_oldest() -> None:
    log = ReadLog(max_records=3)
    log.note("old", "primary", "/p/1", "x")
    log.note("old", "primary", "/p/2", "x")
    log.note("new", "primary", "/p/3", "x")
    log.note("new", "primary", "/p/4", "x")
    assert len(log) == 3
    assert log.sha_of("old", "primary", "/p/1") is None
    assert log.sha_of("old", "primary", "/p/2") == "x"
    log.note("new", "primary", "/p/5", "x")
    log.note("new", "primary", "/p/6", "x")
    assert log.sha_of("new", "primary", "/p/3") is None
    assert len(log) == 3


def test_reading_again_makes_a_record_young() -> None:
    log = ReadLog(max_records=2)
    log.note("s", "c", "/p/1", "x")
    log.note("s", "c", "/p/2", "x")
    log.note("s", "c", "/p/1", "y")
    log.note("s", "c", "/p/3", "x")
    assert log.sha_of("s", "c", "/p/1") == "y"
    assert log.sha_of("s", "c", "/p/2") is None


def test_every_listener_hears_every_change_even_if_one_breaks() -> None:
    feed = ChangeFeed()
    heard: list[FileChange] = []

    def broken(change: FileChange) -> None:
        raise RuntimeError("listener")

    feed.subscribe(broken)
    unsubscribe = feed.subscribe(heard.append)
    change = FileChange(ChangeKind.CHANGED, PATH, "1", b"x")
    with structlog.testing.capture_logs() as logs:
        feed.publish(change)
    assert heard == [change]
    assert [entry["path"] for entry in logs] == ["./a"]
    unsubscribe()
    unsubscribe()
    with structlog.testing.capture_logs():
        feed.publish(change)
    assert len(heard) == 1
