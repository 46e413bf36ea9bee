"""What the operator is shown before a yes: `InstallPrompt` as data, and its lines as text. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum
from types import MappingProxyType

from kaged.base import JsonObject, JsonValue
from kaged.base.lazy_dataclass import dataclass
from kaged.config.manifest import Manifest
from kaged.config.problems import Problem
from kaged.kernel.capabilities import CapabilitySet, diff
from kaged.kernel.describe import (
    AskedCapability,
    ask_lines,
    change_lines,
    consent_question,
    describe_ask,
    describe_changes,
)
from kaged.plugins.kept import KeptData

SOURCE_NOT_SPECIFIED = "source not specified"
SHOWN_FILES = 40


class Change(StrEnum):
    """What a yes would do."""

    INSTALL = "install"
    UPGRADE = "upgrade"
    DOWNGRADE = "downgrade"
    RENEW = "renew"  # the files in the store changed and need a new yes


@dataclass(frozen=True, slots=True)
class InstallPrompt:
    """Everything a person needs to answer; `digest` binds the answer to these very files.

    `given` are the names of settings and secrets that local.toml has for it already: written for
    another plugin of that name, they would go to this one. `given_back` is what was kept of these
    very files, in words; `not_given` are the versions of the name whose kept data stays sealed.
    """

    change: Change
    name: str
    version: str
    kaged_api: int
    description: str
    digest: str
    source: str
    capabilities: tuple[AskedCapability, ...]
    added: tuple[AskedCapability, ...] = ()
    removed: tuple[AskedCapability, ...] = ()
    widens: bool = False
    old_version: str = ""
    license: str = ""
    author: str = ""
    homepage: str = ""
    warnings: tuple[str, ...] = ()
    given: tuple[str, ...] = ()
    given_back: tuple[str, ...] = ()
    not_given: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    changed_files: tuple[str, ...] = ()

    @property
    def question(self) -> str:
        """The question that the answer is to; the default is no."""
        return consent_question(self.change, self.name, old=self.old_version, new=self.version)

    def lines(self) -> tuple[str, ...]:
        """Return the text above the question."""
        if self.change is Change.INSTALL:
            facts = self._facts("Validating manifest...")
            return (*facts, *ask_lines(self.capabilities), *self._gifts())
        changes = change_lines(self.added, self.removed, widens=self.widens)
        if self.change is Change.RENEW:
            return (*self._renewed(), *changes, *self._operators())
        return (*self._already(), *changes, *ask_lines(self.capabilities))

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
            "given": list(self.given),
            "given_back": list(self.given_back),
            "not_given": list(self.not_given),
            "changed_files": list(self.changed_files),
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

    def _gifts(self) -> list[str]:
        """Write what it finds from the start, and what of its name it does not get."""
        found: list[str] = []
        if self.given:
            found.append(f"It is given what local.toml has for it: {', '.join(self.given)}")
        if self.given_back:
            found.append(f"It is given back what was kept of it: {'; '.join(self.given_back)}")
        found += [
            f"It does not get what was kept of {self.name} {version}, whose files were others."
            for version in self.not_given
        ]
        return found

    def _renewed(self) -> list[str]:
        """Write what is another than what was agreed to, and nothing else."""
        found = [f"The files of {self.name} are not the ones that were agreed to."]
        if self.old_version not in {"", self.version}:
            found.append(f"  version: {self.old_version} -> {self.version}")
        found += [f"  {one}" for one in self.changed_files[:SHOWN_FILES]]
        if len(self.changed_files) > SHOWN_FILES:
            found.append(f"  ... and {len(self.changed_files) - SHOWN_FILES} more files")
        return found + [f"  warning: {warning}" for warning in self.warnings]

    def _operators(self) -> list[str]:
        own = [one for one in self.capabilities if one.operator_added]
        return ["Beside that the operator's grants hold:", *ask_lines(own)[1:]] if own else []

    def _already(self) -> list[str]:
        word = "New version" if self.change is Change.UPGRADE else "Older version"
        return [
            f"Plugin {self.name} is already installed (version {self.old_version}).",
            *self._facts(f"{word}: {self.version}"),
        ]


def install_prompt(
    manifest: Manifest,
    digest: str,
    *,
    change: Change,
    source: str = "",
    old_version: str = "",
    old: CapabilitySet | None = None,
    grants: CapabilitySet | None = None,
    given: tuple[str, ...] = (),
    kept: tuple[KeptData, ...] = (),
    problems: tuple[Problem, ...] = (),
    files: Mapping[str, str] | None = None,
    agreed_files: Mapping[str, str] | None = None,
) -> InstallPrompt:
    """Put together what is shown; `old` are the capabilities agreed to before, if any were.

    `kept` is what is left of plugins of that name, of these files and of others.
    """
    found = diff(old or CapabilitySet(), manifest.capabilities)
    first = change is Change.INSTALL
    added, removed = ((), ()) if first else describe_changes(found)
    return InstallPrompt(
        change=change,
        name=manifest.name,
        version=str(manifest.version),
        kaged_api=manifest.kaged_api,
        description=manifest.description,
        digest=digest,
        source=source,
        capabilities=describe_ask(manifest.capabilities, grants or CapabilitySet()),
        added=added,
        removed=removed,
        widens=not first and found.widens,
        old_version=old_version,
        license=manifest.license or "",
        author=manifest.author or "",
        homepage=manifest.homepage or "",
        warnings=tuple(f"{problem.key_path}: {problem.message}" for problem in problems),
        given=given,
        given_back=tuple(word for one in kept if one.digest == digest for word in one.words()),
        not_given=tuple(one.version for one in kept if one.digest != digest),
        files=files or {},
        changed_files=_file_changes(agreed_files or {}, files or {}),
    )


def _file_changes(before: Mapping[str, str], now: Mapping[str, str]) -> tuple[str, ...]:
    """Return a line for each file that is another, came or went; none when nobody knows."""
    if not before or not now:
        return ()
    lines = {name: f"added: {name}" for name in now if name not in before}
    for name, content in before.items():
        if now.get(name) != content:
            lines[name] = f"changed: {name}" if name in now else f"removed: {name}"
    return tuple(lines[name] for name in sorted(lines))
