from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kaged.base.jsonvalue import JsonValue
from kaged.wire import fastjson, strictjson
from kaged.wire.framing import Unsendable
from kaged.wire.messages import (
    Invalid,
    Noise,
    NoiseReason,
    Notification,
    Request,
    Response,
)
from kaged.wire.strictjson import MAX_DEPTH, NotJson, is_deeper

Decode = Callable[[bytes], JsonValue]
_ENGINES = pytest.mark.parametrize("engine", [strictjson, fastjson], ids=["strict", "fast"])

_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
_fragments = st.sampled_from(
    [
        b"{", b"}", b"[", b"]", b":", b",", b'"', b"\\", b"\\u", b"\\ud800", b"\\udc00", b"\\uD83D",
        b"1", b"-", b"0", b".", b"e", b"E+", b"1e999", b"-0", b"NaN", b"Infinity", b"true", b"null",
        b'"jsonrpc":"2.0"', b'"id":1', b'"id":null', b'"method":"a.b"', b'"params":{}',
        b'"result":', b'"error":', b" ", b"\t", b"\r", b"\n", b"\x00", b"\xef\xbb\xbf", b"\xff",
        "ä€𝄞".encode(), b"\xed\xa0\x80", b'"\\n"', b"9" * 30, b"/", b"'",
    ]
)  # fmt: skip
_junk = st.one_of(
    st.binary(max_size=60),
    st.lists(_fragments | st.binary(max_size=3), max_size=14).map(b"".join),
)


@st.composite
def _broken_documents(draw: st.DrawFn) -> bytes:
    """Valid JSON with a few bytes changed, dropped or put in."""
    data = bytearray(json.dumps(draw(_values), ensure_ascii=draw(st.booleans())).encode())
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(data)))
        data[at : at + draw(st.integers(0, 2))] = draw(_fragments | st.binary(max_size=2))
    return bytes(data)


def _verdict(decode: Decode, data: bytes) -> tuple[bool, str]:
    try:
        # Text tells 1 from 1.0 and True, and -0.0 from 0.0.
        return True, repr(decode(data))
    except NotJson:
        return False, ""


@given(st.one_of(_junk, _broken_documents()))
@example(b'"\\ud800\\u0041"')
@example(b'"\\ud83d\\ude00\\ud83d"')
@example(b"9" * 4301)
@example(b"-" + b"9" * 4300)
@example(b"1e308")
@example(b"1e309")
@example(b"-1.8e308")
def test_host_and_guest_agree_about_every_line(data: bytes) -> None:
    assert _verdict(strictjson.decode_json, data) == _verdict(fastjson.decode_json, data)


@given(st.one_of(_junk, _broken_documents()))
def test_decoding_a_message_never_raises(data: bytes) -> None:
    fast = fastjson.decode_message(data)
    strict = strictjson.decode_message(data)
    assert type(fast) is type(strict)
    if not isinstance(fast, Noise):
        assert fast == strict


@given(_values)
def test_what_is_encoded_is_one_line_and_decodes_to_the_same(value: JsonValue) -> None:
    for engine in (strictjson, fastjson):
        data = engine.encode_json(value)
        assert b"\n" not in data
        assert b"\r" not in data
        assert fastjson.decode_json(data) == strictjson.decode_json(data) == value


@_ENGINES
@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"", NoiseReason.SYNTAX),
        (b"  \r", NoiseReason.SYNTAX),
        (b"hello", NoiseReason.SYNTAX),
        (b"{} {}", NoiseReason.SYNTAX),
        (b"{'a':1}", NoiseReason.SYNTAX),
        (b"[1,]", NoiseReason.SYNTAX),
        (b'"a\x01b"', NoiseReason.SYNTAX),
        (b'{"a":1', NoiseReason.SYNTAX),
        (b'"\xff"', NoiseReason.ENCODING),
        (b'"\xed\xa0\x80"', NoiseReason.ENCODING),
        (b"[1e999]", NoiseReason.NUMBER),
        (b"9" * 5000, NoiseReason.NUMBER),
        (b"[" * 300 + b"]" * 300, NoiseReason.DEPTH),
        (b"[" * 100_000 + b"]" * 100_000, NoiseReason.DEPTH),
    ],
)
def test_a_line_that_is_not_json_is_noise(engine: Any, line: bytes, reason: NoiseReason) -> None:
    assert engine.decode_message(line) == Noise(line, reason)


@_ENGINES
@pytest.mark.parametrize(
    "line",
    [
        b"NaN",
        b"[Infinity]",
        b'{"jsonrpc":"2.0","id":1,"result":-Infinity}',
        b'\xef\xbb\xbf{"jsonrpc":"2.0","id":1,"result":1}',
        '{"jsonrpc":"2.0","id":1,"result":1}'.encode("utf-16"),
        '{"jsonrpc":"2.0","id":1,"result":1}'.encode("utf-32"),
        b'{"jsonrpc":"2.0","id":1,"result":"\\ud800"}',
        b'{"jsonrpc":"2.0","id":1,"result":"\\uDfff and more"}',
        b'{"jsonrpc":"2.0","id":1,"extra":"\xff","result":1}',
        b'{"jsonrpc":"2.0","id":1,"extra":1e999,"result":1}',
    ],
)
def test_what_some_decoders_take_is_noise_here(engine: Any, line: bytes) -> None:
    assert isinstance(engine.decode_message(line), Noise)


def test_a_byte_order_mark_and_half_a_pair_are_faults_of_encoding_to_a_guest() -> None:
    for line in (b"\xef\xbb\xbf{}", b'"\\ud800"', b'["\\uDC00"]'):
        noise = strictjson.decode_message(line)
        assert isinstance(noise, Noise)
        assert noise.reason is NoiseReason.ENCODING


@_ENGINES
def test_a_carriage_return_before_the_line_feed_is_white_space(engine: Any) -> None:
    line = b'{"jsonrpc":"2.0","id":7,"result":"\\ud83d\\ude00"}\r'
    assert engine.decode_message(line) == Response(7, "😀")


@_ENGINES
def test_of_a_key_given_twice_the_last_counts(engine: Any) -> None:
    assert engine.decode_message(b'{"jsonrpc":"2.0","id":1,"id":2,"method":"a.b"}') == Request(
        2, "a.b"
    )


def test_keys_must_be_unique_where_that_is_asked_for() -> None:
    assert strictjson.decode_json(b'{"a":{"b":1},"b":2}', unique_keys=True) == {
        "a": {"b": 1},
        "b": 2,
    }
    with pytest.raises(NotJson) as raised:
        strictjson.decode_json(b'{"x":{"a":1,"a":1}}', unique_keys=True)
    assert raised.value.reason is NoiseReason.DUPLICATE_KEY


def _deep(depth: int, width: int = 0) -> bytes:
    """Nest arrays and objects in turn, with text full of brackets, and siblings beside them."""
    siblings = b",".join([b'{"k":["]}\\\\","\\"[{"]}'] * width)
    inner = b"1"
    for level in range(depth - 1):
        inner = b"[" + inner + b"]" if level % 2 else b'{"a[\\"":' + inner + b"}"
    return b"[" + inner + (b"," + siblings if siblings else b"") + b"]"


@_ENGINES
@pytest.mark.parametrize("width", [0, 3, 2000])
def test_the_depth_limit_is_exact_for_slim_and_wide_values(engine: Any, width: int) -> None:
    assert engine.decode_json(_deep(MAX_DEPTH, width))
    with pytest.raises(NotJson) as raised:
        engine.decode_json(_deep(MAX_DEPTH + 1, width))
    assert raised.value.reason is NoiseReason.DEPTH


@given(_values, st.integers(0, 6))
def test_both_ways_of_measuring_depth_agree(value: JsonValue, limit: int) -> None:
    def height(item: JsonValue) -> int:
        if isinstance(item, dict):
            return 1 + max((height(member) for member in item.values()), default=0)
        if isinstance(item, list):
            return 1 + max((height(member) for member in item), default=0)
        return 0

    data = json.dumps(value).encode()
    assert strictjson._bracket_depth(data) == height(value)
    assert strictjson._walked_depth(value) in (height(value), None)
    assert is_deeper(value, data, limit) == (height(value) > limit)


@pytest.mark.parametrize(
    ("data", "depth"),
    [
        (rb'["\\",[[["a"]]]]', 4),  # the text ends in a backslash
        (rb'["\"",[[["a"]]]]', 4),  # the text is a quote
        (rb'["\\\"]]",[["["]]]', 3),
        (rb'["\\\\","[[[[",{"k[\"":[]}]', 3),
        (rb'"[[["', 0),
    ],
)
def test_brackets_and_quotes_inside_of_text_do_not_count(data: bytes, depth: int) -> None:
    assert strictjson._bracket_depth(data) == depth


def test_flat_values_of_any_size_are_not_deep() -> None:
    assert strictjson.decode_json(b"[" + b"1," * 5000 + b"1]") == [1] * 5001
    assert strictjson.decode_json(b'"' + b"[" * 5000 + b'"') == "[" * 5000


def test_a_process_with_a_lower_limit_on_digits_calls_a_long_integer_noise() -> None:
    before = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(640)
    try:
        assert strictjson.decode_message(b"9" * 700) == Noise(b"9" * 700, NoiseReason.NUMBER)
    finally:
        sys.set_int_max_str_digits(before)


@_ENGINES
@pytest.mark.parametrize(
    "value",
    [
        float("nan"),
        [float("inf")],
        {"a": None, "b": [-float("inf")]},
        "\ud800",
        {"\udfff": 1},
        object(),
        {None: 1, "x": object()},
        {("a",): 1},
    ],
)
def test_what_json_has_no_form_for_is_not_sent(engine: Any, value: Any) -> None:
    with pytest.raises(Unsendable) as raised:
        engine.encode_json(value)
    assert raised.value.code == "invalid_params"


@_ENGINES
def test_a_value_that_contains_itself_is_not_sent(engine: Any) -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(Unsendable):
        engine.encode_json(loop)


def test_bytes_are_refused_by_the_guest_engine_and_never_raw_from_the_host() -> None:
    raw: Any = {"blob": b"\x00\xff"}
    with pytest.raises(Unsendable):
        strictjson.encode_json(raw)
    assert fastjson.encode_json(raw) == b'{"blob":"AP8="}'


def test_ascii_only_output_is_ascii() -> None:
    assert strictjson.encode_json("ä\u2028", ascii_only=True) == b'"\\u00e4\\u2028"'


@_ENGINES
def test_messages_survive_the_journey(engine: Any) -> None:
    for message in (
        Request(1, "a.b", {"text": "line\nbreak\r\u2028"}),
        Notification("c.d", [None, 1.5]),
        Response("x", {"ok": True}),
        Response(None, None),
    ):
        line = engine.encode_message(message)
        assert b"\n" not in line
        assert engine.decode_message(line) == message


@_ENGINES
def test_json_that_is_no_message_is_invalid_and_not_noise(engine: Any) -> None:
    assert isinstance(engine.decode_message(b"17"), Invalid)


@pytest.mark.parametrize("ascii_only", [False, True])
def test_an_interpreter_without_the_fast_encoder_writes_the_same(
    monkeypatch: pytest.MonkeyPatch, *, ascii_only: bool
) -> None:
    value: JsonValue = {"a": [1, 2.5, None, True, "ä\n"], "b": {}}
    fast = strictjson.encode_json(value, ascii_only=ascii_only)
    monkeypatch.setattr("json.encoder.c_make_encoder", None)
    slow = strictjson._encoder(ascii_only=ascii_only)
    monkeypatch.setattr(strictjson, "_ASCII" if ascii_only else "_TEXT", slow)
    assert strictjson.encode_json(value, ascii_only=ascii_only) == fast
    with pytest.raises(Unsendable):
        strictjson.encode_json(float("nan"), ascii_only=ascii_only)
