"""Every error answer has the one shape, and says no more than it may."""

from __future__ import annotations

from kaged.base import KagedError
from kaged.serve.http.errors import (
    InvalidHttpRequest,
    error_body,
    error_response,
    invalid_request,
)


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

    answer = error_response(KagedError("Who are you?", code="unauthenticated"), None)
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
