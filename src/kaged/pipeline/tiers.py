"""Who may see and change which slot: tiers, the policy table and compiled `Rights`."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from kaged.base.errors import KagedError
from kaged.base.lazy_dataclass import dataclass
from kaged.kernel.extension_caps import ExtensionCapability as Capability
from kaged.kernel.extension_caps import closure


class MutabilityTier(StrEnum):
    """How a slot may change after the host filled it."""

    IMMUTABLE = "immutable"
    MONOTONIC = "monotonic"
    MUTABLE = "mutable"


class AccessPolicy(StrEnum):
    """Whether reading a slot takes a capability."""

    UNRESTRICTED = "unrestricted"
    CAPABILITY_GATED = "capability_gated"


class SlotName(StrEnum):
    """Paths of the slots and sub-fields that have a policy of their own."""

    REQUEST = "request"
    AGENT = "agent"
    HTTP = "http"
    SECURITY = "security"
    SECURITY_LABELS = "security.labels"
    SECURITY_CLASSIFICATION = "security.classification"
    SECURITY_SUBJECT = "security.subject"
    SECURITY_SUBJECT_ROLES = "security.subject.roles"
    SECURITY_SUBJECT_TEAMS = "security.subject.teams"
    SECURITY_SUBJECT_CLAIMS = "security.subject.claims"
    SECURITY_SUBJECT_PERMISSIONS = "security.subject.permissions"
    SECURITY_OBJECTS = "security.objects"
    SECURITY_DATA = "security.data"
    DELEGATION = "delegation"
    MCP = "mcp"
    COMPLETION = "completion"
    PROVENANCE = "provenance"
    LLM = "llm"
    FRAMEWORK = "framework"
    META = "meta"
    CUSTOM = "custom"


@dataclass(frozen=True, slots=True)
class SlotPolicy:
    """The rule of one slot or sub-field; without `write_cap`, only a mutable slot can change."""

    tier: MutabilityTier
    access: AccessPolicy = AccessPolicy.UNRESTRICTED
    read_cap: Capability | None = None
    write_cap: Capability | None = None


_IMMUTABLE: Final = SlotPolicy(MutabilityTier.IMMUTABLE)


def _shown_with(capability: Capability) -> SlotPolicy:
    return _gated(MutabilityTier.IMMUTABLE, capability)


def _gated(
    tier: MutabilityTier, read_cap: Capability, write_cap: Capability | None = None
) -> SlotPolicy:
    return SlotPolicy(tier, AccessPolicy.CAPABILITY_GATED, read_cap, write_cap)


SLOT_POLICIES: Final[Mapping[SlotName, SlotPolicy]] = MappingProxyType(
    {
        SlotName.REQUEST: _IMMUTABLE,
        SlotName.AGENT: _shown_with(Capability.READ_AGENT),
        # Guarded rather than a fourth tier: whole replacement with the capability, fixed without.
        SlotName.HTTP: _gated(
            MutabilityTier.IMMUTABLE, Capability.READ_HEADERS, Capability.WRITE_HEADERS
        ),
        SlotName.SECURITY_LABELS: _gated(
            MutabilityTier.MONOTONIC, Capability.READ_LABELS, Capability.APPEND_LABELS
        ),
        SlotName.SECURITY_CLASSIFICATION: _IMMUTABLE,
        SlotName.SECURITY_SUBJECT: _shown_with(Capability.READ_SUBJECT),
        SlotName.SECURITY_SUBJECT_ROLES: _shown_with(Capability.READ_ROLES),
        SlotName.SECURITY_SUBJECT_TEAMS: _shown_with(Capability.READ_TEAMS),
        SlotName.SECURITY_SUBJECT_CLAIMS: _shown_with(Capability.READ_CLAIMS),
        SlotName.SECURITY_SUBJECT_PERMISSIONS: _shown_with(Capability.READ_PERMISSIONS),
        SlotName.SECURITY_OBJECTS: _IMMUTABLE,
        SlotName.SECURITY_DATA: _IMMUTABLE,
        SlotName.DELEGATION: _gated(
            MutabilityTier.MONOTONIC, Capability.READ_DELEGATION, Capability.APPEND_DELEGATION
        ),
        SlotName.MCP: _IMMUTABLE,
        SlotName.COMPLETION: _IMMUTABLE,
        SlotName.PROVENANCE: _IMMUTABLE,
        SlotName.LLM: _IMMUTABLE,
        SlotName.FRAMEWORK: _IMMUTABLE,
        SlotName.META: _IMMUTABLE,
        SlotName.CUSTOM: SlotPolicy(MutabilityTier.MUTABLE),
    }
)
"""The rule of every slot. What is not in this table is hidden from all plugins."""


class TierViolationError(KagedError):
    """A plugin that may extend a monotonic slot took something away from it."""

    code = "tier_violation"

    def __init__(self, plugin_name: str, slot: str, tier: MutabilityTier, detail: str) -> None:
        super().__init__(
            f"plugin {plugin_name!r} broke the {tier} tier of {slot}: {detail}",
            plugin=plugin_name,
            slot=str(slot),
            tier=str(tier),
        )
        self.plugin_name = plugin_name
        self.slot = slot
        self.tier = tier
        self.detail = detail


@dataclass(frozen=True, slots=True)
class Rights:
    """A capability set resolved to one flag per question, implications included."""

    capabilities: frozenset[Capability]
    agent: bool
    headers: bool
    write_headers: bool
    labels: bool
    append_labels: bool
    delegation: bool
    append_delegation: bool
    subject: bool
    roles: bool
    teams: bool
    claims: bool
    permissions: bool

    def may_read(self, slot: SlotName) -> bool:
        """Return whether the holder sees this slot or sub-field."""
        policy = SLOT_POLICIES.get(slot)
        if policy is None:
            return False
        return policy.read_cap is None or policy.read_cap in self.capabilities

    def may_write(self, slot: SlotName) -> bool:
        """Return whether a change of this slot or sub-field by the holder can be accepted."""
        policy = SLOT_POLICIES.get(slot)
        if policy is None:
            return False
        if policy.write_cap is None:
            return policy.tier is MutabilityTier.MUTABLE
        return policy.write_cap in self.capabilities


_known: Final = frozenset(str(capability) for capability in Capability)
RESOLVED: Final[dict[frozenset[str], Rights]] = {}
"""Rights by capability set, filled by `resolve_rights`; look here first where time counts."""


def resolve_rights(capabilities: frozenset[str]) -> Rights:
    """Return the rights of a capability set; unknown names give none.

    Equal sets of known names give the same object, so rights can be compared by identity.
    """
    rights = RESOLVED.get(capabilities)
    if rights is not None:
        return rights
    closed = closure(frozenset(Capability(name) for name in capabilities & _known))
    rights = Rights(
        capabilities=closed,
        agent=Capability.READ_AGENT in closed,
        headers=Capability.READ_HEADERS in closed,
        write_headers=Capability.WRITE_HEADERS in closed,
        labels=Capability.READ_LABELS in closed,
        append_labels=Capability.APPEND_LABELS in closed,
        delegation=Capability.READ_DELEGATION in closed,
        append_delegation=Capability.APPEND_DELEGATION in closed,
        subject=Capability.READ_SUBJECT in closed,
        roles=Capability.READ_ROLES in closed,
        teams=Capability.READ_TEAMS in closed,
        claims=Capability.READ_CLAIMS in closed,
        permissions=Capability.READ_PERMISSIONS in closed,
    )
    rights = RESOLVED.setdefault(closed, rights)
    if capabilities <= _known:  # at most 4096 sets exist, so the table cannot grow without bound
        RESOLVED[capabilities] = rights
    return rights


def visible_slots(rights: Rights) -> tuple[tuple[str, str], ...]:
    """Return the slots and sub-fields that a holder of these rights sees, each with its slot."""
    visible = _VISIBLE.get(rights.capabilities)
    if visible is None:
        names = [slot.value for slot in SLOT_POLICIES if rights.may_read(slot)]
        visible = tuple((name, name.partition(".")[0]) for name in names)
        _VISIBLE[rights.capabilities] = visible
    return visible


_VISIBLE: Final[dict[frozenset[Capability], tuple[tuple[str, str], ...]]] = {}
"""Visible slots by capability set: asked for each step of each call. As bounded as `RESOLVED`."""
