"""`collect`: what every test of the tree proves, remembered by test module between runs.

A module is looked at again when it changed, and all are when anything changed that is no test
module: cases of tests are made of the source, of fixtures and of guests.
"""

from __future__ import annotations

import hashlib
import json
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from mutating.copies import ROOT
from mutating.measuring import hashes, module_of
from mutating.noting import ROWS
from mutating.running import crowd, run
from mutating.workers import my_copy

KEPT = ROOT / "build" / "mutate" / "proofs.json"
LIMIT_S = 600.0


def collect(workers: ProcessPoolExecutor, count: int) -> dict[str, Any]:
    """Return by test which rows it proves and at which levels; it is written to `KEPT`, too."""
    modules = [str(one.relative_to(ROOT)) for one in sorted(ROOT.glob("tests/**/test_*.py"))]
    now, around = hashes(modules), _around(set(modules))
    kept: dict[str, Any] = {"around": around, "modules": {}, "tests": {}}
    if KEPT.is_file():
        old = json.loads(KEPT.read_text(encoding="utf-8"))
        if old["around"] == around:
            kept = old
    changed = [one for one in modules if kept["modules"].get(one) != now[one]]
    still = set(modules) - set(changed)
    found = {node: one for node, one in kept["tests"].items() if module_of(node) in still}
    for part in workers.map(_collect, filter(None, (changed[at::count] for at in range(count)))):
        found |= part
    tests = {node: found[node] for node in sorted(found)}
    content = {"around": around, "modules": now, "tests": tests}
    KEPT.write_text(json.dumps(content), encoding="utf-8")
    return tests


def _around(modules: set[str]) -> str:
    """Return a hash of everything that tests are made of besides their own modules."""
    files = [*ROOT.glob("src/**/*"), *ROOT.glob("tests/**/*"), ROOT / "pyproject.toml"]
    names = (str(one.relative_to(ROOT)) for one in files if one.suffix != ".pyc")
    told = hashes(sorted(name for name in names if name not in modules))
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()


def _collect(modules: list[str]) -> dict[str, Any]:
    """Return what the tests of modules prove. Called in a worker."""
    copy = my_copy()
    target = copy.root / "build" / "rows.json"
    target.unlink(missing_ok=True)
    done = run(
        copy,
        modules,
        limit_s=LIMIT_S * crowd(),
        options=["--collect-only", "-qq"],
        env={ROWS: str(target)},
    )
    if not target.is_file():
        raise RuntimeError(f"the tests cannot be collected:\n{done.output[-3000:]}")
    found: dict[str, Any] = json.loads(target.read_text(encoding="utf-8"))
    return found
