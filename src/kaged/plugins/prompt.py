"""What the operator is shown before a yes: `InstallPrompt` as data, and its lines as text. Pure."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum

from kaged.base import JsonObject, JsonValue
from kaged.config.manifest import Manifest
from kaged.config.problems import Problem
from kaged.kernel.capabilities import (
    CapabilityDiff,
    CapabilityExplanation,
    CapabilitySet,
    ManifestCapability,
    diff,
    explain,
)

SOURCE_NOT_SPECIFIED = "source not specified"


class Change(StrEnum):
    """What a yes would do."""

    INSTALL = "install"
    UPGRADE = "upgrade"
    DOWNGRADE = "downgrade"
    RENEW = "renew"  # the files in the store changed and need a new yes


@dataclass(frozen=True, slots=True)
class CapabilityLine:
    """One capability: as written, in words, and why it deserves a second look, if it does."""

    text: str
    words: str
    warning: str = ""
    widening: bool = False
    operator_added: bool = False

    def as_json(self) -> JsonObject:
        """Return the fields as JSON."""
        return {**asdict(self), "dangerous": bool(self.warning)}


@dataclass(frozen=True, slots=True)
class InstallPrompt:
    """Everything a person needs to answer; `digest` binds the answer to these very files."""

    change: Change
    name: str
    version: str
    kaged_api: int
    description: str
    digest: str
    source: str
    capabilities: tuple[CapabilityLine, ...]
    added: tuple[CapabilityLine, ...] = ()
    removed: tuple[CapabilityLine, ...] = ()
    widens: bool = False
    old_version: str = ""
    license: str = ""
    author: str = ""
    homepage: str = ""
    warnings: tuple[str, ...] = ()

    @property
    def question(self) -> str:
        """The question that the answer is to; the default is no."""
        match self.change:
            case Change.INSTALL:
                return f"Install {self.name}? [y/N]"
            case Change.UPGRADE:
                return f"Upgrade {self.name} {self.old_version} → {self.version}? [y/N]"
            case Change.DOWNGRADE:
                return f"Downgrade {self.name} {self.old_version} → {self.version}? [y/N]"
            case Change.RENEW:
                return f"Accept the changed files of {self.name}? [y/N]"

    def lines(self) -> tuple[str, ...]:
        """Return the text above the question."""
        if self.change is Change.INSTALL:
            return (*self._facts("Validating manifest..."), *capability_text(self.capabilities))
        return (*self._already(), *self._changes(), *capability_text(self.capabilities))

    def as_json(self) -> JsonObject:
        """Return the fields as JSON, for HTTP answers."""
        warnings: list[JsonValue] = list(self.warnings)
        return {
            "change": self.change.value,
            "name": self.name,
            "version": self.version,
            "old_version": self.old_version or None,
            "kaged_api": self.kaged_api,
            "description": self.description,
            "license": self.license or None,
            "author": self.author or None,
            "homepage": self.homepage or None,
            "source": self.source,
            "digest": self.digest,
            "capabilities": [line.as_json() for line in self.capabilities],
            "added": [line.as_json() for line in self.added],
            "removed": [line.as_json() for line in self.removed],
            "widens": self.widens,
            "warnings": warnings,
            "question": self.question,
            "lines": list(self.lines()),
        }

    def _facts(self, title: str) -> list[str]:
        optional = {"license": self.license, "author": self.author, "source": self.source}
        return [
            title,
            f"  name: {self.name}",
            f"  version: {self.version}",
            f"  kaged_api: {self.kaged_api}",
            f"  description: {self.description}",
            *(f"  {name}: {value}" for name, value in optional.items() if value),
            *(f"  warning: {warning}" for warning in self.warnings),
        ]

    def _already(self) -> list[str]:
        if self.change is Change.RENEW:
            title = f"The files of {self.name} are not the ones that were agreed to."
            return self._facts(title)
        word = "New version" if self.change is Change.UPGRADE else "Older version"
        return [
            f"Plugin {self.name} is already installed (version {self.old_version}).",
            *self._facts(f"{word}: {self.version}"),
        ]

    def _changes(self) -> list[str]:
        if not self.added and not self.removed:
            return ["Capability changes: none"]
        found = ["Capability changes:"]
        for line in self.added:
            wider = "  !! WIDENS what it may do" if line.widening else ""
            found += [f"  + {line.text}    (NEW){wider}", *_below(line)]
        found += [f"  - {line.text}    (REMOVED)" for line in self.removed]
        if self.widens and not any(line.widening for line in self.added):
            found.append("  !! Removing these widens what it may do: a narrower entry is gone")
        return found


def install_prompt(
    manifest: Manifest,
    digest: str,
    *,
    change: Change,
    source: str = "",
    old_version: str = "",
    old: CapabilitySet | None = None,
    grants: CapabilitySet | None = None,
    problems: tuple[Problem, ...] = (),
) -> InstallPrompt:
    """Put together what is shown; `old` are the capabilities agreed to before, if any were."""
    found: CapabilityDiff = diff(old or CapabilitySet(), manifest.capabilities)
    first = change is Change.INSTALL
    widening = frozenset(found.widening)
    return InstallPrompt(
        change=change,
        name=manifest.name,
        version=str(manifest.version),
        kaged_api=manifest.kaged_api,
        description=manifest.description,
        digest=digest,
        source=source,
        capabilities=capability_lines(manifest.capabilities, grants or CapabilitySet()),
        added=() if first else tuple(_line(i, widening=i in widening) for i in found.added),
        removed=() if first else tuple(_line(item) for item in found.removed),
        widens=not first and found.widens,
        old_version=old_version,
        license=manifest.license or "",
        author=manifest.author or "",
        homepage=manifest.homepage or "",
        warnings=tuple(f"{problem.key_path}: {problem.message}" for problem in problems),
    )


def capability_lines(asked: CapabilitySet, grants: CapabilitySet) -> tuple[CapabilityLine, ...]:
    """Put into words what a manifest asks for and what the operator added."""
    return (
        *(_line(item) for item in asked),
        *(_line(item, operator_added=True) for item in grants),
    )


def capability_text(lines: tuple[CapabilityLine, ...]) -> list[str]:
    """Write capabilities as every prompt and page shows them, dangerous ones flagged."""
    if not lines:
        return ["  capabilities: none"]
    found = ["  capabilities:"]
    for line in lines:
        by = "  (added by the operator)" if line.operator_added else ""
        found += [f"    - {line.text}{by}", *_below(line)]
    return found


def _line(
    item: ManifestCapability, *, widening: bool = False, operator_added: bool = False
) -> CapabilityLine:
    words = explain(item)
    return CapabilityLine(item.text, words.words, words.warning, widening, operator_added)


def _below(line: CapabilityLine) -> list[str]:
    flag = CapabilityExplanation(line.words, line.warning).flag
    return [f"        {text}" for text in (line.words, flag) if text]
