"""How a plugin takes part in a chain: `PluginMode`, and what each mode allows; `OnError`."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from kaged.base.lazy_dataclass import dataclass


class PluginMode(StrEnum):
    """The phases of a chain, in their order of running, and `disabled`."""

    SEQUENTIAL = "sequential"
    TRANSFORM = "transform"
    AUDIT = "audit"
    CONCURRENT = "concurrent"
    FIRE_AND_FORGET = "fire_and_forget"
    DISABLED = "disabled"


class OnError(StrEnum):
    """What a failing plugin means for the call."""

    FAIL = "fail"
    IGNORE = "ignore"
    DISABLE = "disable"


@dataclass(frozen=True, slots=True)
class ModeRules:
    """What a plugin in some mode may do to the call."""

    may_deny: bool
    may_edit: bool
    shares_state: bool


MODE_RULES: Final[Mapping[PluginMode, ModeRules]] = MappingProxyType(
    {
        PluginMode.SEQUENTIAL: ModeRules(may_deny=True, may_edit=True, shares_state=True),
        PluginMode.TRANSFORM: ModeRules(may_deny=False, may_edit=True, shares_state=True),
        PluginMode.AUDIT: ModeRules(may_deny=False, may_edit=False, shares_state=False),
        PluginMode.CONCURRENT: ModeRules(may_deny=True, may_edit=False, shares_state=True),
        PluginMode.FIRE_AND_FORGET: ModeRules(may_deny=False, may_edit=False, shares_state=False),
    }
)

OLD_MODE_WORDS: Final[Mapping[str, tuple[PluginMode, OnError | None]]] = MappingProxyType(
    {
        "enforce": (PluginMode.SEQUENTIAL, None),
        "permissive": (PluginMode.TRANSFORM, None),
        "enforce_ignore_error": (PluginMode.SEQUENTIAL, OnError.IGNORE),
    }
)
"""Older words for modes, and the error policy that a word implies when none is given."""
