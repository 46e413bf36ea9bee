"""Which cage a name means, and what is said about it. Files only: nothing is started."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from fakes.running_daemon import make_home, make_project
from kaged.config import ConfigFileInvalid, Locations
from kaged.config.project import load_project
from kaged.config.project_ask import project_ask
from kaged.config.settings import read_settings
from kaged.diagnostics.cage_views import CagedAgentNotFound, CageOwner, CageViews
from kaged.kernel.policy import FsGrant, FsMode
from kaged.plugins.errors import PluginNotFound
from kaged.store import ProjectRecord
from raising import raises_code

PROJECT = """
version: 1
project: sample
primary:
  model: default
  system_prompt: You help.
  plugins:
    notes: {package: "%s"}
  subagents:
    reader: {model: default, system_prompt: You read., cage: {fs: [{mode: ro, path: src}]}}
"""


class Host:
    """A home with a plugin store, and a project."""

    def __init__(self, folder: Path) -> None:
        self.home = make_home(folder / "home")
        self.root = make_project(folder / "project", PROJECT % "notes")
        (self.root / "src").mkdir()

    def plugin(self, name: str, *capabilities: str) -> Path:
        directory = self.home / "plugins" / name
        directory.mkdir(parents=True)
        manifest: dict[str, Any] = {
            "name": name,
            "version": "1.2.3",
            "kaged_api": 1,
            "description": "A plugin.",
            "command": ["./main"],
            "capabilities": list(capabilities),
        }
        (directory / "kaged-plugin.yaml").write_text(yaml.safe_dump(manifest), encoding="utf-8")
        return directory

    def views(self, root: Path | None = None, *, trusted: bool = True, **more: str) -> CageViews:
        environ = {"KAGED_HOME": str(self.home), **more}
        settings = read_settings(Locations.from_env(environ), environ)
        return CageViews(settings, environ, root or self.root, self.record(trusted=trusted))

    def record(self, *, trusted: bool) -> ProjectRecord:
        agreed = project_ask(load_project(self.root).value).as_json() if trusted else None
        root = str(self.root)
        return ProjectRecord("prj_1", root, "sample", "sample", trusted, 1, 1, 1, "me", agreed)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_a_plugin_is_explained_by_its_name_with_dangerous_parts_flagged(host: Host) -> None:
    host.plugin("notes", "read:fs:project:/src", "net:*", "kaged:storage:write")
    view = host.views().find("notes")
    assert (view.owner, view.version) == (CageOwner.PLUGIN, "1.2.3")
    shown = "\n".join(view.lines())
    assert "● plugin notes 1.2.3" in shown
    assert "- net:*\n        connect to any host on the internet" in shown
    assert "        !! DANGEROUS: it can send anything it can read to anyone" in shown
    assert "read and write its own tables" in shown
    assert f"may read everything in {host.root}/src, but not change it" in shown
    assert "no other program by name" in shown
    found = view.as_json()
    assert found["used_by_project"] is True
    flagged = [one["text"] for one in found["capabilities"] if one["dangerous"]]  # type: ignore[index, union-attr]
    assert flagged == ["net:*"]
    assert [one["warning"] for one in found["allows"] if one["dangerous"]] == [  # type: ignore[index, union-attr]
        "it can send anything it can read to anyone"
    ]


def test_what_the_operator_added_and_limited_is_part_of_it(host: Host) -> None:
    host.plugin("notes")
    (host.home / "config.toml").write_text("[sandbox.plugins.notes]\nmemory_mb = 77\n")
    local = host.home / "local.toml"
    local.write_text('[plugins.notes]\ngrants = ["net:api.test:443"]\n', encoding="utf-8")
    local.chmod(0o600)
    shown = "\n".join(host.views().find("notes").lines())
    assert "- net:api.test:443  (added by the operator)" in shown
    assert "may connect to api.test, port 443" in shown
    assert "at most 77 MiB of memory" in shown


def test_a_project_that_does_not_use_a_plugin_shows_it_nothing(host: Host, tmp_path: Path) -> None:
    host.plugin("other", "read:fs:project:/")
    view = host.views().find("other")
    assert not view.used_here
    assert "this project does not use it" in "\n".join(view.lines())
    assert view.policy is not None
    assert [grant.path for grant in view.policy.fs] == [str(host.home / "plugins/other")]
    outside = host.views(tmp_path).find("other")
    assert outside.project is None
    assert "does not use it" not in "\n".join(outside.lines())


def test_explaining_a_plugin_makes_nothing(host: Host) -> None:
    host.plugin("notes", "write:fs:config:/cache")
    before = sorted(host.home.rglob("*"))
    list(host.views().find("notes").lines())
    assert sorted(host.home.rglob("*")) == before


def test_a_name_that_is_both_is_an_error_that_says_what_to_add(host: Host) -> None:
    host.plugin("primary")
    views = host.views()
    with raises_code("cage_ambiguous") as caught:
        views.find("primary")
    assert "--kind agent" in (caught.value.fix or "")
    assert "--kind plugin" in (caught.value.fix or "")
    assert views.find("primary", CageOwner.AGENT).owner is CageOwner.AGENT
    assert views.find("primary", CageOwner.PLUGIN).owner is CageOwner.PLUGIN


def test_a_name_that_is_neither_is_told_with_where_to_look(host: Host, tmp_path: Path) -> None:
    views = host.views()
    with raises_code("cage_not_found") as caught:
        views.find("nobody")
    assert "kaged plugin list" in (caught.value.fix or "")
    with pytest.raises(CagedAgentNotFound):
        views.find("nobody", CageOwner.AGENT)
    with pytest.raises(PluginNotFound):
        views.find("nobody", CageOwner.PLUGIN)
    with raises_code("cage_not_found"):
        host.views(tmp_path).find("primary")


def test_a_plugin_that_cannot_be_used_is_not_explained_as_if_it_could(host: Host) -> None:
    directory = host.plugin("notes")
    (directory / "kaged-plugin.yaml").write_text("name: 7", encoding="utf-8")
    with raises_code("plugin_store_failed", match="invalid manifest"):
        host.views().find("notes")


def test_every_agent_is_explained_and_one_without_a_cage_is_flagged(host: Host) -> None:
    primary, reader = host.views().agents()
    assert [primary.name, reader.name] == ["primary", "primary.subagents.reader"]
    assert "has no cage" in primary.allows[0].words
    assert primary.allows[0].dangerous
    assert primary.as_json()["caged"] is False
    assert f"may read everything in {host.root}/src, but not change it" in [
        one.words for one in reader.allows
    ]


def test_agents_of_a_project_that_nobody_agreed_to_are_restricted(host: Host) -> None:
    host.plugin("notes", "read:fs:project:/src")
    views = host.views(trusted=False)
    for view in views.agents():
        assert view.restricted
        assert view.as_json()["restricted"] is True
        assert view.policy is not None
        assert view.policy.fs == (FsGrant(str(host.root), FsMode.RO),)
        assert not view.policy.net
        assert "restricted until you agree" in "\n".join(view.lines())
    assert views.shell(views.find("primary")).policy.fs == (FsGrant(str(host.root), FsMode.RO),)
    assert not views.find("notes").used_here  # nor has it that plugin
    assert not any(view.restricted for view in host.views().agents())


def test_a_file_with_a_cage_is_explained_relative_to_the_project(
    host: Host, tmp_path: Path
) -> None:
    file = tmp_path / "cage.yaml"
    file.write_text("fs: [{mode: rw, path: src}]\nnet: {allow: ['*']}\n", encoding="utf-8")
    view = host.views().file(file)
    assert view.policy is not None
    assert view.policy.fs == (FsGrant(f"{host.root}/src", FsMode.RW),)
    assert any(one.dangerous for one in view.allows)
    file.write_text("fs: [{mode: rw, path: ../x}]\nnets: 1\n", encoding="utf-8")
    with pytest.raises(ConfigFileInvalid) as caught:
        host.views().file(file)
    assert len(caught.value.problems) == 2


def test_a_shell_is_the_guests_own_cage_with_a_shell_in_it(host: Host) -> None:
    directory = host.plugin("notes", "read:fs:project:/src", "write:fs:config:/cache")
    views = host.views()
    inside = views.shell(views.find("notes"))
    assert inside.command == ("/bin/sh",)
    assert inside.policy == views.find("notes").policy
    assert ("KAGED_PLUGIN_DIR", str(directory)) in inside.fixed_env
    reader = views.shell(views.find("primary.subagents.reader"))
    assert (reader.command, reader.cwd) == (("/bin/sh",), str(host.root))
    with raises_code("agent_uncaged"):
        views.shell(views.find("primary"))


def test_toolchains_are_explained_as_they_are_here_and_a_shell_has_them(
    host: Host, tmp_path: Path
) -> None:
    python = tmp_path / "person/.pyenv/versions/3.12.1/bin/python3"
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\n", encoding="utf-8")
    python.chmod(0o755)
    cage = "cage: {fs: [{mode: ro, path: src}], toolchains: [python]}"
    make_project(
        host.root, (PROJECT % "notes").replace("cage: {fs: [{mode: ro, path: src}]}", cage)
    )
    views = host.views(HOME=str(tmp_path / "person"))
    view = views.find("primary.subagents.reader")
    shown = "\n".join(view.lines())
    assert "may use the python toolchain in your home, read-only" in shown
    assert f"has python first on PATH from {python.parent.parent}" in shown
    request = views.shell(view)
    assert str(python.parent.parent) in {one.source for one in request.mounts}
    assert dict(request.fixed_env)["PATH"].startswith(f"{python.parent}:")
    elsewhere = host.views(HOME=str(tmp_path / "nobody")).find("primary.subagents.reader")
    assert f"{python.parent.parent}" not in "\n".join(elsewhere.lines())
