from __future__ import annotations

from pathlib import Path

import pytest

from kaged.config.manifest import load_manifest
from kaged.plugins.scaffold import Language, new_plugin
from raising import raises_code


@pytest.mark.parametrize("language", list(Language))
def test_a_new_plugin_has_a_manifest_without_any_problem(
    tmp_path: Path, language: Language
) -> None:
    made = new_plugin(tmp_path / "hello", "hello-world", language)
    loaded = load_manifest(made.directory)
    assert (loaded.value.name, loaded.warnings) == ("hello-world", ())
    assert {"kaged-plugin.yaml", "README.md"} < set(made.files)
    for path in made.directory.iterdir():
        assert "@NAME@" not in path.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["Hello", "shell", "", "9lives", "a b", "x" * 65, "../x", "true"])
def test_a_name_that_no_plugin_can_have_writes_nothing(tmp_path: Path, name: str) -> None:
    with raises_code("plugin_scaffold_refused"):
        new_plugin(tmp_path / "new", name, Language.PYTHON)
    assert not (tmp_path / "new").exists()


def test_what_is_there_already_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("x", encoding="utf-8")
    for directory in (tmp_path, tmp_path / "mine"):
        with raises_code("plugin_scaffold_refused"):
            new_plugin(directory, "hello", Language.BASH)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
