"""Exit codes: stable, documented, and one for each kind of error."""

from __future__ import annotations

from pathlib import Path

import pytest

from kaged.cli.exits import MEANINGS, Exit, exit_of

PAGE = Path(__file__).resolve().parents[3] / "docs" / "reference" / "cli.md"


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("project_not_found", Exit.NOT_FOUND),
        ("not_found", Exit.NOT_FOUND),
        ("capability_denied", Exit.DENIED),
        ("access_denied", Exit.DENIED),
        ("unauthenticated", Exit.DENIED),
        ("daemon_unreachable", Exit.UNREACHABLE),
        ("daemon_start_failed", Exit.UNREACHABLE),
        ("config_invalid", Exit.INVALID),
        ("invalid_cursor", Exit.INVALID),
        ("project_root_invalid", Exit.INVALID),
        ("daemon_running", Exit.CONFLICT),
        ("port_in_use", Exit.CONFLICT),
        ("internal", Exit.ERROR),
        ("made_up", Exit.ERROR),
    ],
)
def test_an_error_code_leads_to_its_exit_code(code: str, expected: Exit) -> None:
    assert exit_of(code) is expected


def test_the_reference_page_has_every_exit_code_and_its_meaning() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert set(MEANINGS) == set(Exit)
    for code, meaning in MEANINGS.items():
        assert f"| {code.value} | {meaning} |" in page
