"""`new_plugin`: write a small plugin that works, passes `check_plugin` and has its own test."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Final

from kaged.base import KagedError
from kaged.base.lazy_dataclass import dataclass
from kaged.config.manifest import parse_manifest
from kaged.config.pluginwords import MANIFEST_NAME
from kaged.config.problems import ConfigFileInvalid

_TEMPLATES: Final = Path(__file__).parent / "templates"
_SUFFIX: Final = ".tmpl"
_EXECUTABLE: Final = frozenset({".sh"})


class Language(StrEnum):
    """What a new plugin can be written in."""

    PYTHON = "python"
    NODE = "node"
    BASH = "bash"


@dataclass(frozen=True, slots=True)
class Scaffold:
    """What was written."""

    directory: Path
    files: tuple[str, ...]


def new_plugin(directory: Path, name: str, language: Language) -> Scaffold:
    """Write a new plugin into `directory`, which must be empty or not exist.

    Raises:
        KagedError: `plugin_scaffold_refused`; the name cannot be a plugin's, or there is something
            already.
    """
    texts = {
        path.name.removesuffix(_SUFFIX): _fill(path, name)
        for path in sorted((_TEMPLATES / language.value).glob(f"*{_SUFFIX}"))
    }
    try:
        parse_manifest(texts[MANIFEST_NAME])
    except ConfigFileInvalid as error:
        raise KagedError(
            f"{name!r} cannot be the name of a plugin: {error.problems[-1].message}",
            code="plugin_scaffold_refused",
            fix="use lower-case letters, digits and -, beginning with a letter",
        ) from error
    try:
        if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
            raise KagedError(
                f"{directory} is there already",
                code="plugin_scaffold_refused",
                fix="choose an empty directory",
            )
        directory.mkdir(parents=True, exist_ok=True)
        for file, text in texts.items():
            path = directory / file
            path.write_text(text, encoding="utf-8")
            path.chmod(0o755 if path.suffix in _EXECUTABLE else 0o644)
    except OSError as error:
        raise KagedError(
            f"{directory} cannot be written: {error.strerror}",
            code="plugin_scaffold_refused",
            fix="choose another directory",
        ) from error
    return Scaffold(directory, tuple(texts))


def _fill(path: Path, name: str) -> str:
    text = path.read_text(encoding="utf-8")
    return text.replace("@NAME@", name).replace("@KEY@", name.replace("-", "_"))
