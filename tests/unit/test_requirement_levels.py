"""What a whole test claims is checked, and the checks can fail."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from requirements.levels import PROOFS, TESTS, level_of, product_imports
from requirements.marker import requirement, whole
from requirements.rows import ROOT, Row

sys.path.insert(0, str(ROOT / "scripts"))
import conformance


@pytest.mark.parametrize(
    ("path", "mark", "level"),
    [
        ("unit/kernel/test_a.py", requirement("R-1"), "unit"),
        ("integration/test_a.py", requirement("R-1"), "contract"),
        ("whole/test_a.py", whole("R-1"), "whole"),
        ("whole/test_a.py", requirement("R-1"), "contract"),
    ],
)
def test_the_level_follows_from_the_mark_and_the_folder(
    path: str, mark: pytest.MarkDecorator, level: str
) -> None:
    assert level_of(TESTS / path, mark.mark) == level


def test_a_level_that_does_not_exist_is_refused() -> None:
    with pytest.raises(pytest.UsageError, match="contract, whole"):
        level_of(TESTS / "unit/test_a.py", pytest.mark.requirement("R-1", level="hole").mark)


def test_an_import_of_the_product_is_found_behind_a_helper() -> None:
    ways = product_imports(TESTS / "integration/daemon/test_plugin_host_http.py")
    assert any(" > fakes/running_daemon.py > kaged." in way for way in ways)
    assert product_imports(TESTS / "whole/conftest.py") == []


CLAIM = """
from requirements.marker import whole

@whole("PH-WIRE-01")
def test_claims():
    {}
"""


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("assert True", "it spoke to no daemon's process"),
        ("import kaged.base", "whole tests import the product"),
        ("from whole.harness.daemon import Daemon; Daemon.spoken += 1", "1 passed"),
    ],
)
def test_a_test_that_only_says_it_is_whole_fails(tmp_path: Path, body: str, said: str) -> None:
    module = tmp_path / "test_claim.py"
    module.write_text(CLAIM.format(body), encoding="utf-8")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider"),
            *("-p", "requirements.levels", "-c", str(ROOT / "pyproject.toml"), str(module)),
        ],
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert said in done.stdout + done.stderr
    assert (done.returncode == 0) is (said == "1 passed")


def test_the_best_of_a_rows_tests_is_its_level() -> None:
    tests = [
        {"node": f"t::{level}", "ids": ["PH-WIRE-01"], "levels": [level], "passed": True}
        for level in (PROOFS[1], PROOFS[0])
    ]
    seen = conformance.by_row(tests, set())
    assert seen.levels == {"PH-WIRE-01": "contract"}
    wiring = Row("PH-WIRE-01", "must", "plugin-host", "The host sends a ping.")
    assert conformance.in_parts(wiring, seen)
    assert not conformance.in_parts(Row("PH-WIRE-01", "must", "plugin-host", "A name."), seen)
    better = conformance.by_row([*tests, {**tests[0], "levels": ["whole"]}], set())
    assert not conformance.in_parts(wiring, better)


def test_an_area_without_a_whole_proof_and_fewer_of_them_are_problems() -> None:
    rows = [Row("PH-WIRE-01", "must", "plugin-host"), Row("SC-POL-01", "must", "services")]
    tests = [
        {"node": "t::a", "ids": ["PH-WIRE-01"], "levels": ["whole"], "passed": True},
        {"node": "t::b", "ids": ["SC-POL-01"], "levels": ["unit"], "passed": True},
    ]
    found = conformance.check_levels(rows, conformance.by_row(tests, set()), at_least=2)
    assert found == [
        "SC-POL: no row of it is proven whole",
        "1 rows are proven whole; 2 were before",
    ]
    tests[1]["levels"] = ["whole"]
    assert conformance.check_levels(rows, conformance.by_row(tests, set()), at_least=2) == []
    tests[1]["passed"] = False
    assert conformance.check_levels(rows, conformance.by_row(tests, set()), at_least=2) != []
