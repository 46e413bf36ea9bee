"""The root part: what it holds is named, counted for conformance, and never skipped quietly."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from requirements.plugin import Outcomes
from requirements.rows import ROOT
from rootpart import AGAIN, may_hold_root_tests, named

sys.path.insert(0, str(ROOT / "scripts"))
import conformance


def test_what_was_left_out_is_named_once_for_all_its_cases() -> None:
    assert named({"t.py::b[x-1]": [], "t.py::b[x-2]": ["PH-WIRE-01"], "t.py::a": []}) == [
        "t.py::a",
        "t.py::b (2 cases)",
    ]


def test_what_runs_again_as_root_is_there() -> None:
    for path in AGAIN:
        assert (ROOT / path).exists(), path


def test_the_root_part_looks_into_modules_that_may_be_its_own_and_no_others() -> None:
    """Importing all took longer than its tests; one that it would miss fails a full run."""
    tests = ROOT / "tests"
    for path in (
        "integration/cage/test_many.py",  # again, as root
        "chaos/daemon/test_bad_places.py",  # says the mark
        "security/cage/test_net_escapes.py",  # has it from a helper
    ):
        assert may_hold_root_tests(tests / path), path
    for path in ("unit/base/test_ids.py", "whole/edge/test_backup_and_restore.py"):
        assert not may_hold_root_tests(tests / path), path


def test_rows_that_only_root_can_prove_wait_for_the_root_part() -> None:
    results = Outcomes().as_json(full=True, left={"t::a": ["R-1"], "t::b": [], "t::c": ["R-2"]})
    assert results["left_to_root"] == [
        {"node": "t::a", "ids": ["R-1"]},
        {"node": "t::c", "ids": ["R-2"]},
    ]
    here = [{"node": "t::d", "ids": ["R-2"], "levels": ["unit"], "passed": True}]
    waiting = conformance.left_to_root(results, here)
    assert conformance.by_row(here, waiting).only_root == {"R-1"}
    both = [*here, {"node": "t::a", "ids": ["R-1"], "levels": ["unit"], "passed": False}]
    after = conformance.by_row(both, conformance.left_to_root(results, both))
    assert after.only_root == set()
    assert after.failed == {"R-1": ["t::a"]}


def test_no_test_is_skipped_for_want_of_root() -> None:
    """A skip fails the full run; being an ordinary user must not."""
    skips = re.compile(r"skipif\([^)]*get(e)?uid|get(e)?uid\(\) != 0:\s+pytest\.skip")
    found = [
        str(path.relative_to(ROOT))
        for path in (ROOT / "tests").rglob("test_*.py")
        if path != Path(__file__) and skips.search(path.read_text(encoding="utf-8"))
    ]
    assert found == []
