"""An event is what its declaration says, or it is not made."""

from __future__ import annotations

from enum import StrEnum

import pytest

from kaged.audit import EVENT_TYPES, AuditEvent, AuditEventInvalid
from kaged.audit.events.types import SHAPES_LIMIT


def test_a_declared_event_with_its_fields_is_made() -> None:
    event = AuditEvent("plugin.killed", {"name": "memory"})
    assert (event.name, event.data, event.project_id) == ("plugin.killed", {"name": "memory"}, None)


def test_a_name_that_is_not_declared_is_refused() -> None:
    with pytest.raises(AuditEventInvalid, match=r"plugin\.exploded"):
        AuditEvent("plugin.exploded", {})


def test_a_missing_field_is_named() -> None:
    with pytest.raises(AuditEventInvalid, match="cage_id, version"):
        AuditEvent("plugin.spawned", {"name": "memory", "pid": 7})


def test_a_field_that_is_not_declared_is_refused() -> None:
    with pytest.raises(AuditEventInvalid, match="colour"):
        AuditEvent("plugin.killed", {"name": "memory", "colour": "red"})


@pytest.mark.parametrize("rate", ["fast", None, True, [1]])
def test_a_value_of_the_wrong_type_is_refused(rate: object) -> None:
    with pytest.raises(AuditEventInvalid, match="rate must be number"):
        AuditEvent("plugin.notification_flood", {"name": "memory", "rate": rate})  # pyright: ignore[reportArgumentType] - that is the point


def test_null_is_taken_where_the_field_may_be_null() -> None:
    data = {"debug_session_id": "d", "runtime": "python", "script": None, "caller": "primary"}
    assert AuditEvent("debug.session_started", data).data["script"] is None


def test_a_value_of_a_subtype_is_taken() -> None:
    class Side(StrEnum):
        PROJECT = "project"

    data = {"name": "memory", "side": Side.PROJECT, "errors": []}
    assert AuditEvent("plugin.config_validation_failed", data).data["side"] == "project"


def test_ids_given_beside_the_data_fill_declared_fields() -> None:
    event = AuditEvent(
        "plugin.method_called",
        {"name": "memory", "method": "recall", "operator_id": None},
        project_id="prj_1",
        request_id="req_1",
        caller="primary",
    )
    assert event.data == {
        "name": "memory",
        "method": "recall",
        "project_id": "prj_1",
        "request_id": "req_1",
        "operator_id": None,
        "caller": "primary",
    }


def test_ids_in_the_data_are_found_beside_it() -> None:
    event = AuditEvent(
        "plugin.knob_write",
        {"name": "memory", "knob": "size", "agent_path": "primary", "request_id": "req_1"},
    )
    assert event.request_id == "req_1"


def test_ids_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(AuditEventInvalid, match="request_id"):
        AuditEvent(
            "plugin.knob_write",
            {"name": "m", "knob": "k", "agent_path": "primary", "request_id": "req_1"},
            request_id="req_2",
        )


def test_later_changes_of_the_callers_dict_do_not_reach_the_event() -> None:
    data = {"name": "memory"}
    event = AuditEvent("plugin.killed", data)
    data["name"] = "other"
    assert event.data["name"] == "memory"


def test_the_repr_shows_no_data() -> None:
    assert "s3cr3t" not in repr(AuditEvent("plugin.killed", {"name": "s3cr3t"}))


def test_the_table_cannot_be_changed() -> None:
    with pytest.raises(TypeError):
        EVENT_TYPES["x"] = EVENT_TYPES["plugin.killed"]  # pyright: ignore[reportIndexIssue] - that is the point


def test_what_was_found_right_once_makes_nothing_else_right() -> None:
    """Names and types that were looked at are not looked at again; others are."""
    right = {"name": "memory", "rate": 1.5}
    for _ in range(2):
        AuditEvent("plugin.notification_flood", right)
        AuditEvent("plugin.notification_flood", {**right, "rate": 2})
        for wrong in (
            {**right, "rate": "fast"},
            {**right, "rate": True},
            {"rate": 1.5},
            {**right, "colour": "red"},
            {"name": 1.5, "rate": "memory"},
        ):
            with pytest.raises(AuditEventInvalid):
                AuditEvent("plugin.notification_flood", wrong)


def test_a_shape_says_which_fields_are_text_and_which_could_still_change() -> None:
    event = AuditEvent(
        "tool.called",
        {
            "tool_name": "file.read",
            "caller": "primary",
            "session_id": "s",
            "run_id": "r",
            "request_id": "q",
            "params": {"path": "a"},
        },
    )
    assert event.shape.holders == ("params",)
    assert set(event.shape.texts) == {"tool_name", "caller", "session_id", "run_id", "request_id"}
    other = AuditEvent("tool.called", {**event.data, "params": "no object"})
    assert other.shape.holders == ()
    assert "params" in other.shape.texts


def test_subtypes_are_looked_at_each_time() -> None:
    class Name(str):
        __slots__ = ()

    kind = EVENT_TYPES["plugin.killed"]
    kind.shapes.clear()
    AuditEvent("plugin.killed", {"name": Name("memory")})
    assert kind.shapes == {}


def test_remembered_shapes_have_a_bound() -> None:
    optional = ["agent_path", "caller", "operator_id", "project_id", "request_id", "run_id"]
    kind = EVENT_TYPES["plugin.killed"]
    for number in range(2 ** len(optional) + 10):
        more = {name: "x" for bit, name in enumerate(optional) if number >> bit & 1}
        AuditEvent("plugin.killed", {"name": "memory", **more})
        AuditEvent("plugin.killed", {**more, "name": "memory"})
        assert len(kind.shapes) <= SHAPES_LIMIT
