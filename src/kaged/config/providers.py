"""Skills and capability providers: three places of `config.toml` merged into one plan.

Strongest first: `[skills.<name>.capability_provider]`, `[capabilities.providers.<name>]`, the
built-in wiring of a bundled skill; merged key by key (SC-AMB-29). A provider that cannot be used is
reported and skipped, the others go on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final

from kaged.base import JsonValue
from kaged.base.lazy_dataclass import dataclass
from kaged.config.cageblock import ENV_NAME, ENV_VALUE, NET_TARGET, FullLimits
from kaged.config.containers import Hidden, JsonTable, ListOf, MapOf, OneOrList
from kaged.config.hostvalues import ABSOLUTE, CommandShape
from kaged.config.problems import Origin, Problem, Severity
from kaged.config.records import RecordShape, empty_map, key, optional, record, section, strict
from kaged.config.secret import Secret
from kaged.config.sections import Sections, SectionsOf
from kaged.config.shapes import Choice, Flag, Number, TextShape, Whole
from kaged.config.variables import WithVariables
from kaged.kernel.net import NetTarget
from kaged.kernel.policy import CageLimits, CagePolicy, FsGrant, FsMode

DEFAULT_PROVIDER_TIMEOUT_S: Final = 30.0
NAMESPACE_PATTERN: Final = r"[a-z0-9][a-z0-9_-]*"

_NAMESPACE: Final = TextShape(max_chars=64, pattern=NAMESPACE_PATTERN, means="a namespace")
_TIMEOUT: Final = Number(1, 300)

_OPERATIONS: Final = TextShape(
    max_chars=256,
    pattern=r"[A-Za-z0-9_*?.-]+",
    means="a pattern of operations such as email.send or email.*",
)


class ProviderType(StrEnum):
    """What stands behind a provider."""

    BRIDGE = "bridge"
    SIDECAR = "sidecar"
    IMAP = "imap"
    CALDAV = "caldav"
    REST = "rest"


PROGRAMS: Final = frozenset({ProviderType.BRIDGE, ProviderType.SIDECAR})
"""The types that are programs of the operator's."""


class BridgeMode(StrEnum):
    """How a bridge's processes are kept."""

    STANDBY = "standby"
    COLD = "cold"
    PERSISTENT = "persistent"


class RateName(StrEnum):
    """Which limits a provider has."""

    OFF = "off"
    DEFAULT = "default"


class VaultKeyPlace(StrEnum):
    """Where the key of the vault is kept."""

    AUTO = "auto"
    SYSTEMD = "systemd"
    KEYRING = "keyring"
    FILE = "file"


SECRET_ENV: Final = WithVariables(MapOf(Hidden(ENV_VALUE), ENV_NAME))
"""Environment variables of a program that the operator configures; their values stay hidden."""


@record
class HostFsEntry:
    """One path of the machine that exists inside the cage."""

    mode: FsMode = key(Choice(FsMode), "Read-only or read-write.")
    path: str = key(ABSOLUTE, "The path on this machine.")


@record
class HostCage:
    """The cage of a program that the operator configures."""

    fs: tuple[HostFsEntry, ...] = key(
        ListOf(strict(HostFsEntry)),
        "Paths that exist inside.",
        default=(),
    )
    net: tuple[NetTarget, ...] = key(
        ListOf(NET_TARGET), "Where it may connect to; an empty list is no network.", default=()
    )
    limits: FullLimits = section("Resource limits.", factory=FullLimits, unknown=Severity.ERROR)

    def policy(self, limits: CageLimits) -> CagePolicy:
        """Compile; `limits` are the defaults."""
        return CagePolicy(
            fs=tuple(FsGrant(entry.path, entry.mode) for entry in self.fs),
            net=self.net,
            limits=self.limits.over(limits),
        )


HOST_CAGE_SHAPE: Final = strict(HostCage)


@record
class ProviderSection:
    """A program that gives access to people's accounts in one namespace."""

    enabled: bool | None = optional(Flag(), "Whether it is used; true by default.", default=None)
    namespace: str | None = optional(
        _NAMESPACE,
        "The namespace of its capabilities; the section's name by default.",
        default=None,
    )
    command: tuple[str, ...] | None = optional(
        CommandShape(), "The bridge or sidecar program, without a shell.", default=None
    )
    timeout_seconds: float | None = optional(
        _TIMEOUT, "How long one call may take; 30 by default.", default=None
    )
    env: Mapping[str, Secret[str]] = key(
        SECRET_ENV, "Environment variables for it; `${VAR}` is replaced.", default_factory=empty_map
    )
    cage: HostCage | None = optional(
        HOST_CAGE_SHAPE,
        "The cage it runs in. Left out: it runs without a cage, and doctor says so.",
        default=None,
    )
    type: ProviderType = key(
        Choice(ProviderType),
        "A bridge program, a sidecar program (a bridge that lives on loopback, one process for "
        "each person and capability), or a provider that comes with kaged.",
        default=ProviderType.BRIDGE,
    )
    settings: Mapping[str, JsonValue] = key(
        JsonTable(),
        "Settings of a provider that comes with kaged; of a bridge or sidecar: `link_port` and "
        "`link_url` of the page that asks for what its flows need; of a sidecar: `idle_seconds`, "
        "after which one that nobody uses is ended, 900 by default.",
        default_factory=empty_map,
    )
    mode: BridgeMode = key(
        Choice(BridgeMode),
        "How the bridge is started: one process per call with one in reserve (standby) or none "
        "(cold), or one for many calls (persistent), if the bridge says that it can.",
        default=BridgeMode.STANDBY,
    )
    max_concurrency: int = key(Whole(1, 64), "How many of its processes may run.", default=4)
    max_output_bytes: int = key(
        Whole(1024, 64 * 1024 * 1024), "How much it may write.", default=4 * 1024 * 1024
    )
    env_prefixes: tuple[str, ...] | None = optional(
        ListOf(ENV_NAME),
        'Variables of the daemon that it gets, by how they begin; `GOGCLI_` for "gog".',
        default=None,
    )
    rate: RateName = key(
        Choice(RateName),
        "Limits on its use: none (off), or 60 calls a minute, 20 of them changing something.",
        default=RateName.OFF,
    )
    quota_per_day: int = key(
        Whole(0, 1_000_000),
        "Calls per user and capability in a day of the machine's time zone; 0 is no quota.",
        default=0,
    )
    allow: tuple[str, ...] = key(
        ListOf(_OPERATIONS), "Operations that may be used; all by default.", default=()
    )
    deny: tuple[str, ...] = key(ListOf(_OPERATIONS), "Operations that may not be used.", default=())
    confirm: tuple[str, ...] = key(
        ListOf(_OPERATIONS),
        "Changing operations that wait for their owner's consent each time.",
        default=(),
    )
    strict_output: bool = key(
        Flag(), "Refuse outputs with what looks like a secret instead of masking it.", default=False
    )
    allow_stateless_code: bool = key(
        Flag(), "Take a bare code where a callback with a state is expected.", default=False
    )
    same_address: bool = key(
        Flag(),
        "People link accounts of their own address only: their id, or their claim `email`.",
        default=False,
    )


@record
class SkillProvider:
    """What a skill's settings change about its provider."""

    enabled: bool | None = optional(
        Flag(), "False keeps the skill and drops the provider.", default=None
    )
    namespace: str | None = optional(_NAMESPACE, "The namespace of its capabilities.", default=None)
    command: tuple[str, ...] | None = optional(
        CommandShape(), "The bridge program, without a shell.", default=None
    )
    timeout_seconds: float | None = optional(_TIMEOUT, "How long one call may take.", default=None)


@record
class SkillSection:
    """Settings of one skill; `[skills.defaults]` holds those of all."""

    enabled: bool | None = optional(
        Flag(), "Whether the skill is offered; true also wires its bundled provider.", default=None
    )
    allow_chat_ids: tuple[str, ...] | None = optional(
        OneOrList(ListOf(TextShape(max_chars=256)), "text or list of text"),
        "The chats it may be used in; an empty list lifts the default's limit.",
        default=None,
    )
    capability_provider: SkillProvider | None = optional(
        RecordShape(SkillProvider), "What to change about the skill's provider.", default=None
    )
    extras: Mapping[str, JsonValue] = field(default_factory=empty_map)


@record
class CapabilitiesSection:
    """Access to people's accounts."""

    providers: Sections[ProviderSection] = key(
        SectionsOf(RecordShape(ProviderSection), _NAMESPACE),
        "Bridge programs, by name.",
        default_factory=Sections,
    )
    require_skill: bool = key(
        Flag(), "Only skills may use capabilities; agents by themselves may not.", default=False
    )
    strict_output: bool = key(
        Flag(), "Refuse every output with what looks like a secret.", default=False
    )
    share_accounts: bool = key(
        Flag(),
        "People may share accounts that they have linked with others, for named operations.",
        default=False,
    )
    flow_ttl_seconds: int = key(
        Whole(30, 3600), "How long a person has to link an account.", default=1800
    )
    max_bridges: int = key(
        Whole(1, 256), "How many bridge processes may run, all providers together.", default=16
    )
    vault_key: VaultKeyPlace = key(
        Choice(VaultKeyPlace),
        "Where the key that encrypts credentials is kept; auto looks for a systemd credential "
        "first and uses a file beside the database otherwise.",
        default=VaultKeyPlace.AUTO,
    )


@dataclass(frozen=True, slots=True)
class Provider:
    """A provider with every setting decided; `origin` is where its command was set."""

    name: str
    namespace: str
    command: tuple[str, ...]
    timeout_s: float
    env: Mapping[str, Secret[str]]
    cage: HostCage | None
    origin: Origin
    section: ProviderSection


@dataclass(frozen=True, slots=True)
class ProviderPlan:
    """The providers to register, in name order, and what is wrong with the others."""

    providers: tuple[Provider, ...]
    problems: tuple[Problem, ...]


BUNDLED_PROVIDERS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {"gog": ("gogcli", "bridge")}
)
"""Skills that come with a provider, and its command."""


def plan_providers(
    skills: Sections[SkillSection],
    capabilities: CapabilitiesSection,
    provenance: Mapping[str, Origin],
) -> ProviderPlan:
    """Merge the three places into providers; report and leave out those without a command."""
    providers: list[Provider] = []
    problems: list[Problem] = []
    for problem_of in (skills.broken, capabilities.providers.broken):
        for found in problem_of.values():
            problems.extend(found)
    broken = {*skills.broken, *capabilities.providers.broken}
    for name in sorted({*skills, *capabilities.providers} - broken):
        layers = _layers(name, skills.good.get(name), capabilities.providers.good.get(name))
        if not layers or not _first(layers, "enabled", fallback=True):
            continue
        command: tuple[str, ...] = _first(layers, "command", fallback=())
        explicit = capabilities.providers.good.get(name)
        kind = ProviderType.BRIDGE if explicit is None else explicit.type
        if kind in PROGRAMS and not command:
            problems.append(_no_command(name, layers, provenance))
            continue
        if kind is ProviderType.SIDECAR and explicit is not None and explicit.cage is not None:
            problems.append(_caged_sidecar(name, provenance))
            continue
        providers.append(
            Provider(
                name=name,
                namespace=_first(layers, "namespace", fallback=name),
                command=command,
                timeout_s=_first(layers, "timeout_seconds", fallback=DEFAULT_PROVIDER_TIMEOUT_S),
                env=empty_map() if explicit is None else explicit.env,
                cage=None if explicit is None else explicit.cage,
                origin=_command_origin(layers, provenance),
                section=explicit or ProviderSection(),
            )
        )
    return ProviderPlan(tuple(providers), tuple(problems))


@dataclass(frozen=True, slots=True)
class _Layer:
    """One place that says something about a provider, and its path in the file."""

    path: str
    settings: ProviderSection | SkillProvider


def _layers(
    name: str, skill: SkillSection | None, explicit: ProviderSection | None
) -> tuple[_Layer, ...]:
    """List the places that count for a provider, the strongest first."""
    layers: list[_Layer] = []
    switched_off = skill is not None and skill.enabled is False
    if skill is not None and skill.capability_provider is not None and not switched_off:
        layers.append(_Layer(f"skills.{name}.capability_provider", skill.capability_provider))
    if explicit is not None:
        layers.append(_Layer(f"capabilities.providers.{name}", explicit))
    # Only an explicit `enabled = true` brings the bundled wiring in.
    if skill is not None and skill.enabled is True and name in BUNDLED_PROVIDERS:
        bundled = ProviderSection(command=BUNDLED_PROVIDERS[name], namespace=name)
        layers.append(_Layer("", bundled))
    return tuple(layers)


def _first(layers: tuple[_Layer, ...], field_name: str, *, fallback: Any) -> Any:
    values = (getattr(layer.settings, field_name) for layer in layers)
    return next((value for value in values if value is not None), fallback)


def _command_origin(layers: tuple[_Layer, ...], provenance: Mapping[str, Origin]) -> Origin:
    layer = next((layer for layer in layers if layer.settings.command is not None), layers[-1])
    return provenance.get(f"{layer.path}.command", Origin(None, None, "bundled with the skill"))


def _no_command(name: str, layers: tuple[_Layer, ...], provenance: Mapping[str, Origin]) -> Problem:
    path = next(layer.path for layer in layers if layer.path)
    origin = provenance.get(path, Origin("config.toml", None))
    return Problem(
        file=origin.file or "config.toml",
        line=origin.line,
        column=None,
        key_path=f"{path}.command",
        message=f"the provider {name} has no command and is skipped",
        fix=f"add command to [{path}]",
        severity=Severity.ERROR,
        code="missing_key",
    )


def _caged_sidecar(name: str, provenance: Mapping[str, Origin]) -> Problem:
    path = f"capabilities.providers.{name}.cage"
    origin = provenance.get(path, Origin("config.toml", None))
    return Problem(
        file=origin.file or "config.toml",
        line=origin.line,
        column=None,
        key_path=path,
        message=f"the sidecar {name} cannot be caged: a cage has a loopback of its own",
        fix='remove the cage, or make the program a bridge: type = "bridge"',
        severity=Severity.ERROR,
        code="invalid_value",
    )
