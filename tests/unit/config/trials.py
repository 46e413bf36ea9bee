"""Ways to try a configuration text: load it, or see everything that is wrong with it."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from pathlib import Path

import pytest

from kaged.config import ConfigFileInvalid, Loaded, Problem
from kaged.config.daemonconfig import DaemonConfig, load_daemon_config
from kaged.config.localconfig import LocalConfig, load_local_config
from kaged.config.manifest import Manifest, parse_manifest
from kaged.config.project import Project, load_project


class ProjectFolder:
    """A project in a temporary directory."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.file = root / ".kaged" / "project.yaml"
        self.file.parent.mkdir(parents=True, exist_ok=True)

    def put(self, path: str, text: str = "Be helpful.\n") -> Path:
        """Put a file into the project."""
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
        return target

    def load(self, text: str) -> Loaded[Project]:
        """Write the project file and load it."""
        self.file.write_text(textwrap.dedent(text), encoding="utf-8")
        return load_project(self.root)

    def problems(self, text: str) -> tuple[Problem, ...]:
        """Return what is wrong with a project file that must not load."""
        with pytest.raises(ConfigFileInvalid) as caught:
            self.load(text)
        return caught.value.problems

    def agent(self, keys: str = "", subagent: str | None = None) -> str:
        """Write a project file whose primary (and one subagent, if given) has these keys."""
        text = "primary:\n  model: smart\n  system_prompt: Be helpful.\n"
        text += textwrap.indent(textwrap.dedent(keys), "  ")
        if subagent is not None:
            text += (
                "  subagents:\n    coder:\n      model: fast\n      system_prompt: Write code.\n"
            )
            text += textwrap.indent(textwrap.dedent(subagent), "      ")
        return text


class OperatorFiles:
    """An operator's `config.toml` and `local.toml` in a temporary directory."""

    def __init__(self, folder: Path) -> None:
        self.config_toml = folder / "config.toml"
        self.local_toml = folder / "local.toml"

    def config(self, text: str, environ: Mapping[str, str] | None = None) -> Loaded[DaemonConfig]:
        """Write config.toml and load it."""
        self.config_toml.write_text(textwrap.dedent(text), encoding="utf-8")
        self.config_toml.chmod(0o644)
        return load_daemon_config(self.config_toml, environ or {})

    def local(self, text: str, environ: Mapping[str, str] | None = None) -> Loaded[LocalConfig]:
        """Write local.toml and load it."""
        self.local_toml.write_text(textwrap.dedent(text), encoding="utf-8")
        self.local_toml.chmod(0o600)
        return load_local_config(self.local_toml, environ or {})

    def config_problems(self, text: str) -> tuple[Problem, ...]:
        """Return what is wrong with a config.toml that must not load."""
        with pytest.raises(ConfigFileInvalid) as caught:
            self.config(text)
        return caught.value.problems


MINIMAL_MANIFEST = """\
name: memory-md
version: 1.4.2
kaged_api: 1
description: Remembers things.
command: [./main.py]
capabilities: []
"""


def manifest(extra: str = "", base: str = MINIMAL_MANIFEST) -> Loaded[Manifest]:
    """Load a manifest: the least one, with further lines; a line for the same key replaces it."""
    return parse_manifest(manifest_text(extra, base))


def manifest_text(extra: str = "", base: str = MINIMAL_MANIFEST) -> str:
    """Write the least manifest with further lines; a line for the same key replaces it."""
    extra = textwrap.dedent(extra)
    replaced = {line.partition(":")[0] for line in extra.splitlines() if line[:1].isalpha()}
    kept = [line for line in base.splitlines() if line.partition(":")[0] not in replaced]
    return "\n".join(kept) + "\n" + extra


def manifest_problems(extra: str = "", base: str = MINIMAL_MANIFEST) -> tuple[Problem, ...]:
    """Return what is wrong with a manifest that must not load."""
    with pytest.raises(ConfigFileInvalid) as caught:
        manifest(extra, base)
    return caught.value.problems


def without_key(key: str, base: str = MINIMAL_MANIFEST) -> str:
    """Write the least manifest without one of its keys."""
    return "\n".join(line for line in base.splitlines() if not line.startswith(f"{key}:")) + "\n"


def errors(problems: tuple[Problem, ...]) -> list[tuple[str, str]]:
    """Return key path and code of the problems that stop something."""
    return [(p.key_path, p.code) for p in problems if p.severity.value == "error"]


def warnings(problems: tuple[Problem, ...]) -> list[tuple[str, str]]:
    """Return key path and code of the problems that stop nothing."""
    return [(p.key_path, p.code) for p in problems if p.severity.value == "warning"]
