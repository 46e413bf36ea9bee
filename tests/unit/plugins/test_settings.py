from __future__ import annotations

from typing import Any

import yaml

from kaged.config.manifest import parse_manifest
from kaged.plugins.settings import ConfigSchemas, Side
from requirements import requirement

BASE: dict[str, Any] = {
    "name": "p",
    "version": "1.0.0",
    "kaged_api": 1,
    "description": "x",
    "command": ["x"],
    "capabilities": [],
}
PROJECT = {
    "type": "object",
    "properties": {
        "recall_budget": {"type": "string", "enum": ["low", "mid"], "default": "mid"},
        "nested": {"type": "object", "properties": {"deep": {"type": "integer", "default": 3}}},
        "tags": {"type": "array", "items": {"type": "string"}},
    },
    "additionalProperties": False,
}
SYSTEM = {
    "type": "object",
    "properties": {"api_token": {"type": "string", "minLength": 10}, "port": {"type": "integer"}},
    "required": ["api_token"],
    "additionalProperties": False,
}


def schemas(**more: Any) -> ConfigSchemas:
    return ConfigSchemas(parse_manifest(yaml.safe_dump({**BASE, **more})).value)


BOTH = {"config_schema": PROJECT, "system_config_schema": SYSTEM}


@requirement("PH-CONF-04")
def test_a_manifest_may_have_none_either_or_both_schemas() -> None:
    assert not schemas().any
    assert schemas(config_schema=PROJECT).any
    assert schemas(system_config_schema=SYSTEM).any
    assert schemas().check_project({"anything": 1}) is None
    assert schemas().check_system({"anything": 1}) is None


def test_the_halves_become_one_object_with_defaults() -> None:
    both = schemas(**BOTH)
    merged = both.merged({"tags": ["a"], "nested": {}}, {"api_token": "0123456789"})
    assert merged == {
        "recall_budget": "mid",
        "nested": {"deep": 3},
        "tags": ["a"],
        "api_token": "0123456789",
    }
    assert both.merged({}, {})["recall_budget"] == "mid"


def test_defaults_are_copies() -> None:
    one = schemas(config_schema={"type": "object", "properties": {"l": {"default": []}}})
    first = one.merged({}, {})
    assert isinstance(first["l"], list)
    first["l"].append(1)
    assert one.merged({}, {})["l"] == []


def test_a_bad_project_value_is_named() -> None:
    invalid = schemas(**BOTH).check_project({"recall_budget": "huge", "unknown": 1})
    assert invalid is not None
    assert invalid.side is Side.PROJECT
    assert len(invalid.errors) == 2
    assert any(error.startswith("recall_budget:") for error in invalid.errors)


def test_a_system_field_in_the_project_half_is_refused() -> None:
    invalid = schemas(**BOTH).check_project({"api_token": "0123456789"})
    assert invalid is not None
    assert "api_token" in invalid.errors[0]
    assert "local.toml" in invalid.errors[0]
    assert "0123456789" not in str(invalid)


def test_a_missing_secret_is_an_error_of_the_system_half() -> None:
    invalid = schemas(**BOTH).check_system({})
    assert invalid is not None
    assert invalid.side is Side.SYSTEM
    assert "api_token" in str(invalid.errors)


@requirement("PH-CONF-18")
def test_secret_values_never_appear_in_errors() -> None:
    both = schemas(**BOTH)
    for half in ({"api_token": "hunter2"}, {"api_token": 31337_31337}, {"port": "hunter2"}):
        invalid = both.check_system(half)
        assert invalid is not None
        assert "hunter2" not in str(invalid)
        assert "3133731337" not in str(invalid)


@requirement("PH-CONF-14")
def test_unknown_fields_are_refused_where_the_schema_says_so() -> None:
    both = schemas(**BOTH)
    assert both.check_project({"nope": 1}) is not None
    assert both.check_system({"api_token": "0123456789", "nope": 1}) is not None
