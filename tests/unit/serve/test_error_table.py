"""Every error of ours has its place in the table of HTTP statuses."""

from __future__ import annotations

import importlib
import pkgutil

import kaged
from kaged.base import KagedError
from kaged.serve.http.errors import (
    InvalidHttpRequest,
    error_body,
    error_response,
    invalid_request,
)
from kaged.serve.http.statuses import HTTP_STATUS, status_of


def _all_errors() -> set[type[KagedError]]:
    for module in pkgutil.walk_packages(kaged.__path__, "kaged."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    found: set[type[KagedError]] = set()
    waiting = [KagedError]
    while waiting:
        kind = waiting.pop()
        if kind.__module__.startswith("kaged.") and kind not in found:
            found.add(kind)
            waiting += kind.__subclasses__()
    return found


def test_every_error_code_has_an_http_status() -> None:
    missing = {
        f"{kind.code} ({kind.__module__}.{kind.__qualname__})"
        for kind in _all_errors()
        if kind.code not in HTTP_STATUS
    }
    assert not missing, f"add these to serve.http.statuses: {sorted(missing)}"


def test_no_row_is_left_over_for_a_code_that_nobody_has() -> None:
    # Some are answers of the edge itself and have no class.
    of_the_edge = {"method_not_allowed", "headers_too_large", "too_many_connections"}
    assert set(HTTP_STATUS) - {kind.code for kind in _all_errors()} - of_the_edge == set()


def test_statuses_are_those_of_errors() -> None:
    assert {code for code, status in HTTP_STATUS.items() if not 400 <= status <= 599} == set()


def test_a_code_nobody_entered_is_a_500() -> None:
    assert status_of("made_up") == 500


def test_the_shape_holds_code_message_data_fix_and_request_id() -> None:
    error = InvalidHttpRequest("No.", fix="Do that.", field="x")
    assert error_body(error, "req_1") == {
        "error": {
            "code": "invalid_request",
            "message": "No.",
            "data": {"field": "x", "fix": "Do that."},
            "request_id": "req_1",
        }
    }


def test_a_refused_credential_says_how_to_send_one() -> None:
    from kaged.serve.http.access import Unauthenticated

    answer = error_response(Unauthenticated("Who are you?"), None)
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"


def test_what_a_caller_sent_is_not_sent_back() -> None:
    error = invalid_request(
        [{"loc": ("body", "root"), "msg": "Field required", "input": "hunter2", "ctx": {"x": 1}}]
    )
    assert "hunter2" not in str(error_body(error, None))
    assert error.data["problems"] == [{"where": "body.root", "message": "Field required"}]


def test_the_list_of_problems_is_bounded() -> None:
    error = invalid_request({"loc": (i,), "msg": "x" * 9999} for i in range(1000))
    assert len(str(error_body(error, None))) < 20_000
