"""`measure`: which lines each test of a row runs, remembered between runs.

Fast tests are measured by module, with their neighbours, to know whose a line is. The others are
measured by row: daemons and commands that they start have then run what this row wants of them.
What is remembered counts as long as the tests and every file that they ran are what they were.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from mutating.copies import ROOT, Copy
from mutating.noting import SWITCH
from mutating.running import crowd, run
from mutating.tracing import LINES

MEMORY = ROOT / "build" / "mutate" / "lines"
FAST = ("tests/unit/", "tests/contract/")
LIMIT_S = 300.0


class MeasuringFailed(Exception):
    """Tests could not be measured; what they said is the message."""


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

    def reaches(self, node: str, file: str, line: int) -> bool:
        """Return whether a test, or a process that its module started, ran this line."""
        own = self.tests[node].lines.get(file, ())
        return line in own or line in self.started.get(module_of(node), {}).get(file, ())

    def add(self, found: Mapping[str, Any], started: Mapping[str, Mapping[str, list[int]]]) -> None:
        """Take in what one run measured."""
        for node, one in found.items():
            self.tests[node] = Test(one["passed"], one["seconds"], one["lines"])
        for module, lines in started.items():
            kept = self.started.setdefault(module, {})
            for file, numbers in lines.items():
                kept[file] = sorted({*kept.get(file, ()), *numbers})


def measure(row: str, nodes: Iterable[str], every: Iterable[str], copy: Copy) -> Measured:
    """Return what the tests of a row run; what is not remembered is run in a copy.

    `every` are all the tests of the tree.

    Raises:
        MeasuringFailed: they did not end in time, or not even begin.
    """
    parts: dict[str, list[str]] = {}
    for node in nodes:
        module = module_of(node)
        if not node.startswith(FAST):
            parts.setdefault(row, []).append(node)
        elif module not in parts:
            parts[module] = [one for one in every if module_of(one) == module]
    made = Measured()
    missing = {name: asked for name, asked in parts.items() if not _recall(made, name, asked)}
    if missing:
        tests, started = _run(copy, [node for asked in missing.values() for node in asked])
        for name, asked in missing.items():
            modules = {module_of(node) for node in asked}
            kept = Measured()
            kept.add(
                {node: tests[node] for node in asked if node in tests},
                {module: started[module] for module in modules & started.keys()},
            )
            content = _remember(name, asked, kept)
            made.add(content["tests"], content["started"])
    return made


def _recall(made: Measured, name: str, asked: Sequence[str]) -> bool:
    """Take over what is remembered under a name; returns whether it is there and still holds."""
    kept = _memory_of(name)
    if not kept.is_file():
        return False
    content = json.loads(kept.read_text(encoding="utf-8"))
    if content["asked"] != asked or content["files"] != hashes(content["files"]):
        return False
    made.add(content["tests"], content["started"])
    return True


def runners(file: str, line: int) -> dict[str, float]:
    """Return which tests of any row were seen to run a line, and how long each of them takes.

    What is remembered of another state of the file says nothing about this line.
    """
    source = f"src/kaged/{file}"
    found: dict[str, float] = {}
    for kept in sorted(MEMORY.glob("*.json")):
        text = kept.read_text(encoding="utf-8")
        if f'"{source}"' not in text:
            continue
        content = json.loads(text)
        if content["files"].get(source) != _hash(source):
            continue
        seen = Measured()
        seen.add(content["tests"], content["started"])
        for node, test in seen.tests.items():
            if test.passed and seen.reaches(node, file, line):
                found[node] = test.seconds
    return found


def _remember(name: str, asked: Sequence[str], kept: Measured) -> dict[str, Any]:
    """Write down what was measured; returns it as it is written."""
    used = {file for one in kept.tests.values() for file in one.lines}
    used |= {file for lines in kept.started.values() for file in lines}
    modules = {module_of(node) for node in asked}
    content = {
        "asked": asked,
        "files": hashes([*sorted(modules), *(f"src/kaged/{file}" for file in sorted(used))]),
        "tests": {node: asdict(one) for node, one in kept.tests.items()},
        "started": kept.started,
    }
    MEMORY.mkdir(parents=True, exist_ok=True)
    new = MEMORY / f".{os.getpid()}"  # another worker may read it now
    new.write_text(json.dumps(content), encoding="utf-8")
    new.replace(_memory_of(name))
    return content


def _run(
    copy: Copy, nodes: Sequence[str]
) -> tuple[dict[str, Any], dict[str, dict[str, list[int]]]]:
    """Run tests in a copy and return what they, and the processes that they started, ran."""
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
        done = run(copy, nodes, limit_s=LIMIT_S * crowd(), env=env)
    finally:
        copy.switch.unlink()
    if not target.is_file():
        raise MeasuringFailed(done.output[-300:])
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


def one_of_each(nodes: Iterable[str]) -> list[str]:
    """Return one case of each test function."""
    return list({function_of(node): node for node in nodes}.values())


def hashes(files: Iterable[str]) -> dict[str, str]:
    """Return what files of the tree contain, as hashes by path."""
    return {file: _hash(file) for file in files}


def _memory_of(name: str) -> Path:
    return MEMORY / f"{name.replace('/', '.')}.json"


@cache
def _hash(file: str) -> str:
    path = ROOT / file
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
