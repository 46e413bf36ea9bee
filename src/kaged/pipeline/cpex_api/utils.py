"""Small functions that plugins import from the published framework."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from kaged.pipeline import edits
from kaged.pipeline.conditions import compile_conditions, matchable_value
from kaged.pipeline.contexts import GlobalContext
from kaged.pipeline.edits import HookPayloadPolicy
from kaged.pipeline.payloads.base import PluginPayload
from kaged.pipeline.settings import PluginCondition


def get_attr(obj: Any, attr: str, default: Any = "") -> Any:
    """Read a value from an object or a dict; the default for what is missing or empty."""
    if obj is None:
        return default
    if hasattr(obj, attr):
        return getattr(obj, attr, default) or default
    if isinstance(obj, dict):
        return obj.get(attr, default) or default
    return default


def get_matchable_value(payload: Any, hook_type: str) -> str | None:
    """Return the value of a payload that conditions look at."""
    return matchable_value(payload, str(hook_type))


def matches(condition: PluginCondition, context: GlobalContext) -> bool:
    """Return whether the parts of a condition about the request match."""
    test = compile_conditions([condition], "")
    return test is None or test(None, context)


def payload_matches(
    payload: Any, hook_type: str, conditions: Sequence[PluginCondition], context: GlobalContext
) -> bool:
    """Return whether any condition matches a payload of a hook."""
    test = compile_conditions(conditions, str(hook_type))
    return test is None or test(payload, context)


def parse_class_name(name: str) -> tuple[str, str]:
    """Split a dotted class path into module and class."""
    module, _, class_name = name.rpartition(".")
    return module, class_name


def import_module(mod_name: str) -> ModuleType:
    """Import a module by name."""
    return importlib.import_module(mod_name)


def apply_policy(
    original: PluginPayload,
    modified: PluginPayload,
    policy: HookPayloadPolicy,
    *,
    apply_to: PluginPayload | None = None,
) -> PluginPayload | None:
    """Return the payload with the writable fields of `modified`; None when none has changed."""
    return edits.apply_policy(
        original, modified, policy, original if apply_to is None else apply_to
    )
