"""`SkillCopies`: the exact files of a skill, where a cage can be shown them.

A copy has the digest as its name and is made of the bytes that the digest is made of. So what was
agreed to is what runs, whatever happens to the skill's own folder in the meantime.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from pathlib import Path
from typing import Final

from kaged.skills.folder import BundledFile, read_folder
from kaged.skills.library import Skill
from kaged.tools import ToolError

COPIES_LIMIT: Final = 128
_PREFIX: Final = "skill-"


class SkillCopies:
    """Copies below the cache, which daemons of one user may share: a digest is a digest."""

    def __init__(self, cache_dir: Path) -> None:
        self._place = cache_dir

    def ensure(self, skill: Skill) -> Path:
        """Return the copy of a skill, making it first where there is none. Blocks on the disk.

        Raises:
            ToolError: `skill_changed`; its files are others by now.
            SkillFileInvalid: its folder cannot be used any more.
            OSError: the cache cannot be written.
        """
        place = self._place / f"{_PREFIX}{skill.digest}"
        if place.is_dir():
            return place
        self._make_room()
        work = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}new-", dir=self._place))
        try:
            made = read_folder(
                skill.folder, skill.inside, keep=lambda file, data: _write(work, file, data)
            )
            if made.digest != skill.digest:
                raise skill_changed(skill.name)
            for folder in (work, *(one for one in work.rglob("*") if one.is_dir())):
                folder.chmod(0o755)  # whatever the umask is: cages of other users read it
            with contextlib.suppress(OSError):  # made at the same time; that one is the same
                work.rename(place)
        finally:
            shutil.rmtree(work, ignore_errors=True)
        return place

    def _make_room(self) -> None:
        copies = sorted(self._place.glob(f"{_PREFIX}*"), key=lambda one: one.stat().st_mtime)
        for old in copies[: max(0, len(copies) - COPIES_LIMIT + 1)]:
            shutil.rmtree(old, ignore_errors=True)


def skill_changed(name: str) -> ToolError:
    """Return the error for a skill whose files changed while it was being used."""
    return ToolError(
        f"The files of the skill {name} have just changed.",
        code="skill_changed",
        fix="Load it again.",
        skill=name,
    )


def _write(work: Path, file: BundledFile, data: bytes) -> None:
    target = work / file.path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(data)
    target.chmod(0o555 if file.executable else 0o444)
