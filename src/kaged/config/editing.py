"""`edit_yaml`, `edit_toml`: change a file of a person by program, whole or not at all."""

from __future__ import annotations

import codecs
import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from kaged.config.atomic import file_lock, replace_file
from kaged.config.files import FileText, Privacy, is_missing, read_text
from kaged.config.problems import ConfigFileInvalid
from kaged.config.tomledit import TomlEdit
from kaged.config.yamledit import YamlEdit

T = TypeVar("T", YamlEdit, TomlEdit)


def edit_yaml(
    path: Path, change: Callable[[YamlEdit], None], *, inside: Path | None = None
) -> bool:
    """Change a YAML file; return whether it changed. Blocks on the disk.

    `change` sets and deletes keys. Comments, order and every byte that is not part of a changed
    value stay. A link is followed and stays; with `inside` it may not lead out of that directory.

    Raises:
        ConfigFileInvalid: the file is missing or cannot be read.
        EditRefused: the change would touch more than it should; nothing is written.
        KagedError: `config_busy`, `config_changed`, `config_write_failed`; nothing is written.
    """
    found = read_text(path, inside=inside)
    return _edit(path, found, YamlEdit, change, Privacy.OPEN, inside)


def edit_toml(
    path: Path, change: Callable[[TomlEdit], None], *, privacy: Privacy = Privacy.TRUSTED
) -> bool:
    """Change a TOML file, or make it with mode 0600; return whether it changed. Blocks on the disk.

    Raises:
        ConfigFileInvalid: the file cannot be read, or others may touch it (`privacy`).
        EditRefused: the change would touch more than it should; nothing is written.
        KagedError: `config_busy`, `config_changed`, `config_write_failed`; nothing is written.
    """
    found: FileText | None = None
    try:
        found = read_text(path, privacy=privacy)
    except ConfigFileInvalid as error:
        if not is_missing(error):
            raise
    return _edit(path, found, TomlEdit, change, privacy, None)


def _edit(
    path: Path,
    found: FileText | None,
    kind: type[T],
    change: Callable[[T], None],
    privacy: Privacy,
    inside: Path | None,
) -> bool:
    target = Path(os.path.realpath(path)) if found is None else found.real_path
    with file_lock(target):
        if found is not None:
            # Read again under the lock: another writer may have been first.
            found = read_text(target, privacy=privacy, inside=inside)
        text = "" if found is None else found.text
        edit = kind(text, str(path))
        change(edit)
        if edit.text == text:
            return False
        mark = codecs.BOM_UTF8 if found is not None and found.has_bom else b""
        data = mark + edit.text.encode("utf-8")
        replace_file(target, data, None if found is None else found.info)
    return True
