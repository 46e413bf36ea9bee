"""`schemas`: the JSON Schemas of every file, drawn from the types that read them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from kaged.base import JsonObject
from kaged.config.daemonconfig import CONFIG_SHAPE
from kaged.config.jsonschemas import DRAFT
from kaged.config.localconfig import LOCAL_SHAPE
from kaged.config.manifest import MANIFEST_SHAPE
from kaged.config.project import PROJECT_SHAPE
from kaged.config.records import RecordShape

_SHAPES: Final[Mapping[str, tuple[str, RecordShape[Any]]]] = MappingProxyType(
    {
        "project-v1": ("The project file .kaged/project.yaml", PROJECT_SHAPE),
        "plugin-manifest-v1": ("The plugin manifest kaged-plugin.yaml", MANIFEST_SHAPE),
        "config-v1": ("The operator's config.toml", CONFIG_SHAPE),
        "local-v1": ("The operator's local.toml", LOCAL_SHAPE),
    }
)

SCHEMA_BASE: Final = "https://kaged.dev/schema/"
"""Where the schemas are published; an identifier, nothing is ever fetched from there."""


def schemas() -> dict[str, JsonObject]:
    """Draw the JSON Schema of each file, by name: `project-v1`, `plugin-manifest-v1` and so on."""
    return {name: _draw(name, title, shape) for name, (title, shape) in _SHAPES.items()}


def _draw(name: str, title: str, shape: RecordShape[Any]) -> JsonObject:
    defs: JsonObject = {}
    top = shape.schema(defs)
    return {
        "$schema": DRAFT,
        "$id": f"{SCHEMA_BASE}{name}.json",
        "title": title,
        **top,
        "$defs": dict(sorted(defs.items())),
    }
