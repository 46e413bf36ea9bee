"""The security slot: labels, classification, the subject, and rules about objects and data."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from kaged.pipeline.slots.base import Slot


class SubjectType(StrEnum):
    """What kind of party a subject is."""

    USER = "user"
    AGENT = "agent"
    SERVICE = "service"
    SYSTEM = "system"


class SubjectExtension(Slot):
    """The authenticated party behind the call."""

    id: str
    type: SubjectType
    roles: frozenset[str] = frozenset()
    permissions: frozenset[str] = frozenset()
    teams: frozenset[str] = frozenset()
    claims: dict[str, str] = Field(default_factory=dict)


class ObjectSecurityProfile(Slot):
    """What it takes to use one object, and who enforces that."""

    managed_by: str = "host"
    permissions: list[str] = Field(default_factory=list)
    trust_domain: str | None = None
    data_scope: list[str] = Field(default_factory=list)


class RetentionPolicy(Slot):
    """How long data may be kept."""

    max_age_seconds: int | None = None
    policy: str = "persistent"
    delete_after: str | None = None


class DataPolicy(Slot):
    """What may be done with data of one source; `allowed_actions` None means unrestricted."""

    apply_labels: list[str] = Field(default_factory=list)
    allowed_actions: list[str] | None = None
    denied_actions: list[str] = Field(default_factory=list)
    retention: RetentionPolicy | None = None


class SecurityExtension(Slot):
    """Labels that only grow, the subject, and the rules of objects and data."""

    labels: frozenset[str] = frozenset()
    classification: str | None = None
    subject: SubjectExtension | None = None
    objects: dict[str, ObjectSecurityProfile] = Field(default_factory=dict)
    data: dict[str, DataPolicy] = Field(default_factory=dict)
