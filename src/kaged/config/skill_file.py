"""`SKILL.md`: one skill of the open Agent Skills format, read to a frozen type.

The front matter is YAML with `name` and `description`. `sensitive`, `access` and `capabilities` are
ours and say what the skill may use; every other key is kept and means nothing to the host. So do
`capabilities` in which nothing could be an id: other hosts have a key of that name. What deviates
from the format but can be understood is a warning; the rest is refused with its line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import field, replace
from typing import Any, Final, NoReturn

from kaged.base import JsonObject, KagedError
from kaged.base.lazy_dataclass import dataclass
from kaged.config.nodes import Node, to_json
from kaged.config.problems import Mark, Problem, Severity
from kaged.config.yamldoc import parse_yaml
from kaged.kernel.service_ids import ServiceId, ServiceIdInvalid, parse_service_ids

SKILL_FILE: Final = "SKILL.md"
SKILL_FILE_LIMIT_BYTES: Final = 256 * 1024
NAME_LIMIT_CHARS: Final = 64
DESCRIPTION_LIMIT_CHARS: Final = 1024
CHAT_TYPES_LIMIT: Final = 32
CAPABILITIES_LIMIT: Final = 64
SKILL_NAME: Final = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{NAME_LIMIT_CHARS - 1}}}")
"""What the folder of a skill may be called; the folder's name is the skill's."""

_FENCE: Final = "---"
_YES: Final = frozenset({"1", "true", "yes"})
_NO: Final = frozenset({"0", "false", "no", ""})
# What a skill might want to say about its provider; only the operator's config may (SC-PROV-11).
_OPERATOR_KEYS: Final = ("capability_provider", "command", "container", "image", "runtime", "env")
_SECRET_NAME: Final = re.compile(
    r"(?i)(?:^|_)(?:api_?key|token|secret|password|passwd|auth)(?:_|$)"
)
# What is no YAML and many published skills have in a line: `description: Use it when: …`,
# `argument-hint: [what] [where]`, and a value that begins with a sign that YAML keeps to itself.
_ENTRY: Final = re.compile(r"([A-Za-z_-]+):[ \t]+(\S.*)")
_WITH_COLON: Final = re.compile(r"[^\"'|>\[{&*!%@#].*:(?: .*)?")
_TWO_LISTS: Final = re.compile(r"\[[^\[\]]*\][ \t]*[^\s#,].*")
_RESERVED: Final = ("*", "`", "@", "%")


class SkillFileInvalid(KagedError):
    """A skill cannot be used; `problems` says where and why."""

    code = "skill_metadata_invalid"

    def __init__(self, *problems: Problem) -> None:
        first = problems[0]
        place = first.file if first.line is None else f"{first.file}, line {first.line}"
        super().__init__(f"{place}: {first.message}.", fix=first.fix or None)
        self.problems = problems


@dataclass(frozen=True, slots=True)
class SkillMetadata:
    """What a skill's own file says about access.

    `ignored` names keys that only hosts may set, `secret_names` the secret variables it would like.
    """

    name: str
    sensitive: bool = False
    chat_types: tuple[str, ...] = ()
    capabilities: frozenset[ServiceId] | None = None
    ignored: tuple[str, ...] = ()
    secret_names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SkillFile:
    """One skill as its file describes it. `front` is the whole front matter, unknown keys too."""

    name: str
    description: str
    instructions: str
    metadata: SkillMetadata
    front: JsonObject = field(default_factory=dict)
    warnings: tuple[Problem, ...] = ()


def parse_skill_file(text: str, name: str, file: str = SKILL_FILE) -> SkillFile:
    """Read the text of a `SKILL.md` in the folder `name`. `file` is how messages call it.

    Raises:
        SkillFileInvalid: with the line and the reason.
    """
    if SKILL_NAME.fullmatch(name) is None:
        _refuse(
            file,
            None,
            f"{name[:80]!r} cannot be the name of a skill",
            f"name its folder with letters, digits, . _ and -, {NAME_LIMIT_CHARS} at most",
        )
    lines = text.splitlines()
    end = _front_matter_end(lines, file)
    node, warnings = _front_matter(lines[1:end], file)
    front = to_json(node)
    if not isinstance(front, dict):
        _refuse(file, 2, "the front matter is not a map of keys", "write `name: …` on a line")
    metadata = _access(node, front, name, file)  # what it may not ask for is said before the rest
    warnings.extend(_of_no_use_here(node, front, metadata, file))
    description = _described(node, front, file, warnings)
    _check_name(node, front, name, file, warnings)
    return SkillFile(
        name,
        description,
        "\n".join(lines[end + 1 :]).strip("\n"),
        metadata,
        front,
        tuple(warnings),
    )


def parse_skill_metadata(name: str, found: Mapping[str, Any]) -> SkillMetadata:
    """Read the part of a skill's front matter that is about access.

    Raises:
        KagedError: `skill_metadata_invalid`; a value of the wrong kind, an unknown key under
            `access`, an id that is not namespaced beside one that is, or too many of them. `key`
            in its data is where.
    """
    access = found.get("access") or {}
    if not isinstance(access, Mapping) or set(access) - {"chat_types"}:
        raise _invalid(f"skill {name}: access may hold chat_types only", "access")
    variables = found.get("env") or ()
    secret_names = tuple(
        one[:NAME_LIMIT_CHARS]
        for one in (variables if isinstance(variables, list | tuple | Mapping) else ())
        if isinstance(one, str) and _SECRET_NAME.search(one)
    )
    declared = found.get("capabilities")
    if declared is not None and not _could_be_ids(declared):
        declared = None
    ids = None if declared is None else parse_service_ids(declared)
    if ids is not None and len(ids) > CAPABILITIES_LIMIT:
        raise _invalid(
            f"skill {name} declares more than {CAPABILITIES_LIMIT} capabilities", "capabilities"
        )
    return SkillMetadata(
        name,
        _flag(name, found.get("sensitive", False)),
        _chat_types(name, access.get("chat_types", ())),
        ids,
        tuple(key for key in _OPERATOR_KEYS if key in found),
        secret_names,
    )


def _could_be_ids(declared: object) -> bool:
    """Return whether a skill's `capabilities` are ours: one of them at least may be an id."""
    if not isinstance(declared, list | tuple):
        return isinstance(declared, str) and "." in declared
    return not declared or any(isinstance(one, str) and "." in one for one in declared)


def _of_no_use_here(
    node: Node, front: JsonObject, metadata: SkillMetadata, file: str
) -> Iterator[Problem]:
    """Yield what an author may expect of the host and will not get."""
    if front.get("capabilities") is not None and metadata.capabilities is None:
        said = "capabilities has no id of an account capability; it is ignored"
        yield _warning(file, _line(node, "capabilities"), said, "for example [gog.email]")
    if metadata.secret_names:
        said = f"env is ignored: no script gets {', '.join(metadata.secret_names[:8])}"
        fix = "use a capability: the host keeps the credential"
        yield _warning(file, _line(node, "env"), said, fix)


def _access(node: Node, front: JsonObject, name: str, file: str) -> SkillMetadata:
    try:
        return parse_skill_metadata(name, front)
    except ServiceIdInvalid as error:
        _refuse(file, _line(node, "capabilities"), f"capabilities: {error.message}", error.fix)
    except KagedError as error:
        _refuse(file, _line(node, str(error.data.get("key"))), error.message, error.fix)


# -- the front matter ----------------------------------------------------------------------------


def _front_matter_end(lines: list[str], file: str) -> int:
    """Return the place of the second fence."""
    if not lines or lines[0].strip() != _FENCE:
        _refuse(
            file, 1, "there is no front matter", "begin with `---`, name, description and `---`"
        )
    ends = [n for n, line in enumerate(lines) if n and line.rstrip() == _FENCE]
    if not ends:
        _refuse(file, 1, "the front matter has no end", "close it with a line `---`")
    return ends[0]


def _front_matter(lines: list[str], file: str) -> tuple[Node, list[Problem]]:
    # The empty line stands for the fence, so that line numbers are those of the file.
    parsed = parse_yaml("\n".join(["", *lines]), file)
    warnings: list[Problem] = []
    if parsed.node is None:
        quoted = [_quoted(line) for line in lines]
        again = parse_yaml("\n".join(["", *quoted]), file)
        if again.node is not None and quoted != lines:
            place = next(n for n, line in enumerate(lines) if quoted[n] != line) + 2
            said = "a value that YAML cannot read is not quoted; it is read as text"
            warnings.append(_warning(file, place, said, "put it in double quotes"))
            parsed = again
    if parsed.node is None or parsed.problems:
        found = parsed.problems or (Problem(file, 2, None, "", "the front matter is empty"),)
        raise SkillFileInvalid(
            *(replace(one, message=_worded(one), line=one.line or 2) for one in found)
        )
    return parsed.node, warnings


def _worded(problem: Problem) -> str:
    return f"{problem.key_path}: {problem.message}" if problem.key_path else problem.message


def _quoted(line: str) -> str:
    """Return a line whose value YAML cannot read as a text that it can; any other as it is."""
    found = _ENTRY.fullmatch(line.rstrip())
    if found is None or not (
        _WITH_COLON.fullmatch(found[2])
        or _TWO_LISTS.fullmatch(found[2])
        or found[2].startswith(_RESERVED)
    ):
        return line
    return f"{found[1]}: {json.dumps(found[2], ensure_ascii=False)}"


def _described(node: Node, front: JsonObject, file: str, warnings: list[Problem]) -> str:
    said = front.get("description")
    line = _line(node, "description")
    if not isinstance(said, str) or not said.strip():
        _refuse(
            file,
            line,
            "description is missing" if line is None else "description must be a text",
            "say in a sentence what the skill does and when to use it",
        )
    if len(said) > DESCRIPTION_LIMIT_CHARS:
        too_long = f"description has {len(said)} characters; {DESCRIPTION_LIMIT_CHARS} are shown"
        warnings.append(_warning(file, line, too_long, "shorten it"))
    return said.strip()


def _check_name(
    node: Node, front: JsonObject, name: str, file: str, warnings: list[Problem]
) -> None:
    said, line = front.get("name"), _line(node, "name")
    if said is None:
        warnings.append(_warning(file, line, "name is missing; the folder's is used", "add it"))
    elif said != name:
        differs = f"name is {str(said)[:80]!r} and the folder is {name!r}; the folder's is used"
        warnings.append(_warning(file, line, differs, "give both the same name"))


# -- values --------------------------------------------------------------------------------------


def _flag(name: str, value: object) -> bool:
    if isinstance(value, bool):
        return value
    text = str(value).strip().lower()
    if text in _YES:
        return True
    if text in _NO:
        return False
    raise _invalid(f"skill {name}: sensitive must be true or false", "sensitive")


def _chat_types(name: str, value: object) -> tuple[str, ...]:
    listed = [value] if isinstance(value, str) else value
    if (
        not isinstance(listed, list | tuple)
        or len(listed) > CHAT_TYPES_LIMIT
        or not all(isinstance(item, str) for item in listed)
    ):
        raise _invalid(f"skill {name}: access.chat_types must be a list of texts", "access")
    return tuple(sorted({item.strip().lower() for item in listed if item.strip()}))


def _line(node: Node, key: str) -> int | None:
    entry = node.entry(key)
    return None if entry is None else entry.mark.line


def _warning(file: str, line: int | None, message: str, fix: str) -> Problem:
    return Problem(file, line, None, "", message, fix, Severity.WARNING, "skill_metadata")


def _refuse(file: str, line: int | None, message: str, fix: str | None = None) -> NoReturn:
    mark = None if line is None else Mark(line, 1)
    problem = Problem.at(file, mark, "", message, fix or "", SkillFileInvalid.code)
    raise SkillFileInvalid(problem)


def _invalid(message: str, key: str, fix: str | None = None) -> KagedError:
    return KagedError(message, code=SkillFileInvalid.code, fix=fix, key=key)
