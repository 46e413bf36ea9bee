"""Log lines: one format for all, without secrets."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from kaged.base import ManualClock
from kaged.config import log_setup
from kaged.config.coresections import LogFormat, LogLevel
from kaged.config.log_folding import BURST_BYTES, MAX_SHARES, LogFolding
from kaged.config.log_setup import configure_logging, redact


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    # The handlers of the test run itself must survive what is tested here.
    root.handlers[:] = []
    yield
    for handler in root.handlers:
        handler.close()
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


def _lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_our_lines_and_those_of_libraries_are_json_in_one_file(tmp_path: Path) -> None:
    configure_logging(LogLevel.INFO, LogFormat.JSON, tmp_path / "log")
    structlog.get_logger("kaged.x").info("hello", count=5)
    logging.getLogger("some.library").warning("told %s", "so")
    mine, theirs = _lines(tmp_path / "log")
    assert (mine["event"], mine["count"], mine["logger"]) == ("hello", 5, "kaged.x")
    assert (theirs["event"], theirs["level"]) == ("told so", "warning")


def test_the_level_is_kept(tmp_path: Path) -> None:
    configure_logging(LogLevel.WARNING, LogFormat.JSON, tmp_path / "log")
    structlog.get_logger("kaged.x").info("quiet")
    structlog.get_logger("kaged.x").warning("loud")
    assert [line["event"] for line in _lines(tmp_path / "log")] == ["loud"]


def test_the_file_is_for_its_owner_only(tmp_path: Path) -> None:
    configure_logging(LogLevel.INFO, LogFormat.JSON, tmp_path / "log")
    assert (tmp_path / "log").stat().st_mode & 0o077 == 0


def test_a_link_in_place_of_the_log_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "target").touch()
    (tmp_path / "log").symlink_to(tmp_path / "target")
    with pytest.raises(OSError, match="symbolic"):
        configure_logging(LogLevel.INFO, LogFormat.JSON, tmp_path / "log")


def test_secrets_are_taken_out_by_key_and_by_shape() -> None:
    line = redact(
        None,
        "info",
        {
            "event": "sent Authorization: Bearer abcdefghijklmnop",
            "api_key": "sk-live",
            "nested": {"password": "hunter2", "fine": "yes"},
            "listed": [{"token": "t0k3n"}],
            "number": 5,
        },
    )
    text = str(line)
    for secret in ("abcdefghijklmnop", "sk-live", "hunter2", "t0k3n"):
        assert secret not in text
    assert line["nested"]["fine"] == "yes"
    assert line["number"] == 5


def test_a_line_is_bounded_whatever_it_is_given() -> None:
    deep: dict[str, Any] = {}
    inner = deep
    for _ in range(100):
        inner["x"] = {}
        inner = inner["x"]
    line = redact(
        None, "info", {"event": "x" * 100_000, "many": list(range(100_000)), "deep": deep}
    )
    assert len(str(line)) < 10_000


def test_an_object_is_shown_by_its_type() -> None:
    class Holder:
        def __repr__(self) -> str:
            return "secret inside"

    assert redact(None, "info", {"event": "x", "thing": Holder()})["thing"] == "<Holder>"


def test_an_exception_is_logged_without_the_secret_in_it(tmp_path: Path) -> None:
    configure_logging(LogLevel.INFO, LogFormat.JSON, tmp_path / "log")
    try:
        raise ValueError("password=hunter2secret")
    except ValueError:
        structlog.get_logger("kaged.x").exception("failed")
    text = (tmp_path / "log").read_text(encoding="utf-8")
    assert "ValueError" in text
    assert "hunter2secret" not in text


def test_a_guest_has_its_share_of_the_log_and_the_next_line_says_how_many_were_left_out(
    clock: ManualClock,
) -> None:
    folding = LogFolding(clock)

    def passes(**line: object) -> dict[str, object] | None:
        try:
            return dict(folding(None, "info", {"event": "plugin.stderr", **line}))
        except structlog.DropEvent:
            return None

    loud = [passes(plugin="loud", line="x" * 1000) for _ in range(500)]
    written = [one for one in loud if one is not None]
    assert len(written) == BURST_BYTES // (150 + 1000 + len("plugin.stderr") + len("loud"))
    assert all("left_out" not in one for one in written)
    assert passes(plugin="quiet", line="x") is not None  # a second guest
    assert passes(event="plugin.ended", plugin="loud") is not None  # a second kind
    assert passes(path="/x") is not None  # nobody's
    clock.set_wall(0)
    assert passes(plugin="loud", line="x" * 1000) is None
    clock.advance(1.0)
    again = passes(plugin="loud", line="x" * 1000)
    assert again is not None
    assert again["left_out"] == 500 - len(written) + 1
    once_more = [passes(plugin="loud", line="x" * 1000) for _ in range(5)]
    assert [one is None for one in once_more] == [False, True, True, True, True]
    assert "left_out" not in (once_more[0] or {})


def test_no_more_shares_are_kept_than_the_limit(clock: ManualClock) -> None:
    folding = LogFolding(clock)
    for number in range(MAX_SHARES + 10):
        folding(None, "info", {"event": "x", "plugin": f"p{number}"})
    assert len(vars(folding)["_shares"]) == MAX_SHARES


def test_the_files_of_the_log_are_bounded_whatever_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_setup, "LOG_FILE_BYTES", 10_000)
    for _ in range(2):  # as a reload does
        configure_logging(LogLevel.INFO, LogFormat.JSON, tmp_path / "log")
        for number in range(600):
            structlog.get_logger("kaged.x").info("told", text="x" * 200, number=number)
    files = list(tmp_path.iterdir())
    assert len(files) == log_setup.LOG_FILES_KEPT + 1
    assert max(file.stat().st_size for file in files) <= 10_000


def test_lines_below_the_level_use_nothing_up(tmp_path: Path) -> None:
    configure_logging(LogLevel.INFO, LogFormat.JSON, tmp_path / "log")
    log = structlog.get_logger("kaged.x").bind(plugin="p")
    for _ in range(500):
        log.debug("said", text="x" * 4000)
    log.info("said", text="x" * 4000)
    assert [line["plugin"] for line in _lines(tmp_path / "log")] == ["p"]
