from __future__ import annotations

from typing import Any

import pytest

from kaged.wire.bridge_methods import (
    AccountLinked,
    AuthBegun,
    AuthPending,
    DefinitionEntry,
    Definitions,
    OperationEntry,
    auth_begin_params,
    auth_complete_params,
    auth_poll_params,
    auth_revoke_params,
    invoke_params,
    parse_account_linked,
    parse_auth_begun,
    parse_auth_polled,
    parse_definitions,
    parse_invoked,
)
from kaged.wire.envelope import (
    BridgeMethod,
    BridgeRequest,
    EnvelopeRule,
    EnvelopeViolation,
    encode_request,
)

_URL = "https://accounts.example/auth"
_OP = {"name": "list", "description": "List"}
_DEFINITION: dict[str, Any] = {"id": "gog.email", "description": "Mail", "operations": [_OP]}


def test_auth_complete_speaks_to_both_generations_at_once() -> None:
    params = auth_complete_params(
        "gog.email",
        flow_state={"verifier_ref": "v"},
        authorization_code="4/x",
        raw_callback_url="https://localhost/callback?code=4/x",
        state="st",
        account_hint="work",
        context_token="t",
    )
    assert params == {
        "capability_id": "gog.email",
        "flow_state": {"verifier_ref": "v"},
        "authorization_code": "4/x",
        "code": "4/x",
        "raw_callback_url": "https://localhost/callback?code=4/x",
        "callback_url": "https://localhost/callback?code=4/x",
        "state": "st",
        "account_hint": "work",
        "context_token": "t",
    }


def test_params_hold_every_member_and_no_identity() -> None:
    kinds = {
        BridgeMethod.AUTH_BEGIN: auth_begin_params("gog.email", None, "t"),
        BridgeMethod.AUTH_POLL: auth_poll_params("gog.email", {}, "t"),
        BridgeMethod.AUTH_REVOKE: auth_revoke_params("gog.email", "acct", "t"),
        BridgeMethod.INVOKE: invoke_params(
            "gog.email",
            "list",
            input_data={},
            account_ref=None,
            idempotency_key=None,
            context_token="t",
        ),
    }
    assert kinds[BridgeMethod.AUTH_BEGIN].keys() == {
        "capability_id",
        "account_hint",
        "context_token",
    }
    assert kinds[BridgeMethod.INVOKE] == {
        "capability_id": "gog.email",
        "operation": "list",
        "input_data": {},
        "account_ref": None,
        "idempotency_key": None,
        "context_token": "t",
    }
    for method, params in kinds.items():
        assert params["context_token"] == "t"
        encode_request(BridgeRequest("cap_bridge_1", "gog", method, params))


def test_definitions_take_operations_as_a_list_or_by_name() -> None:
    operation = OperationEntry("list", "List", requires_auth=True, mutating=False, input_schema={}, output_schema={})  # fmt: skip  # noqa: E501 - one value on one line
    entry = DefinitionEntry("gog.email", "Mail", False, (), (operation,))
    assert parse_definitions({"definitions": [_DEFINITION]}) == Definitions((entry,), frozenset())
    for by_name in ({"list": _OP}, {" list ": {"description": "List"}}):
        result: Any = {"definitions": [{**_DEFINITION, "operations": by_name}]}
        assert parse_definitions(result).entries == (entry,)


def test_definitions_read_every_optional_member() -> None:
    schema = {"type": "object"}
    result: Any = {
        "definitions": [
            {
                **_DEFINITION,
                "sensitive": True,
                "allowed_chat_types": ["private"],
                "operations": [
                    {
                        **_OP,
                        "requires_auth": False,
                        "mutating": True,
                        "input_schema": schema,
                        "output_schema": schema,
                    }
                ],
            }
        ],
        "features": ["persistent"],
    }
    parsed = parse_definitions(result)
    assert parsed.features == {"persistent"}
    (entry,) = parsed.entries
    assert entry.sensitive
    assert entry.allowed_chat_types == ("private",)
    (operation,) = entry.operations
    assert (operation.requires_auth, operation.mutating) == (False, True)
    assert operation.input_schema == operation.output_schema == schema


def _member(parse: Any, result: Any) -> str | None:
    with pytest.raises(EnvelopeViolation) as raised:
        parse(result)
    assert raised.value.code == "capability_invalid_output"
    assert raised.value.rule is EnvelopeRule.RESULT_MEMBER
    return raised.value.member


@pytest.mark.parametrize(
    ("result", "member"),
    [
        ({}, "definitions"),
        ({"definitions": {}}, "definitions"),
        ({"definitions": [1]}, "definitions"),
        ({"definitions": [], "features": "persistent"}, "features"),
        ({"definitions": [], "features": [1]}, "features"),
        ({"definitions": [{**_DEFINITION, "id": 1}]}, "id"),
        ({"definitions": [{**_DEFINITION, "description": " "}]}, "description"),
        ({"definitions": [{**_DEFINITION, "sensitive": "yes"}]}, "sensitive"),
        ({"definitions": [{**_DEFINITION, "sensitive": 1}]}, "sensitive"),
        ({"definitions": [{**_DEFINITION, "sensitive": None}]}, "sensitive"),
        ({"definitions": [{**_DEFINITION, "allowed_chat_types": "private"}]}, "allowed_chat_types"),
        ({"definitions": [{**_DEFINITION, "operations": None}]}, "operations"),
        ({"definitions": [{**_DEFINITION, "operations": ["list"]}]}, "operations"),
        ({"definitions": [{**_DEFINITION, "operations": {"other": _OP}}]}, "operations"),
        (
            {"definitions": [{**_DEFINITION, "operations": {"": {"description": "x"}}}]},
            "operations",
        ),
        ({"definitions": [{**_DEFINITION, "operations": [{"description": "x"}]}]}, "name"),
        ({"definitions": [{**_DEFINITION, "operations": [{**_OP, "mutating": 0}]}]}, "mutating"),
        (
            {"definitions": [{**_DEFINITION, "operations": [{**_OP, "input_schema": []}]}]},
            "input_schema",
        ),
    ],
)
def test_a_definition_of_the_wrong_shape_is_refused(result: Any, member: str) -> None:
    assert _member(parse_definitions, result) == member


def test_auth_begin_of_both_generations_is_read() -> None:
    assert parse_auth_begun({"auth_url": _URL}) == AuthBegun(
        _URL, None, {}, "authorization_code", None, None, None
    )
    second: Any = {
        "auth_url": _URL,
        "expires_at": "2026-01-01T00:10:00Z",
        "flow_state": {"s": 1},
        "flow_type": "device_code",
        "user_code": "ABCD",
        "poll_interval_seconds": 4.2,
        "expected_callback_state": "st",
    }
    assert parse_auth_begun(second) == AuthBegun(
        _URL, "2026-01-01T00:10:00Z", {"s": 1}, "device_code", "ABCD", 5, "st"
    )


@pytest.mark.parametrize(
    ("change", "member"),
    [
        ({"auth_url": None}, "auth_url"),
        ({"auth_url": ""}, "auth_url"),
        ({"auth_url": 5}, "auth_url"),
        ({"flow_type": "password"}, "flow_type"),
        ({"flow_state": []}, "flow_state"),
        ({"expires_at": 5}, "expires_at"),
        ({"poll_interval_seconds": True}, "poll_interval_seconds"),
        ({"poll_interval_seconds": "5"}, "poll_interval_seconds"),
        ({"poll_interval_seconds": 0}, "poll_interval_seconds"),
        ({"poll_interval_seconds": -1}, "poll_interval_seconds"),
        ({"poll_interval_seconds": 3601}, "poll_interval_seconds"),
    ],
)
def test_auth_begin_of_the_wrong_shape_is_refused(change: Any, member: str) -> None:
    assert _member(parse_auth_begun, {"auth_url": _URL, **change}) == member


def test_a_linked_account_is_read() -> None:
    assert parse_account_linked({"account_ref": " acct_work "}) == AccountLinked(
        "acct_work", {}, {}
    )
    full: Any = {"account_ref": "a", "credential_material": {"k": "ref"}, "metadata": {"n": 1}}
    assert parse_account_linked(full) == AccountLinked("a", {"k": "ref"}, {"n": 1})
    for account_ref in (None, "", 5):
        assert _member(parse_account_linked, {"account_ref": account_ref}) == "account_ref"
    for account_ref in ("x" * 129, "a\nb", "a\x00"):
        assert _member(parse_account_linked, {"account_ref": account_ref}) == "account_ref"
    assert _member(parse_account_linked, {"account_ref": "a", "metadata": []}) == "metadata"


def test_a_poll_is_pending_or_complete() -> None:
    assert parse_auth_polled({"status": "pending"}) == AuthPending(None)
    assert parse_auth_polled({"status": "pending", "retry_after_seconds": 5}) == AuthPending(5)
    assert parse_auth_polled({"status": "complete", "account_ref": "a"}) == AccountLinked(
        "a", {}, {}
    )
    assert _member(parse_auth_polled, {"status": "complete"}) == "account_ref"
    assert _member(parse_auth_polled, {"status": "done"}) == "status"
    assert _member(parse_auth_polled, {}) == "status"


def test_the_output_of_invoke_is_its_own_member_or_the_whole_result() -> None:
    assert parse_invoked({"output": {"a": 1}, "b": 2}) == {"a": 1}
    assert parse_invoked({"a": 1}) == {"a": 1}
    assert parse_invoked({"output": [1]}) == {"output": [1]}
