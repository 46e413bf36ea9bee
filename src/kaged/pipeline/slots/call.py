"""Slots that describe the call itself: request, headers, source, framework and host metadata."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from kaged.pipeline.slots.base import Slot


class RequestExtension(Slot):
    """Where and when the request was made, and how to find it in traces."""

    environment: str | None = None
    request_id: str | None = None
    timestamp: str | None = None
    trace_id: str | None = None
    span_id: str | None = None


class HttpExtension(Slot):
    """HTTP headers; the host fills names in lower case, names from plugins stay as written."""

    headers: dict[str, str] = Field(default_factory=dict)


class ProvenanceExtension(Slot):
    """Where the message came from and which message it answers."""

    source: str | None = None
    message_id: str | None = None
    parent_id: str | None = None


class FrameworkExtension(Slot):
    """The agentic framework that drives the call, and where in its graph it stands."""

    framework: str | None = None
    framework_version: str | None = None
    node_id: str | None = None
    graph_id: str | None = None
    metadata: dict[str, Any] = Field(default_factory=dict)


class MetaExtension(Slot):
    """Operational metadata given by the host."""

    tags: frozenset[str] = frozenset()
    scope: str | None = None
    properties: dict[str, str] = Field(default_factory=dict)
