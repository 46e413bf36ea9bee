"""Log lines: one format for all, without secrets."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from kaged.config.coresections import LogFormat, LogLevel
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
