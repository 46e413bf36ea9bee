"""`check_plugin` on good and bad plugins, with a dry handshake in a real cage."""

from __future__ import annotations

from pathlib import Path

import pytest

from fakes.example_plugins import EXAMPLES
from fakes.plugin_lab import PluginLab
from fakes.runtimes import node
from fakes.store_lab import write_plugin
from kaged.plugins.lint import check_plugin


def codes(problems: tuple[object, ...]) -> set[str]:
    return {str(getattr(problem, "code", "")) for problem in problems}


@pytest.mark.parametrize(
    "name", sorted(path.parent.name for path in EXAMPLES.glob("*/kaged-plugin.yaml"))
)
async def test_the_example_plugins_pass(lab: PluginLab, name: str) -> None:
    report = await check_plugin(EXAMPLES / name, lab.spawner, runtimes={"node": node()})
    assert report.ok, report.lines()
    assert report.shook_hands is True


async def test_good_and_bad_plugins_are_told_apart(lab: PluginLab, tmp_path: Path) -> None:
    good = lab.install({}).directory
    report = await check_plugin(good, lab.spawner)
    assert report.ok, report.lines()
    assert report.shook_hands is True
    assert "✓ stub 1.0.0: 0 error(s)" in report.lines()[-1]
    bad = lab.install({}, name="bad").directory
    (bad / "main.py").write_text("import sys\nsys.exit('no such luck')\n", encoding="utf-8")
    report = await check_plugin(bad, lab.spawner)
    assert not report.ok
    assert report.shook_hands is False
    assert any("no such luck" in line for line in report.lines())
    assert not (lab.root / "data").exists()


async def test_problems_of_the_manifest_have_lines_and_nothing_is_started(
    lab: PluginLab, tmp_path: Path
) -> None:
    source = tmp_path / "src"
    source.mkdir()
    (source / "kaged-plugin.yaml").write_text(
        "name: Bad Name\nversion: 1.0\nkaged_api: 1\ndescription: x\ncommand: [./main]\n"
        "capabilities: [read:/x]\n",
        encoding="utf-8",
    )
    report = await check_plugin(source, lab.spawner)
    assert not report.ok
    assert report.shook_hands is None
    assert {problem.line for problem in report.problems} == {1, 2, 6}


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (["./nothing"], "command_missing"),
        (["./main.py"], "command_not_executable"),
        (["../other/main"], "command_outside"),
        (["no-such-program-at-all", "./main.py"], "command_missing"),
        (["/usr/bin/env", "no-such-program-at-all"], "command_missing"),
        (["/usr/bin/env", "python3", "./gone.py"], "command_missing"),
        (["/nowhere/bin/x"], "command_missing"),
    ],
)
async def test_a_command_that_cannot_be_found_is_told_with_its_line(
    tmp_path: Path, command: list[str], code: str
) -> None:
    report = await check_plugin(write_plugin(tmp_path / "src", command=command))
    (problem,) = (found for found in report.problems if found.severity == "error")
    assert problem.code == code
    assert problem.line is not None
    assert problem.key_path.startswith("command[")


async def test_dangerous_capabilities_and_links_are_told(tmp_path: Path) -> None:
    source = write_plugin(tmp_path / "src", capabilities=["net:*"])
    (source / "out").symlink_to("/etc")
    report = await check_plugin(source)
    assert codes(report.problems) == {
        "dangerous_capability",
        "plugin_tree_refused",
        "readme_missing",
    }
    assert not report.ok
    assert report.as_json()["ok"] is False
