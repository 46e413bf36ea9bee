"""`kaged cage` shows and opens the cage that an agent really has: restricted until one agreed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from whole.harness.daemon import Daemon
from whole.harness.scripts import git, repository

FRESH = {"PYTHONDONTWRITEBYTECODE": "1"}
"""Not forked: a forked command is in no session of its own, and a shell starts one."""
HELPER = {
    "model": "default",
    "system_prompt": "You help.",
    "cage": {"fs": [{"mode": "rw", "path": "./src"}], "net": {"allow": ["example.com:443"]}},
}


def project_file(**helper: Any) -> str:
    """Return a project whose primary has no cage, and whose helper has one."""
    primary = {
        "model": "default",
        "system_prompt": "You obey this repository.",
        "tools": {"*": {"enabled": True}},
        "subagents": {"helper": {**HELPER, **helper}},
    }
    return yaml.safe_dump({"version": 1, "project": "clone", "primary": primary})


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """Return a clone of somebody's repository, which brings a project file."""
    there = tmp_path / "there"
    for folder in ("src", ".kaged"):
        (there / folder).mkdir(parents=True)
    repository(there, {"src/a.txt": "one\n", ".kaged/project.yaml": project_file()})
    git("clone", "-q", str(there), str(tmp_path / "clone"), cwd=tmp_path)
    return tmp_path / "clone"


def explained(daemon: Daemon, root: Path) -> dict[str, dict[str, Any]]:
    """Return what `kaged cage explain` says, by the agent's name."""
    done = daemon.cli("cage", "explain", "--json", "--project", str(root))
    return {one["name"]: one for one in json.loads(done.out)["items"]}


def words(view: dict[str, Any]) -> str:
    """Return an explanation as text."""
    return "\n".join(one["words"] for one in view["allows"])


def shell(daemon: Daemon, root: Path, name: str) -> tuple[int, str]:
    """Return the exit code of a shell in an agent's cage that tries things, and what it said."""
    script = (
        f"cat {root}/src/a.txt; touch {root}/planted {root}/src/planted; "
        f"cat {daemon.home}/local.toml && echo LEA''KED; exit 5\n"
    )
    words = ("cage", "shell", name, "--project", str(root))
    done = daemon.cli(*words, stdin=script, code=None, env=FRESH)
    return done.code, done.out + done.err


def planted(root: Path) -> list[str]:
    """Return what shells have left in the project, and remove it."""
    found = sorted(root.rglob("planted"))
    for file in found:
        file.unlink()
    return [str(file.relative_to(root)) for file in found]


def test_a_clone_that_nobody_agreed_to_is_shown_and_entered_restricted(
    own: Callable[..., Daemon], clone: Path
) -> None:
    daemon = own()  # no daemon runs, and there is no database
    for step in ("nothing there", "never loaded", "loaded", "daemon stopped"):
        if step == "never loaded":
            daemon.start()
        elif step == "loaded":
            daemon.cli("project", "load", str(clone))
        elif step == "daemon stopped":
            daemon.stop()
        for view in explained(daemon, clone).values():
            assert view["restricted"] is True, step
            assert view["caged"] is True, step
            assert f"may read everything in {clone}, but not change it" in words(view), step
            assert "has no network" in words(view), step
        for name in ("primary", "primary.subagents.helper"):
            code, said = shell(daemon, clone, name)
            assert code == 5, (step, said)
            assert "one" in said
            assert "LEAKED" not in said, step
            assert planted(clone) == [], step
            assert "kaged project trust" in said


def test_after_trust_they_are_the_project_s_until_its_files_want_more(
    own: Callable[..., Daemon], clone: Path
) -> None:
    daemon = own()
    daemon.start()
    daemon.cli("project", "load", str(clone), "--trust")
    for running in (True, False):
        if not running:
            daemon.stop()
        found = explained(daemon, clone)
        assert not any(view["restricted"] for view in found.values())
        assert found["primary"]["caged"] is False
        assert "example.com" in words(found["primary.subagents.helper"])
        code, said = shell(daemon, clone, "primary")
        assert code == 1, said
        assert "has no cage" in said
        code, said = shell(daemon, clone, "primary.subagents.helper")
        assert (code, "LEAKED" in said) == (5, False), said
        assert planted(clone) == ["src/planted"]
    file = clone / ".kaged/project.yaml"
    # Narrower: it is what the files say, and nobody is asked.
    file.write_text(project_file(cage={"fs": [{"mode": "ro", "path": "./src"}]}), encoding="utf-8")
    found = explained(daemon, clone)
    assert not any(view["restricted"] for view in found.values())
    assert f"may read everything in {clone}/src, but not change it" in words(
        found["primary.subagents.helper"]
    )
    # Wider: all of it is restricted, before the daemon has read the file and after.
    file.write_text(project_file(cage={"fs": [{"mode": "rw", "path": "."}]}), encoding="utf-8")
    for step in ("not read yet", "read"):
        if step == "read":
            daemon.start()
            (project,) = daemon.get("/projects")["items"]
            assert project["trusted"] is False
        assert all(view["restricted"] for view in explained(daemon, clone).values()), step
        code, said = shell(daemon, clone, "primary")
        assert code == 5, said
        assert planted(clone) == [], step
    # And once it is agreed to, it is the wider one.
    daemon.cli("project", "load", str(clone), "--trust")
    code, said = shell(daemon, clone, "primary.subagents.helper")
    assert code == 5, said
    assert planted(clone) == ["planted", "src/planted"]


def test_an_agreement_that_is_taken_back_restricts_again(
    own: Callable[..., Daemon], clone: Path, tmp_path: Path
) -> None:
    daemon = own()
    daemon.start()
    daemon.cli("project", "load", str(clone), "--trust")
    # The same files elsewhere are another project.
    git("clone", "-q", str(clone), str(tmp_path / "second"), cwd=tmp_path)
    assert all(view["restricted"] for view in explained(daemon, tmp_path / "second").values())
    link = tmp_path / "link"
    link.symlink_to(clone)
    assert not any(view["restricted"] for view in explained(daemon, link).values())
    daemon.cli("project", "trust", str(clone), "--revoke")
    assert all(view["restricted"] for view in explained(daemon, clone).values())
