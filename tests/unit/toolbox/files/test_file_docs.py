"""The page about the file tools names every error and the limits that are in force."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from kaged.base import KagedError
from kaged.toolbox.files import edit, file_tools, matching, nearmiss, read, window
from kaged.workspace import batch, content, journal, locks, readlog
from kaged.workspace import errors as file_errors

PAGE = (Path(__file__).parents[4] / "docs/reference/file-tools.md").read_text(encoding="utf-8")
TOOLS = Path(edit.__file__).parent
ELSEWHERE = {"invalid_params", "project_root_invalid"}


def codes() -> set[str]:
    """Return the codes of the workspace's errors, and those that the file tools raise."""
    found = {
        one.code
        for _, one in inspect.getmembers(file_errors, inspect.isclass)
        if issubclass(one, KagedError) and one.code != "internal"
    }
    for module in TOOLS.glob("*.py"):
        found.update(re.findall(r'\bcode="(\w+)"', module.read_text(encoding="utf-8")))
    return found


def test_every_error_is_on_the_page_and_the_other_way_round() -> None:
    rows = PAGE.partition("## Errors")[2]
    documented = {
        code
        for row in re.findall(r"^\| (`.*?) \|", rows, re.MULTILINE)
        for code in re.findall(r"`(\w+)`", row)
    }
    assert documented == codes() - ELSEWHERE


def test_every_tool_is_on_the_page() -> None:
    for tool in file_tools():
        assert f"`{tool.definition.name}`" in PAGE


def test_the_limits_on_the_page_are_those_in_force() -> None:
    mib = 1024 * 1024
    for words, value in (
        ("`limit` 2000 lines", read.DEFAULT_LIMIT == 2000),
        ("after 2000 characters", window.MAX_LINE_CHARS == 2000),
        ("at most 1 MiB of text", mib == window.MAX_CONTENT_CHARS),
        ("200,000 entries", read.MAX_ENTRIES == 200_000),
        ("over 2 GiB", 2048 * mib == read.MAX_READ_BYTES),
        ("100,000 records", readlog.MAX_RECORDS == 100_000),
        ("may have 64 MiB", 64 * mib == content.MAX_TEXT_BYTES),
        ("up to 50 further", edit.MAX_MORE_EDITS == 50),
        ("200,000 places", matching.MAX_SPANS == 200_000),
        ("over 256 KiB", nearmiss.MAX_BODY_BYTES == 256 * 1024),
        ("five\nseconds", locks.WAIT_LIMIT_S == 5),
        ("for one second", locks.PATIENCE_S == 1),
        ("64 MiB and 2000 calls", 64 * mib == journal.MAX_JOURNAL_BYTES),
        ("64 MiB and 2000 calls", journal.MAX_JOURNAL_STEPS == 2000),
        ("more than 16 MiB", 16 * mib == batch.KEPT_BEFORE_BYTES),
    ):
        assert words in PAGE, words
        assert value, words
