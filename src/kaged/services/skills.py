"""Skills as the gates see them: `SkillRegistry`, from `SKILL.md` files and the host's config."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import structlog

from kaged.base import KagedError
from kaged.config.files import read_text
from kaged.config.nodes import to_json
from kaged.config.providers import SkillSection
from kaged.config.yamldoc import parse_yaml
from kaged.kernel.service_ids import ServiceId, parse_service_ids

DEFAULTS: Final = "defaults"
_YES: Final = frozenset({"1", "true", "yes"})
_NO: Final = frozenset({"0", "false", "no", ""})
# What a skill might want to say about its provider; only the operator's config may (SC-PROV-11).
_OPERATOR_KEYS: Final = ("capability_provider", "command", "container", "image", "runtime", "env")
_SECRET_NAME: Final = re.compile(
    r"(?i)(?:^|_)(?:api_?key|token|secret|password|passwd|auth)(?:_|$)"
)
CHAT_TYPES_LIMIT: Final = 32
FILE_NAME: Final = "SKILL.md"
SKILLS_LIMIT: Final = 256
_FENCE: Final = "---"

_log = structlog.get_logger("kaged.services")


@dataclass(frozen=True, slots=True)
class SkillPolicy:
    """Who may use a skill where. `chat_types` and `chat_ids` are None when there is no limit.

    `capabilities` is None when the skill's own list is not known; the token's list counts then.
    """

    name: str
    enabled: bool = True
    chat_types: frozenset[str] | None = None
    chat_ids: frozenset[str] | None = None
    capabilities: frozenset[ServiceId] | None = None


@dataclass(frozen=True, slots=True)
class SkillMetadata:
    """What a skill's own file says about access. `ignored` names keys that only hosts may set."""

    name: str
    sensitive: bool = False
    chat_types: tuple[str, ...] = ()
    capabilities: frozenset[ServiceId] | None = None
    ignored: tuple[str, ...] = ()


def parse_skill_metadata(name: str, found: Mapping[str, Any]) -> SkillMetadata:
    """Read the part of a skill's front matter that is about access.

    Raises:
        KagedError: `skill_metadata_invalid`; a value of the wrong kind, an unknown key under
            `access`, an id that
            is not namespaced, or a declared variable whose name says that it is a secret.
        ServiceIdInvalid: a capability id that is not one.
    """
    access = found.get("access") or {}
    if not isinstance(access, Mapping) or set(access) - {"chat_types"}:
        raise KagedError(
            f"skill {name}: access may hold chat_types only", code="skill_metadata_invalid"
        )
    variables = found.get("env") or ()
    for variable in variables if isinstance(variables, list | tuple | Mapping) else ():
        if isinstance(variable, str) and _SECRET_NAME.search(variable):
            raise KagedError(
                f"skill {name} asks for the secret variable {variable}",
                code="skill_metadata_invalid",
                fix="use a capability: the host keeps the credential",
            )
    declared = found.get("capabilities")
    return SkillMetadata(
        name,
        _flag(name, found.get("sensitive", False)),
        _chat_types(name, access.get("chat_types", ())),
        None if declared is None else parse_service_ids(declared),
        tuple(key for key in _OPERATOR_KEYS if key in found),
    )


@dataclass(slots=True)
class SkillRegistry:
    """The skills of this host: the operator's settings over what each skill's file says."""

    settings: Mapping[str, SkillSection] = field(default_factory=dict)
    metadata: dict[str, SkillMetadata] = field(default_factory=dict)

    def policy_of(self, skill: str) -> SkillPolicy | None:
        """Return the policy of a skill; None when neither place names it."""
        said = self.metadata.get(skill)
        section = self.settings.get(skill) if skill != DEFAULTS else None
        if said is None and section is None:
            return None
        said = said or SkillMetadata(skill)
        section = section or SkillSection()
        chat_types = frozenset(said.chat_types) or (
            frozenset({"private"}) if said.sensitive else None
        )
        chat_ids = section.allow_chat_ids
        if chat_ids is None:
            # An explicitly empty list of the skill's own lifts the default; absence does not.
            chat_ids = self.settings.get(DEFAULTS, SkillSection()).allow_chat_ids
        return SkillPolicy(
            skill,
            section.enabled is not False,
            chat_types,
            frozenset(chat_ids) if chat_ids else None,
            said.capabilities,
        )


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


def _flag(name: str, value: object) -> bool:
    if isinstance(value, bool):
        return value
    text = str(value).strip().lower()
    if text in _YES:
        return True
    if text in _NO:
        return False
    raise KagedError(
        f"skill {name}: sensitive must be true or false", code="skill_metadata_invalid"
    )


def _chat_types(name: str, value: object) -> tuple[str, ...]:
    listed = [value] if isinstance(value, str) else value
    if not isinstance(listed, list | tuple) or len(listed) > CHAT_TYPES_LIMIT:
        raise KagedError(
            f"skill {name}: access.chat_types must be a list of texts",
            code="skill_metadata_invalid",
        )
    found: set[str] = set()
    for item in listed:
        if not isinstance(item, str):
            raise KagedError(
                f"skill {name}: access.chat_types must be a list of texts",
                code="skill_metadata_invalid",
            )
        if item.strip():
            found.add(item.strip().lower())
    return tuple(sorted(found))


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
                raise KagedError(
                    f"{path.name}: {parsed.problems[0].message}", code="skill_metadata_invalid"
                )
            return dict(value) if isinstance(value, dict) else {}
    raise KagedError(f"{path.name}: the front matter has no end", code="skill_metadata_invalid")
