"""`Measured`: which lines each test runs, remembered by test module between runs.

What is remembered of a module counts as long as the module and every file that its tests ran are
what they were then.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from concurrent.futures import Executor
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from mutating.copies import ROOT
from mutating.noting import SWITCH
from mutating.running import run
from mutating.tracing import LINES
from mutating.workers import my_copy

MEMORY = ROOT / "build" / "mutate" / "lines"
FAST = ("tests/unit/", "tests/contract/")
LIMIT_S = 1200.0
BATCH = 25  # modules in one run, at most
SHARES = 3  # runs of each worker, at least


@dataclass(slots=True)
class Test:
    """What one test ran, and how it went, when nothing was broken."""

    passed: bool
    seconds: float
    lines: dict[str, list[int]]


@dataclass(slots=True)
class Measured:
    """The tests that were measured, and per module what the processes that they started ran."""

    tests: dict[str, Test] = field(default_factory=dict[str, Test])
    started: dict[str, dict[str, list[int]]] = field(
        default_factory=dict[str, dict[str, list[int]]]
    )

    def missing(self, nodes: Iterable[str]) -> list[str]:
        """Return those of these tests that have not been measured."""
        return [node for node in nodes if node not in self.tests]

    def reaches(self, node: str, file: str, line: int) -> bool:
        """Return whether a test, or a process that its module started, ran this line."""
        own = self.tests[node].lines.get(file, ())
        return line in own or line in self.started.get(module_of(node), {}).get(file, ())

    def recall(self, modules: Iterable[str]) -> None:
        """Take over what is remembered about these modules and still holds."""
        for module in modules:
            kept = _memory_of(module)
            if kept.is_file():
                content = json.loads(kept.read_text(encoding="utf-8"))
                if all(_hash(file) == known for file, known in content["files"].items()):
                    self._take(module, content)

    def remember(self, modules: Iterable[str]) -> None:
        """Write down what is known about these modules."""
        MEMORY.mkdir(parents=True, exist_ok=True)
        for module in modules:
            tests = {node: one for node, one in self.tests.items() if module_of(node) == module}
            started = self.started.get(module, {})
            used = {file for one in tests.values() for file in one.lines} | set(started)
            files = [module, *(f"src/kaged/{file}" for file in sorted(used))]
            content = {
                "files": {file: _hash(file) for file in files},
                "tests": {node: asdict(one) for node, one in tests.items()},
                "started": started,
            }
            _memory_of(module).write_text(json.dumps(content), encoding="utf-8")

    def add(self, found: Mapping[str, Any], started: Mapping[str, Mapping[str, list[int]]]) -> None:
        """Take in what one run measured."""
        for node, one in found.items():
            self.tests[node] = Test(one["passed"], one["seconds"], one["lines"])
        for module, lines in started.items():
            kept = self.started.setdefault(module, {})
            for file, numbers in lines.items():
                kept[file] = sorted({*kept.get(file, ()), *numbers})

    def _take(self, module: str, content: Mapping[str, Any]) -> None:
        self.add(content["tests"], {module: content["started"]})


def measure(measured: Measured, nodes: Iterable[str], workers: Executor, count: int) -> None:
    """Run what is missing, in batches of modules, and remember it.

    Slow modules are dealt out first and evenly, so that the workers end at about the same time.
    """
    by_module: dict[str, list[str]] = {}
    for node in measured.missing(nodes):
        by_module.setdefault(module_of(node), []).append(node)
    modules = sorted(by_module, key=lambda one: (one.startswith(FAST), one))
    number = max(SHARES * count, math.ceil(len(modules) / BATCH))
    batches = [batch for at in range(number) if (batch := modules[at::number])]
    jobs = [
        workers.submit(_measure_batch, [node for one in batch for node in by_module[one]])
        for batch in batches
    ]
    for number, (batch, job) in enumerate(zip(batches, jobs, strict=True), 1):
        measured.add(*job.result())
        measured.remember(batch)
        print(f"mutate: measured {number} of {len(batches)} batches of test modules", flush=True)


def _measure_batch(nodes: list[str]) -> tuple[dict[str, Any], dict[str, dict[str, list[int]]]]:
    """Run tests in this worker's copy and return what they ran. Called in a worker."""
    copy = my_copy()
    folder = copy.root / "build" / "started"
    folder.mkdir(exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    target = copy.root / "build" / "lines.json"
    target.unlink(missing_ok=True)
    told = {"source": str(copy.source), "folder": str(folder), "module": ""}
    copy.switch.write_text(json.dumps(told), encoding="utf-8")
    try:
        env = {LINES: str(target), SWITCH: str(copy.switch)}
        done = run(copy, nodes, limit_s=LIMIT_S, env=env)
    finally:
        copy.switch.unlink()
    if not target.is_file():
        raise RuntimeError(f"measuring failed:\n{done.output[-3000:]}")
    started: dict[str, dict[str, list[int]]] = {}
    for file in folder.iterdir():
        content = json.loads(file.read_text(encoding="utf-8"))
        kept = started.setdefault(content["module"], {})
        for name, numbers in content["lines"].items():
            kept[name] = sorted({*kept.get(name, ()), *numbers})
    return json.loads(target.read_text(encoding="utf-8")), started


def module_of(node: str) -> str:
    """Return the file of a test."""
    return node.partition("::")[0]


def function_of(node: str) -> str:
    """Return a test without its case."""
    return node.partition("[")[0]


def _memory_of(module: str) -> Path:
    return MEMORY / f"{module.replace('/', '.')}.json"


@cache
def _hash(file: str) -> str:
    path = ROOT / file
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
