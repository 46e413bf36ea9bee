"""`CageBlock`: the `cage:` of an agent as it is written, and the `CagePolicy` it stands for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from kaged.base import JsonObject
from kaged.base.lazy_dataclass import dataclass
from kaged.config.containers import ListOf, MapOf, Mapped
from kaged.config.nodes import Node, kind_of
from kaged.config.problems import Severity
from kaged.config.projectpaths import parse_project_path
from kaged.config.reading import DocumentPosition, NoValue, nearest
from kaged.config.records import empty_map, key, optional, record, section, strict
from kaged.config.shapes import Choice, Shape, TextShape, Whole
from kaged.kernel.mounts import has_magic
from kaged.kernel.net import NetTarget, parse_target
from kaged.kernel.paths import join, normalise
from kaged.kernel.policy import (
    CageLimits,
    CagePolicy,
    CageState,
    FsGrant,
    FsMode,
    SeccompProfile,
)
from kaged.kernel.toolchains import Toolchain

MAX_MOUNTS: Final = 200
MAX_NET_TARGETS: Final = 200
MAX_LIMIT: Final = 1_000_000_000
MAX_CREDENTIALS: Final = 50

KNOWN_CAPABILITIES: Final = ("shell", "exec", "services")
"""Grants that built-in tools ask for; plugins may ask for others by a name of their own."""

ENV_NAME_PATTERN: Final = r"[A-Za-z_][A-Za-z0-9_]*"
ENV_NAME: Final = TextShape(
    max_chars=128, pattern=ENV_NAME_PATTERN, means="the name of an environment variable"
)
ENV_VALUE: Final = TextShape(min_chars=0, max_chars=32 * 1024, one_line=False)
NET_TARGET: Final = Mapped(
    TextShape(max_chars=300), parse_target, "target (`host:port`, `host:*` or `*`)"
)


CREDENTIAL_NAME_PATTERN: Final = r"[a-z][a-z0-9_-]{0,63}"
CREDENTIAL_NAME: Final = TextShape(
    max_chars=64, pattern=CREDENTIAL_NAME_PATTERN, means="the name of a credential"
)


class CageWord(StrEnum):
    """The one word that can stand in place of a cage block."""

    DISABLED = "disabled"


@record
class LimitsBlock:
    """Resource limits of a cage; what is left out keeps its default."""

    memory_mb: int | None = optional(Whole(1, MAX_LIMIT), "Memory in MiB.", default=None)
    cpu_shares: int | None = optional(
        Whole(1, MAX_LIMIT), "Share of the processor, relative to other cages.", default=None
    )
    pids: int | None = optional(
        Whole(1, MAX_LIMIT), "How many processes may exist at once.", default=None
    )
    walltime_sec: int | None = optional(
        Whole(0, MAX_LIMIT), "Seconds until the cage is ended; 0 means no limit.", default=None
    )

    def over(self, base: CageLimits) -> CageLimits:
        """Return the base limits with these put over them."""
        return _over(self, base)


@record
class FullLimits(LimitsBlock):
    """Resource limits as the operator sets them."""

    open_files: int | None = optional(
        Whole(0, MAX_LIMIT), "How many files may be open at once.", default=None
    )
    file_size_mb: int | None = optional(
        Whole(0, MAX_LIMIT), "Size of the largest file in MiB.", default=None
    )
    tmpfs_mb: int | None = optional(
        Whole(0, MAX_LIMIT), "Size of the scratch space in MiB.", default=None
    )


@record
class FsEntry:
    """One path of the project that exists inside the cage."""

    mode: FsMode = key(Choice(FsMode), "Read-only or read-write.")
    path: str = key(
        Mapped(TextShape(max_chars=4000), parse_project_path, "path relative to the project root"),
        "The path, relative to the project root; `*`, `?`, `[…]` and `**` are globs.",
    )


@record
class NetBlock:
    """Where the cage may connect to."""

    allow: tuple[NetTarget, ...] = key(
        ListOf(NET_TARGET, max_items=MAX_NET_TARGETS),
        "Granted destinations; an empty list is no network.",
        default=(),
    )


@record
class CageBlock:
    """What an agent's tools and processes can reach; what is not listed does not exist for them."""

    fs: tuple[FsEntry, ...] = key(
        ListOf(strict(FsEntry), max_items=MAX_MOUNTS),
        "Paths of the project; the most specific entry decides.",
        default=(),
    )
    net: NetBlock = section("Network access.", factory=NetBlock, unknown=Severity.ERROR)
    state: CageState = key(
        Choice(CageState),
        "Whether the cage's scratch space is kept between processes.",
        default=CageState.EPHEMERAL,
    )
    seccomp: SeccompProfile = key(
        Choice(SeccompProfile),
        "The system-call filter; `relaxed` admits debuggers.",
        default=SeccompProfile.DEFAULT,
    )
    capabilities: tuple[str, ...] = key(
        ListOf(
            TextShape(max_chars=64, pattern=r"[a-z][a-z0-9_-]*", means="the name of a capability"),
            unique=True,
        ),
        "Named grants: `shell` and `exec` for tools, `services` for people's accounts (`ash-sb`).",
        default=(),
    )
    credentials: tuple[str, ...] = key(
        ListOf(CREDENTIAL_NAME, max_items=MAX_CREDENTIALS, unique=True),
        "Credentials of the operator that programs in the cage may use without seeing them, by "
        "name. The operator's `[credentials.NAME]` has to grant each of them.",
        default=(),
    )
    toolchains: tuple[Toolchain, ...] = key(
        ListOf(Choice(Toolchain), unique=True),
        "Languages whose tools it sees read-only where version managers keep them in the home, "
        "first on PATH, with package caches of the project's own.",
        default=(),
    )
    env: Mapping[str, str] = key(
        MapOf(ENV_VALUE, ENV_NAME),
        "Environment variables of processes in the cage.",
        default_factory=empty_map,
    )
    limits: LimitsBlock = section("Resource limits.", factory=LimitsBlock, unknown=Severity.ERROR)

    def policy(self, root: Path, limits: CageLimits) -> CagePolicy:
        """Compile for a project at `root`; `limits` are the operator's defaults."""
        base = normalise(str(root))
        grants = tuple(FsGrant(join(base, entry.path), entry.mode) for entry in self.fs)
        return CagePolicy(
            fs=grants,
            net=self.net.allow,
            state=self.state,
            seccomp=self.seccomp,
            capabilities=frozenset(self.capabilities),
            credentials=self.credentials,
            toolchains=self.toolchains,
            env=tuple(self.env.items()),
            limits=self.limits.over(limits),
        )


def _check_block(given: Mapping[str, Any], node: Node, place: DocumentPosition) -> None:
    root = place.reading.root
    entries: tuple[FsEntry, ...] = given.get("fs", ())
    fs_node = node.child("fs") or node
    if root is not None and has_magic(str(root)) and any(has_magic(e.path) for e in entries):
        place.error(
            fs_node,
            "globs cannot be used because the project root itself has glob characters in its name",
            "rename the directory, or list the paths without globs",
        )
    seen: dict[str, FsMode] = {}
    for entry in entries:
        if seen.setdefault(entry.path, entry.mode) is not entry.mode:
            place.error(fs_node, f"{entry.path!r} is both ro and rw", "keep one of the two")
    for name in given.get("capabilities", ()):
        near = nearest(name, KNOWN_CAPABILITIES)
        if name not in KNOWN_CAPABILITIES and near is not None:
            place.warn(
                node.child("capabilities") or node,
                f"no built-in tool asks for {name!r}",
                f"did you mean {near!r}?",
                "unknown_capability",
            )
    for name, value in given.get("env", {}).items():
        if "${" in value:
            place.warn(
                node.child("env") or node,
                f"{name} is passed on as written; ${{…}} is replaced in local.toml only",
                code="no_substitution",
            )


@dataclass(frozen=True, slots=True)
class CageShape(Shape["CageBlock | CageWord"]):
    """A cage: the word `disabled`, or a block."""

    WORDS = "`disabled` or table"

    def read(self, node: Node, place: DocumentPosition) -> CageBlock | CageWord | NoValue:
        """Read the word or the block."""
        if node.value == CageWord.DISABLED.value:
            return CageWord.DISABLED
        if isinstance(node.value, Mapping):
            return _BLOCK.read(node, place)
        return place.error(
            node,
            f"must be the word disabled or a map, not {kind_of(node.value)}",
            "write cage: disabled, or a block with fs, net and so on",
            "wrong_type",
        )

    def schema(self, defs: JsonObject) -> JsonObject:
        """Return both forms."""
        return {"oneOf": [{"const": CageWord.DISABLED.value}, _BLOCK.schema(defs)]}


_BLOCK: Final = strict(CageBlock, check=_check_block)


def _over(block: LimitsBlock, base: CageLimits) -> CageLimits:
    given = {item.name: getattr(block, item.name) for item in fields(block)}
    return replace(base, **{name: value for name, value in given.items() if value is not None})
