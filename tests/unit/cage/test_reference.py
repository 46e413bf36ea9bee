"""The reference page says what the code does."""

from __future__ import annotations

import re
from pathlib import Path

from kaged.cage import errors, probe
from kaged.cage.base_programs import BASE_PROGRAMS
from kaged.cage.errors import CageError

PAGE = (Path(__file__).parents[3] / "docs/reference/cage.md").read_text(encoding="utf-8")


def test_every_error_code_is_on_the_page_and_no_other() -> None:
    codes = {
        one.code
        for one in vars(errors).values()
        if isinstance(one, type) and issubclass(one, CageError) and one is not CageError
    }
    section = PAGE.split("## Error codes")[1].split("## ")[0]
    assert set(re.findall(r"^\| `(\w+)`", section, re.MULTILINE)) == codes


def test_every_base_program_is_on_the_page_and_no_other() -> None:
    section = PAGE.split("## Base set of programs")[1].split("## ")[0]
    listed = re.findall(r"`([^`]+)`", section.split("A plugin's command")[0])
    assert {word for part in listed for word in part.split()} == set(BASE_PROGRAMS)


def test_every_doctor_row_is_on_the_page() -> None:
    source = Path(probe.__file__).read_text(encoding="utf-8")
    rows = set(re.findall(r'"(cage\.[a-z-]+)"', source))
    assert rows
    assert [row for row in sorted(rows) if f"`{row}`" not in PAGE] == []
