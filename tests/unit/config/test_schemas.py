from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kaged.base import JsonValue
from kaged.config import ConfigFileInvalid, parse_manifest, parse_project, schemas
from kaged.config.jsonschemas import compile_schema
from kaged.config.nodes import to_json
from kaged.config.tomldoc import parse_toml
from kaged.config.yamldoc import parse_yaml
from requirements import requirement
from unit.config.test_daemon_config import FULL
from unit.config.test_manifest import FULL_SAMPLE
from unit.config.test_project_file import RESOLUTION_SAMPLE
from unit.config.trials import MINIMAL_MANIFEST, manifest_text, without_key

TOOL = "{name: retain, description: d, parameters_schema: {type: object}}"
KNOB = "type: boolean, label: L, binds_to: config.a, default: true"
SCHEMA = "config_schema: { type: object, properties: { a: {} } }\n"


@pytest.fixture(scope="module")
def drawn() -> dict[str, Any]:
    return {name: compile_schema(schema) for name, schema in schemas().items()}


def data_of(text: str) -> JsonValue:
    parsed = parse_yaml(text, "f.yaml")
    assert parsed.node is not None
    assert not parsed.problems
    return to_json(parsed.node)


def model_accepts(text: str) -> bool:
    try:
        parse_manifest(text)
    except ConfigFileInvalid:
        return False
    return True


VALID = [
    "",
    FULL_SAMPLE,
    "name: x\n",
    f"name: {'a' * 64}\n",
    "version: 1.0.0-rc.1+b\n",
    "description: |\n  One line in a block.\n",
    "author: Ann\nlicense: MIT\nhomepage: http://example.org\npackage: '@a/b'\n",
    "env: { A: '', B: 'two\\nlines' }\n",
    "capabilities: [{net: []}, 'kaged:storage:write', 'read:fs:project:/docs']\n",
    "capabilities: ['net: []']\n",
    "capabilities: ['net:example.org:443', 'net:[::1]:80', 'net:h:*', 'net:*']\n",
    "capabilities: ['exec:bash:/opt/x', 'write:fs:/var/x']\n",
    "roles: [observer]\nhooks: [post_compact]\n",
    "role: compactor\nhooks: [pre_compact]\n",
    "roles: []\n",
    f"tools: [{TOOL}]\n",
    "methods: [a.b, a.b.c.d]\nnotifications: [x.y]\n",
    SCHEMA + f"knobs: {{ k: {{ {KNOB} }} }}\n",
    "system_config_schema: { properties: { t: { type: string } } }\n",
    "shutdown_timeout_sec: 0\nhealth_interval_sec: 5\nhook_timeout_sec: 60\n",
    "per_call_config: true\n",
    "some_future_key: [1, 2]\n",
]

INVALID = [
    *[without_key(key) for key in ("name", "version", "kaged_api", "description", "command")],
    without_key("capabilities"),
    "name: Upper\n",
    f"name: {'a' * 65}\n",
    "name: file\n",
    "name: system\n",
    f"name: x\ntools: [{TOOL}]\n",
    "version: '1.4'\n",
    "version: 1.4\n",
    "kaged_api: 2\n",
    "kaged_api: 0\n",
    "kaged_api: '1'\n",
    "kaged_api: true\n",
    f"description: {'x' * 201}\n",
    "description: ''\n",
    "author: 5\n",
    "homepage: nowhere\n",
    "command: []\n",
    "command: ./x\n",
    "command: ['']\n",
    "env: { A: 1 }\n",
    "env: { 'a b': x }\n",
    "capabilities: ['read:/x']\n",
    "capabilities: ['read:fs:x']\n",
    "capabilities: ['read:fs:/opt/*']\n",
    "capabilities: ['']\n",
    "capabilities: [{net: [x]}]\n",
    "capabilities: ['net:[]', 'net:h:1']\n",
    "capabilities: ['net:h']\n",
    "capabilities: net:[]\n",
    "roles: [auditor]\n",
    "roles: observer\n",
    "roles: [compactor]\nhooks: [post_compact]\n",
    "role: compactor\n",
    "roles: []\nhooks: [pre_compact]\n",
    "hooks: [on_compact]\n",
    "hooks: [pre_compact, pre_compact]\n",
    f"tools: [{TOOL.replace('retain', 'a.b')}]\n",
    "tools: [{name: a, description: d}]\n",
    "tools: [{name: a, description: d, parameters_schema: {type: string}}]\n",
    "tools: [{name: a, description: d, parameters_schema: {type: objct}}]\n",
    f"tools: [{TOOL[:-1]}, more: 1}}]\n",
    "methods: [list]\n",
    "methods: [kaged.x]\n",
    "methods: [config.update]\n",
    "methods: [projects.activated]\n",
    "notifications: [system.x]\n",
    "config_schema: 5\n",
    "config_schema: { properties: [] }\n",
    SCHEMA + "knobs: { K: { " + KNOB + " } }\n",
    SCHEMA + "knobs: { k: { " + KNOB.replace("boolean", "color") + " } }\n",
    SCHEMA + "knobs: { k: { " + KNOB.replace("true", "'yes'") + " } }\n",
    SCHEMA + "knobs: { k: { " + KNOB + ", more: 1 } }\n",
    SCHEMA + "knobs: { k: { type: boolean, label: L, default: true } }\n",
    SCHEMA + f"knobs: {{ k: {{ {KNOB.replace('label: L', 'label: ' + 'x' * 65)} }} }}\n",
    "shutdown_timeout_sec: 31\n",
    "health_interval_sec: 4\n",
    "hook_timeout_sec: 0\n",
    "hook_timeout_sec: true\n",
    "per_call_config: 1\n",
]

# What the document lists as additional validations: fields that must fit each other. A JSON Schema
# cannot say these; the model refuses them on top.
ADDITIONAL = [
    "config_schema: { properties: { t: {} } }\nsystem_config_schema: { properties: { t: {} } }\n",
    f"tools: [{TOOL}, {TOOL}]\n",
    f"name: presets\nmethods: [presets.retain]\ntools: [{TOOL}]\n",
    f"knobs: {{ k: {{ {KNOB} }} }}\n",
    SCHEMA + f"knobs: {{ k: {{ {KNOB.replace('config.a', 'system_config.a')} }} }}\n",
    SCHEMA
    + "knobs: { k: { type: range, label: L, binds_to: config.a, "
    + "min: 2, max: 1, step: 1, default: 1 } }\n",
    "capabilities: ['net:h:70000']\n",
    "capabilities: ['read:fs:/a/../b']\n",
    "role: observer\nroles: [compactor, observer]\nhooks: [pre_compact]\n",
]


def text_of(extra: str) -> str:
    # A whole manifest stands for itself; anything else is added to the least one.
    whole = extra in (FULL_SAMPLE, *INVALID[:6])
    return extra if whole else manifest_text(extra)


@requirement("PH-MANI-28")
def test_the_published_schema_and_the_model_agree_on_a_corpus(drawn: dict[str, Any]) -> None:
    schema = drawn["plugin-manifest-v1"]
    for extra in VALID:
        text = text_of(extra)
        assert model_accepts(text), extra
        assert schema.is_valid(data_of(text)), extra
    for extra in INVALID:
        text = text_of(extra)
        assert not model_accepts(text), extra
        assert not schema.is_valid(data_of(text)), extra
    for extra in ADDITIONAL:
        text = text_of(extra)
        assert not model_accepts(text), extra
        assert schema.is_valid(data_of(text)), extra


relaxed = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


@relaxed
@given(st.data())
def test_what_the_model_accepts_the_schema_accepts_too(data: st.DataObject) -> None:
    """Mix pieces of manifests; the model never accepts what the schema refuses."""
    pieces = data.draw(st.lists(st.sampled_from([*VALID[2:], *INVALID[6:]]), max_size=4))
    merged: dict[str, JsonValue] = {}
    for piece in (MINIMAL_MANIFEST, *pieces):
        part = data_of(piece)
        assert isinstance(part, dict)
        merged.update(part)
    if model_accepts(json.dumps(merged)):
        assert compile_schema(schemas()["plugin-manifest-v1"]).is_valid(merged)


@pytest.mark.parametrize(
    ("extra", "good"),
    [
        ("", True),
        ("version: 1\nproject: x\n", True),
        ("project: {name: X}\nworkflows: {a: {inputs: {b: {type: enum, values: [c]}}}}\n", True),
        ("lsp: {servers: [{lang: go, command: [gopls]}]}\n", True),
        ("version: 2\n", False),
        ("tools: {}\n", False),
        ("project: X Y\n", False),
        ("workflows: {A: {}}\n", False),
        ("workflows: {a: {invokable_by: [martian]}}\n", False),
        ("lsp: {servers: [{lang: go, command: []}]}\n", False),
        ("dap: {adapters: [{runtime: x, command: [y]}]}\n", False),
    ],
)
def test_the_project_schema_agrees_with_the_loader(
    drawn: dict[str, Any], extra: str, good: bool
) -> None:
    text = extra + "primary: {model: m, system_prompt: p}\n"
    assert drawn["project-v1"].is_valid(data_of(text)) is good
    if good:
        assert parse_project(text, Path("/nonexistent"))
    else:
        with pytest.raises(ConfigFileInvalid):
            parse_project(text, Path("/nonexistent"))


@pytest.mark.parametrize(
    ("keys", "good"),
    [
        ("cage: disabled", True),
        ("cage: {fs: [{mode: rw, path: .}], net: {allow: ['h:1']}}", True),
        ("tools: {'file.*': {enabled: true}}", True),
        ("subagents: {a: {model: m, system_prompt: p, subagents: {}}}", True),
        ("cage: enabled", False),
        ("cage: {fs: [{mode: x, path: .}]}", False),
        ("cage: {limits: {memory_mb: 0}}", False),
        ("tools: {'file.*': true}", False),
        ("tools: {agent-x: {enabled: true}}", False),
        ("subagents: {A: {model: m, system_prompt: p}}", False),
        ("subagents: {a: {model: m}}", False),
        ("plugins: {m: {package: p, isolation: global}}", False),
        ("max_steps: 0", False),
        ("modle: x", False),
    ],
)
def test_the_agent_schema_agrees_with_the_loader(
    drawn: dict[str, Any], keys: str, good: bool
) -> None:
    text = f"primary: {{model: m, system_prompt: p, {keys}}}\n"
    assert drawn["project-v1"].is_valid(data_of(text)) is good


def test_the_documents_samples_fit_the_published_schemas(drawn: dict[str, Any]) -> None:
    assert drawn["project-v1"].is_valid(data_of(RESOLUTION_SAMPLE))
    assert drawn["plugin-manifest-v1"].is_valid(data_of(FULL_SAMPLE))
    config = parse_toml(FULL, "c.toml").node
    assert config is not None
    assert drawn["config-v1"].is_valid(to_json(config))
    assert drawn["local-v1"].is_valid(
        {"models": {"a": {"model": "x:y", "key": "k"}}, "plugins": {"@k/x": {"token": "t"}}}
    )
    assert not drawn["config-v1"].is_valid({"auth": {"mode": "open"}})
    assert not drawn["local-v1"].is_valid({"models": {"a": {}}})


def test_schemas_say_what_they_are_and_describe_every_key() -> None:
    for name, schema in schemas().items():
        assert str(schema["$id"]).endswith(f"/{name}.json")
        assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
        defs = schema["$defs"]
        assert isinstance(defs, dict)
        for definition in defs.values():
            assert isinstance(definition, dict)
            listed = definition.get("properties", {})
            assert isinstance(listed, dict)
            for key, drawn in listed.items():
                if definition.get("description"):
                    assert isinstance(drawn, dict)
                    assert drawn.get("description"), f"{name}: {key}"
        json.dumps(schema)


def test_no_two_records_share_a_name_in_a_schema() -> None:
    """A definition is found by its record's name; two of one name would hide each other."""
    from kaged.config.reference import PAGES, record_classes

    for page in PAGES:
        names = [cls.__name__ for cls in record_classes(page)]
        assert len(names) == len(set(names))


@requirement("PH-BEY-17")
def test_the_shipped_schema_of_manifests_is_the_one_that_reads_them() -> None:
    shipped = resources.files("kaged.config").joinpath("plugin-manifest-v1.json")
    drawn = json.dumps(schemas()["plugin-manifest-v1"], indent=2, ensure_ascii=True) + "\n"
    assert shipped.read_text(encoding="utf-8") == drawn, (
        "run `kaged schema plugin-manifest-v1 > src/kaged/config/plugin-manifest-v1.json`"
    )
