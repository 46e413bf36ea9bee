"""The page of error codes has every code of the code, with its meaning and status, and no other."""

from __future__ import annotations

import re
from pathlib import Path

from kaged.app.error_reference import BEGIN, EDGE_ONLY, END, error_classes, meanings, render
from kaged.serve.http.statuses import HTTP_STATUS

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "error-codes.md"


def test_the_made_part_of_the_page_is_fresh() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text.count(BEGIN) == text.count(END) == 1
    assert render() in text, "run `make docs`"


def test_the_page_has_every_code_and_no_other() -> None:
    made = PAGE.read_text(encoding="utf-8").split(BEGIN)[1]
    listed = re.findall(r"^\| `([^`]+)`", made, re.MULTILINE)
    assert listed == sorted({kind.code for kind in error_classes()} | set(EDGE_ONLY))
    assert set(listed) == set(HTTP_STATUS)


def test_every_code_says_what_it_means() -> None:
    for code, (packages, said) in meanings().items():
        assert packages, code
        assert all(said), code
        assert said, code


def test_the_codes_of_the_written_part_exist() -> None:
    written = PAGE.read_text(encoding="utf-8").split("## Codes of the wire")[1].split("\n## ")[0]
    assert set(re.findall(r"^\| `([^`]+)`", written, re.MULTILINE)) <= set(HTTP_STATUS)
