from __future__ import annotations

from pathlib import Path

import pytest

from kaged.config import reference
from kaged.config.reference import BEGIN, END, PAGES, render_keys, rewrite_pages

DOCS = Path(__file__).resolve().parents[3] / "docs" / "reference"


@pytest.mark.parametrize("page", PAGES)
def test_the_page_holds_every_key_as_the_types_have_it(page: str) -> None:
    text = (DOCS / page).read_text(encoding="utf-8")
    assert text.count(BEGIN) == text.count(END) == 1
    written = text[text.index(BEGIN) : text.index(END) + len(END)]
    assert written == render_keys(page), (
        "the key tables are out of date; run "
        "python -c 'from pathlib import Path; from kaged.config import reference; "
        'reference.rewrite_pages(Path("docs/reference"))\''
    )


def test_rewriting_pages_changes_the_tables_only(tmp_path: Path) -> None:
    for page in PAGES:
        (tmp_path / page).write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n", encoding="utf-8")
    assert rewrite_pages(tmp_path) == tuple(PAGES)
    assert rewrite_pages(tmp_path) == ()
    for page in PAGES:
        text = (tmp_path / page).read_text(encoding="utf-8")
        assert text == f"before\n{render_keys(page)}\nafter\n"


def test_every_key_has_a_sentence() -> None:
    for page in PAGES:
        rows = [line for line in render_keys(page).splitlines() if line.startswith("| `")]
        assert rows
        for row in rows:
            doc = row.replace("\\|", "").split("|")[4].strip()
            assert doc.endswith((".", "`")), row
    assert reference.record_classes("config-toml.md")
