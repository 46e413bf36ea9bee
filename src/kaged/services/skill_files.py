"""`read_skills`: what the skills of this host say about access, out of their `SKILL.md` files."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import structlog

from kaged.base import KagedError
from kaged.config.files import read_text
from kaged.config.nodes import to_json
from kaged.config.yamldoc import parse_yaml
from kaged.services.skills import SkillMetadata, SkillMetadataInvalid, parse_skill_metadata

FILE_NAME: Final = "SKILL.md"
SKILLS_LIMIT: Final = 256
_FENCE: Final = "---"

_log = structlog.get_logger("kaged.services")


def read_skills(directory: Path) -> dict[str, SkillMetadata]:
    """Read `<directory>/<skill>/SKILL.md`; a file that cannot be used leaves its skill unknown.

    An unknown skill may use nothing that its token does not name. Fields with which a skill tries
    to choose its provider's program are ignored, and the log names them.
    """
    found: dict[str, SkillMetadata] = {}
    try:
        folders = sorted(one for one in directory.iterdir() if one.is_dir())[:SKILLS_LIMIT]
    except OSError:
        return found
    for folder in folders:
        path = folder / FILE_NAME
        if not path.is_file():
            continue
        try:
            metadata = parse_skill_metadata(folder.name, _front_matter(path))
        except KagedError as error:
            _log.warning("skill.refused", skill=folder.name, reason=error.message)
            continue
        if metadata.ignored:
            _log.warning("skill.ignored", skill=folder.name, fields=list(metadata.ignored))
        found[folder.name] = metadata
    return found


def _front_matter(path: Path) -> dict[str, object]:
    """Return what stands between the two fences at the top of a skill's file."""
    lines = read_text(path).text.splitlines()
    if not lines or lines[0].strip() != _FENCE:
        return {}
    for end, line in enumerate(lines[1:], start=1):
        if line.strip() == _FENCE:
            parsed = parse_yaml("\n".join(lines[1:end]), str(path))
            value = None if parsed.node is None else to_json(parsed.node)
            if parsed.node is None and parsed.problems:
                raise SkillMetadataInvalid(f"{path.name}: {parsed.problems[0].message}")
            return dict(value) if isinstance(value, dict) else {}
    raise SkillMetadataInvalid(f"{path.name}: the front matter has no end")
