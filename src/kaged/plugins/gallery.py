"""The gallery: plugins that come with kaged, installed by name like any other, after consent."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from kaged.base import JsonValue, KagedError
from kaged.config.pluginwords import MANIFEST_NAME

GALLERY: Final = "gallery:"
_NAME: Final = re.compile(r"[a-z][a-z0-9-]{0,63}")


def is_gallery_word(text: str) -> bool:
    """Return whether a text names a plugin of the gallery rather than a directory."""
    return text.startswith(GALLERY)


def gallery_directory(text: str) -> Path:
    """Return the directory of `gallery:NAME`. Blocks on the disk.

    Raises:
        KagedError: `plugin_not_in_gallery`; there is no such plugin; `fix` names those there are.
    """
    name = text.removeprefix(GALLERY)
    if _NAME.fullmatch(name):
        for one in gallery_directories():
            if one.name == name:
                return one
    known: list[JsonValue] = [one.name for one in gallery_directories()]
    raise KagedError(
        f"The gallery has no plugin {name[:64]!r}.",
        code="plugin_not_in_gallery",
        fix=f"it has: {', '.join(map(str, known)) or 'none'}",
        plugins=known,
    )


def gallery_directories() -> Iterator[Path]:
    """Yield the directories of all plugins that come with kaged, by name."""
    package = Path(__file__).parents[1]
    # In a wheel they lie in the package; in a checkout beside the sources, in two folders.
    beside = package.parents[1] / "plugins"
    found = {
        one.name: one
        for folder in (package / "_gallery", beside / "gallery", beside / "examples")
        if folder.is_dir()
        for one in folder.iterdir()
        if (one / MANIFEST_NAME).is_file()
    }
    for name in sorted(found):
        yield found[name]
