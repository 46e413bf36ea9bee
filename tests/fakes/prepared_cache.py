"""`prepared_cache`: the base programs of cages, copied for one home and linked into the others.

A daemon's first start in a home copies a hundred programs into its cache, which costs as much as
the rest of the start. Tests have a home each. So what the first daemon of this process has copied
is kept, and each later home begins with hard links to it. The daemon looks at every one of them
before it uses them, and makes anew what is not as it should be.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from functools import cache
from pathlib import Path

_CACHE = "cache"
_PROGRAMS = "shelf-*"
_MODE = 0o755


class PreparedCache:
    """Keeps the base programs of one home for the next ones."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._useless = os.geteuid() == 0  # whose daemons give homes and programs to other users

    def give(self, home: Path) -> bool:
        """Put what is kept into a home that has no cache yet; return whether that was done."""
        target = home / _CACHE
        if self._useless or not self._place.exists() or target.exists() or target.is_symlink():
            return False
        try:
            _link(self._place, target)
        except OSError:  # another disk, or a place that a test has made unfit for a daemon
            if home.is_dir() and os.access(home, os.W_OK):
                shutil.rmtree(target, ignore_errors=True)
            return False
        return True

    def keep(self, home: Path) -> None:
        """Keep what a daemon has copied into this home, if nothing is kept yet.

        It copies after it has said that it is ready; so ask when it is about to end.
        """
        if self._useless or self._place.exists():
            return
        for found in (home / _CACHE).glob(_PROGRAMS):
            making = self._place.with_name("making")
            try:
                making.mkdir()
                _link(found, making / found.name)
                making.rename(self._place)
            except OSError:
                self._useless = True
                shutil.rmtree(making, ignore_errors=True)


@cache
def prepared_cache() -> PreparedCache:
    """Return the one of this process; what it keeps goes away with the process."""
    folder = tempfile.TemporaryDirectory(prefix="kgp-")
    atexit.register(folder.cleanup)
    return PreparedCache(Path(folder.name) / "kept")


def _link(source: Path, target: Path) -> None:
    """Make a folder like another, with links to the same files."""
    target.mkdir()
    target.chmod(_MODE)
    with os.scandir(source) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                _link(Path(entry.path), target / entry.name)
            else:
                os.link(entry.path, target / entry.name, follow_symlinks=False)
