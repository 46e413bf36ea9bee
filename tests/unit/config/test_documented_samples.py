"""Every YAML and TOML block of the pages about configuration is loaded as a reader would use it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kaged.config import parse_manifest
from unit.config.trials import OperatorFiles, ProjectFolder

DOCS = Path(__file__).resolve().parents[3] / "docs"
PAGES = (
    "how-to/describe-a-project.md",
    "reference/project-file.md",
    "reference/config-toml.md",
    "reference/local-toml.md",
    "reference/plugin-manifest.md",
)


def blocks(language: str) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for page in PAGES:
        text = (DOCS / page).read_text(encoding="utf-8")
        found += [
            (page, block) for block in re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)
        ]
    return found


@pytest.mark.parametrize(("page", "text"), blocks("yaml"))
def test_yaml_blocks_load_without_a_warning(project: ProjectFolder, page: str, text: str) -> None:
    if page.endswith("plugin-manifest.md"):
        assert parse_manifest(text).warnings == ()
        return
    for name in ("prompts/primary.md", "prompts/coder.md", ".kaged/prompts/primary.md"):
        project.put(name)
    assert project.load(text).warnings == ()


@pytest.mark.parametrize(("page", "text"), blocks("toml"))
def test_toml_blocks_load_without_a_warning(operator: OperatorFiles, page: str, text: str) -> None:
    environ = dict.fromkeys(re.findall(r"\$\{(\w+)\}", text), "x")
    if page.endswith("config-toml.md"):
        assert operator.config(text, environ).warnings == ()
    else:
        assert operator.local(text, environ).warnings == ()


def test_there_are_blocks_to_try() -> None:
    assert len(blocks("yaml")) >= 5
    assert len(blocks("toml")) >= 4
