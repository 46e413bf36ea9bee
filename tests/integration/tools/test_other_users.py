"""The tools work the same for a service user without a home as for the operator."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from requirements import requirement

SERVICE_UID = 65534
TESTS = Path(__file__).parents[2]
CHILD = """
import asyncio, json, os, shutil, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
folder, program, uid = Path(sys.argv[2]), sys.argv[3], int(sys.argv[4])
from fakes.tool_lab import ToolLab
from fakes.search_lab import opened_search_lab
from kaged.toolbox.files import file_tools
from kaged.toolbox.search import search_tools

async def work(name):
    root = folder / name
    root.mkdir()
    (root / "a.py").write_text("needle = 1\\n", encoding="utf-8")
    said = []
    cache = folder / f"cache-{name}"
    cache.mkdir()
    async with opened_search_lab(root, cache, program=program) as lab:
        desk = ToolLab(root, [*file_tools(), *search_tools(lab.engine, lab.settings)])
        for tool, params in (
            ("file.read", {"path": "a.py"}),
            ("file.create", {"path": "d/b.py", "content": "needle = 2\\n"}),
            ("edit.text", {"path": "a.py", "old_string": "1", "new_string": "3"}),
            ("file.write", {"path": "d/b.py", "content": "needle = 4\\n"}),
            ("search.grep", {"pattern": "needle", "output_mode": "content"}),
            ("search.glob", {"pattern": "**/*.py"}),
        ):
            if tool == "search.glob":  # newest first: not left to the ticks of the clock
                os.utime(root / "a.py", (1, 1))
                os.utime(root / "d" / "b.py", (2, 2))
            said.append(await desk.call(tool, **params))
        said.append((await desk.refusal("file.read", path="../x")).code)
        said.append((root / "a.py").read_text(encoding="utf-8"))
    return said

first = asyncio.run(work("one"))  # with everything, and so that all modules are loaded
os.environ.clear()
if os.getuid() == 0:
    os.setgroups([])
    os.setgid(uid)
    os.setuid(uid)
second = asyncio.run(work("two"))
print(json.dumps({"first": first, "second": second, "uid": os.getuid(),
                  "home": os.environ.get("HOME")}))
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    # Not below the folder of the tests, which only their own user may enter.
    made = Path(tempfile.mkdtemp(prefix="kgd-user-")).resolve()
    made.chmod(0o777)
    yield made
    shutil.rmtree(made, ignore_errors=True)


@requirement("AT-REG-29")
def test_files_and_searches_need_no_home_and_no_rights(folder: Path) -> None:
    program = folder / "rg"
    shutil.copy(Path(sysconfig.get_path("scripts")) / "rg", program)
    program.chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(TESTS), str(folder), str(program), str(SERVICE_UID)],
        cwd=folder, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["uid"] != 0 or os.getuid() != 0
    assert said["home"] is None
    assert said["second"] == said["first"]
    assert said["first"][-2:] == ["invalid_params", "needle = 3\n"]
