"""Why a text did not match: the cause is named, the place is shown, and it never takes long."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kaged.toolbox.files.nearmiss import MAX_BODY_BYTES, closest

BODY = """\
import os

def load(path):
    with open(path) as file:
        return file.read()

def save(path, text):
    with open(path, "w") as file:
        file.write(text)
    print("it\u2019s saved \u2013 done")
"""


@pytest.mark.parametrize(
    ("old", "cause", "line"),
    [
        ("3: def load(path):\n4:     with open(path) as file:", "line_numbers", 3),
        ("def load(path):   \n    with open(path) as file:", "whitespace", 3),
        ("def load(path):\n\twith open(path) as file:", "whitespace", 3),
        ("def  load(path):", "whitespace", 3),
        ("DEF LOAD(PATH):", "case", 3),
        ('print("it\'s saved - done")', "characters", 10),
        ('PRINT("it\'s  saved - done")', "several", 10),
        ("def save(path, txt):", "text", 7),
        ("def save(path, text):\n    with open(path, 'wb') as file:", "text", 7),
        ("        return file.read(100)", "text", 5),
    ],
)
def test_the_cause_and_the_place_are_named(old: str, cause: str, line: int) -> None:
    near = closest(BODY.encode(), old)
    assert near is not None
    assert (near.cause, near.start_line) == (cause, line)
    assert near.text.split("\n")[0] == BODY.split("\n")[line - 1]


def test_the_first_difference_is_located() -> None:
    near = closest(b"a\nlet x = 10;\nb\n", "let x = 20;")
    assert near is not None
    assert near.as_json()["first_difference"] == {
        "line": 2,
        "column": 9,
        "file_has": "10;",
        "you_sent": "20;",
    }


def test_nothing_near_is_nothing() -> None:
    assert closest(BODY.encode(), "completely unrelated words here") is None
    assert closest(b"", "x") is None
    assert closest(BODY.encode(), "   \n ") is None


def test_what_is_too_large_is_not_looked_at() -> None:
    assert closest(b"x" * (MAX_BODY_BYTES + 1), "y") is None
    assert closest(b"x", "y" * 100_000) is None


@given(st.binary(max_size=200), st.text(min_size=1, max_size=60))
def test_a_hint_is_always_about_the_file(body: bytes, old: str) -> None:
    near = closest(body, old)
    if near is not None:
        lines = body.decode("utf-8", "replace").replace("\r\n", "\n").split("\n")
        assert 1 <= near.start_line <= near.end_line <= max(len(lines), near.start_line)
        assert near.text.split("\n")[0] in lines[near.start_line - 1]
