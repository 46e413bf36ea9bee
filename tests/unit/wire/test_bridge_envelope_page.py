"""The page about the bridge envelope names every field of the code's types, and no other."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from kaged.wire import bridge_methods as wire
from kaged.wire.envelope import (
    BridgeMethod,
    BridgeRequest,
    EnvelopeRule,
    encode_failure,
    encode_request,
    encode_result,
)
from kaged.wire.strictjson import decode_json

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "bridge-envelope.md"
NAMES_ON_THE_WIRE = {
    "poll_interval_s": "poll_interval_seconds",
    "retry_after_s": "retry_after_seconds",
    "entries": "definitions",
}
ROW = re.compile(r"\| `(\w+)`(?:, `(\w+)`)? \|")


def tables() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    heading = ""
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            heading = line.lstrip("# ")
        elif (row := ROW.match(line)) is not None:
            found.setdefault(heading, []).extend(one for one in row.groups() if one)
    return found


def fields(record: type) -> list[str]:
    assert dataclasses.is_dataclass(record)
    return [NAMES_ON_THE_WIRE.get(one.name, one.name) for one in dataclasses.fields(record)]


def members(data: bytes) -> list[str]:
    found = decode_json(data, max_depth=8)
    assert isinstance(found, dict)
    return list(found)


REQUEST = BridgeRequest("cap_bridge_0", "post", BridgeMethod.INVOKE, {})
FAILURE = encode_failure("i", "capability_x", "m")
EXPECTED: dict[str, list[str]] = {
    "Request": members(encode_request(REQUEST)),
    "Answer": [*members(encode_result("i", {})), "error"],
    "definitions: result": fields(wire.Definitions),
    "definitions: capability": fields(wire.DefinitionEntry),
    "definitions: operation": fields(wire.OperationEntry),
    "auth_begin: params": list(wire.auth_begin_params("c", None, "t")),
    "auth_begin: result": fields(wire.AuthBegun),
    "auth_begin: field": fields(wire.FieldEntry),
    "auth_complete: params": list(
        wire.auth_complete_params(
            "c", flow_state={}, authorization_code=None, raw_callback_url=None, state=None,
            account_hint=None, context_token="t",
        )
    ),
    "auth_complete: result": fields(wire.AccountLinked),
    "auth_poll: params": list(wire.auth_poll_params("c", {}, "t")),
    "auth_poll: result": ["status", *fields(wire.AuthPending)],
    "auth_submit: params": list(
        wire.auth_submit_params(
            "c", flow_state={}, values={}, account_hint=None, context_token="t"
        )
    ),
    "invoke: params": list(
        wire.invoke_params(
            "c", "o", input_data={}, account_ref=None, idempotency_key=None, context_token="t",
            credentials={},
        )
    ),
    "invoke: result": ["output"],
    "auth_revoke: params": list(wire.auth_revoke_params("c", "a", "t", {})),
}  # fmt: skip


@pytest.mark.parametrize("heading", EXPECTED)
def test_the_page_lists_the_fields_that_the_code_has(heading: str) -> None:
    assert tables()[heading] == EXPECTED[heading]


def test_the_page_has_every_method_every_rule_and_nothing_else() -> None:
    found = tables()
    headings = set(re.findall(r"^## (\w+)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE))
    assert headings >= {one.value for one in BridgeMethod}
    assert headings - {one.value for one in BridgeMethod} == {"Request", "Answer", "Processes"}
    in_answers = set(EnvelopeRule) - {
        EnvelopeRule.NAMESPACE, EnvelopeRule.METHOD, EnvelopeRule.PARAMS
    }  # fmt: skip
    error = found.pop("error")
    assert error[:2] == list(members_of_error())
    assert set(error[2:]) == {one.value for one in in_answers}
    assert set(found) == set(EXPECTED)


def members_of_error() -> list[str]:
    found = decode_json(FAILURE, max_depth=8)
    assert isinstance(found, dict)
    error = found["error"]
    assert isinstance(error, dict)
    return list(error)
