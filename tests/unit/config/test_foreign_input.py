"""Whatever stands in a file, the answer is a value or a list of problems, never another error."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kaged.base import JsonValue
from kaged.config import ConfigFileInvalid, parse_manifest, parse_project
from kaged.config.daemonconfig import CONFIG_SHAPE
from kaged.config.localconfig import LOCAL_SHAPE
from kaged.config.nodes import MapEntry, Node
from kaged.config.problems import Mark
from kaged.config.reading import Reading
from kaged.config.schemas import schemas

words = st.sampled_from(
    [
        "",
        "a",
        "disabled",
        "delegate",
        "project",
        "config:/x",
        "project:/../x",
        "@k/m",
        "1.2.3",
        "config.a",
        "enum",
        "range",
        "path",
        "kaged.*",
        "agent-x",
        "net:[]",
        "read:fs:/x",
        "${X}",
        "a:b",
        "\0",
    ]
)
leaves = words | st.none() | st.booleans() | st.integers(-5, 400) | st.floats(-2, 2)


def property_names() -> list[str]:
    """Collect every key that any file knows, so that random documents hit real shapes."""
    found: set[str] = set()

    def walk(value: JsonValue) -> None:
        if isinstance(value, dict):
            listed = value.get("properties")
            if isinstance(listed, dict):
                found.update(listed)
            for inner in value.values():
                walk(inner)
        elif isinstance(value, list):
            for inner in value:
                walk(inner)

    for schema in schemas().values():
        walk(schema)
    return sorted(found)


KEYS = property_names()
names = st.sampled_from([*KEYS, "x", "file.*", "coder", "memory"])
values = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=5),
    max_leaves=25,
)
documents = st.dictionaries(names, values, max_size=6)

relaxed = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


def agent(inner: JsonValue) -> JsonValue:
    return {"model": "m", "system_prompt": "p", **inner} if isinstance(inner, dict) else inner


@relaxed
@given(documents, documents, documents)
def test_any_project_file_loads_or_is_refused(
    top: dict[str, JsonValue], primary: dict[str, JsonValue], child: dict[str, JsonValue]
) -> None:
    text = json.dumps(
        {**top, "primary": agent({**primary, "subagents": {"coder": agent({**child})}})}
    )
    with contextlib.suppress(ConfigFileInvalid):
        parse_project(text, Path("/nonexistent/project"))


@relaxed
@given(documents, documents)
def test_any_manifest_loads_or_is_refused(
    top: dict[str, JsonValue], knobs: dict[str, JsonValue]
) -> None:
    base = {
        "name": "x",
        "version": "1.0.0",
        "kaged_api": 1,
        "description": "d",
        "command": ["c"],
        "capabilities": [],
    }
    with contextlib.suppress(ConfigFileInvalid):
        parse_manifest(json.dumps({**base, "knobs": knobs, **top}))


def node_of(value: JsonValue) -> Node:
    mark = Mark(1, 1)
    if isinstance(value, list):
        return Node(tuple(node_of(item) for item in value), mark)
    if isinstance(value, dict):
        return Node({name: MapEntry(mark, node_of(item)) for name, item in value.items()}, mark)
    return Node(value, mark)


@relaxed
@given(documents)
def test_any_operator_file_is_read_or_refused(document: dict[str, JsonValue]) -> None:
    for shape in (CONFIG_SHAPE, LOCAL_SHAPE):
        reading = Reading("f.toml", environ={})
        value = shape.read(node_of(document), reading.top)
        assert reading.failed or isinstance(value, shape.cls)
