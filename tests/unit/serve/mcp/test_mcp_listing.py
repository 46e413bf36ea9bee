from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from kaged.base import KagedError
from kaged.kernel.policy import FsMode
from kaged.kernel.requirements import CapabilityRequirement, FsRequirement
from kaged.serve.mcp.client_session import ListedTool
from kaged.serve.mcp.listing import MAX_NAME_CHARS, PAGE, NameMap, ToolList, annotations_of
from kaged.serve.mcp.results import MAX_RESULT_BYTES, output_schema, tool_failure, tool_result
from kaged.tools import Tool, ToolDefinition, ToolError, ToolSource
from kaged.tools.registry import RegisteredTool, ToolRegistry

NAMES = st.lists(st.text("aZ0_-./", min_size=1, max_size=90), unique=True, max_size=8)


async def nothing(_call: object) -> None:
    """Stand in for a tool."""


def registered(
    name: str,
    *,
    changes: Any = False,
    requires: tuple[Any, ...] = (),
    plugin: bool = False,
    returns: dict[str, Any] | None = None,
) -> RegisteredTool:
    owner = name.partition(".")[0]
    definition = ToolDefinition(
        name=name,
        namespace=owner,
        description="Does it.",
        parameters={"type": "object", "additionalProperties": False},
        returns=returns or {},
        requires=requires,
        source=ToolSource.PLUGIN if plugin else ToolSource.BUILTIN,
        plugin_name=owner if plugin else None,
    )
    return ToolRegistry().register(Tool(definition, nothing, changes=changes), outside=plugin)


@given(NAMES, NAMES)
def test_names_go_both_ways_and_are_safe(own: list[str], outside: list[str]) -> None:
    outside = [name for name in outside if name not in own]
    names = NameMap(own, outside)
    safe = {name: names.safe(name) for name in (*own, *outside)}
    assert len(set(safe.values())) == len(safe)
    for name, shown in safe.items():
        assert names.tool(shown) == name
        assert 0 < len(shown) <= MAX_NAME_CHARS
        assert all(one.isascii() and (one.isalnum() or one in "_-") for one in shown)
    # Nobody outside has a say in what an own tool is called.
    alone = NameMap(own)
    assert all(alone.safe(name) == safe[name] for name in own)


def test_an_outside_tool_cannot_take_the_name_of_a_built_in() -> None:
    names = NameMap(["file.read"], ["file_read", "file-x.read"])
    assert names.safe("file.read") == "file_read"
    assert names.tool("file_read") == "file.read"
    assert names.safe("file_read") != "file_read"
    assert names.tool("no.such") == "no.such"


def test_hints_follow_from_the_definition_and_never_promise_too_much() -> None:
    read = annotations_of(registered("file.read", requires=(FsRequirement(FsMode.RO),)))
    assert (read["readOnlyHint"], read["destructiveHint"], read["openWorldHint"]) == (
        True,
        False,
        False,
    )
    write = annotations_of(registered("file.write", changes=True))
    assert (write["destructiveHint"], write["idempotentHint"]) == (True, True)
    shell = annotations_of(
        registered("shell.bash", changes=True, requires=(CapabilityRequirement("shell"),))
    )
    assert (shell["readOnlyHint"], shell["openWorldHint"]) == (False, True)
    sometimes = annotations_of(registered("code.lsp", changes=lambda _args: False))
    assert sometimes["readOnlyHint"] is False
    stranger = annotations_of(registered("out.read", plugin=True))
    assert (stranger["readOnlyHint"], stranger["openWorldHint"]) == (False, True)
    record = annotations_of(registered("kaged.todo", changes=True))
    assert record["destructiveHint"] is False


def test_a_listing_is_paged_and_its_digest_tells_listings_apart() -> None:
    tools = [
        ListedTool(registered(f"out.t{index}", plugin=True), {"type": "object"})
        for index in range(PAGE + 1)
    ]
    listing = ToolList(tools, returns=True)
    first, cursor = listing.page(None)
    second, end = listing.page(cursor)
    assert (len(first), len(second), end) == (PAGE, 1, None)
    assert listing.page("nonsense")[0] == first
    assert listing.digest == ToolList(tools, returns=True).digest
    assert listing.digest != ToolList(tools[1:], returns=True).digest


def test_output_schemas_are_offered_only_when_results_keep_to_them() -> None:
    typed = ListedTool(registered("file.read", returns={"type": "string"}), {"type": "object"})
    promised: Any = ToolList([typed], returns=True).tools[0]["outputSchema"]
    assert promised["properties"]["result"] == {"type": "string"}
    assert "outputSchema" not in ToolList([typed], returns=False).tools[0]
    assert output_schema({}) is None
    assert output_schema({"description": "something"}) is None


def test_results_are_structured_and_the_largest_ones_become_errors() -> None:
    assert tool_result({"a": 1})["structuredContent"] == {"a": 1}
    assert tool_result([1])["structuredContent"] == {"result": [1]}
    assert tool_result("text")["content"] == [{"type": "text", "text": "text"}]
    huge: Any = tool_result("x" * (MAX_RESULT_BYTES + 1))
    assert huge["isError"] is True
    assert huge["_meta"]["kaged/error"]["code"] == "mcp_result_too_large"


def test_failures_carry_code_message_fix_and_request() -> None:
    error: Any = tool_failure(
        ToolError("there is none", code="tool_not_found", fix="look"), "req_1"
    )
    shown = error["_meta"]["kaged/error"]
    assert (shown["code"], shown["message"], shown["fix"], shown["request_id"]) == (
        "tool_not_found",
        "there is none",
        "look",
        "req_1",
    )
    assert error["content"][0]["text"] == "tool_not_found: there is none\nFix: look"
    assert error["isError"] is True
    other: Any = tool_failure(KagedError("broke"), "")
    assert other["_meta"]["kaged/error"]["message"] == "broke"
