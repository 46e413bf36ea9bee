from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kaged.wire.errors import ErrorCode, MethodNotFound, RpcError
from kaged.wire.messages import (
    Batch,
    ErrorObject,
    Invalid,
    InvalidReason,
    Noise,
    Notification,
    Request,
    Response,
    classify,
    failure,
    rejection,
    to_wire,
)
from requirements import requirement

_V = {"jsonrpc": "2.0"}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({**_V, "id": 1, "method": "a.b"}, Request(1, "a.b")),
        ({**_V, "id": 0, "method": "a.b", "params": {}}, Request(0, "a.b", {})),
        ({**_V, "id": -7, "method": "a.b", "params": [1]}, Request(-7, "a.b", [1])),
        ({**_V, "id": 10**30, "method": "a.b"}, Request(10**30, "a.b")),
        ({**_V, "id": "", "method": ""}, Request("", "")),
        ({**_V, "id": "a", "method": "a.b", "params": None}, Request("a", "a.b")),
        ({**_V, "method": "a.b", "extra": 1}, Notification("a.b")),
        ({**_V, "method": "a.b", "params": {"x": 1}}, Notification("a.b", {"x": 1})),
        ({**_V, "id": 1, "result": None}, Response(1)),
        ({**_V, "id": 1, "result": False}, Response(1, result=False)),
        ({**_V, "id": "s", "result": [1]}, Response("s", [1])),
        ({**_V, "id": 0, "result": 1}, Response(0, 1)),
        ({**_V, "id": None, "result": 1}, Response(None, 1)),
        ({**_V, "id": 1}, Response(1, empty=True)),
        ({**_V, "id": 1, "params": {}}, Response(1, empty=True)),
        ({**_V, "id": None}, Response(None, empty=True)),
        (
            {**_V, "id": 3, "error": {"code": -32005, "message": "busy", "data": [1]}},
            Response(3, error=ErrorObject(-32005, "busy", [1])),
        ),
        (
            {**_V, "id": None, "error": {"code": 1, "message": "", "data": None, "x": 1}},
            Response(None, error=ErrorObject(1, "")),
        ),
    ],
)
def test_a_message_is_told_by_its_members(value: Any, message: object) -> None:
    assert classify(value) == message


_OK = {"code": 1, "message": "m"}


@requirement("PH-WIRE-14", "PH-AMB-32")
@pytest.mark.parametrize(
    ("value", "reason", "reply_id", "open_id"),
    [
        (17, InvalidReason.NOT_OBJECT, None, None),
        ("text", InvalidReason.NOT_OBJECT, None, None),
        (None, InvalidReason.NOT_OBJECT, None, None),
        (True, InvalidReason.NOT_OBJECT, None, None),
        ({}, InvalidReason.VERSION, None, None),
        ({"id": 4, "method": "a.b"}, InvalidReason.VERSION, 4, None),
        ({"jsonrpc": 2.0, "id": 4, "method": "a.b"}, InvalidReason.VERSION, 4, None),
        ({"jsonrpc": "1.0", "method": "a.b"}, InvalidReason.VERSION, None, None),
        ({"id": 4, "result": 1}, InvalidReason.VERSION, None, 4),
        ({**_V, "id": 4, "method": 5}, InvalidReason.METHOD, 4, None),
        ({**_V, "method": None}, InvalidReason.METHOD, None, None),
        ({**_V, "id": "q", "method": "a.b", "params": "text"}, InvalidReason.PARAMS, "q", None),
        ({**_V, "method": "a.b", "params": False}, InvalidReason.PARAMS, None, None),
        ({**_V, "id": None, "method": "a.b"}, InvalidReason.ID, None, None),
        ({**_V, "id": True, "method": "a.b"}, InvalidReason.ID, None, None),
        ({**_V, "id": 1.0, "method": "a.b"}, InvalidReason.ID, None, None),
        ({**_V, "id": 1.5, "method": "a.b"}, InvalidReason.ID, None, None),
        ({**_V, "id": [1], "method": "a.b"}, InvalidReason.ID, None, None),
        ({**_V, "id": True, "result": 1}, InvalidReason.ID, None, None),
        ({**_V, "id": 1.0, "result": 1}, InvalidReason.ID, None, None),
        ({**_V, "id": {}, "error": _OK}, InvalidReason.ID, None, None),
        (_V, InvalidReason.NO_ID, None, None),
        ({**_V, "result": 1}, InvalidReason.NO_ID, None, None),
        ({**_V, "error": _OK}, InvalidReason.NO_ID, None, None),
        ({**_V, "id": 4, "method": "a.b", "result": 1}, InvalidReason.MIXED, None, 4),
        ({**_V, "id": 4, "method": "a.b", "error": _OK}, InvalidReason.MIXED, None, 4),
        ({**_V, "id": 4, "result": 1, "error": _OK}, InvalidReason.BOTH, None, 4),
        ({**_V, "id": 4, "result": None, "error": None}, InvalidReason.BOTH, None, 4),
        ({**_V, "id": 4, "result": None, "error": _OK}, InvalidReason.BOTH, None, 4),
        ({**_V, "id": 4, "error": None}, InvalidReason.ERROR, None, 4),
        ({**_V, "id": 4, "error": "text"}, InvalidReason.ERROR, None, 4),
        ({**_V, "id": 4, "error": {}}, InvalidReason.ERROR, None, 4),
        ({**_V, "id": 4, "error": {"code": "1", "message": "m"}}, InvalidReason.ERROR, None, 4),
        ({**_V, "id": 4, "error": {"code": 1.0, "message": "m"}}, InvalidReason.ERROR, None, 4),
        ({**_V, "id": 4, "error": {"code": True, "message": "m"}}, InvalidReason.ERROR, None, 4),
        ({**_V, "id": 4, "error": {"code": 1}}, InvalidReason.ERROR, None, 4),
        ({**_V, "id": 4, "error": {"code": 1, "message": 5}}, InvalidReason.ERROR, None, 4),
    ],
)
def test_a_malformed_message_is_named_with_the_id_that_is_safe_to_use(
    value: Any, reason: InvalidReason, reply_id: object, open_id: object
) -> None:
    message = classify(value)
    assert isinstance(message, Invalid)
    assert (message.reason, message.reply_id, message.open_id) == (reason, reply_id, open_id)


@pytest.mark.parametrize("value", [[], [1], [{**_V, "id": 1, "method": "a.b"}] * 3])
def test_an_array_is_a_batch_and_its_elements_are_not_looked_at(value: Any) -> None:
    assert classify(value) == Batch(len(value))


def test_a_request_never_equals_a_notification_of_the_same_content() -> None:
    assert Request("a.b", "a.b") != Notification("a.b")


_params = st.none() | st.dictionaries(st.text(), st.integers()) | st.lists(st.integers())
_ids = st.integers() | st.text()


@given(
    st.one_of(
        st.builds(Request, _ids, st.text(), _params),
        st.builds(Notification, st.text(), _params),
        st.builds(Response, _ids | st.none(), st.integers() | st.none()),
        st.builds(
            Response,
            _ids | st.none(),
            error=st.builds(ErrorObject, st.integers(), st.text(), st.none() | st.booleans()),
        ),
    )
)
def test_every_message_we_send_has_the_json_rpc_shape(message: Any) -> None:
    wire = to_wire(message)
    assert wire["jsonrpc"] == "2.0"
    assert classify(wire) == message
    if isinstance(message, Response):
        assert ("result" in wire) != ("error" in wire)
    else:
        assert ("id" in wire) == isinstance(message, Request)


def test_an_error_code_is_written_as_a_plain_number() -> None:
    wire = to_wire(failure(1, ErrorCode.RESOURCE_BUSY, "busy"))
    assert wire == {**_V, "id": 1, "error": {"code": -32005, "message": "busy"}}
    assert type(wire["error"]["code"]) is int  # pyright: ignore[reportArgumentType, reportCallIssue, reportIndexIssue, reportOptionalSubscript] - shape asserted above


def test_refusals_carry_the_right_number_and_id() -> None:
    batch = rejection(Batch(2))
    assert batch is not None
    assert batch.error is not None
    assert (batch.id, batch.error.code) == (None, -32600)

    request = rejection(Invalid(InvalidReason.PARAMS, 9))
    assert request is not None
    assert request.error is not None
    assert (request.id, request.error.code) == (9, -32600)

    answer = rejection(Invalid(InvalidReason.BOTH, 9, is_answer=True))
    assert answer is not None
    assert answer.id is None


def test_noise_is_answered_by_a_guest_only() -> None:
    noise = Noise(b"hello")
    assert rejection(noise) is None
    answer = rejection(noise, answer_noise=True)
    assert answer is not None
    assert answer.error is not None
    assert (answer.id, answer.error.code) == (None, -32700)


def test_two_sides_that_refuse_each_other_do_not_loop() -> None:
    """A refusal is itself a well-formed answer with an id that opens nothing."""
    for refused in (Batch(1), Invalid(InvalidReason.BOTH, 3, is_answer=True), Noise(b"x")):
        answer = rejection(refused, answer_noise=True)
        assert answer is not None
        assert isinstance(classify(to_wire(answer)), Response)


def test_an_error_answer_becomes_the_exception_of_its_number() -> None:
    error = ErrorObject(-32601, "no such method", {"method": "x.y"}).to_exception()
    assert isinstance(error, MethodNotFound)
    assert (error.number, error.message, error.detail) == (
        -32601,
        "no such method",
        {"method": "x.y"},
    )
    assert type(ErrorObject(-32050, "mine").to_exception()) is RpcError


@pytest.mark.parametrize(
    ("line", "excerpt"),
    [
        (b"hello\r", "hello"),
        (b"x" * 1000, "x" * 200),
        ("𝄞".encode() * 300, "𝄞" * 200),
        (b"a\xffb", "a\\xffb"),
        (b"\xff" * 1000, "\\xff" * 50),
    ],
)
def test_an_excerpt_of_noise_is_text_of_at_most_200_characters(line: bytes, excerpt: str) -> None:
    assert Noise(line).excerpt() == excerpt
    assert len(Noise(line).excerpt(7)) <= 7
