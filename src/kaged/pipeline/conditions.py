"""Conditions turned into one question per call: does this plugin care about this payload?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from kaged.pipeline.contexts import GlobalContext
from kaged.pipeline.settings import PluginCondition, normalize_content_type

Matcher: TypeAlias = Callable[[Any, GlobalContext], bool]

_FAMILIES = {
    "tool_pre_invoke": ("tools", "name"),
    "tool_post_invoke": ("tools", "name"),
    "prompt_pre_fetch": ("prompts", "prompt_id"),
    "prompt_post_fetch": ("prompts", "prompt_id"),
    "resource_pre_fetch": ("resources", "uri"),
    "resource_post_fetch": ("resources", "uri"),
    "agent_pre_invoke": ("agents", "agent_id"),
    "agent_post_invoke": ("agents", "agent_id"),
    "token_delegate": ("tools", "target_name"),
}
"""For each hook, the part of a condition that speaks about it, and the payload's field."""


def compile_conditions(conditions: Sequence[PluginCondition], hook: str) -> Matcher | None:
    """Return the check to make before each call of `hook`; None when it always passes."""
    if not conditions:
        return None
    tests = [_compile_one(condition, hook) for condition in conditions]
    if any(not test for test in tests):
        return None  # one alternative asks for nothing that this hook has

    def matches(payload: Any, context: GlobalContext) -> bool:
        return any(all(part(payload, context) for part in test) for test in tests)

    return matches


def _compile_one(condition: PluginCondition, hook: str) -> list[Matcher]:
    parts: list[Matcher] = []
    if condition.server_ids:
        servers = condition.server_ids
        parts.append(lambda _payload, context: context.server_id in servers)
    if condition.tenant_ids:
        tenants = condition.tenant_ids
        parts.append(lambda _payload, context: context.tenant_id in tenants)
    if condition.content_types:
        types = frozenset(condition.content_types)
        parts.append(lambda _payload, context: _content_type(context) in types)
    if condition.user_patterns:
        patterns = tuple(condition.user_patterns)
        parts.append(
            lambda _payload, context: any(
                pattern in name for name in _user_names(context) for pattern in patterns
            )
        )
    family, field = _FAMILIES.get(hook, ("", ""))
    wanted: frozenset[str] | None = getattr(condition, family) if family else None
    if wanted:
        parts.append(lambda payload, _context: _value(payload, field) in (None, "", *wanted))
    return parts


def matchable_value(payload: Any, hook: str) -> str | None:
    """Return the value of a payload that conditions about this hook look at."""
    return _value(payload, _FAMILIES[hook][1]) if hook in _FAMILIES else None


def _value(payload: Any, field: str) -> str | None:
    value = getattr(payload, field, None)
    return value if isinstance(value, str) else None


def _content_type(context: GlobalContext) -> str | None:
    return normalize_content_type(context.content_type) if context.content_type else None


def _user_names(context: GlobalContext) -> list[str]:
    user = context.user
    if isinstance(user, str):
        return [user]
    if isinstance(user, dict):
        return [name for key in ("email", "id") if isinstance(name := user.get(key), str)]
    return []
