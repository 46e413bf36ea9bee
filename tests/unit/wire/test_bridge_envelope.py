from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kaged.wire.envelope import (
    ENVELOPE_LIMIT_BYTES,
    BridgeFailure,
    BridgeRequest,
    BridgeResult,
    EnvelopeRule,
    EnvelopeViolation,
    bridge_request_id,
    encode_failure,
    encode_request,
    encode_result,
    parse_answer,
    parse_request,
    safe_error_message,
)
from requirements import requirement

_ID = "cap_bridge_00000000deadbeef"
_MARKER = "s3cr3t-marker"
_GOOD: dict[str, Any] = {"version": 1, "id": _ID, "result": {}}
_ERROR: dict[str, Any] = {"version": 1, "id": _ID, "error": {"code": "c", "message": "m"}}


def _broken_rule(answer: Any) -> EnvelopeRule:
    data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
    with pytest.raises(EnvelopeViolation) as raised:
        parse_answer(data, _ID)
    assert raised.value.code == "capability_invalid_output"
    assert _MARKER not in str(raised.value)
    assert _MARKER not in json.dumps(raised.value.data)
    return raised.value.rule


def _without(name: str) -> dict[str, Any]:
    return {key: value for key, value in _GOOD.items() if key != name}


def test_a_request_has_exactly_five_members_in_one_ascii_line() -> None:
    request = BridgeRequest(_ID, "gog", "invoke", {"input_data": {"text": "ä\n"}})
    data = encode_request(request)
    assert data.isascii()
    assert b"\n" not in data
    wire = json.loads(data)
    assert wire.keys() == {"version", "id", "namespace", "method", "params"}
    assert wire["version"] == 1
    assert type(wire["version"]) is int
    assert parse_request(data) == request


def test_request_ids_are_prefixed_and_drawn_from_the_given_source() -> None:
    assert bridge_request_id(lambda _bits: 0xDEADBEEF) == _ID
    assert bridge_request_id(lambda bits: (1 << bits) - 1) == "cap_bridge_" + "f" * 16


@pytest.mark.parametrize("member", ["context", "user_id", "chat_id", "chat_type", "session_key"])
def test_a_request_with_raw_identity_is_not_built(member: str) -> None:
    with pytest.raises(ValueError, match=member):
        encode_request(BridgeRequest(_ID, "gog", "invoke", {member: "bob"}))


def test_identity_words_inside_the_operations_own_input_are_its_own_business() -> None:
    assert encode_request(BridgeRequest(_ID, "gog", "invoke", {"input_data": {"user_id": "bob"}}))


@pytest.mark.parametrize("namespace", ["", "Gog", "gog\n", "a.b"])
def test_a_request_for_a_malformed_namespace_is_not_built(namespace: str) -> None:
    with pytest.raises(ValueError, match="namespace"):
        encode_request(BridgeRequest(_ID, namespace, "invoke", {}))


def test_a_success_and_an_error_are_read_back() -> None:
    assert parse_answer(encode_result(_ID, {"messages": []}), _ID) == BridgeResult(
        _ID, {"messages": []}
    )
    data = encode_failure(_ID, "capability_backend_unavailable", "bridge offline")
    assert parse_answer(data, _ID) == BridgeFailure(
        _ID, "capability_backend_unavailable", "bridge offline"
    )


@requirement("SC-BRG-05")
@pytest.mark.parametrize("version", [2, "1", 1.5, None, 0, [1], 1.0, True])
def test_a_version_other_than_the_integer_1_is_a_violation(version: Any) -> None:
    assert _broken_rule({**_GOOD, "version": version}) is EnvelopeRule.VERSION
    assert _broken_rule(_without("version")) is EnvelopeRule.VERSION


@requirement("SC-AMB-16")
def test_extra_members_are_harmless_and_true_is_not_version_1() -> None:
    assert parse_answer(json.dumps({**_GOOD, "features": ["x"]}).encode(), _ID) == BridgeResult(
        _ID, {}
    )
    assert _broken_rule({**_GOOD, "version": True}) is EnvelopeRule.VERSION
    assert _broken_rule({**_GOOD, "version": 1.0}) is EnvelopeRule.VERSION


@requirement("SC-BRG-06")
@pytest.mark.parametrize(
    "answer_id", ["cap_bridge_other", "", 7, None, [_ID], _ID.upper(), "x" * 129]
)
def test_another_id_is_a_violation(answer_id: Any) -> None:
    assert _broken_rule({**_GOOD, "id": answer_id}) is EnvelopeRule.ID
    assert _broken_rule(_without("id")) is EnvelopeRule.ID


@requirement("SC-BRG-07")
def test_both_or_none_of_result_and_error_is_a_violation() -> None:
    assert _broken_rule({**_GOOD, **_ERROR}) is EnvelopeRule.ONE_OUTCOME
    assert _broken_rule({**_GOOD, "error": None}) is EnvelopeRule.ONE_OUTCOME
    assert _broken_rule(_without("result")) is EnvelopeRule.ONE_OUTCOME


@requirement("SC-BRG-08")
@pytest.mark.parametrize("result", [[], [_MARKER], _MARKER, 5, True, None])
def test_a_result_that_is_no_object_is_a_violation(result: Any) -> None:
    assert _broken_rule({**_GOOD, "result": result}) is EnvelopeRule.RESULT


@requirement("SC-BRG-09")
@pytest.mark.parametrize(
    "error",
    [
        _MARKER,
        None,
        [],
        {"message": _MARKER},
        {"code": "", "message": _MARKER},
        {"code": " ", "message": _MARKER},
        {"code": 5, "message": _MARKER},
        {"code": _MARKER},
        {"code": _MARKER, "message": ""},
        {"code": _MARKER, "message": " \n"},
        {"code": _MARKER, "message": "\u0000"},
        {"code": _MARKER, "message": {"text": _MARKER}},
    ],
)
def test_an_error_without_code_and_message_is_a_violation(error: Any) -> None:
    assert _broken_rule({**_ERROR, "error": error}) is EnvelopeRule.ERROR


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"  ",
        b"starting up\n" + json.dumps(_GOOD).encode(),
        json.dumps(_GOOD).encode() * 2,
        json.dumps(_GOOD).encode()[:-1],
        json.dumps(_GOOD).encode("utf-16"),
        b"\xef\xbb\xbf" + json.dumps(_GOOD).encode(),
        b'{"version":1,"id":"x","result":{"a":"\xff"}}',
        b'{"version":1,"id":"x","result":{"a":NaN}}',
        b'{"version":1,"id":"x","result":{"a":1e999}}',
        b'{"version":1,"version":1,"id":"x","result":{}}',
        b'{"version":1,"id":"x","result":{"a":1,"a":2}}',
        b'{"version":1,"id":"x","result":{"a":' + b"[" * 63 + b"]" * 63 + b"}}",
    ],
)
def test_bytes_that_are_not_one_strict_json_value_are_a_violation(data: bytes) -> None:
    assert _broken_rule(data) is EnvelopeRule.JSON


def test_the_depth_limit_is_64_and_blanks_around_the_answer_are_fine() -> None:
    nested = b"[" * 62 + b"]" * 62
    data = b' \n{"version":1,"id":"%b","result":{"a":%b}}\n\n' % (_ID.encode(), nested)
    assert isinstance(parse_answer(data, _ID), BridgeResult)


@pytest.mark.parametrize("data", [b"[]", b"null", b"17", b'"text"'])
def test_json_that_is_no_object_is_a_violation(data: bytes) -> None:
    assert _broken_rule(data) is EnvelopeRule.OBJECT


def test_an_answer_over_4_mib_is_a_violation_and_one_of_exactly_4_mib_is_not() -> None:
    frame = len(encode_result(_ID, {"t": ""}))
    data = encode_result(_ID, {"t": "x" * (ENVELOPE_LIMIT_BYTES - frame)})
    assert len(data) == ENVELOPE_LIMIT_BYTES
    assert parse_answer(data, _ID)
    assert _broken_rule(data + b" ") is EnvelopeRule.SIZE


def test_an_answer_of_more_values_than_allowed_is_not_even_decoded() -> None:
    fits = encode_result(_ID, {"t": [0 for _ in range(19_000)]})
    assert parse_answer(fits, _ID)
    assert _broken_rule(encode_result(_ID, {"t": [0 for _ in range(21_000)]})) is EnvelopeRule.SIZE


@given(st.one_of(st.binary(max_size=80), st.text().map(str.encode)))
def test_arbitrary_bytes_are_a_violation_and_nothing_else_is_raised(data: bytes) -> None:
    with pytest.raises(EnvelopeViolation):
        parse_answer(data, _ID)
    with pytest.raises(EnvelopeViolation):
        parse_request(data)


def test_without_an_expected_id_any_is_taken_for_matching_later() -> None:
    assert parse_answer(encode_result("cap_bridge_b", {}), None) == BridgeResult("cap_bridge_b", {})


@pytest.mark.parametrize(
    ("code", "passed", "original"),
    [
        ("capability_auth_flow_denied", "capability_auth_flow_denied", None),
        ("capability_" + "x" * 53, "capability_" + "x" * 53, None),
        ("capability_" + "x" * 54, "capability_backend_unavailable", "capability_" + "x" * 53),
        ("quota", "capability_backend_unavailable", "quota"),
        ("Capability_x", "capability_backend_unavailable", "Capability_x"),
        ("capability_", "capability_backend_unavailable", "capability_"),
        ("capability_x\n", "capability_backend_unavailable", "capability_x"),
    ],
)
def test_a_foreign_error_code_becomes_unavailable_and_is_kept_for_the_audit(
    code: str, passed: str, original: str | None
) -> None:
    failure = parse_answer(encode_failure(_ID, code, "m"), _ID)
    assert isinstance(failure, BridgeFailure)
    assert (failure.code, failure.original_code) == (passed, original)


@pytest.mark.parametrize(
    ("text", "safe"),
    [
        ("bridge offline", "bridge offline"),
        ("two\r\nlines\tand \u2028more ", "two lines and more"),
        ("\x1b[31mred\x00", "[31mred"),
        ("x" * 1_000_000, "x" * 300),
    ],
)
def test_an_error_message_is_one_short_line(text: str, safe: str) -> None:
    assert safe_error_message(text) == safe


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"version": 2}, EnvelopeRule.VERSION),
        ({"id": ""}, EnvelopeRule.ID),
        ({"namespace": "Gog"}, EnvelopeRule.NAMESPACE),
        ({"namespace": None}, EnvelopeRule.NAMESPACE),
        ({"method": ""}, EnvelopeRule.METHOD),
        ({"method": 1}, EnvelopeRule.METHOD),
        ({"params": []}, EnvelopeRule.PARAMS),
    ],
)
def test_a_bridge_refuses_a_malformed_request(change: dict[str, Any], rule: EnvelopeRule) -> None:
    good = json.loads(encode_request(BridgeRequest(_ID, "gog", "invoke", {})))
    with pytest.raises(EnvelopeViolation) as raised:
        parse_request(json.dumps({**good, **change}).encode())
    assert raised.value.rule is rule
