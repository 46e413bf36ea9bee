from __future__ import annotations

import re
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.tool_lab import Spy, make_tool
from kaged.base import JsonObject
from kaged.config.pluginwords import RESERVED_NAMES
from kaged.kernel.policy import FsMode
from kaged.kernel.requirements import (
    CapabilityRequirement,
    FsRequirement,
    NetRequirement,
    RequirementInvalid,
    SeccompRequirement,
    parse_requirements,
)
from kaged.tools import Tool, ToolDefinition, ToolError, ToolSource
from kaged.tools.registry import ToolRegistry, outside_name
from raising import raises_code
from requirements import requirement

SCHEMA: JsonObject = {"type": "object", "properties": {}, "additionalProperties": False}


def definition(**changes: Any) -> ToolDefinition:
    base = ToolDefinition(
        name="file.peek",
        namespace="file",
        description="Looks.",
        parameters=SCHEMA,
        returns={"type": "object"},
        requires=(FsRequirement(FsMode.RO),),
    )
    return replace(base, **changes)


def of_plugin(name: str, plugin: str, **changes: Any) -> ToolDefinition:
    return definition(
        name=name, namespace=plugin, plugin_name=plugin, source=ToolSource.PLUGIN, **changes
    )


def register(one: ToolDefinition, *, outside: bool = False) -> ToolRegistry:
    registry = ToolRegistry()
    registry.register(Tool(one, Spy()), outside=outside)
    return registry


@requirement("AT-REG-01")
def test_every_field_of_a_definition_can_be_read_back_and_the_required_ones_are_needed() -> None:
    full = of_plugin("memory-md.recall", "memory-md", requires=(CapabilityRequirement("x"),))
    scoped = definition(principal_scope="root-only")
    for one in (full, scoped):
        found = register(one).get(one.name)
        assert found is not None
        assert found.definition == one
        for field in fields(ToolDefinition):
            assert getattr(found.definition, field.name) == getattr(one, field.name)
    needed = {"name", "namespace", "description", "parameters", "returns", "requires"}
    values = {name: getattr(full, name) for name in needed}
    for missing in needed:
        given_values = {name: value for name, value in values.items() if name != missing}
        with pytest.raises(TypeError, match=missing):
            register(ToolDefinition(**given_values))
    for empty in ("name", "namespace", "description"):
        with raises_code("tool_definition_invalid", ToolError, match=empty):
            register(definition(**{empty: ""}))


@requirement("AT-REG-02")
def test_a_name_is_taken_once_and_the_first_stays() -> None:
    registry = register(definition(description="first"))
    with raises_code("tool_name_collision", ToolError):
        registry.register(Tool(definition(description="second"), Spy()))
    found = registry.get("file.peek")
    assert found is not None
    assert found.definition.description == "first"
    registry.register(Tool(definition(name="debug", namespace="debug"), Spy()))
    assert registry.names() == ("debug", "file.peek")
    for bad in ("File.peek", "file..peek", "file.pe-ek", "file peek", ".file", "file.", "1file.x"):
        with raises_code("tool_definition_invalid", ToolError):
            register(definition(name=bad, namespace=bad.partition(".")[0]))


def test_an_alias_cannot_take_a_name_nor_be_taken() -> None:
    registry = ToolRegistry()
    registry.register(make_tool("kaged.issue", aliases={"kaged.issue.get": {"action": "get"}}))
    with raises_code("tool_name_collision", ToolError):
        registry.register(make_tool("kaged.issue.get"))
    with raises_code("tool_name_collision", ToolError):
        registry.register(make_tool("kaged.other", aliases={"kaged.issue": {}}))
    assert registry.names() == ("kaged.issue",)
    assert registry.withdraw("kaged.issue")
    assert registry.find("kaged.issue.get") is None
    assert not registry.withdraw("kaged.issue")


def test_tools_are_listed_by_namespace() -> None:
    registry = ToolRegistry()
    registry.register_all(
        make_tool(name) for name in ("search.grep", "search.glob", "file.read", "search.ast")
    )
    registry.register(make_tool("search-kit.find", plugin="search-kit"))
    assert registry.names("search") == ("search.ast", "search.glob", "search.grep")
    assert registry.names("search-kit") == ("search-kit.find",)
    with raises_code("tool_definition_invalid", ToolError, match="namespace"):
        register(definition(name="media.play", namespace="media"))
    with raises_code("tool_definition_invalid", ToolError, match="begin with"):
        register(definition(namespace="edit"))
    with raises_code("tool_definition_invalid", ToolError, match="namespace"):
        register(replace(of_plugin("memory-md.x", "memory-md"), namespace="file"))


@requirement("AT-REG-04")
def test_a_requirement_of_another_shape_is_refused_when_the_tool_is_registered() -> None:
    known: list[JsonObject] = [
        {"kind": "fs", "mode": "rw", "path": "caller"},
        {"kind": "seccomp", "profile": "relaxed"},
        {"kind": "net", "target": "api.example.org:443"},
        {"kind": "capability", "name": "shell"},
    ]
    parsed = parse_requirements(known)
    assert [one.as_json() for one in parsed] == known
    assert register(definition(requires=parsed)).get("file.peek") is not None
    unknown: Any
    for unknown in ({"kind": "magic"}, {"kind": "fs", "mode": "rw"}, "fs", None):
        with raises_code("tool_definition_invalid", ToolError, match="requirement"):
            register(definition(requires=(unknown,)))
        with pytest.raises(RequirementInvalid):
            parse_requirements([unknown])
    with pytest.raises(RequirementInvalid):
        parse_requirements([{"kind": "seccomp", "profile": "default"}])


@requirement("AT-REG-05")
def test_source_and_plugin_name_belong_together_and_the_scope_has_one_word() -> None:
    bad: Any
    for bad in (
        definition(plugin_name="memory-md"),
        definition(source=ToolSource.PLUGIN, name="memory-md.x", namespace="memory-md"),
        definition(principal_scope="root"),
        definition(principal_scope=""),
        of_plugin("memory-md.x", "memory-md", principal_scope="root-only"),
    ):
        with raises_code("tool_definition_invalid", ToolError):
            register(bad)
    register(definition(principal_scope="root-only"))


@requirement("AT-REG-06")
def test_parameters_must_be_a_schema_that_lets_nothing_unknown_in() -> None:
    for bad in (
        {"type": "object", "properties": {}},
        {"type": "object", "additionalProperties": True},
        {"type": "string", "additionalProperties": False},
        {
            "type": "object",
            "properties": {"a": {"type": "nonsense"}},
            "additionalProperties": False,
        },
    ):
        with raises_code("tool_definition_invalid", ToolError):
            register(definition(parameters=bad))
    with raises_code("tool_definition_invalid", ToolError, match="returns"):
        register(definition(returns={"type": 7}))
    # A plugin's own schema may be open; its author answers for it.
    register(of_plugin("memory-md.x", "memory-md", parameters={"type": "object"}))


@requirement("AT-REG-18")
def test_a_plugin_cannot_ask_for_relaxed_seccomp() -> None:
    with raises_code("tool_definition_invalid", ToolError, match="relaxed"):
        register(of_plugin("memory-md.x", "memory-md", requires=(SeccompRequirement(),)))
    register(definition(requires=(SeccompRequirement(),)))


@requirement("AT-REG-20", "PH-MANI-29")
@pytest.mark.parametrize(
    "name",
    [
        "other.recall",
        "memory-md.a.b",
        "memory-md.Recall",
        "memory-md.",
        "memory-md",
        "recall",
        "memory-md.re-call",
        "memory-mdx.recall",
        "memory-md.1st",
    ],
)
def test_a_plugin_registers_only_names_of_its_own(name: str) -> None:
    registry = register(of_plugin("memory-md.retain", "memory-md"))
    with raises_code("tool_definition_invalid", ToolError):
        registry.register(Tool(of_plugin(name, "memory-md"), Spy()))
    # The refusal concerns that tool only.
    assert registry.names() == ("memory-md.retain",)


@requirement("AT-REG-21")
@pytest.mark.parametrize("name", sorted(RESERVED_NAMES))
def test_nobody_from_outside_owns_a_built_in_namespace(name: str) -> None:
    for outside in (False, True):
        with raises_code("reserved_plugin_name", ToolError) as refusal:
            register(of_plugin(f"{name}.tool", name), outside=outside)
        assert refusal.value.code == "reserved_plugin_name"


def test_the_second_of_two_equal_names_is_refused() -> None:
    registry = register(of_plugin("memory-md.recall", "memory-md", description="first"))
    with raises_code("tool_name_collision", ToolError) as collision:
        registry.register(Tool(of_plugin("memory-md.recall", "memory-md"), Spy()))
    assert collision.value.code == "tool_name_collision"
    found = registry.get("memory-md.recall")
    assert found is not None
    assert found.definition.description == "first"


def test_tools_from_outside_keep_the_spelling_of_their_owner() -> None:
    registry = ToolRegistry()
    for tool in ("getUser", "a/b", "x-y"):
        name = outside_name("web-kit", tool)
        registry.register(Tool(of_plugin(name, "web-kit"), Spy()), outside=True)
    assert registry.names() == ("web-kit.a_b", "web-kit.getUser", "web-kit.x-y")
    with raises_code("tool_name_collision", ToolError):
        registry.register(
            Tool(of_plugin(outside_name("web-kit", "a b"), "web-kit"), Spy()), outside=True
        )
    assert [registry.withdraw(name) for name in registry.names()] == [True, True, True]
    assert len(registry) == 0


def test_names_of_delegation_belong_to_the_tree() -> None:
    with raises_code("tool_definition_invalid", ToolError):
        register(definition(name="agent-coder", namespace="agent-coder"))


def test_watchers_hear_of_every_change_until_they_stop() -> None:
    registry = ToolRegistry()
    heard: list[int] = []
    stop = registry.subscribe(lambda: heard.append(len(registry)))
    registry.register(make_tool("file.read"))
    registry.withdraw("file.read")
    stop()
    registry.register(make_tool("file.read"))
    assert heard == [1, 0]


def test_a_changed_schema_has_another_hash() -> None:
    one = register(definition()).get("file.peek")
    same = register(definition(description="other words")).get("file.peek")
    properties: JsonObject = {"a": {"type": "string"}}
    other = register(definition(parameters={**SCHEMA, "properties": properties})).get("file.peek")
    assert one is not None
    assert same is not None
    assert other is not None
    assert one.schema_hash == same.schema_hash != other.schema_hash


@given(st.text(max_size=30), st.text(max_size=30))
def test_whatever_is_registered_has_a_legal_name(owner: str, tool: str) -> None:
    try:
        registry = register(of_plugin(f"{owner}.{tool}", owner))
    except ToolError as error:
        if error.code in {"tool_definition_invalid", "reserved_plugin_name"}:
            return
        raise
    (name,) = registry.names()
    assert re.fullmatch(r"[a-z][a-z0-9-]+\.[a-z][a-z0-9_]*", name)


def test_net_requirements_are_known() -> None:
    (need,) = parse_requirements([{"kind": "net", "target": "example.org:443"}])
    assert isinstance(need, NetRequirement)
    register(definition(requires=(need,)))
