"""Which tag a version constraint picks, and where relative sources may lie."""

from __future__ import annotations

from pathlib import Path

import pytest

from fakes.store_lab import write_plugin
from kaged.config.pluginwords import PluginSource, SourceKind, parse_source
from kaged.config.semver import parse_range
from kaged.plugins.sources import choose_tag, relative_source
from raising import raises_code
from requirements import requirement

TAGS = ("v1.0.0", "1.1.0", "v2.0.0-rc.1", "nightly", "v1.0.10", "1.0.0")


@pytest.mark.parametrize(
    ("wanted", "tag"),
    [
        ("1.0.0", "v1.0.0"),
        ("1.1.0", "1.1.0"),
        ("^1.0", "1.1.0"),
        ("~1.0.0", "v1.0.10"),
        ("<1.0.5", "v1.0.0"),
        ("2.0.0-rc.1", "v2.0.0-rc.1"),
        ("*", "1.1.0"),
    ],
)
def test_a_constraint_picks_a_tag(wanted: str, tag: str) -> None:
    assert choose_tag(TAGS, parse_range(wanted)) == tag


@pytest.mark.parametrize("wanted", ["9.9.9", "^3"])
def test_without_a_fitting_tag_the_tags_are_listed(wanted: str) -> None:
    with raises_code("plugin_source_unavailable", match=r"1\.0\.0, 1\.1\.0, nightly, v1\.0\.0"):
        choose_tag(TAGS, parse_range(wanted))
    with raises_code("plugin_source_unavailable", match="has: none"):
        choose_tag((), parse_range(wanted))


@requirement("PH-INST-17")
def test_a_relative_source_lies_in_the_project(tmp_path: Path) -> None:
    project = tmp_path / "project"
    inside = write_plugin(project / "tools" / "sample")
    write_plugin(tmp_path / "outside")
    (project / "empty").mkdir()
    (project / "link").symlink_to(tmp_path / "outside")
    assert relative_source(project, parse_source("./tools/sample")) == inside
    for location, why in (
        ("link", "leads out"),
        ("../outside", "leads out"),
        ("empty", "kaged-plugin.yaml"),
        ("nowhere", "no directory"),
    ):
        with raises_code("plugin_source_unavailable", match=why):
            relative_source(project, PluginSource(SourceKind.PATH, location))
