"""Every audit event that exists, as data: `EVENT_TYPES`, by name, grouped by `CHAPTERS`."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from kaged.audit.events.daemon import DAEMON
from kaged.audit.events.lua import LUA_CAPABILITIES
from kaged.audit.events.mcp import MCP
from kaged.audit.events.pipeline import EXTENSIONS_PIPELINE
from kaged.audit.events.plugin import PLUGIN_HOST
from kaged.audit.events.service import SERVICE_CAPABILITIES
from kaged.audit.events.skill import SKILLS
from kaged.audit.events.tooling import AGENT_TOOLING
from kaged.audit.events.types import COMMON_FIELDS, Chapter, EventType, Field, FieldKind

CHAPTERS: tuple[Chapter, ...] = (
    DAEMON,
    PLUGIN_HOST,
    AGENT_TOOLING,
    SERVICE_CAPABILITIES,
    SKILLS,
    EXTENSIONS_PIPELINE,
    LUA_CAPABILITIES,
    MCP,
)

EVENT_TYPES: Mapping[str, EventType] = MappingProxyType(
    {event.name: event for chapter in CHAPTERS for event in chapter.events}
)

__all__ = ["CHAPTERS", "COMMON_FIELDS", "EVENT_TYPES", "Chapter", "EventType", "Field", "FieldKind"]
