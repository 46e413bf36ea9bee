"""Manifest capabilities: `parse_capability`, `CapabilitySet`, `diff`, `cage_policy`."""

from kaged.kernel.capabilities.cage import CapabilityBases, cage_policy, project_paths
from kaged.kernel.capabilities.diff import CapabilityDiff, diff
from kaged.kernel.capabilities.grammar import (
    FORMS,
    CapabilityInvalid,
    CapabilityProblem,
    parse_capability,
)
from kaged.kernel.capabilities.sets import CapabilitySet, parse_capabilities
from kaged.kernel.capabilities.terms import (
    CapabilityPath,
    EventsAccess,
    EventsCapability,
    ExecCapability,
    FsCapability,
    ManifestCapability,
    NetCapability,
    NoNetCapability,
    PathBase,
    StorageAccess,
    StorageCapability,
    covers,
)

__all__ = [
    "FORMS",
    "CapabilityBases",
    "CapabilityDiff",
    "CapabilityInvalid",
    "CapabilityPath",
    "CapabilityProblem",
    "CapabilitySet",
    "EventsAccess",
    "EventsCapability",
    "ExecCapability",
    "FsCapability",
    "ManifestCapability",
    "NetCapability",
    "NoNetCapability",
    "PathBase",
    "StorageAccess",
    "StorageCapability",
    "cage_policy",
    "covers",
    "diff",
    "parse_capabilities",
    "parse_capability",
    "project_paths",
]
