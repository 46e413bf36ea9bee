"""Tool requirements: what a tool needs of its caller's cage, as types."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeAlias, cast

from kaged.base.errors import KagedError
from kaged.base.jsonvalue import JsonObject
from kaged.base.lazy_dataclass import dataclass
from kaged.kernel.hosts import NetTargetInvalid
from kaged.kernel.net import NetTarget, parse_target
from kaged.kernel.policy import FsMode, SeccompProfile

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.:-]{0,127}")
_KEYS = {
    "fs": {"kind", "mode", "path"},
    "seccomp": {"kind", "profile"},
    "net": {"kind", "target"},
    "capability": {"kind", "name"},
}


class RequirementInvalid(KagedError):
    """A tool requirement has none of the four shapes."""

    code = "tool_requirement_invalid"


@dataclass(frozen=True, slots=True)
class FsRequirement:
    """`{kind: fs, mode: ro|rw, path: caller}`: access to every path the caller names."""

    mode: FsMode

    def as_json(self) -> JsonObject:
        """Return the requirement as it is declared."""
        return {"kind": "fs", "mode": self.mode.value, "path": "caller"}


@dataclass(frozen=True, slots=True)
class SeccompRequirement:
    """`{kind: seccomp, profile: relaxed}`: a cage under that system-call filter."""

    profile: SeccompProfile = SeccompProfile.RELAXED

    def as_json(self) -> JsonObject:
        """Return the requirement as it is declared."""
        return {"kind": "seccomp", "profile": self.profile.value}


@dataclass(frozen=True, slots=True)
class NetRequirement:
    """`{kind: net, target: host:port}`: a cage that may connect there."""

    target: NetTarget

    def as_json(self) -> JsonObject:
        """Return the requirement as it is declared."""
        return {"kind": "net", "target": self.target.text}


@dataclass(frozen=True, slots=True)
class CapabilityRequirement:
    """`{kind: capability, name: shell}`: a cage with that named capability."""

    name: str

    def as_json(self) -> JsonObject:
        """Return the requirement as it is declared."""
        return {"kind": "capability", "name": self.name}


ToolRequirement: TypeAlias = (
    FsRequirement | SeccompRequirement | NetRequirement | CapabilityRequirement
)


def parse_requirement(value: object) -> ToolRequirement:
    """Read one entry of a tool's `requires` list.

    Raises:
        RequirementInvalid: for an unknown kind, a missing or extra key, or any other value.
    """
    entry = cast("Mapping[object, object]", value) if isinstance(value, Mapping) else {}
    kind = entry.get("kind")
    if not isinstance(kind, str) or kind not in _KEYS:
        raise _invalid(value, f"kind must be one of {', '.join(_KEYS)}")
    if set(entry) != _KEYS[kind]:
        raise _invalid(value, f"{kind} has exactly the keys {', '.join(sorted(_KEYS[kind]))}")
    match kind:
        case "fs":
            return _read_fs(entry)
        case "seccomp":
            if entry["profile"] != SeccompProfile.RELAXED.value:
                raise _invalid(value, "profile must be relaxed")
            return SeccompRequirement()
        case "net":
            return _read_net(entry)
        case _:
            name = entry["name"]
            if not isinstance(name, str) or not _NAME.fullmatch(name):
                raise _invalid(value, "name must be a word such as shell")
            return CapabilityRequirement(name)


def parse_requirements(values: object) -> tuple[ToolRequirement, ...]:
    """Read a tool's whole `requires` list.

    Raises:
        RequirementInvalid: when it is no list, or for the first entry that has none of the shapes.
    """
    if not isinstance(values, list | tuple):
        raise _invalid(values, "requires must be a list")
    return tuple(map(parse_requirement, cast("list[object]", values)))


def _read_fs(entry: Mapping[object, object]) -> FsRequirement:
    mode = entry["mode"]
    if mode not in ("ro", "rw"):
        raise _invalid(entry, "mode must be ro or rw")
    if entry["path"] != "caller":
        raise _invalid(entry, "path must be the word caller")
    return FsRequirement(FsMode(mode))


def _read_net(entry: Mapping[object, object]) -> NetRequirement:
    target = entry["target"]
    if not isinstance(target, str):
        raise _invalid(entry, "target must be a text such as api.example.org:443")
    try:
        return NetRequirement(parse_target(target))
    except NetTargetInvalid as error:
        raise _invalid(entry, str(error)) from error


def _invalid(value: object, why: str) -> RequirementInvalid:
    text = repr(value)
    return RequirementInvalid(
        f"not a tool requirement: {text[:120]}: {why}",
        fix="use {kind: fs, mode: ro|rw, path: caller}, {kind: seccomp, profile: relaxed}, "
        "{kind: net, target: host:port} or {kind: capability, name: word}",
    )
