"""Caches that have the base programs already, as a second start finds them.

The first start of a daemon, or the first cage over a new cache directory, copies a hundred programs
into it. Almost every cache of a test is new. So the first one of each process of tests is kept,
and those that follow get links to its files.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path

NAMES = "shelf-*"
USELESS = os.geteuid() == 0
"""Root's daemons give homes and programs to other users: each has files of its own."""


class Stock:
    """The base programs of one cache, kept for others."""

    def __init__(self) -> None:
        self._folder: Path | None = None
        self._filling: list[Path] = []

    def keep(self, cache_dir: Path) -> None:
        """Keep the base programs of a cache, unless some are kept already.

        A daemon answers before it has them: then they are kept when somebody asks for some.
        """
        if USELESS or self._folder is not None:
            return
        found = [one for one in cache_dir.glob(NAMES) if "-new-" not in one.name]
        if not found:
            self._filling = [one for one in self._filling if one.exists()] + [cache_dir]
            return
        folder = Path(tempfile.mkdtemp(prefix="kgd-stock-"))
        atexit.register(_remove, folder, os.getpid())
        if all(_link(one, folder / one.name) for one in found):
            self._folder = folder

    def lend(self, cache_dir: Path) -> bool:
        """Link what is kept into a cache; returns whether it has base programs now."""
        if next(cache_dir.glob(NAMES), None) is not None:
            return True
        filling, self._filling = self._filling, []
        for one in filling:
            self.keep(one)
        if self._folder is None:
            return False
        cache_dir.mkdir(parents=True, exist_ok=True)
        cache_dir.chmod(0o755)
        return all(_link(one, cache_dir / one.name) for one in self._folder.iterdir())


def _link(source: Path, target: Path) -> bool:
    try:
        shutil.copytree(source, target, copy_function=os.link)
    except OSError:  # another file system: the daemon copies them itself
        shutil.rmtree(target, ignore_errors=True)
        return False
    return True


def _remove(folder: Path, owner: int) -> None:
    if os.getpid() == owner:  # not a fork of it
        shutil.rmtree(folder, ignore_errors=True)


STOCK = Stock()
