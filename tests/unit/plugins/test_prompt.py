"""What install and upgrade show before the question."""

from __future__ import annotations

from typing import Any

from fakes.store_lab import MANIFEST
from kaged.config.manifest import Manifest, parse_manifest
from kaged.kernel.capabilities import parse_capabilities
from kaged.plugins.prompt import Change, install_prompt
from requirements import requirement


def manifest(**fields: Any) -> Manifest:
    import yaml

    return parse_manifest(yaml.safe_dump({**MANIFEST, **fields})).value


@requirement("PH-CAP-06", "PH-CAP-14")
def test_an_install_shows_each_capability_verbatim_and_flags_the_dangerous() -> None:
    texts = ["read:fs:/opt/x", "exec:bash:/opt/x", "net:*", "kaged:storage:write"]
    prompt = install_prompt(manifest(capabilities=texts), "d", change=Change.INSTALL)
    lines = prompt.lines()
    for text in texts:
        assert f"    - {text}" in lines
    flagged = lines.index("    - net:*")
    assert lines[flagged + 1] == "        connect to any host on the internet"
    assert lines[flagged + 2].startswith("        !! DANGEROUS")
    harmless = lines.index("    - read:fs:/opt/x")
    assert "DANGEROUS" not in lines[harmless + 2]
    upgrade = install_prompt(
        manifest(capabilities=texts), "d", change=Change.UPGRADE, old_version="0.1.0"
    )
    for text in texts:
        assert any(text in line for line in upgrade.lines())


def test_an_install_shows_who_it_is_and_asks_with_no_as_the_default() -> None:
    prompt = install_prompt(
        manifest(license="MIT", capabilities=[]), "d", change=Change.INSTALL, source="/src"
    )
    text = "\n".join(prompt.lines())
    for part in (
        "name: sample",
        "version: 1.0.0",
        "kaged_api: 1",
        "A plugin to install.",
        "license: MIT",
        "source: /src",
        "capabilities: none",
    ):
        assert part in text
    assert prompt.question == "Install sample? [y/N]"
    assert prompt.as_json()["digest"] == "d"


def test_an_upgrade_shows_what_is_new_and_what_went() -> None:
    prompt = install_prompt(
        manifest(version="2.0.0", capabilities=["net:api.openai.com:443"]),
        "d",
        change=Change.UPGRADE,
        old_version="1.4.2",
        old=parse_capabilities(["exec:bash:/opt/x"]),
    )
    lines = prompt.lines()
    assert lines[0] == "Plugin sample is already installed (version 1.4.2)."
    assert lines[1] == "New version: 2.0.0"
    assert any(line.startswith("  + net:api.openai.com:443    (NEW)") for line in lines)
    assert "  - exec:bash:/opt/x    (REMOVED)" in lines
    assert prompt.question == "Upgrade sample 1.4.2 → 2.0.0? [y/N]"
    assert prompt.widens


def test_an_upgrade_that_asks_for_less_widens_nothing() -> None:
    prompt = install_prompt(
        manifest(version="2.0.0", capabilities=["read:fs:/a/b"]),
        "d",
        change=Change.UPGRADE,
        old_version="1.0.0",
        old=parse_capabilities(["read:fs:/a"]),
    )
    assert [(line.text, line.widening) for line in prompt.added] == [("read:fs:/a/b", False)]
    assert not prompt.widens
    same = install_prompt(
        manifest(version="2.0.0", capabilities=[]),
        "d",
        change=Change.UPGRADE,
        old_version="1.0.0",
    )
    assert "Capability changes: none" in same.lines()


def test_grants_of_the_operator_are_shown_as_such() -> None:
    prompt = install_prompt(
        manifest(), "d", change=Change.INSTALL, grants=parse_capabilities(["read:fs:/srv"])
    )
    assert "    - read:fs:/srv  (added by the operator)" in prompt.lines()
