"""The tutorials' commands, run as written. A page that lies fails here."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fakes.running_daemon import kaged, make_home

ROOT = Path(__file__).parents[3]
TEXT_BLOCK = re.compile(r"^```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SHELL_BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def script_of(page: Path) -> str:
    blocks = SHELL_BLOCK.findall(page.read_text(encoding="utf-8"))
    assert blocks, f"{page} has no shell blocks"
    return "set -e\n" + "\n".join(blocks)


def run(name: str, tmp_path: Path) -> str:
    """Run a page's commands in one shell; returns all that they said."""
    page = ROOT / "docs" / "tutorial" / name
    # A short path: the daemon's socket lies below it.
    env = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "TUTORIAL": str(tmp_path),
    }
    # Any free port: pages are followed side by side, and readers have the usual one to themselves.
    home = make_home(tmp_path / "home")
    try:
        done = subprocess.run(
            ["bash", "-c", script_of(page)],
            env=env,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
    finally:
        kaged(home, "daemon", "stop", "--force")
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    check_what_it_prints(page, said)
    return said


def check_what_it_prints(page: Path, said: str) -> None:
    """Every line that the page shows as an answer was given; `…` stands for what differs."""
    lines = said.splitlines()
    for block in TEXT_BLOCK.findall(page.read_text(encoding="utf-8")):
        for line in block.splitlines():
            wanted = ".*".join(map(re.escape, line.split("…")))
            assert any(re.fullmatch(wanted, one) for one in lines), f"not said: {line}\n{said}"


@pytest.mark.timeout(240)
def test_the_first_project_works_as_written(tmp_path: Path) -> None:
    said = run("first-project.md", tmp_path)
    assert "exit code 6" in said  # the broken project was refused
    assert "modle" in said
    assert "read" in said
    assert "primary.subagents.reader" in said or "reader" in said
    assert "project.loaded" in said
    assert "as they were written" in said
    assert "Stopped" in said


@pytest.mark.timeout(240)
def test_the_first_agent_works_as_written(tmp_path: Path) -> None:
    said = run("first-agent.md", tmp_path)
    assert "The log is up to date." in said
    assert "calm, rocks north of the pier" in said
    assert re.search(r"lookout denied +file.read secrets.txt", said)
    assert "tool.denied" in said
    assert "exit code 9" in said
    assert "Red it is." in said
    assert "Undid 1 step" in said


@pytest.mark.timeout(240)
def test_the_bug_is_found_as_written(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)  # the detective's cage has a user of its own
    said = run("find-a-bug.md", tmp_path)
    assert said.startswith("7.56")
    assert "there is nothing to look at yet" in said
    _, first, second, *_ = said.split('"variables"')
    assert '"value": "0"' in first
    assert '"value": "5.4"' in second
    assert "before the discount: 8.4" in said
    assert "\n8.1\n" in said
    assert said.count("debug.breakpoint_hit") == 2
    assert "caller=primary.subagents.detective" in said
    assert "Stopped" in said


@pytest.mark.timeout(240)
def test_an_mcp_client_is_served_as_written(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)  # as above
    said = run("use-kaged-from-an-mcp-client.md", tmp_path)
    assert "tools: file_create, file_read, file_write, search_" in said
    assert "hours: 1: Open from nine to five." in said
    assert "safe: True capability_denied: " in said
    assert "1234" not in said
    assert "mcp.client_came" in said
    assert "tool.denied" in said
    assert said.index("nine to six") < said.rindex("nine to five")
    assert "Stopped" in said


@pytest.mark.timeout(240)
def test_both_bridges_work_as_written(tmp_path: Path) -> None:
    said = run("write-a-bridge.md", tmp_path)
    assert "A host can use it: post.box." in said
    assert "A host can use it: shell.box." in said
    assert "fail" not in said
    assert re.search(r"^post\.box\tpost\tbridge\tok", said, re.MULTILINE), said
    assert re.search(r"^shell\.box\tshell\tbridge\tok", said, re.MULTILINE), said


@pytest.mark.timeout(240)
def test_the_first_plugin_works_as_written(tmp_path: Path) -> None:
    said = run("first-plugin.md", tmp_path)
    assert "Good morning, Ada!" in said
    assert "exit code 6" in said  # the broken manifest was refused
    assert "Stopped" in said


@pytest.mark.timeout(240)
def test_the_first_plugin_in_node_works_as_written(tmp_path: Path) -> None:
    said = run("first-plugin-node.md", tmp_path)
    assert '"words": 6' in said
    assert "exit code 1" in said  # the file beside the pages was not there
    assert "1234" not in said
    assert "Stopped" in said


@pytest.mark.timeout(240)
def test_the_first_script_works_as_written(tmp_path: Path) -> None:
    said = run("first-script.md", tmp_path)
    assert said.index("0 turns") < said.index("1 turn\n")
    assert said.index("exit code 1") < said.index("## No commits yet")
    assert "peek: grant exec" in said.split("## No commits yet")[1]
    assert "exce" in said
    assert "Stopped" in said


def test_every_tutorial_is_followed_here() -> None:
    here = Path(__file__).read_text(encoding="utf-8")
    for page in (ROOT / "docs" / "tutorial").glob("*.md"):
        assert f'run("{page.name}", tmp_path)' in here, page.name
