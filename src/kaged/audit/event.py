"""`AuditEvent`: one thing that happened, checked against its declared type."""

from __future__ import annotations

from collections.abc import Mapping

from kaged.audit.errors import AuditEventInvalid
from kaged.audit.events import EVENT_TYPES, EventType
from kaged.audit.events.types import ACCEPTED, SHAPES_LIMIT, EventShape, Field, FieldKind
from kaged.base import JsonObject, JsonValue

_FIXED = frozenset({str, int, float, bool, type(None)})


class AuditEvent:
    """One thing that happened, on its way into the log.

    `name` must be declared in `audit.events`, and `data` must have that event's fields: all of the
    required ones, none that is not declared. `project_id`, `request_id` and `caller` may be given
    beside the data or in it; where the event declares them as fields they are in both afterwards.

    Raises:
        AuditEventInvalid: the name or the fields are not as declared. That is a bug in the caller.
    """

    __slots__ = ("data", "name", "project_id", "request_id", "shape", "type")

    def __init__(
        self,
        name: str,
        data: Mapping[str, JsonValue],
        *,
        project_id: str | None = None,
        request_id: str | None = None,
        caller: str | None = None,
    ) -> None:
        kind = EVENT_TYPES.get(name)
        if kind is None:
            raise AuditEventInvalid(f"there is no audit event named {name!r}", name=name)
        fields: JsonObject = dict(data)
        self.type: EventType = kind
        self.name = name
        if project_id is None or fields.get("project_id") is not project_id:
            project_id = _agreed(kind, fields, "project_id", project_id)
        if request_id is None or fields.get("request_id") is not request_id:
            request_id = _agreed(kind, fields, "request_id", request_id)
        self.project_id = project_id
        self.request_id = request_id
        if caller is not None:
            fields.setdefault("caller", caller)
        # An event is made for every call; looking at each field is for the first of its shape.
        signature = (*fields, *map(type, fields.values()))
        shape = kind.shapes.get(signature)
        self.shape: EventShape = shape or _examined(kind, fields, signature)
        self.data = fields

    def __repr__(self) -> str:
        """Return the event's name without its data, which may hold what no log should show."""
        return f"AuditEvent({self.name!r})"


def _agreed(kind: EventType, fields: JsonObject, name: str, given: str | None) -> str | None:
    """Return the one value that the data and the argument agree on, and put it in both."""
    inside = fields.get(name)
    if inside is None:
        if name in kind.required:
            fields[name] = given
        return given
    if not isinstance(inside, str) or (given is not None and given != inside):
        raise AuditEventInvalid(
            f"{kind.name}: {name} in the data and beside it differ", name=kind.name, field=name
        )
    return inside


def _examined(kind: EventType, fields: JsonObject, signature: tuple[object, ...]) -> EventShape:
    """Look at every field, and remember the shape if its names and types alone make it right."""
    for name in kind.required:
        if name not in fields:
            missing = sorted(kind.required - fields.keys())
            raise AuditEventInvalid(f"{kind.name} lacks {', '.join(missing)}", name=kind.name)
    plain = True
    accepted = kind.accepted
    for name, value in fields.items():
        if name not in accepted or type(value) not in accepted[name]:
            plain = False
            _check(kind, name, value)
    shape = EventShape(
        tuple(name for name, value in fields.items() if type(value) is str),
        tuple(name for name in kind.holders if type(fields.get(name)) not in _FIXED),
    )
    if plain:
        if len(kind.shapes) >= SHAPES_LIMIT:
            kind.shapes.clear()
        kind.shapes[signature] = shape
    return shape


def _check(kind: EventType, name: str, value: object) -> None:
    """Look closely at a value whose exact type is not one of the expected ones."""
    field = kind.by_name.get(name)
    if field is None:
        raise AuditEventInvalid(
            f"{kind.name} declares no field {name!r}", name=kind.name, field=name
        )
    if not _fits(field, value):
        raise AuditEventInvalid(
            f"{kind.name}: {name} must be {field.kind.value}, not {type(value).__name__}",
            name=kind.name,
            field=name,
        )


def _fits(field: Field, value: object) -> bool:
    if value is None:
        return field.nullable or field.kind is FieldKind.ANY
    # bool is an int to Python but not to a reader of the log.
    if isinstance(value, bool) and field.kind not in {FieldKind.FLAG, FieldKind.ANY}:
        return False
    return isinstance(value, ACCEPTED[field.kind])
