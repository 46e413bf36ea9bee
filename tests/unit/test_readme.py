"""The start page keeps what it promises: claims with proof, counts that are right, versions."""

from __future__ import annotations

import re
from pathlib import Path

from kaged import __version__
from requirements.rows import load_rows

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def section(heading: str) -> str:
    return README.split(f"\n## {heading}\n")[1].split("\n## ")[0]


def test_the_start_is_one_screen() -> None:
    before = README.split("\n## What you can do with it")[0]
    assert len(before.splitlines()) <= 50
    assert "make demo" in before
    assert "make test" in before


def test_every_claim_against_others_names_a_test_or_a_benchmark() -> None:
    rows = [line for line in section("Against what people use today").splitlines() if "|" in line]
    assert len(rows) > 8
    for row in rows[2:]:
        proof = row.strip("| ").split(" | ")[-1]
        links = re.findall(r"\]\(([^)]+)\)", proof)
        assert links, row
        for link in links:
            assert link.startswith(("tests/", "benchmarks/")), row
            text = (ROOT / link).read_text(encoding="utf-8")
            assert "def test_" in text or link.startswith("benchmarks/bench_"), row


def test_the_number_of_requirement_rows_is_right() -> None:
    (said,) = re.findall(r"([\d,]+) requirement rows", README)
    assert int(said.replace(",", "")) == len(load_rows())


def test_every_tutorial_is_named_on_the_start_page() -> None:
    for page in (ROOT / "docs" / "tutorial").glob("*.md"):
        assert f"docs/tutorial/{page.name}" in README


def test_the_documentation_states_the_version_of_the_package() -> None:
    start = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    assert re.findall(r"^These pages describe kaged (.+)\.$", start, re.MULTILINE) == [__version__]
    assert f"`v{__version__}`" in start


def test_the_documentation_names_every_page_that_is_made_or_compared() -> None:
    start = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    made = [
        page
        for page in (ROOT / "docs" / "reference").glob("*.md")
        if "python -m kaged" in page.read_text(encoding="utf-8")
    ]
    assert made
    for page in made:
        assert f"reference/{page.name}" in start
