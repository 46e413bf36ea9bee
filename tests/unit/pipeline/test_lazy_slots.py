"""Deep parts of slots are copied when a plugin looks at them, and reading them changes nothing."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

from kaged.pipeline import (
    Extensions,
    MCPExtension,
    SecurityExtension,
    ToolMetadata,
    filter_extensions,
    merge_extensions,
)
from kaged.pipeline.isolation import isolate_data, model_dict, same_value
from unit.pipeline.material import ALL_CAPABILITIES, NO_CAPABILITIES, full_extensions


def _tool(extensions: Extensions | None) -> ToolMetadata:
    assert extensions is not None
    assert extensions.mcp is not None
    assert extensions.mcp.tool is not None
    return extensions.mcp.tool


def _security(extensions: Extensions | None) -> SecurityExtension:
    assert extensions is not None
    assert extensions.security is not None
    return extensions.security


def _host() -> Extensions:
    tool = ToolMetadata(name="t", input_schema={"type": "object", "properties": {"a": {}}})
    return full_extensions(mcp=MCPExtension(tool=tool))


def test_the_deep_parts_of_a_slot_are_copied_when_somebody_looks_at_them() -> None:
    host = _host()
    tool = _tool(filter_extensions(host, ALL_CAPABILITIES))

    assert "input_schema" not in model_dict(tool)
    assert tool.input_schema == _tool(host).input_schema
    assert tool.input_schema is not _tool(host).input_schema
    assert tool.input_schema is tool.input_schema
    with pytest.raises(TypeError):
        tool.input_schema["properties"]["a"]["x"] = 1  # pyright: ignore[reportOptionalSubscript]
    assert _tool(filter_extensions(host, ALL_CAPABILITIES)).input_schema is not tool.input_schema


@pytest.mark.parametrize(
    "other",
    [
        copy.copy,
        copy.deepcopy,
        lambda slot: pickle.loads(pickle.dumps(slot)),
        lambda slot: slot.model_copy(),
        lambda slot: slot.model_copy(deep=True),
        lambda slot: type(slot).model_validate(slot.model_dump()),
        lambda slot: type(slot).model_validate_json(slot.model_dump_json()),
        isolate_data,
    ],
)
def test_an_unread_copy_is_whole_for_everybody_who_takes_it_as_a_whole(other: Any) -> None:
    host = _host()
    for own in (_tool(host), _security(host)):
        view = filter_extensions(host, ALL_CAPABILITIES)
        shown = _tool(view) if isinstance(own, ToolMetadata) else _security(view)
        twin = other(shown)
        assert twin == own
        assert repr(twin) == repr(own)
        assert list(twin.model_dump()) == list(own.model_dump())
        assert same_value(twin, own)


def test_a_changed_copy_stays_as_lazy_and_shows_the_change() -> None:
    host = _host()
    shown = _tool(filter_extensions(host, ALL_CAPABILITIES))
    twin = shown.model_copy(update={"name": "other"})
    assert set(model_dict(twin)) == set(model_dict(shown))
    assert (twin.name, twin.input_schema) == ("other", _tool(host).input_schema)
    hidden = shown.model_copy(update={"input_schema": None})
    assert hidden.model_dump() == _tool(host).model_dump() | {"input_schema": None}


def test_what_a_copy_was_made_of_cannot_be_reached_through_it() -> None:
    host = _host()
    shown = _security(filter_extensions(host, NO_CAPABILITIES))
    assert shown.subject is None
    assert "_missing" not in dir(shown)
    secret = _security(host).subject
    held = [object.__getattribute__(shown, name) for name in ("__dict__", *model_dict(shown))]
    assert not any(value is secret or value is host.security for value in held)
    assert secret is not None
    assert secret.id not in repr(shown) + shown.model_dump_json() + str(vars(shown))
    with pytest.raises(AttributeError):
        _ = shown.nothing  # pyright: ignore[reportAttributeAccessIssue] - that is the point


def test_slots_that_were_read_and_not_changed_are_not_compared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    host = _host()
    view = filter_extensions(host, ALL_CAPABILITIES)
    assert view is not None
    view.model_dump()  # every part of every slot
    labeled = _security(view).model_copy(update={"labels": _security(view).labels | {"mine"}})
    edited = view.model_copy(update={"custom": {"mine": 1}, "security": labeled})

    def compared(*_values: object) -> bool:
        raise AssertionError("a slot that was only read is compared")

    for module, name in (
        ("merge", "same_value"),
        ("merge", "subject_as_shown"),
        ("delegation", "same_value"),
    ):
        monkeypatch.setattr(f"kaged.pipeline.{module}.{name}", compared)

    merged = merge_extensions(host, edited, ALL_CAPABILITIES, "p")

    assert merged is not None
    assert merged.custom == {"mine": 1}
    assert _security(merged).labels == _security(host).labels | {"mine"}
    assert _security(merged).subject is _security(host).subject
    assert merged.mcp is host.mcp
