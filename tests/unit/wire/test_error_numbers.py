from __future__ import annotations

import pytest

from kaged.base.errors import KagedError
from kaged.wire.errors import (
    ErrorCode,
    NumberClass,
    PluginError,
    ReservedNumber,
    ResourceBusy,
    RpcError,
    error_class,
    is_reserved,
    number_class,
    number_of,
    number_of_error,
    rpc_error,
    service_error_data,
    service_error_message,
)
from requirements import requirement

_NAMES = {
    "parse_error": -32700,
    "invalid_request": -32600,
    "method_not_found": -32601,
    "invalid_params": -32602,
    "internal_error": -32603,
    "plugin_error": -32000,
    "capability_denied": -32001,
    "not_initialized": -32002,
    "storage_access_denied": -32003,
    "config_invalid": -32004,
    "resource_busy": -32005,
    "not_applicable": -32006,
}

_TOOL_CODES_TEXT = """
    tool_not_found invalid_params internal_error capability_denied seccomp_insufficient
    principal_scope_violation file_not_found file_exists file_not_read file_changed_since_read
    file_busy old_string_not_found multiple_matches no_change invalid_pattern lsp_server_not_found
    lsp_server_unavailable lsp_timeout rename_scope_exceeds_cage rename_not_possible
    dap_requires_relaxed_seccomp dap_session_ended dap_adapter_not_found issue_not_found
    invalid_transition no_bound_issue todo_not_found content_addressing_hint session_not_found
    workflow_not_found run_not_found file_input_not_supported invalid_assignment shell_spawn_failed
    tool_name_collision parse_error dap_session_active dap_not_stopped dap_unsupported
    interaction_pending plugin_unavailable
"""
_TOOL_CODES = _TOOL_CODES_TEXT.split()


@requirement("PH-ERR-15")
def test_the_twelve_constants_have_their_exact_names_and_numbers() -> None:
    assert {code.wire_name: int(code) for code in ErrorCode} == _NAMES


@requirement("AT-DISP-08", "AT-AMB-35")
def test_every_tool_code_has_the_number_of_the_rule() -> None:
    special = {
        "tool_not_found": -32601,
        "invalid_params": -32602,
        "internal_error": -32603,
        "capability_denied": -32001,
        "seccomp_insufficient": -32001,
        "dap_requires_relaxed_seccomp": -32001,
        "principal_scope_violation": -32001,
    }
    assert {code: int(number_of(code)) for code in _TOOL_CODES} == {
        code: special.get(code, -32000) for code in _TOOL_CODES
    }
    assert number_of("a_code_of_tomorrow") == -32000


@pytest.mark.parametrize("name", sorted(_NAMES.keys() - {"parse_error"}))
def test_a_wire_name_used_as_a_code_keeps_its_number(name: str) -> None:
    assert number_of(name) == _NAMES[name]


def test_service_codes_travel_as_internal_errors_and_bad_tokens_as_bad_params() -> None:
    assert number_of("capability_access_denied") == -32603
    assert number_of("capability_not_found") == -32603
    assert number_of("invalid_context_token") == -32602
    assert number_of(KagedError.code) == -32603


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (-32700, NumberClass.STANDARD),
        (-32600, NumberClass.STANDARD),
        (-32603, NumberClass.STANDARD),
        (-32000, NumberClass.KAGED),
        (-32006, NumberClass.KAGED),
        (-32007, NumberClass.PLUGIN),
        (-32050, NumberClass.PLUGIN),
        (-32099, NumberClass.PLUGIN),
        (-32100, NumberClass.RESERVED),
        (-32500, NumberClass.RESERVED),
        (-32604, NumberClass.RESERVED),
        (-32701, NumberClass.RESERVED),
        (-(10**9), NumberClass.RESERVED),
        (-31999, NumberClass.APPLICATION),
        (0, NumberClass.APPLICATION),
        (404, NumberClass.APPLICATION),
    ],
)
def test_a_number_tells_who_gave_it_its_meaning(number: int, expected: NumberClass) -> None:
    assert number_class(number) is expected
    assert is_reserved(number) == (expected is NumberClass.RESERVED)


def test_each_constant_has_a_class_and_the_class_has_its_number() -> None:
    classes = {error_class(code) for code in ErrorCode}
    assert len(classes) == 12
    for code in ErrorCode:
        error = rpc_error(code, "m", {"x": 1})
        assert type(error) is error_class(code)
        assert (error.number, error.message, error.detail) == (code, "m", {"x": 1})
        assert number_of_error(error_class(code)("m")) == code


def test_other_numbers_pass_unchanged() -> None:
    for number in (-32050, -32500, 7):
        error = rpc_error(number, "m")
        assert type(error) is RpcError
        assert number_of_error(error) == number
        assert error.reserved == (number == -32500)


def test_only_busy_is_worth_a_retry() -> None:
    assert ResourceBusy("later").retryable
    assert [code for code in ErrorCode if rpc_error(code, "m").retryable] == [
        ErrorCode.RESOURCE_BUSY
    ]


def test_a_plugin_may_not_raise_a_reserved_number() -> None:
    assert PluginError("m").number == -32000
    assert PluginError("m", number=-32099, detail=[1]).detail == [1]
    with pytest.raises(ReservedNumber) as raised:
        PluginError("m", number=-32100)
    assert raised.value.data == {"number": -32100}


def test_an_error_without_a_number_is_numbered_by_its_code() -> None:
    class Denied(KagedError):
        code = "capability_denied"

    assert number_of_error(Denied("no")) == -32001


def test_a_service_error_carries_its_code_in_front_and_in_data() -> None:
    assert service_error_message("capability_not_found", "no such") == (
        "capability_not_found: no such"
    )
    assert service_error_data("capability_not_found", retryable=False) == {
        "code": "capability_not_found",
        "retryable": False,
    }
    assert service_error_data(
        "capability_rate_limited", retryable=True, request_id="cap_1", retry_after_s=2.5
    ) == {
        "code": "capability_rate_limited",
        "retryable": True,
        "request_id": "cap_1",
        "retry_after_seconds": 2.5,
    }
