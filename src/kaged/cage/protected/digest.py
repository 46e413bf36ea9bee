"""`digest_path`: what lies at a path that an operator took out of the list, in one short text."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path
from typing import Final

MAX_FILES: Final = 1000
MAX_BYTES: Final = 16 * 1024 * 1024


def digest_path(path: Path) -> str:
    """Return the SHA-256 of a file, or of the names, modes and contents below a folder, in hex.

    The answer is `nothing there` when there is nothing, and `too large` beyond the limits.
    Links are taken by their text.
    """
    if not os.path.lexists(path):
        return "nothing there"
    total = hashlib.sha256()
    room = MAX_BYTES
    for files, one in enumerate((path, *_below(path)), 1):
        try:
            entry = one.lstat()
            if stat.S_ISLNK(entry.st_mode):
                content = os.fsencode(one.readlink())
            elif stat.S_ISREG(entry.st_mode):
                if entry.st_size > room or files > MAX_FILES:
                    return "too large"
                content = one.read_bytes()
            else:
                content = b""
        except OSError as error:
            return f"unreadable ({error.strerror})"
        room -= len(content)
        name = os.fsencode(one.relative_to(path))
        total.update(b"%d %o %d\0" % (len(name), entry.st_mode, len(content)) + name + content)
    return total.hexdigest()


def _below(path: Path) -> list[Path]:
    if path.is_symlink() or not path.is_dir():
        return []
    found: list[Path] = []
    for folder, folders, files in os.walk(path):
        folders.sort()
        found += [Path(folder, name) for name in sorted((*folders, *files))]
        if len(found) > MAX_FILES:
            break
    return found
