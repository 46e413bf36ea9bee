"""What `<namespace>.calendar` offers, as schemas that agents and the host hold calls against."""

from __future__ import annotations

from typing import Final

from kaged.base import JsonObject, JsonValue
from kaged.services.contract import CapabilityDefinition, CapabilityOperation

LIST_LIMIT: Final = 200

_PLACE: Final[JsonObject] = {"type": "string", "minLength": 1, "maxLength": 1024}
_MOMENT: Final[JsonObject] = {
    "type": "string",
    "minLength": 10,
    "maxLength": 40,
    "description": "A time with a zone (2026-02-24T20:10:00Z), or a day.",
}
_FREE: Final[JsonObject] = {"type": "string", "x-free-text": True}
_EVENT: Final[JsonObject] = {
    "title": {"type": "string", "minLength": 1, "maxLength": 500},
    "start": _MOMENT,
    "end": _MOMENT,
    "timezone": {
        "type": "string",
        "maxLength": 64,
        "description": "Zone for times without one, and for recurring sense: Europe/Berlin.",
    },
    "location": {"type": "string", "maxLength": 500},
    "description": {"type": "string", "maxLength": 20_000},
}
_RANGE: Final[JsonObject] = {
    "calendar": {**_PLACE, "description": "One of `calendars`; all by default."},
    "start": {**_MOMENT, "description": "From when; now by default."},
    "end": {**_MOMENT, "description": "Until when; 30 days after start by default."},
    "limit": {"type": "integer", "minimum": 1, "maximum": LIST_LIMIT, "default": 50},
}
_VERSION: Final[JsonObject] = {
    "type": "string",
    "maxLength": 256,
    "description": "The version that was read: refuses when it was changed since.",
}
_EVENTS: Final[JsonObject] = {
    "type": "object",
    "properties": {
        "events": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "event_id": {"type": "string"},
                    "version": {"type": "string"},
                    "title": _FREE,
                    "start": {"type": ["string", "null"]},
                    "end": {"type": ["string", "null"]},
                    "all_day": {"type": "boolean"},
                    "location": _FREE,
                    "description": _FREE,
                    "status": {"type": "string"},
                    "recurring": {"type": "boolean"},
                },
                "required": ["event_id", "title", "start"],
            },
        },
        "total": {"type": "integer"},
    },
    "required": ["events", "total"],
}


def calendar_definition(namespace: str) -> CapabilityDefinition:
    """Describe a calendar account."""
    operations = (
        CapabilityOperation(
            "calendars",
            "List the calendars of the account.",
            input_schema=_object({}),
            output_schema=_result(
                {
                    "calendars": {
                        "type": "array",
                        "items": _result(
                            {
                                "calendar": {"type": "string"},
                                "name": _FREE,
                                "writable": {"type": "boolean"},
                            },
                            "calendar",
                        ),
                    }
                },
                "calendars",
            ),
        ),
        CapabilityOperation(
            "list",
            "List events in a span of time, the earliest first.",
            input_schema=_object(_RANGE),
            output_schema=_EVENTS,
        ),
        CapabilityOperation(
            "search",
            "Find events in a span of time by words of title, place or description.",
            input_schema=_object(
                {**_RANGE, "text": {"type": "string", "minLength": 1, "maxLength": 200}}, "text"
            ),
            output_schema=_EVENTS,
        ),
        CapabilityOperation(
            "create",
            "Put a new event into a calendar.",
            mutating=True,
            input_schema=_object({"calendar": _PLACE, **_EVENT}, "title", "start", "end"),
            output_schema=_result({"event_id": {"type": "string"}}, "event_id"),
        ),
        CapabilityOperation(
            "update",
            "Change an event; what is left out stays. A series is changed as a whole.",
            mutating=True,
            input_schema=_object({"event_id": _PLACE, "version": _VERSION, **_EVENT}, "event_id"),
            output_schema=_result({"updated": {"type": "boolean"}}, "updated"),
        ),
        CapabilityOperation(
            "delete",
            "Delete an event. A series is deleted as a whole.",
            mutating=True,
            input_schema=_object({"event_id": _PLACE, "version": _VERSION}, "event_id"),
            output_schema=_result({"deleted": {"type": "boolean"}}, "deleted"),
        ),
    )
    return CapabilityDefinition(
        id=f"{namespace}.calendar",
        description="Calendars: look up, create, change and delete events.",
        sensitive=True,
        operations={one.name: one for one in operations},
    )


def _object(properties: JsonObject, *required: str) -> JsonObject:
    return {**_result(properties, *required), "additionalProperties": False}


def _result(properties: JsonObject, *required: str) -> JsonObject:
    names: list[JsonValue] = [*required]
    return {"type": "object", "properties": properties, "required": names}
