"""`kaged cage` as people run it: explained from the files, tried out in a real cage."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from fakes.running_daemon import KAGED, DaemonProcess, environment, kaged


def _json(home: Path, *arguments: str, expect: int = 0) -> Any:
    done = kaged(home, *arguments, "--json")
    assert done.returncode == expect, (done.stdout, done.stderr)
    return json.loads(done.stdout if expect == 0 else done.stderr)


def _shell(own: Path, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*KAGED, "cage", "shell", *arguments],
        env=environment(own),
        input=script,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def _trust(start: Callable[..., DaemonProcess], own: Path, project: Path) -> None:
    """Agree to what a project asks for, which a daemon keeps; none runs afterwards."""
    start(own)
    done = kaged(own, "project", "load", str(project), "--trust")
    assert done.returncode == 0, done.stderr
    assert kaged(own, "daemon", "stop").returncode == 0


def _plugin(folder: Path, *capabilities: str) -> Path:
    directory = folder / "notes"
    directory.mkdir()
    manifest = {
        "name": "notes",
        "version": "1.0.0",
        "kaged_api": 1,
        "description": "Takes notes.",
        "command": ["/usr/bin/env", "sh", "main.sh"],
        "capabilities": list(capabilities),
    }
    (directory / "kaged-plugin.yaml").write_text(yaml.safe_dump(manifest), encoding="utf-8")
    (directory / "main.sh").write_text("exit 0\n", encoding="utf-8")
    return directory


def test_every_agent_is_explained_in_sentences(
    start: Callable[..., DaemonProcess], own: Path, project: Path
) -> None:
    _trust(start, own, project)
    primary, reader = _json(own, "cage", "explain", "--project", str(project))["items"]
    assert "no cage" in primary["allows"][0]["words"]
    assert (reader["kind"], reader["name"]) == ("agent", "primary.subagents.reader")
    assert f"may read everything in {project}, but not change it" in [
        one["words"] for one in reader["allows"]
    ]
    assert _json(own, "cage", "explain", "nobody", "--project", str(project), expect=3)
    assert kaged(own, "cage", "explain", "x", "--kind", "neither").returncode == 2


def test_an_installed_plugin_is_explained_in_the_words_of_the_install_prompt(
    start: Callable[..., DaemonProcess], own: Path, project: Path, tmp_path: Path
) -> None:
    start(forked=True)
    source = _plugin(tmp_path, "net:*", "write:fs:config:/notes")
    asked = kaged(own, "plugin", "install", str(source))  # nobody is there to say yes
    assert asked.returncode != 0
    prompt = [line for line in asked.stdout.splitlines() if line.startswith("    ")]
    assert any("!! DANGEROUS" in line for line in prompt)
    assert kaged(own, "daemon", "stop").returncode == 0
    shutil.copytree(source, own / "plugins" / "notes")
    explained = kaged(own, "cage", "explain", "notes", cwd=project)
    assert explained.returncode == 0, explained.stderr
    shown = explained.stdout.splitlines()
    assert [line for line in prompt if line not in shown] == []
    (view,) = _json(own, "cage", "explain", "notes")["items"]
    assert (view["kind"], view["version"]) == ("plugin", "1.0.0")
    assert [one["text"] for one in view["capabilities"] if one["dangerous"]] == ["net:*"]


def test_a_shell_in_an_agents_cage_reaches_what_it_is_granted_and_nothing_else(
    start: Callable[..., DaemonProcess], own: Path, project: Path
) -> None:
    _trust(start, own, project)
    (project / "hello.txt").write_text("hello from outside", encoding="utf-8")
    script = (
        f"cat {project}/hello.txt; touch {project}/new && echo WROTE; "
        f"cat {own}/config.toml && echo LEAKED; exit 5\n"
    )
    done = _shell(own, script, "primary.subagents.reader", "--project", str(project))
    assert done.returncode == 5, done.stderr
    assert "hello from outside" in done.stdout
    output = done.stdout.replace(script.strip(), "")
    assert "\nWROTE" not in output
    assert "\nLEAKED" not in output
    assert kaged(own, "cage", "shell", "--project", str(project)).returncode == 1


def test_a_shell_in_the_cage_of_a_file_or_a_plugin(
    own: Path, project: Path, tmp_path: Path
) -> None:
    (project / "open").mkdir()
    file = tmp_path / "cage.yaml"
    file.write_text("fs: [{mode: rw, path: open}]\n", encoding="utf-8")
    script = f"touch {project}/open/made; ls {project}; exit 6\n"
    done = _shell(own, script, "--policy", str(file), "--project", str(project))
    assert done.returncode == 6, done.stderr
    assert (project / "open" / "made").exists()
    assert ".kaged" not in done.stdout

    installed = own / "plugins"
    _plugin(installed)
    done = _shell(own, "pwd; echo $KAGED_PLUGIN_NAME; ls /home; git; exit 7\n", "notes")
    assert done.returncode == 7, done.stderr
    assert f"{installed}/notes" in done.stdout
    assert "\nnotes" in done.stdout.replace("\r", "")
    assert "No such file" in done.stdout + done.stderr
    assert "not found" in done.stdout + done.stderr  # no program beyond its own and the coreutils
