"""Extension capabilities (`read_headers`, …): what a pipeline plugin may see and change.

A closed set of twelve names. Five kinds of name include another one; nothing else implies anything.
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Iterable
from enum import StrEnum
from typing import cast

from kaged.base.errors import KagedError
from kaged.kernel.decision import Decision, fail_closed


class ExtensionCapability(StrEnum):
    """One thing a pipeline plugin may be allowed to see or change."""

    READ_SUBJECT = "read_subject"
    READ_ROLES = "read_roles"
    READ_TEAMS = "read_teams"
    READ_CLAIMS = "read_claims"
    READ_PERMISSIONS = "read_permissions"
    READ_AGENT = "read_agent"
    READ_HEADERS = "read_headers"
    WRITE_HEADERS = "write_headers"
    READ_LABELS = "read_labels"
    APPEND_LABELS = "append_labels"
    READ_DELEGATION = "read_delegation"
    APPEND_DELEGATION = "append_delegation"


ExtensionCapabilities = frozenset[ExtensionCapability]

_IMPLIES = {
    ExtensionCapability.READ_ROLES: ExtensionCapability.READ_SUBJECT,
    ExtensionCapability.READ_TEAMS: ExtensionCapability.READ_SUBJECT,
    ExtensionCapability.READ_CLAIMS: ExtensionCapability.READ_SUBJECT,
    ExtensionCapability.READ_PERMISSIONS: ExtensionCapability.READ_SUBJECT,
    ExtensionCapability.WRITE_HEADERS: ExtensionCapability.READ_HEADERS,
    ExtensionCapability.APPEND_LABELS: ExtensionCapability.READ_LABELS,
    ExtensionCapability.APPEND_DELEGATION: ExtensionCapability.READ_DELEGATION,
}


class ExtensionCapabilityInvalid(KagedError):
    """A list of extension capabilities has an unknown name or is no list."""

    code = "extension_capability_invalid"


def parse_extension_capabilities(value: object) -> ExtensionCapabilities:
    """Read the `capabilities` of a pipeline plugin: a list of names, or null for none.

    Raises:
        ExtensionCapabilityInvalid: a bare text or any other shape, or names that do not exist;
            the message has the names and the known ones.
    """
    if value is None:
        return frozenset()
    if not isinstance(value, list | tuple | set | frozenset):
        raise ExtensionCapabilityInvalid(
            f"capabilities must be a list of names, not {_shown(value)}",
            fix="write it as a list, even for one name",
        )
    names = cast("Iterable[object]", value)
    known = {str(name): name for name in ExtensionCapability}
    unknown = [n for n in names if not isinstance(n, str) or n not in known]
    if unknown:
        raise ExtensionCapabilityInvalid(
            f"Unknown capability {', '.join(map(_shown, unknown))}{_hint(unknown[0])}",
            fix=f"known are {', '.join(known)}",
        )
    return frozenset(known[name] for name in names if isinstance(name, str))


def print_extension_capabilities(caps: ExtensionCapabilities) -> list[str]:
    """Write a set as the sorted list of its names."""
    return sorted(str(cap) for cap in caps)


@functools.lru_cache(maxsize=4096)
def closure(caps: ExtensionCapabilities) -> ExtensionCapabilities:
    """Add what the held capabilities imply: writers read, sub-field readers see the subject."""
    return caps | {_IMPLIES[cap] for cap in caps if cap in _IMPLIES}


def includes(held: ExtensionCapabilities, wanted: ExtensionCapabilities) -> bool:
    """Return whether `held`, with what it implies, gives everything that `wanted` gives."""
    return closure(wanted) <= closure(held)


@fail_closed("extension.capability")
def decide_extension(held: ExtensionCapabilities, wanted: ExtensionCapability) -> Decision:
    """Decide whether a plugin that holds these capabilities may use this one."""
    # Looked up, not compared: a name from another vocabulary is no capability here.
    if ExtensionCapability(wanted) in closure(held):
        return Decision.allow("extension.capability", str(wanted))
    return Decision.deny(
        "extension.capability", str(wanted), f"add {wanted} to the plugin's capabilities"
    )


def _hint(name: object) -> str:
    near = difflib.get_close_matches(str(name)[:64], list(ExtensionCapability), n=1)
    return f" (did you mean {near[0]}?)" if near else ""


def _shown(value: object) -> str:
    return ascii(value)[:80]
