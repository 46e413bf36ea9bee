from __future__ import annotations

from pathlib import Path

import pytest

from kaged.config import ConfigFileInvalid, load_manifest
from kaged.config.jsonschemas import compile_fault
from kaged.config.knobs import EnumKnob, PathKnob
from kaged.config.manifest import parse_manifest
from kaged.config.pluginwords import RESERVED_NAMES, Hook, PluginRole
from kaged.config.semver import Version
from requirements import requirement
from unit.config.trials import (
    MINIMAL_MANIFEST,
    errors,
    manifest,
    manifest_problems,
    warnings,
    without_key,
)

FULL_SAMPLE = """\
# kaged-plugin.yaml
name: memory-markdown                   # required, string, slug format
version: 0.1.0                          # required, string, semver
kaged_api: 1                            # required, integer
description: >-                         # required, string (one line, max 200 chars)
  Markdown-file-backed agent memory.
author: kaged                           # optional, string
license: MIT                            # optional, string (SPDX identifier)
homepage: https://github.com/...        # optional, URL

command:                                # required, list of strings
  - /usr/bin/env
  - bun
  - ./dist/index.js

env:                                    # optional, map of string→string
  LOG_LEVEL: info

capabilities:                           # required, list of strings
  - read:fs:config:/memory
  - write:fs:config:/memory
  - kaged:storage:read
  - net: []

# --- ADR-0023 / ADR-0024 fields ---

roles:                                  # optional, list of strings (ADR-0024)
  - observer                            # may subscribe to hooks; may inject/retain
  # - compactor                         # may also replace the message list on pre_compact

hooks:                                  # optional, list of strings (ADR-0023)
  - on_session_start
  - on_session_idle
  - pre_compact
  - post_compact

tools:                                  # optional, list of tool declarations (ADR-0023)
  - name: retain                        # prefixed name will be: memory-markdown.retain
    description: "Store information in long-term memory."
    parameters_schema:
      type: object
      properties:
        content: { type: string }
        context: { type: string }
        tags: { type: array, items: { type: string } }
      required: [content]
  - name: recall
    description: "Search long-term memory."
    parameters_schema:
      type: object
      properties:
        query: { type: string }
        tags: { type: array, items: { type: string } }
      required: [query]

methods:                                # required, list of strings (custom methods)
  - presets.list                        # plugin-declared methods (legacy or non-tool RPC)
  # (memory plugins typically have no custom methods beyond tools + hooks)

notifications:                          # optional, list of strings
  - catalog.updated

config_schema:                          # optional, JSON Schema object (project-side; committed)
  type: object
  properties:
    isolation:
      type: string
      enum: [agent, project]
      default: agent
    store:
      type: string
      default: "config:/memory"
    tags:
      type: array
      items: { type: string }
  additionalProperties: false

system_config_schema:                   # optional, JSON Schema object (operator-local; secrets)
  type: object
  properties: {}                        # markdown backend has no secrets
  additionalProperties: false

knobs:                                  # optional, map (ADR-0024)
  store:
    type: path
    label: "Storage location"
    description: "Where memory files are stored."
    prefixes: ["config:", "project:"]
    default: "config:/memory"
    binds_to: "config.store"
  isolation:
    type: enum
    label: "Isolation scope"
    description: "Per-agent or per-project memory."
    values: [agent, project]
    default: agent
    binds_to: "config.isolation"

shutdown_timeout_sec: 5                 # optional, integer, default 5
health_interval_sec: 30                 # optional, integer, default 30
hook_timeout_sec: 10                    # optional, integer, default 10 (max 60)
"""


def test_the_documents_own_manifest_loads_without_a_word() -> None:
    loaded = parse_manifest(FULL_SAMPLE)
    assert loaded.warnings == ()
    found = loaded.value
    assert (found.name, found.version) == ("memory-markdown", Version(0, 1, 0))
    assert found.description == "Markdown-file-backed agent memory."
    assert found.command == ("/usr/bin/env", "bun", "./dist/index.js")
    assert found.capabilities.texts == (
        "read:fs:config:/memory",
        "write:fs:config:/memory",
        "kaged:storage:read",
        "net:[]",
    )
    assert found.roles == (PluginRole.OBSERVER,)
    assert [tool.name for tool in found.tools] == ["retain", "recall"]
    assert isinstance(found.knobs["store"], PathKnob)
    assert isinstance(found.knobs["isolation"], EnumKnob)
    assert loaded.provenance["knobs.isolation.values"].line == 95


def test_the_document_s_split_of_config_loads() -> None:
    loaded = manifest(
        """\
        config_schema:                       # the project-side schema (committed)
          type: object
          properties:
            api_url:
              type: string
              default: "https://api.hindsight.vectorize.io"
            recall_budget:
              type: string
              enum: [low, mid, high]
              default: mid
            tags:
              type: array
              items: { type: string }
          additionalProperties: false

        system_config_schema:                 # the operator-local schema (secrets)
          type: object
          properties:
            api_token:
              type: string
              description: "Hindsight API token"
          required: [api_token]
          additionalProperties: false
        """
    )
    assert loaded.warnings == ()


@requirement("PH-MANI-02")
@pytest.mark.parametrize(
    ("name", "good"),
    [
        ("a", True),
        ("oh-my-pi", True),
        ("x2", True),
        ("a" * 64, True),
        ("Memory", False),
        ("1x", False),
        ("-x", False),
        ("a_b", False),
        ("a" * 65, False),
        ("''", False),
        ("5", False),
        ("a.b", False),
    ],
)
def test_a_name_is_a_slug_of_at_most_64_characters(name: str, good: bool) -> None:
    if good:
        assert manifest(f"name: {name}\n").value.name == name
    else:
        assert errors(manifest_problems(f"name: {name}\n"))[0][0] == "name"
    with pytest.raises(ConfigFileInvalid):
        parse_manifest(without_key("name"))


@pytest.mark.parametrize(
    "version", ["1.4", "latest", "v1.0.0", "1", "'1.4'", "[1]", "1.4.2.1", "''"]
)
def test_a_version_is_semantic(version: str) -> None:
    assert errors(manifest_problems(f"version: {version}\n"))[0][0] == "version"
    assert manifest("version: 1.4.2\n").value.version == Version(1, 4, 2)


@requirement("PH-MANI-05")
def test_a_plugin_for_a_newer_api_is_refused() -> None:
    assert manifest("kaged_api: 1\n").value.kaged_api == 1
    (newer,) = manifest_problems("kaged_api: 2\n")
    assert (newer.key_path, newer.code) == ("kaged_api", "api_too_new")
    for wrong in ("'1'", "0", "-1", "1.0", "true"):
        assert errors(manifest_problems(f"kaged_api: {wrong}\n"))[0][0] == "kaged_api"
    with pytest.raises(ConfigFileInvalid):
        parse_manifest(without_key("kaged_api"))


@pytest.mark.parametrize(
    ("text", "good"),
    [
        ("description: One line.\n", True),
        ("description: >\n  Folded\n  block.\n", True),
        ("description: |\n  Kept block.\n", True),
        (f"description: {'x' * 200}\n", True),
        (f"description: {'x' * 201}\n", False),
        ("description: |\n  Two\n  lines.\n", False),
        ("description: ''\n", False),
        ("description: 5\n", False),
    ],
)
def test_a_description_is_one_line_of_200_characters(text: str, good: bool) -> None:
    base = without_key("description")
    if good:
        assert "\n" not in manifest(text, base).value.description
    else:
        assert errors(manifest_problems(text, base))[0][0] == "description"


@requirement("PH-MANI-07")
def test_an_author_is_optional_text() -> None:
    assert manifest().value.author is None
    assert manifest("author: Ann\n").value.author == "Ann"
    for wrong in ("5", "[Ann]", "null", "true"):
        assert errors(manifest_problems(f"author: {wrong}\n")) == [("author", "wrong_type")]


def test_licence_and_homepage_are_optional_and_checked() -> None:
    found = manifest("license: MIT\nhomepage: https://example.org/x\n").value
    assert (found.license, found.homepage) == ("MIT", "https://example.org/x")
    for wrong in ("homepage: not a url\n", "homepage: ftp://x\n", "license: 5\n"):
        assert errors(manifest_problems(wrong))


@requirement("PH-MANI-10")
def test_a_command_is_a_list_of_words() -> None:
    assert manifest("command: [a, b]\n").value.command == ("a", "b")
    for wrong in ("[]", "./main.py", "[1]", "['']", "{a: b}"):
        assert errors(manifest_problems(f"command: {wrong}\n"))[0][0].startswith("command")
    with pytest.raises(ConfigFileInvalid):
        parse_manifest(without_key("command"))


def test_env_is_a_map_of_texts_and_protected_names_are_warned_about() -> None:
    assert manifest("env: { LOG_LEVEL: info, PATH: /x }\n").value.env["LOG_LEVEL"] == "info"
    for wrong in ("{ A: 1 }", "{ A: true }", "{ 'a b': x }", "[A]", "{ A: null }"):
        assert errors(manifest_problems(f"env: {wrong}\n"))
    for name in ("KAGED_PLUGIN_NAME", "KAGED_PLUGIN_DIR", "KAGED_API_VERSION"):
        loaded = manifest(f"env: {{ {name}: x }}\n")
        assert warnings(loaded.warnings) == [(f"env.{name}", "protected_env")]


@requirement("PH-MANI-13")
def test_capabilities_are_required_and_may_be_empty() -> None:
    assert manifest("capabilities: []\n").value.capabilities.texts == ()
    assert errors(manifest_problems(base=without_key("capabilities"))) == [
        ("capabilities", "missing_key")
    ]
    listed = manifest("capabilities: ['read:fs:/opt/x', 'net:h:1', 'kaged:storage:write']\n")
    assert listed.value.capabilities.texts == ("read:fs:/opt/x", "net:h:1", "kaged:storage:write")


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("['read:/x']", "capabilities[0]"),
        ("['net:[]', 'fs:read:/x']", "capabilities[1]"),
        ("['kaged:storage']", "capabilities[0]"),
        ("['']", "capabilities[0]"),
        ("[5]", "capabilities[0]"),
        ("[{net: [x]}]", "capabilities[0]"),
        ("['read:fs:/opt/*']", "capabilities[0]"),
        ("['read:fs:config:/../x']", "capabilities[0]"),
        ("['net:[]', 'net:h:1']", "capabilities"),
        ("[{net: []}, 'net:h:1']", "capabilities"),
        ("read:fs:/x", "capabilities"),
    ],
)
def test_a_wrong_capability_is_reported_at_its_entry(text: str, path: str) -> None:
    assert [found for found, _ in errors(manifest_problems(f"capabilities: {text}\n"))] == [path]


@requirement("PH-MANI-14", "PH-ROLE-01")
def test_roles_are_observer_and_compactor_with_a_default_by_hooks() -> None:
    assert manifest().value.roles == ()
    assert manifest("hooks: [pre_compact]\n").value.roles == (PluginRole.OBSERVER,)
    assert manifest("hooks: []\n").value.roles == ()
    both = manifest("roles: [observer, compactor]\nhooks: [pre_compact]\n").value
    assert both.roles == (PluginRole.OBSERVER, PluginRole.COMPACTOR)
    assert manifest("roles: [observer]\nhooks: [pre_compact]\n").value.roles == (
        PluginRole.OBSERVER,
    )
    assert manifest("roles: [compactor]\nhooks: [pre_compact]\n").value.roles == (
        PluginRole.COMPACTOR,
    )
    for wrong in ("[auditor]", "observer", "[observer, observer]", "[1]"):
        assert errors(manifest_problems(f"roles: {wrong}\nhooks: [pre_compact]\n"))


@requirement("PH-AMB-06")
def test_role_is_an_alias_of_roles() -> None:
    hooks = "hooks: [pre_compact]\n"
    assert manifest(f"role: compactor\n{hooks}").value.roles == (PluginRole.COMPACTOR,)
    assert manifest(f"role: [observer, compactor]\n{hooks}").value.roles == (
        PluginRole.OBSERVER,
        PluginRole.COMPACTOR,
    )
    assert manifest(f"role: compactor\nroles: [compactor]\n{hooks}")
    assert ("roles", "conflicting_keys") in errors(
        manifest_problems(f"role: observer\nroles: [compactor]\n{hooks}")
    )
    assert manifest().value.roles == ()
    assert manifest(hooks).value.roles == (PluginRole.OBSERVER,)


@requirement("PH-ROLE-21")
def test_a_compactor_must_subscribe_to_pre_compact() -> None:
    for hooks in ("hooks: [post_compact]\n", ""):
        for role in ("roles: [compactor]\n", "role: compactor\n"):
            assert errors(manifest_problems(role + hooks)) == [("roles", "invalid_value")]


def test_an_empty_list_of_roles_with_hooks_is_an_error() -> None:
    assert errors(manifest_problems("roles: []\nhooks: [pre_compact]\n"))
    assert manifest("roles: []\n").value.roles == ()
    assert manifest("roles: [compactor]\nhooks: [pre_compact, on_session_idle]\n")


@requirement("PH-MANI-15")
def test_hooks_are_the_four_that_exist() -> None:
    text = "hooks: [on_session_start, on_session_idle, pre_compact, post_compact]\n"
    assert manifest(text).value.hooks == tuple(Hook)
    assert manifest().value.hooks == ()
    (problem,) = manifest_problems("hooks: [on_compact]\n")
    assert (problem.key_path, problem.line) == ("hooks[0]", 7)
    assert "compact" in problem.fix


@requirement("PH-MANI-16", "PH-TOOL-11")
def test_a_tool_has_a_name_a_description_and_a_schema() -> None:
    good = "{name: list_tags, description: Lists., parameters_schema: {type: object}}"
    (tool,) = manifest(f"tools: [{good}]\n").value.tools
    assert (tool.name, tool.description) == ("list_tags", "Lists.")
    assert manifest().value.tools == ()
    for wrong in (
        "{name: a.b, description: d, parameters_schema: {}}",
        "{name: Retain, description: d, parameters_schema: {}}",
        "{name: list-tags, description: d, parameters_schema: {}}",
        "{description: d, parameters_schema: {}}",
        "{name: a, parameters_schema: {}}",
        "{name: a, description: d}",
        "{name: a, description: '', parameters_schema: {}}",
        "{name: a, description: d, parameters_schema: x}",
        "{name: a, description: d, parameters_schema: {type: string}}",
        "{name: a, description: d, parameters_schema: {type: objct}}",
        "{name: a, description: d, parameters_schema: {properties: {x: {minimum: y}}}}",
        "{name: a, description: d, parameters_schema: {$ref: 'http://127.0.0.1:9/s'}}",
        "{name: a, description: d, parameters_schema: {}, extra: 1}",
        "retain",
    ):
        for path, _ in errors(manifest_problems(f"tools: [{wrong}]\n")):
            assert path.startswith("tools[0]")


@requirement("PH-TOOL-14")
def test_two_tools_cannot_share_a_name() -> None:
    tool = "{name: retain, description: d, parameters_schema: {}}"
    assert errors(manifest_problems(f"tools: [{tool}, {tool}]\n")) == [
        ("tools[1].name", "invalid_value")
    ]


@requirement("PH-MANI-17", "PH-AMB-03", "PH-METH-15", "PH-METH-16")
def test_methods_are_optional_and_named_by_the_rules() -> None:
    assert manifest().value.methods == ()
    assert manifest("methods: []\n").value.methods == ()
    assert manifest("methods: [presets.list, a.b.c.d, search.run, a_1.b2]\n").value.methods == (
        "presets.list",
        "a.b.c.d",
        "search.run",
        "a_1.b2",
    )
    for wrong in ("list", "a.b.c.d.e", "Presets.list", "pre-sets.list", "a..b", "1a.b", "a.b\n"):
        assert errors(manifest_problems(f"methods: ['{wrong}']\n"))[0][0].startswith("methods")
    for reserved in ("kaged.foo", "system.foo"):
        assert errors(manifest_problems(f"methods: [{reserved}]\n")) == [
            ("methods[0]", "invalid_value")
        ]


@requirement("PH-MANI-18")
def test_notifications_are_an_optional_list() -> None:
    assert manifest().value.notifications == ()
    assert manifest("notifications: [catalog.updated]\n").value.notifications == (
        "catalog.updated",
    )
    for wrong in ("[Catalog]", "[kaged.x]", "catalog.updated", "[a.b, a.b]"):
        assert errors(manifest_problems(f"notifications: {wrong}\n"))


@requirement("PH-AMB-22")
def test_names_cannot_clash_with_the_hosts_or_with_each_other() -> None:
    for name in ("config.update", "projects.activated", "projects.deactivated"):
        assert errors(manifest_problems(f"methods: [{name}]\n")) == [
            ("methods[0]", "invalid_value")
        ]
    tool = "tools: [{name: list, description: d, parameters_schema: {}}]\n"
    clash = f"name: presets\n{tool}methods: [presets.list]\n"
    assert errors(manifest_problems(clash)) == [("tools[0].name", "invalid_value")]
    update = tool.replace("list", "update")
    assert errors(manifest_problems(f"name: config\n{update}")) == [
        ("tools[0].name", "invalid_value")
    ]


@requirement("PH-CONF-04")
def test_a_manifest_may_have_none_either_or_both_schemas() -> None:
    assert manifest().value.config_schema is None
    project = "config_schema: { type: object, properties: { a: {} } }\n"
    system = "system_config_schema: { type: object, properties: { b: {} } }\n"
    assert manifest(project).value.config_schema == {"type": "object", "properties": {"a": {}}}
    assert manifest(system).value.system_config_schema is not None
    both = manifest(project + system).value
    assert both.config_schema is not None
    assert both.system_config_schema is not None


@pytest.mark.parametrize("key", ["config_schema", "system_config_schema"])
@pytest.mark.parametrize(
    ("schema", "path"),
    [
        ("5", ""),
        ("[]", ""),
        ("{type: string}", ".type"),
        ("{type: objct}", ".type"),
        ("{type: object, properties: []}", ".properties"),
        ("{properties: {a: {type: 7}}}", ".properties.a.type"),
        ("{properties: {a: {pattern: '('}}}", ".properties.a.pattern"),
        ("{properties: {a: {$ref: 'https://example.org/x'}}}", ".properties.a.$ref"),
        ("{$ref: 'other.json'}", ".$ref"),
        ("{$schema: 'https://example.org/mine'}", ".$schema"),
        ("{properties: {a: {$ref: '#/$defs/none'}}}", ""),
    ],
)
def test_a_schema_that_cannot_be_used_is_refused_without_going_online(
    key: str, schema: str, path: str
) -> None:
    problems = manifest_problems(f"{key}: {schema}\n")
    expected = f"{key}{path}".replace(".$ref", '."$ref"').replace(".$schema", '."$schema"')
    assert expected in [problem.key_path for problem in problems]


def test_schemas_may_use_references_of_their_own_and_known_drafts() -> None:
    text = (
        "config_schema: { $schema: 'http://json-schema.org/draft-07/schema#', "
        "properties: { $ref: { type: string }, a: { $ref: '#/definitions/x' }, "
        "b: { const: { $ref: 'https://example.org/data' } } }, "
        "definitions: { x: { type: string } } }\n"
    )
    assert manifest(text).warnings == ()


@requirement("PH-MANI-21")
def test_a_field_cannot_be_committed_and_secret_at_once() -> None:
    text = (
        "config_schema: { properties: { token: {}, a: {} } }\n"
        "system_config_schema: { properties: { b: {}, token: {} } }\n"
    )
    (problem,) = manifest_problems(text)
    assert problem.code == "schemas_overlap"
    assert "token" in problem.message


@requirement("PH-MANI-23")
def test_the_shutdown_timeout_is_5_and_at_most_30() -> None:
    assert manifest().value.shutdown_timeout_sec == 5
    assert manifest("shutdown_timeout_sec: 30\n").value.shutdown_timeout_sec == 30
    assert errors(manifest_problems("shutdown_timeout_sec: 31\n")) == [
        ("shutdown_timeout_sec", "invalid_value")
    ]


@requirement("PH-MANI-24")
def test_the_health_interval_is_30_and_from_5_to_300() -> None:
    assert manifest().value.health_interval_sec == 30
    assert manifest("health_interval_sec: 5\n").value.health_interval_sec == 5
    assert manifest("health_interval_sec: 300\n").value.health_interval_sec == 300
    for wrong in (4, 301):
        problems = manifest_problems(f"health_interval_sec: {wrong}\n")
        assert errors(problems) == [("health_interval_sec", "invalid_value")]


@requirement("PH-MANI-25")
def test_the_hook_timeout_is_10_and_at_most_60() -> None:
    assert manifest().value.hook_timeout_sec == 10
    assert manifest("hook_timeout_sec: 60\n").value.hook_timeout_sec == 60
    assert errors(manifest_problems("hook_timeout_sec: 61\n")) == [
        ("hook_timeout_sec", "invalid_value")
    ]


@requirement("PH-MANI-35")
def test_lower_bounds_hold_and_true_is_no_number() -> None:
    assert manifest("shutdown_timeout_sec: 0\n").value.shutdown_timeout_sec == 0
    assert manifest("hook_timeout_sec: 1\n").value.hook_timeout_sec == 1
    for wrong in ("shutdown_timeout_sec: -1", "hook_timeout_sec: 0", "hook_timeout_sec: -5"):
        (problem,) = manifest_problems(wrong + "\n")
        key, _, given = wrong.partition(": ")
        bounds = {"shutdown_timeout_sec": "0 to 30", "hook_timeout_sec": "1 to 60"}[key]
        assert (problem.key_path, problem.code) == (key, "invalid_value")
        assert problem.message == f"must be from {bounds}, not {given}"
    for key in ("shutdown_timeout_sec", "health_interval_sec", "hook_timeout_sec", "kaged_api"):
        assert errors(manifest_problems(f"{key}: true\n")) == [(key, "wrong_type")]


@requirement("PH-MANI-33")
def test_every_fault_is_reported_with_its_path() -> None:
    text = "name: x\nversion: 1.0.0\ndescription: d\nhooks: [nope]\ncommand: [a]\n"
    found = errors(manifest_problems(base=text))
    assert found == [
        ("kaged_api", "missing_key"),
        ("capabilities", "missing_key"),
        ("hooks[0]", "invalid_value"),
    ]


@requirement("PH-MANI-34")
def test_no_tag_constructs_anything(tmp_path: Path) -> None:
    marker = tmp_path / "pwned"
    for tag in (
        f"!!python/object/apply:os.system ['touch {marker}']",
        f"!!python/object/apply:pathlib.Path.touch ['{marker}']",
        "!!python/name:os.system",
    ):
        assert errors(manifest_problems(f"author: {tag}\n"))[0] == ("author", "tag_refused")
    assert not marker.exists()


@requirement("PH-AMB-21")
def test_a_one_letter_name_is_fine_without_tools() -> None:
    assert manifest("name: x\n").value.name == "x"
    tools = "tools: [{name: a, description: d, parameters_schema: {}}]\n"
    assert errors(manifest_problems(f"name: x\n{tools}")) == [("name", "tool_name_invalid")]
    assert manifest(f"name: xy\n{tools}")


@requirement("PH-AMB-55")
def test_unknown_keys_are_warnings_at_the_top_and_errors_inside() -> None:
    loaded = manifest("future_key: 1\n")
    assert warnings(loaded.warnings) == [("future_key", "unknown_key")]
    tool = "tools: [{name: a, description: d, parameters_schema: {}, future: 1}]\n"
    assert errors(manifest_problems(tool)) == [("tools[0].future", "unknown_key")]
    knob = (
        "config_schema: { properties: { k: { type: boolean } } }\n"
        "knobs: { k: { type: boolean, label: K, default: true, binds_to: config.k, future: 1 } }\n"
    )
    assert errors(manifest_problems(knob)) == [("knobs.k.future", "unknown_key")]


@pytest.mark.parametrize("name", sorted(RESERVED_NAMES))
def test_a_built_in_namespace_cannot_be_a_plugins_name(name: str) -> None:
    problems = manifest_problems(f"name: {name}\n")
    assert errors(problems) == warnings(problems) == [("name", "reserved_plugin_name")]


def test_other_names_such_as_memory_stay_free() -> None:
    assert manifest("name: memory\n").warnings == ()


def test_package_and_per_call_config_are_optional() -> None:
    found = manifest("package: '@scope/Other'\n".lower() + "per_call_config: true\n").value
    assert (found.package, found.per_call_config) == ("@scope/other", True)
    assert manifest().value.per_call_config is False
    assert errors(manifest_problems("package: 'a b'\n"))


def test_a_directory_without_a_manifest_is_no_plugin(tmp_path: Path) -> None:
    with pytest.raises(ConfigFileInvalid, match=r"kaged-plugin\.yaml"):
        load_manifest(tmp_path)
    (tmp_path / "kaged-plugin.yaml").write_text(MINIMAL_MANIFEST, encoding="utf-8")
    assert load_manifest(tmp_path).value.name == "memory-md"


def test_a_manifest_that_is_a_link_out_of_the_directory_is_refused(tmp_path: Path) -> None:
    plugin = tmp_path / "plugin"
    plugin.mkdir()
    (tmp_path / "real.yaml").write_text(MINIMAL_MANIFEST, encoding="utf-8")
    (plugin / "kaged-plugin.yaml").symlink_to(tmp_path / "real.yaml")
    with pytest.raises(ConfigFileInvalid):
        load_manifest(plugin)


def test_compiling_a_schema_never_goes_online() -> None:
    """The look at references comes first; this is the wall behind it."""
    for schema in ({"$ref": "http://127.0.0.1:9/x"}, {"$schema": "http://127.0.0.1:9/s"}):
        fault = compile_fault({**schema})
        assert fault is not None
        assert "error sending request" not in fault[1]
