"""`SkillLibrary`: the skills below one folder of the operator or of a project."""

from __future__ import annotations

import os
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Final

from kaged.base import JsonObject, JsonValue
from kaged.base.lazy_dataclass import dataclass
from kaged.base.log import get_logger
from kaged.config.problems import Problem
from kaged.config.skill_file import SKILL_FILE, SkillFile, SkillFileInvalid, parse_skill_file
from kaged.skills.folder import BundledFile, SkillFolder, read_folder

SKILLS_LIMIT: Final = 256
"""How many skills one place may hold."""

_log = get_logger("kaged.skills")


class SkillSource(StrEnum):
    """Whose skill it is."""

    OPERATOR = "operator"
    PROJECT = "project"


@dataclass(frozen=True, slots=True)
class Skill:
    """One skill that can be used, as its files were when they were read."""

    name: str
    source: SkillSource
    folder: Path
    inside: Path
    file: SkillFile
    content: SkillFolder
    digest: str

    @property
    def files(self) -> Sequence[BundledFile]:
        """Its files, `SKILL.md` among them."""
        return self.content.files

    @property
    def capabilities(self) -> tuple[str, ...]:
        """The account capabilities that it declares, sorted."""
        return tuple(sorted(one.text for one in self.file.metadata.capabilities or ()))

    def as_json(self) -> JsonObject:
        """Return it for people and programs, without its instructions."""
        listed: list[JsonValue] = [
            {"path": one.path, "size": one.size, "executable": one.executable} for one in self.files
        ]
        metadata = self.file.metadata
        return {
            "name": self.name,
            "source": self.source.value,
            "description": self.file.description,
            "folder": str(self.folder),
            "digest": self.digest,
            "sensitive": metadata.sensitive,
            "chat_types": list(metadata.chat_types),
            "capabilities": list(self.capabilities),
            "files": listed,
            "front_matter": self.file.front,
            "problems": [one.as_json() for one in self.file.warnings],
        }


@dataclass(frozen=True, slots=True)
class RefusedSkill:
    """A folder that holds no usable skill, and why."""

    name: str
    source: SkillSource
    folder: Path
    problems: tuple[Problem, ...]

    @property
    def reason(self) -> str:
        """The first thing that is wrong, with its place."""
        first = self.problems[0]
        place = first.file if first.line is None else f"{first.file}, line {first.line}"
        return f"{place}: {first.message}"

    def as_json(self) -> JsonObject:
        """Return it for people and programs, with the members of a usable one."""
        return {
            "name": self.name,
            "source": self.source.value,
            "state": "refused",
            "description": "",
            "folder": str(self.folder),
            "digest": "",
            "sensitive": False,
            "chat_types": [],
            "capabilities": [],
            "files": [],
            "front_matter": {},
            "problems": [one.as_json() for one in self.problems],
        }


@dataclass(frozen=True, slots=True)
class FoundSkills:
    """What one look at a place gave, by name."""

    skills: dict[str, Skill]
    refused: dict[str, RefusedSkill]


class SkillLibrary:
    """Reads the skills of some folders, again at every look; unchanged ones cost a stat each."""

    def __init__(self, source: SkillSource, places: Sequence[Path], inside: Path) -> None:
        self._source = source
        self.places = places
        self._inside = inside
        self._known: dict[Path, Skill | RefusedSkill] = {}

    def look(self) -> FoundSkills:
        """Return the skills as they are now. Blocks on the disk.

        Where two places have a skill of one name, the first counts.
        """
        skills: dict[str, Skill] = {}
        refused: dict[str, RefusedSkill] = {}
        seen: dict[Path, Skill | RefusedSkill] = {}
        for place in self.places:
            for folder in _folders(place):
                if folder.name in skills or folder.name in refused:
                    continue
                found = seen[folder] = self._read(folder, len(seen))
                if isinstance(found, Skill):
                    skills[folder.name] = found
                else:
                    refused[folder.name] = found
        self._known = seen
        return FoundSkills(skills, refused)

    def _read(self, folder: Path, number: int) -> Skill | RefusedSkill:
        known = self._known.get(folder)
        try:
            if number >= SKILLS_LIMIT:
                raise SkillFileInvalid(_too_many(folder))
            before = known.content if isinstance(known, Skill) else None
            found = read_skill(folder, self._source, self._inside, before)
        except SkillFileInvalid as error:
            refused = RefusedSkill(folder.name, self._source, folder, error.problems)
            if known != refused:
                why = error.message
                _log.warning("skill.refused", skill=folder.name, code=error.code, reason=why)
            return refused
        if isinstance(known, Skill) and known.digest == found.digest:
            return known
        ignored = found.file.metadata.ignored
        if ignored:
            _log.warning("skill.ignored", skill=folder.name, fields=list(ignored))
        return found


def read_skill(
    folder: Path, source: SkillSource, inside: Path, known: SkillFolder | None = None
) -> Skill:
    """Read one skill. Blocks on the disk. Raises SkillFileInvalid."""
    content = read_folder(folder, inside, known)
    file = parse_skill_file(content.text, folder.name, str(folder / SKILL_FILE))
    return Skill(folder.name, source, folder, inside, file, content, content.digest)


def _folders(place: Path) -> list[Path]:
    """Return what could be skills: folders, and links to some, with a `SKILL.md` in them."""
    try:
        with os.scandir(place) as listed:
            names = sorted(one.name for one in listed if not one.name.startswith("."))
    except OSError:
        return []
    return [place / name for name in names if (place / name / SKILL_FILE).exists()]


def _too_many(folder: Path) -> Problem:
    message = f"there are more than {SKILLS_LIMIT} skills in one place"
    return Problem(str(folder), None, None, "", message, "remove some of them")
