"""The methods of bridge-v1: the params the host sends and the results it accepts.

Two generations of bridges exist; the params are the union of what both read, and a result of
either is accepted. Only shapes and types are checked here, never coerced; what a URL, a date or a
schema must be is decided by whoever uses it.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Literal, NoReturn

from kaged.base.lazy_dataclass import dataclass
from kaged.wire.envelope import EnvelopeRule, EnvelopeViolation

if TYPE_CHECKING:
    from kaged.base.jsonvalue import JsonObject, JsonValue

ACCOUNT_REF_LIMIT_CHARS = 128
_FIELD_NAME = re.compile(r"[a-z][a-z0-9_]{0,31}")
WAIT_LIMIT_S = 3600


def auth_begin_params(
    capability_id: str, account_hint: str | None, context_token: str
) -> JsonObject:
    """Return the params of `auth_begin`."""
    return {
        "capability_id": capability_id,
        "account_hint": account_hint,
        "context_token": context_token,
    }


def auth_complete_params(
    capability_id: str,
    *,
    flow_state: JsonObject,
    authorization_code: str | None,
    raw_callback_url: str | None,
    state: str | None,
    account_hint: str | None,
    context_token: str,
) -> JsonObject:
    """Return the params of `auth_complete`, in the names of both generations.

    Bridges of the first read `code` and `callback_url`; each ignores what it does not know.
    """
    return {
        "capability_id": capability_id,
        "flow_state": flow_state,
        "authorization_code": authorization_code,
        "raw_callback_url": raw_callback_url,
        "state": state,
        "code": authorization_code,
        "callback_url": raw_callback_url,
        "account_hint": account_hint,
        "context_token": context_token,
    }


def auth_poll_params(capability_id: str, flow_state: JsonObject, context_token: str) -> JsonObject:
    """Return the params of `auth_poll`."""
    return {
        "capability_id": capability_id,
        "flow_state": flow_state,
        "context_token": context_token,
    }


def auth_submit_params(
    capability_id: str,
    *,
    flow_state: JsonObject,
    values: dict[str, str],
    account_hint: str | None,
    context_token: str,
) -> JsonObject:
    """Return the params of `auth_submit`: what a person typed into the fields of a flow."""
    return {
        "capability_id": capability_id,
        "flow_state": flow_state,
        "values": {**values},
        "account_hint": account_hint,
        "context_token": context_token,
    }


def auth_revoke_params(
    capability_id: str,
    account_ref: str,
    context_token: str,
    credentials: JsonObject | None = None,
) -> JsonObject:
    """Return the params of `auth_revoke`."""
    params: JsonObject = {
        "capability_id": capability_id,
        "account_ref": account_ref,
        "context_token": context_token,
    }
    return params if credentials is None else {**params, "credentials": credentials}


def invoke_params(
    capability_id: str,
    operation: str,
    *,
    input_data: JsonObject,
    account_ref: str | None,
    idempotency_key: str | None,
    context_token: str,
    credentials: JsonObject | None = None,
) -> JsonObject:
    """Return the params of `invoke`; null where there is nothing.

    Only an account that was linked with fields has `credentials`: what was typed into them.
    """
    params: JsonObject = {
        "capability_id": capability_id,
        "operation": operation,
        "input_data": input_data,
        "account_ref": account_ref,
        "idempotency_key": idempotency_key,
        "context_token": context_token,
    }
    return params if credentials is None else {**params, "credentials": credentials}


@dataclass(frozen=True, slots=True)
class OperationEntry:
    """One operation as a bridge describes it."""

    name: str
    description: str
    requires_auth: bool
    mutating: bool
    input_schema: JsonObject
    output_schema: JsonObject


@dataclass(frozen=True, slots=True)
class DefinitionEntry:
    """One capability as a bridge describes it; whether it may, the registry decides."""

    id: str
    description: str
    sensitive: bool
    allowed_chat_types: tuple[str, ...]
    operations: tuple[OperationEntry, ...]


@dataclass(frozen=True, slots=True)
class Definitions:
    """The result of `definitions`; `features` is how a bridge states the persistent mode."""

    entries: tuple[DefinitionEntry, ...]
    features: frozenset[str]


@dataclass(frozen=True, slots=True)
class FieldEntry:
    """Something that a person types in to complete a flow; a secret one is never shown."""

    name: str
    label: str
    secret: bool


@dataclass(frozen=True, slots=True)
class AuthBegun:
    """The result of `auth_begin`. `expires_at` is the bridge's text, not yet read as a time.

    With `fields` the host shows a page of its own that asks for them, and `auth_url` is empty.
    """

    auth_url: str
    expires_at: str | None
    flow_state: JsonObject
    flow_type: Literal["authorization_code", "device_code"]
    user_code: str | None
    poll_interval_s: int | None
    expected_callback_state: str | None
    fields: tuple[FieldEntry, ...] = ()


@dataclass(frozen=True, slots=True)
class AccountLinked:
    """The result of `auth_complete`, `auth_submit`, and of the `auth_poll` that ends a flow."""

    account_ref: str
    credential_material: JsonObject
    metadata: JsonObject


@dataclass(frozen=True, slots=True)
class AuthPending:
    """The result of an `auth_poll` while the user has not decided."""

    retry_after_s: int | None


def parse_definitions(result: JsonObject) -> Definitions:
    """Read the result of `definitions`. Operations may be a list, or an object keyed by name."""
    entries = tuple(_definition(item) for item in _list(result, "definitions", required=True))
    features = frozenset(_texts(result, "features"))
    return Definitions(entries, features)


def parse_auth_begun(result: JsonObject) -> AuthBegun:
    """Read the result of `auth_begin`; a bridge of the first generation has no `flow_type`."""
    flow_type = _optional_text(result, "flow_type") or "authorization_code"
    if flow_type != "authorization_code" and flow_type != "device_code":  # noqa: PLR1714 - narrows
        _refuse("flow_type")
    fields = tuple(_field(item) for item in _list(result, "fields"))
    if fields and flow_type == "device_code":
        _refuse("fields")
    return AuthBegun(
        auth_url="" if fields else _text(result, "auth_url"),
        expires_at=_optional_text(result, "expires_at"),
        flow_state=_object(result, "flow_state"),
        flow_type=flow_type,
        user_code=_optional_text(result, "user_code"),
        poll_interval_s=_wait(result, "poll_interval_seconds"),
        expected_callback_state=_optional_text(result, "expected_callback_state"),
        fields=fields,
    )


def parse_account_linked(result: JsonObject) -> AccountLinked:
    """Read the result of `auth_complete`."""
    account_ref = _text(result, "account_ref").strip()
    if len(account_ref) > ACCOUNT_REF_LIMIT_CHARS or not account_ref.isprintable():
        _refuse("account_ref")
    return AccountLinked(
        account_ref=account_ref,
        credential_material=_object(result, "credential_material"),
        metadata=_object(result, "metadata"),
    )


def parse_auth_polled(result: JsonObject) -> AccountLinked | AuthPending:
    """Read the result of `auth_poll`."""
    status = _text(result, "status")
    if status == "complete":
        return parse_account_linked(result)
    if status == "pending":
        return AuthPending(_wait(result, "retry_after_seconds"))
    raise EnvelopeViolation(EnvelopeRule.RESULT_MEMBER, "status")


def parse_invoked(result: JsonObject) -> JsonObject:
    """Read the result of `invoke`: its `output` object, or all of it when there is none."""
    output = result.get("output")
    return output if isinstance(output, dict) else result


def _field(value: JsonValue) -> FieldEntry:
    entry = _as_object(value, "fields")
    name = _text(entry, "name")
    if _FIELD_NAME.fullmatch(name) is None:
        _refuse("fields")
    return FieldEntry(name, _text(entry, "label"), _flag(entry, "secret", default=False))


def _definition(value: JsonValue) -> DefinitionEntry:
    entry = _as_object(value, "definitions")
    operations = entry.get("operations")
    if isinstance(operations, dict):
        listed = [_operation(item, key) for key, item in operations.items()]
    else:
        listed = [_operation(item, None) for item in _list(entry, "operations", required=True)]
    return DefinitionEntry(
        id=_text(entry, "id"),
        description=_text(entry, "description"),
        sensitive=_flag(entry, "sensitive", default=False),
        allowed_chat_types=_texts(entry, "allowed_chat_types"),
        operations=tuple(listed),
    )


def _operation(value: JsonValue, key: str | None) -> OperationEntry:
    entry = _as_object(value, "operations")
    name = _text(entry, "name").strip() if key is None or "name" in entry else key.strip()
    # The key must say the same as the name after trimming, or one of them is a lie.
    if not name or (key is not None and key.strip() != name):
        _refuse("operations")
    return OperationEntry(
        name=name,
        description=_text(entry, "description"),
        requires_auth=_flag(entry, "requires_auth", default=True),
        mutating=_flag(entry, "mutating", default=False),
        input_schema=_object(entry, "input_schema"),
        output_schema=_object(entry, "output_schema"),
    )


def _text(holder: JsonObject, name: str) -> str:
    value = _optional_text(holder, name)
    if value is None:
        _refuse(name)
    return value


def _optional_text(holder: JsonObject, name: str) -> str | None:
    value = holder.get(name)
    if value is None:
        return None
    if not isinstance(value, str):
        _refuse(name)
    return value if value.strip() else None


def _flag(holder: JsonObject, name: str, *, default: bool) -> bool:
    value = holder.get(name, default)
    if not isinstance(value, bool):
        _refuse(name)
    return value


def _object(holder: JsonObject, name: str) -> JsonObject:
    value = holder.get(name)
    return {} if value is None else _as_object(value, name)


def _as_object(value: JsonValue, name: str) -> JsonObject:
    if not isinstance(value, dict):
        _refuse(name)
    return value


def _list(holder: JsonObject, name: str, *, required: bool = False) -> list[JsonValue]:
    value = holder.get(name)
    if value is None and not required:
        return []
    if not isinstance(value, list):
        _refuse(name)
    return value


def _texts(holder: JsonObject, name: str) -> tuple[str, ...]:
    values = _list(holder, name)
    texts = tuple(value for value in values if isinstance(value, str))
    if len(texts) != len(values):
        _refuse(name)
    return texts


def _wait(holder: JsonObject, name: str) -> int | None:
    value = holder.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        _refuse(name)
    if not 0 < value <= WAIT_LIMIT_S:
        _refuse(name)
    return math.ceil(value)


def _refuse(member: str) -> NoReturn:
    raise EnvelopeViolation(EnvelopeRule.RESULT_MEMBER, member)
