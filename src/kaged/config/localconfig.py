"""`LocalConfig`: the operator's `local.toml` with models, plugins' secrets and what is installed.

The file must be private (mode 0600). Values never appear in messages or in `repr`. `${VAR}` is
replaced from the environment; a section whose variable is not set is out of use and says so, the
other sections work (PH-CONF-20).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Final

from kaged.base import JsonValue
from kaged.config.capabilitylist import CapabilityListShape
from kaged.config.containers import Hidden, JsonTable, ListOf, Mapped
from kaged.config.credentials_section import CREDENTIAL_VALUES, CredentialValue
from kaged.config.files import Privacy
from kaged.config.reading import Loaded, Reading
from kaged.config.records import RecordShape, empty_map, key, optional, record
from kaged.config.secret import Secret
from kaged.config.sections import Sections, SectionsOf
from kaged.config.semver import Version, parse_version
from kaged.config.shapes import Choice, Flag, Number, TextShape, Whole
from kaged.config.tomldoc import load_toml
from kaged.config.variables import WithVariables
from kaged.kernel.capabilities import CapabilitySet


class ModelTrait(StrEnum):
    """What a model is good for; plugins' model settings can filter by it."""

    REASONING = "reasoning"
    FAST = "fast"


_USD: Final = Number(0, 1_000_000)


@record
class ModelPrice:
    """What a model costs, in US dollars per million tokens; local models cost nothing."""

    input: float = key(_USD, "What it reads.")
    output: float = key(_USD, "What it writes.")
    cached: float | None = optional(
        _USD, "What it reads from its cache; the price of `input` if not given.", default=None
    )


@record
class ModelEntry:
    """A model that agents can name by its alias."""

    model: str = key(
        TextShape(
            max_chars=300,
            pattern=r"scripted|[a-z][a-z0-9_-]*:\S+",
            means="vendor:model (or scripted)",
        ),
        "Vendor and model, for example `openai:gpt-5` or `scripted:demo.yaml`.",
    )
    base_url: str | None = optional(
        TextShape(max_chars=2000, pattern=r"https?://\S+", means="an http or https URL"),
        "The server, for anything that supports the OpenAI protocol.",
        default=None,
    )
    api_key: Secret[str] | None = optional(
        Hidden(TextShape(max_chars=4000)),
        "The key for the vendor; better written as `${VAR}`.",
        default=None,
        aliases=("key",),
    )
    context_window: int | None = optional(
        Whole(256, 100_000_000), "How many tokens the model takes.", default=None
    )
    usd_per_million: ModelPrice | None = optional(
        RecordShape(ModelPrice),
        "What it costs, instead of the published price: `kaged usage` and budgets count with it.",
        default=None,
    )
    traits: tuple[ModelTrait, ...] = key(
        ListOf(Choice(ModelTrait), unique=True), "What the model is good for.", default=()
    )
    settings: Mapping[str, JsonValue] = key(
        JsonTable(),
        "Further settings for the model, such as `temperature`.",
        default_factory=empty_map,
    )
    fallbacks: tuple[str, ...] = key(
        ListOf(TextShape(max_chars=128), max_items=8, unique=True),
        "Aliases that are asked, in this order, while this model is out of order.",
        default=(),
    )
    retries: int = key(
        Whole(0, 20), "How often a question that failed for a passing reason is asked again.",
        default=4,
    )  # fmt: skip
    parallel: int = key(
        Whole(1, 1000), "How many questions the model is asked at a time.", default=32
    )
    timeout_s: float = key(
        Number(1, 7200), "How long one answer may take, in seconds.", default=600.0
    )
    idle_timeout_s: float = key(
        Number(0.1, 7200), "How long the model may be silent within an answer.", default=120.0
    )


@record
class PluginSettings:
    """One plugin on this machine: what is installed, what it was granted, its secrets."""

    installed: Version | None = optional(
        Mapped(TextShape(max_chars=128), parse_version, "version"),
        "The installed version; written by `kaged plugin install`.",
        default=None,
    )
    local: bool = key(
        Flag(), "Whether every project may use it, or only the one that brought it.", default=True
    )
    enabled: bool | None = optional(
        Flag(), "Kept for older files; `[plugins] enabled` in config.toml decides.", default=None
    )
    grants: CapabilitySet = key(
        CapabilityListShape(),
        "Capabilities that the operator adds on this machine.",
        default_factory=CapabilitySet,
    )
    values: Secret[Mapping[str, JsonValue]] = field(default_factory=lambda: Secret(empty_map()))


@record
class LocalConfig:
    """What is true on this machine only (`local.toml`)."""

    models: Sections[ModelEntry] = key(
        SectionsOf(
            WithVariables(RecordShape(ModelEntry)),
            TextShape(
                max_chars=128, pattern=r"[A-Za-z0-9][A-Za-z0-9._:/@-]*", means="a model alias"
            ),
        ),
        "Models, by alias.",
        default_factory=Sections,
    )
    plugins: Sections[PluginSettings] = key(
        SectionsOf(
            WithVariables(RecordShape(PluginSettings, extras=("values", Hidden(JsonTable())))),
            TextShape(max_chars=214),
        ),
        "Plugins, by package (secrets) or by name (what is installed).",
        default_factory=Sections,
    )
    secrets: Sections[Secret[str]] = key(
        SectionsOf(WithVariables(Hidden(TextShape(one_line=False)))),
        "Further secrets, by name.",
        default_factory=Sections,
    )

    credentials: Sections[CredentialValue] = key(
        CREDENTIAL_VALUES,
        "Values of `[credentials.NAME]` of config.toml, by name.",
        default_factory=Sections,
    )

    def plugin(self, package: str, name: str) -> PluginSettings:
        """Put together what is known of a plugin, by its package and by its name.

        Secrets are taken from the package's section, or else from the name's; what is installed
        from whichever says it; grants add up.

        Raises:
            ConfigFileInvalid: one of the two sections cannot be used, for example because a
            variable
                is not set.
        """
        by_package = self.plugins.get(package)
        by_name = self.plugins.get(name) if name != package else None
        if by_package is None or by_name is None:
            return by_package or by_name or PluginSettings()
        return PluginSettings(
            installed=by_name.installed or by_package.installed,
            local=by_name.local and by_package.local,
            enabled=by_package.enabled if by_name.enabled is None else by_name.enabled,
            grants=by_name.grants.joined(by_package.grants),
            values=by_package.values if by_package.values.reveal() else by_name.values,
        )


LOCAL_SHAPE: Final = RecordShape(
    LocalConfig,
    hints=MappingProxyType(
        {
            "daemon": "daemon settings belong in config.toml",
            "mcp": "MCP servers belong in config.toml",
            "model": "did you mean [models.<alias>]?",
        }
    ),
)


def load_local_config(path: Path, environ: Mapping[str, str]) -> Loaded[LocalConfig]:
    """Read `local.toml`; an absent file is an empty one.

    Raises:
        ConfigFileInvalid: with every problem, or because others may read the file.
    """
    reading = Reading(str(path), secretive=True, environ=environ)
    return load_toml(path, reading, LOCAL_SHAPE.read, default=LocalConfig, privacy=Privacy.PRIVATE)
