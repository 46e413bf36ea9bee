"""Copies under the names that plugins know; ours are exact dicts and lists, never proxies."""

from __future__ import annotations

from typing import Any

from kaged.pipeline.isolation import isolate_payload


class CopyOnWriteDict(dict[Any, Any]):
    """A private copy of a dict; native code sees its contents like any dict's."""


class CopyOnWriteList(list[Any]):
    """A private copy of a list."""


def copyonwrite(value: Any) -> Any:
    """Return a private copy."""
    return isolate_payload(value)


def wrap_payload_for_isolation(payload: Any) -> Any:
    """Return a private copy of a payload."""
    return isolate_payload(payload)


__all__ = ["CopyOnWriteDict", "CopyOnWriteList", "copyonwrite", "wrap_payload_for_isolation"]
