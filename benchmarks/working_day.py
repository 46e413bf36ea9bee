"""What a day's work of an agent takes of its window: 400 calls on a repository, before and after.

    python benchmarks/working_day.py FOLDER

"Before" is how results entered a window until budgets came: compact JSON, cut at 200,000
characters. The calls are the same; after a shortened result the agent reads on every other time.
The calls are drawn by a fixed seed: reads of whole files and of pieces, searches, listings,
searches of code, dry rewrites, and commands. Prints one JSON object.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from fakes.search_lab import (  # pyright: ignore[reportMissingImports] - beside the tests
    opened_search_lab,
)
from fakes.tool_lab import ToolLab  # pyright: ignore[reportMissingImports] - beside the tests
from kaged.toolbox.ast import ast_tools
from kaged.toolbox.files import file_tools
from kaged.toolbox.search import search_tools
from kaged.tools import ToolError
from kaged.tools.kept_results import KeptResults
from kaged.tools.result_cut import tokens_of
from kaged.tools.shown_results import ResultBudget, ShownResults

CALLS: Final = 400
SEED: Final = 24
OLD_LIMIT_CHARS: Final = 200_000
HANDLE: Final = re.compile(r"file\.read (\S+) with offset (\d+)")
WORDS: Final = (
    *("self", "QuerySet", "def save", "import", "raise ValueError", "TODO", "connection"),
    *("cursor", "deprecat", "settings", "return None", "class Meta", "async def", "template"),
)
PATTERNS: Final = (
    *("super().__init__($$$A)", "raise $E($M)"),
    *("isinstance($A, $B)", "getattr($A, $B)"),
)
COMMANDS: Final = (
    "python3 -m compileall -f -q . ; find . -name '*.py' | xargs wc -l",
    "grep -rn 'def ' --include=*.py . | head -3000",
    "ls -lR . | head -4000",
    "find . -name '*.py' | head -200",
    "python3 -c 'for i in range(1500): print(\"tests.t%d ... ok\" % i)'; echo FAILED 1; exit 1",
    "git status --short | head -20; echo done",
)


def day(draw: random.Random, files: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the calls of a day."""
    for _ in range(CALLS):
        what = draw.random()
        if what < 0.25:
            yield "file.read", {"path": draw.choice(files)}
        elif what < 0.42:
            yield (
                "file.read",
                {"path": draw.choice(files), "offset": draw.randint(1, 300), "limit": 150},
            )
        elif what < 0.57:
            yield "search.grep", {"pattern": draw.choice(WORDS), "output_mode": "content"}
        elif what < 0.67:
            yield "search.grep", {"pattern": draw.choice(WORDS)}
        elif what < 0.74:
            yield (
                "search.glob",
                {"pattern": draw.choice(("**/*.py", "*.html", "**/models.py", "*.po"))},
            )
        elif what < 0.80:
            yield "search.ast", {"pattern": draw.choice(PATTERNS), "lang": "python"}
        elif what < 0.83:
            rewrites = {"isinstance($A, $B)": "is_a($A, $B)"}
            yield "edit.ast", {"rewrites": rewrites, "lang": "python"}
        else:
            yield "shell", {"command": draw.choice(COMMANDS)}


def command(root: Path, text: str) -> dict[str, Any]:
    """Run a command as shell.bash does, as far as its result goes."""
    done = subprocess.run(
        ["bash", "-c", text], cwd=root, capture_output=True, text=True, check=False
    )
    said = (done.stdout + done.stderr)[:1_000_000]
    return {"stdout": said, "stderr": "", "exit_code": done.returncode, "timed_out": False}


async def measure(root: Path, home: Path) -> dict[str, Any]:
    """Make the calls of the day and count what each took, both ways."""
    numbers = count(1)
    kept = KeptResults(home / "results", lambda: f"res_{next(numbers):026}")
    shown = ShownResults(kept, ResultBudget)
    budget = ResultBudget()
    before: Counter[str] = Counter()
    after: Counter[str] = Counter()
    made: Counter[str] = Counter()
    over = shortened = read_on = errors = 0
    draw = random.Random(SEED)
    files = sorted(f"./{one.relative_to(root)}" for one in root.rglob("*.py"))
    async with opened_search_lab(root, home / "cache") as search:
        tools = [
            *file_tools(kept),
            *search_tools(search.engine, search.settings, kept=kept),
            *ast_tools(search.ast, search.engine, search.ast_settings),
        ]
        lab = ToolLab(root, tools)
        for name, params in day(draw, files):
            made[name] += 1
            if name == "shell":
                result: Any = command(root, params["command"])
                view = None
            else:
                try:
                    result = await lab.call(name, **params)
                except ToolError:
                    errors += 1
                    continue
                view = lab.registry.get(name)
            old = json.dumps(result, ensure_ascii=False, separators=(",", ":"))
            before[name] += tokens_of(old[:OLD_LIMIT_CHARS])
            more = {} if view is None else {"view": view.tool.view}
            text = await shown.show(result, lab.context, readers=lab.tools.enabled, **more)
            limit = budget.tokens if view is None else budget.of(view.tool.view)
            over += tokens_of(text) > limit
            after[name] += tokens_of(text)
            found = HANDLE.search(text)
            if found is not None:
                shortened += 1
                if shortened % 2:
                    read_on += 1
                    rest = await lab.call(
                        "file.read", path=found[1], offset=int(found[2]), limit=200
                    )
                    entry = lab.registry.get("file.read")
                    assert entry is not None
                    text = await shown.show(
                        rest, lab.context, view=entry.tool.view, readers=lab.tools.enabled
                    )
                    over += tokens_of(text) > budget.read_tokens
                    after["reading on"] += tokens_of(text)
    share = sum(after.values()) / sum(before.values())
    return {
        "calls": sum(made.values()), "made": dict(made), "errors": errors, "over_budget": over,
        "shortened": shortened, "read_on": read_on, "tokens_before": dict(before),
        "tokens_after": dict(after), "before": sum(before.values()), "after": sum(after.values()),
        "share": round(share, 3),
    }  # fmt: skip


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        print(json.dumps(asyncio.run(measure(Path(sys.argv[1]).resolve(), Path(place))), indent=2))
