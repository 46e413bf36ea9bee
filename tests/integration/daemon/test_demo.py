"""`make demo` plays to its end, explains every denial, and leaves nothing behind."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
SCENES = 10


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """Play the demo once; returns what it said and the folder that it was played in."""
    folder = tmp_path_factory.mktemp("d")
    home = folder / "home"
    home.mkdir()
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "demo")],
        env={**os.environ, "HOME": str(home), "KAGED_HOME": str(home / "mine"),
             "TMPDIR": str(folder)},
        capture_output=True, text=True, check=False, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout, folder


def position(said: str, *texts: str) -> list[int]:
    """Find texts in the order in which they must have been said."""
    found: list[int] = []
    for text in texts:
        at = said.find(text, found[-1] if found else 0)
        assert at >= 0, f"not said, or not in this order: {text}\n{said}"
        found.append(at)
    return found


@pytest.mark.timeout(300)
def test_the_agent_fixes_the_bug_and_its_helper_is_stopped(played: tuple[str, Path]) -> None:
    said, _ = played
    position(
        said,
        "FAILED (failures=1)",
        "ok        shell.bash python3 -B -m unittest",
        "ok        search.grep hours_between",
        "ok        code.lsp harbour.py",
        "lookout denied    file.read secrets.env",
        "ok        edit.text tides.py",
        "ok        shell.bash python3 -B -m unittest",
        "ok        memory-markdown.retain",
        "-    return later - now",
        "+    return (later - now) % 24",
        "Ran 2 tests",
        "OK",
        "FIXED  tides.py",
    )


@pytest.mark.timeout(300)
def test_every_denial_says_by_which_rule_and_what_would_change_it(
    played: tuple[str, Path],
) -> None:
    said, _ = played
    explained = re.findall(
        r"^     DENIED   (.+)\n              rule: (.+)\n              to change it: (.+)$",
        said,
        re.MULTILINE,
    )
    assert len(explained) == len(re.findall(r"^ *DENIED", said, re.MULTILINE)) == 8
    whats = " | ".join(what for what, _, _ in explained)
    for what in (
        "chart.read paper-boats/secrets.env",
        "chart.read ~home/http-token",
        "journal.peek",
        "file.read secrets.env, for the lookout",
        "cat letters.json",
        "for bob in a private chat",
        "for ann in a group chat",
        "project reload",
    ):
        assert what in whats
    by_what = {what: (rule, change) for what, rule, change in explained}
    rule, change = by_what["file.read secrets.env, for the lookout"]
    assert rule.startswith("tool.fs: ro:fs:secrets.env")
    assert "grant ro on secrets.env" in change


@pytest.mark.timeout(300)
def test_the_rest_of_the_story_happens(played: tuple[str, Path]) -> None:
    said, _ = played
    position(
        said,
        "ALLOWED  chart.read",
        "My note from the last session says so.",
        "ALLOWED  post.box list, for ann: Dear Ann, the boat leaves at nine.",
        "REWOUND  test_harbour.py",
        "plugin.storage_denied",
        "all as they were written",
        "the database refuses",
        "was changed",
        "demo: every step succeeded",
        f"{SCENES} scenes, ",
    )
    assert "brass-7741" not in said
    assert "under-the-mat" not in said
    assert re.findall(r"^── (\d+)\. ", said, re.MULTILINE) == [str(n + 1) for n in range(SCENES)]


@pytest.mark.timeout(300)
def test_it_touches_nothing_of_the_users_and_leaves_nothing_behind(
    played: tuple[str, Path],
) -> None:
    _, folder = played
    assert list((folder / "home").iterdir()) == []
    assert [path.name for path in folder.iterdir()] == ["home"]


def plain(line: str) -> str:
    """Return a line without what differs from run to run: times, ids, counts of tokens."""
    line = re.sub(r"\b([a-z]{2,4})_[0-9A-Z]{4}…", r"\1_…", line.strip())
    return re.sub(r"\d+(\.\d+)?( ms| s\b| tokens| out| in\b)", r"N\2", line)


@pytest.mark.timeout(300)
def test_the_excerpt_of_the_readme_is_what_the_demo_says(played: tuple[str, Path]) -> None:
    said, _ = played
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(
        r"^```console\n\$ make demo.*?\n(.*?)^```$", readme, re.MULTILINE | re.DOTALL
    )
    assert len(blocks) == 1
    lines = [plain(line) for line in blocks[0].splitlines()]
    wanted = [line for line in lines if line and line != "…"]
    assert len(wanted) >= 10
    real = iter([plain(line) for line in said.splitlines()])
    for line in wanted:
        assert line in real, f"the README shows a line that the demo does not say (there): {line}"


@pytest.mark.timeout(300)
def test_a_demo_that_is_told_to_end_takes_its_daemon_along(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, str(ROOT / "scripts" / "demo")],
        env={**os.environ, "HOME": str(tmp_path), "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE, text=True,
    ) as demo:  # fmt: skip
        assert demo.stdout is not None
        pids = (re.match(r" +pid +(\d+)$", line) for line in demo.stdout)
        started = next(found for found in pids if found is not None)
        demo.terminate()
        demo.stdout.read()
        assert demo.wait(120) == 128 + signal.SIGTERM
    try:
        daemon = os.pidfd_open(int(started[1]))
    except ProcessLookupError:
        pass
    else:
        ended, _, _ = select.select([daemon], [], [], 30)  # it may still wait to be reaped
        os.close(daemon)
        assert ended, "the daemon is still there"
    assert list(tmp_path.iterdir()) == []
