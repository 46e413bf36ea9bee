"""What reaches the log is small, valid JSON without secrets, whatever an event carries."""

from __future__ import annotations

import hashlib
import json
import math
import string

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kaged.audit import AuditEvent, Redactor
from kaged.audit.credentials import REDACTED, fold_key, is_secret_key, mask_secrets
from kaged.audit.redact import (
    CONTENT_LIMIT_CHARS,
    DEPTH_LIMIT,
    EVENT_LIMIT_CHARS,
    NODE_LIMIT,
    TEXT_LIMIT_CHARS,
)
from kaged.audit.sql import redact_sql
from kaged.base import JsonValue

UNHURRIED = settings(deadline=None)  # a busy machine is no failure


def call(params: object) -> AuditEvent:
    return AuditEvent(
        "tool.called",
        {
            "tool_name": "file.write",
            "caller": "primary",
            "session_id": None,
            "run_id": None,
            "request_id": "req_1",
            "params": params,  # pyright: ignore[reportArgumentType] - hostile on purpose
        },
    )


def kept(params: object, redactor: Redactor | None = None) -> JsonValue:
    return (redactor or Redactor()).redact(call(params))["params"]


def test_long_text_becomes_its_length_and_hash() -> None:
    text = "x" * 1_000_000
    note = kept({"content": text})
    digest = hashlib.sha256(text.encode()).hexdigest()
    assert note == {"content": f"[1000000 characters, sha256:{digest}]"}


@pytest.mark.parametrize(
    "key", ["content", "old_string", "new_string", "body", "data", "newString"]
)
def test_contents_have_a_lower_limit_than_other_text(key: str) -> None:
    just, over = "y" * CONTENT_LIMIT_CHARS, "y" * (CONTENT_LIMIT_CHARS + 1)
    assert kept({key: just}) == {key: just}
    assert "yy" not in str(kept({key: over}))
    assert kept({"path": over}) == {"path": over}


def test_other_text_is_kept_up_to_its_limit() -> None:
    just, over = "z" * TEXT_LIMIT_CHARS, "z" * (TEXT_LIMIT_CHARS + 1)
    assert kept({"path": just}) == {"path": just}
    assert "sha256:" in str(kept({"path": over}))


@pytest.mark.parametrize(
    ("given_env", "wanted"),
    [
        ({"HOME": "/root", "N": 1}, {"HOME": REDACTED, "N": REDACTED}),
        (["HOME=/root", "PLAIN"], [f"HOME={REDACTED}", f"PLAIN={REDACTED}"]),
        ("HOME=/root", REDACTED),
        (None, None),
    ],
)
def test_environments_keep_their_names_only(given_env: object, wanted: object) -> None:
    assert kept({"env": given_env}) == {"env": wanted}


@pytest.mark.parametrize(
    "key",
    [
        "password",
        "Access-Token",
        "accessToken",
        "SET-COOKIE",
        " client_secret ",
        "apiKey",
        "x-api-key",
        "github_token",
        "DB_PASSWORD",
        "Authorization",
        "private key",
        "system_config",
    ],
)
def test_values_behind_secret_keys_are_taken_out(key: str) -> None:
    assert is_secret_key(key)
    found = json.dumps(kept({"deep": [{key: "hunter2hunter2"}, {key: {"a": ["hunter2hunter2"]}}]}))
    assert "hunter2" not in found


@pytest.mark.parametrize(
    "key", ["next_page_token", "nextPageToken", "max_tokens", "token_count", "token_id", "keyboard"]
)
def test_keys_that_only_sound_like_secrets_are_kept(key: str) -> None:
    assert kept({key: "value"}) == {key: "value"}


def test_headers_given_as_pairs_or_objects_are_seen() -> None:
    found = kept(
        {
            "headers": [["Authorization", "zzz"], ["Accept", "text"]],
            "more": [{"name": "Cookie", "value": "zzz"}, {"name": "Accept", "value": "text"}],
        }
    )
    assert "zzz" not in json.dumps(found)
    assert json.dumps(found).count("text") == 2


SECRETS = [
    "Bearer abcdefghijklmnop",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhbGljZSJ9.c2lnbmF0dXJl",
    "ghp_abcdefghijklmnopqrstuvwxyz0123456789",
    "github_pat_11ABCDEFG0abcdefghijkl",
    "glpat-abcdefghijklmnopqrst",
    "sk-abcdefghijklmnopqrstuvwx",
    "xoxb-1234567890-abcdefghij",
    "AKIAIOSFODNN7EXAMPLE",
    "AIzaSyA1234567890abcdefghijklmnopqrstuvw",
    "-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIBAAKCAQEA\n-----END RSA PRIVATE KEY-----",
    "-----BEGIN PRIVATE KEY-----\nMIIEpAIBAAKCAQEA",
]


@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize("around", ["{}", "before {} after", "x={}"])
def test_text_with_the_shape_of_a_secret_is_masked(secret: str, around: str) -> None:
    found = mask_secrets(around.format(secret))
    assert REDACTED in found
    body = secret.rsplit(maxsplit=1)[-1] if " " in secret else secret
    assert body[-8:] not in found


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("export API_KEY=abc123 && run", f"export API_KEY={REDACTED} && run"),
        ("tool --api-key abc --verbose", f"tool --api-key {REDACTED} --verbose"),
        ('{"client_secret": "s3", "a": 1}', f'{{"client_secret": {REDACTED}, "a": 1}}'),
        ("curl https://bob:pw@host/x", f"curl https://{REDACTED}@host/x"),
        ("password: 'two words' rest", f"password: {REDACTED} rest"),
        ("the token was refused", "the token was refused"),
        ("see https://host/x?a=1", "see https://host/x?a=1"),
        ("a key to the door", "a key to the door"),
    ],
)
def test_assigned_secrets_are_masked_and_prose_is_not(text: str, wanted: str) -> None:
    assert Redactor().text(text) == wanted


def test_a_secret_that_the_host_knows_is_taken_out_wherever_it_stands() -> None:
    redactor = Redactor(["correct horse"])
    assert kept(["a correct horse b", {"correct horse": 1}], redactor) == [
        f"a {REDACTED} b",
        {REDACTED: 1},
    ]
    redactor.forget("correct horse")
    assert kept("a correct horse b", redactor) == "a correct horse b"


def test_learning_a_secret_reaches_texts_that_were_found_clean_before() -> None:
    redactor = Redactor()
    assert kept({"note": "hunter22"}, redactor) == {"note": "hunter22"}
    redactor.learn("hunter22")
    assert kept({"note": "hunter22"}, redactor) == {"note": REDACTED}


def test_a_cut_never_leaves_half_a_secret() -> None:
    command = "echo " + "a" * 185 + " password=" + "q" * 40
    event = AuditEvent(
        "shell.executed",
        {
            "command": command,
            "cwd": "/",
            "exit_code": 0,
            "timed_out": False,
            "duration_ms": 1,
            "caller": "primary",
        },
    )
    found = str(Redactor().redact(event)["command"])
    assert len(found) == 200
    assert "q" not in found


def test_only_the_last_fifty_lines_of_an_output_are_kept() -> None:
    event = AuditEvent(
        "plugin.crashed",
        {
            "name": "m",
            "exit_code": 1,
            "signal": None,
            "last_stderr": [f"line {n} token=abcdef" for n in range(80)],
        },
    )
    lines = Redactor().redact(event)["last_stderr"]
    assert isinstance(lines, list)
    assert lines[0] == f"line 30 token={REDACTED}"
    assert len(lines) == 50


def test_a_denied_statement_is_kept_without_its_values() -> None:
    sql = "SELECT a FROM t WHERE p = 'hunter2' AND q = 42 AND \"hunter3\" = x'00' -- hunter4"
    event = AuditEvent("plugin.storage_denied", {"name": "m", "sql": sql})
    assert Redactor().redact(event)["sql"] == "SELECT a FROM t WHERE p = ? AND q = ? AND ? = ? ?"


def test_a_short_statement_is_redacted_even_when_the_same_text_was_harmless_elsewhere() -> None:
    redactor = Redactor()
    assert kept({"note": "SELECT 'abc'"}, redactor) == {"note": "SELECT 'abc'"}
    event = AuditEvent("plugin.storage_denied", {"name": "m", "sql": "SELECT 'abc'"})
    assert redactor.redact(event)["sql"] == "SELECT ?"


@UNHURRIED
@given(st.text(alphabet="ab' \"`$;1.-/*\n", max_size=60), st.text("qwz", min_size=4, max_size=8))
def test_no_quoted_text_survives_in_sql(noise: str, secret: str) -> None:
    quoted = "'" + noise.replace("'", "''") + secret + "'"
    assert secret not in redact_sql(f"SELECT {quoted}")


def test_the_event_itself_stays_as_it_was() -> None:
    event = call({"password": "hunter22"})
    Redactor().redact(event)
    assert event.data["params"] == {"password": "hunter22"}


def deep(levels: int) -> JsonValue:
    value: JsonValue = "bottom"
    for _ in range(levels):
        value = {"a": [value]}
    return value


def cyclic() -> object:
    value: dict[str, object] = {}
    value["self"] = value
    return value


HOSTILE: list[object] = [
    deep(100_000 // 2000),
    cyclic(),
    {"n": math.nan, "i": math.inf, "m": -math.inf},
    {"big": 10**400, "edge": 2**63 - 1, "over": 2**63},
    "\ud800 lone \udfff",
    {"\ud800": "\udfff"},
    {1: "number", None: "none", (1, 2): "tuple"},
    b"\xff\xfe",
    {"set": {1, 2}, "object": object(), "bytes": bytearray(b"x")},
    ["x" * 900] * 10_000,
    {f"key{n}": n for n in range(100_000)},
    {"k" * 100_000: 1},
    [[[[]]]] * 50_000,
    "\x00\x1b[31m\u202e",
]


@pytest.mark.parametrize("params", HOSTILE, ids=range(len(HOSTILE)))
def test_a_hostile_payload_becomes_small_valid_json(params: object) -> None:
    text = Redactor().encode(call(params))
    text.encode("utf-8")
    json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert len(text) <= 6 * (EVENT_LIMIT_CHARS + 64 * NODE_LIMIT)


def test_depth_is_bounded() -> None:
    text = Redactor().encode(call(deep(40)))
    assert "[too deep]" in text
    assert text.count("{") <= DEPTH_LIMIT


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=50)
    | st.text(alphabet=st.characters(min_codepoint=0xD7F0, max_codepoint=0xE010), max_size=5)
    | st.sampled_from(SECRETS),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.text(max_size=12) | st.sampled_from(["password", "env"]), inner, max_size=4
        )
    ),
    max_leaves=20,
)


@UNHURRIED
@given(values)
@example({"env": {"A": {"B": 1}}})
def test_anything_becomes_json_without_the_secrets_in_it(params: object) -> None:
    text = Redactor().encode(call(params))
    assert set(json.loads(text)) == set(call(params).data)
    for secret in SECRETS:
        assert secret.splitlines()[0][-12:] not in text or "BEGIN" in secret
    assert "MIIEpAIBAAKCAQEA" not in text


@UNHURRIED
@given(values)
def test_a_redactor_with_memory_says_the_same_as_a_fresh_one(params: object) -> None:
    redactor = Redactor()
    first = redactor.encode(call(params))
    assert redactor.encode(call(params)) == first == Redactor().encode(call(params))


@UNHURRIED
@given(st.text(string.ascii_letters + "_- .", min_size=1, max_size=20))
def test_folding_a_key_twice_changes_nothing(key: str) -> None:
    assert fold_key(fold_key(key)) == fold_key(key)


def test_ids_of_the_host_are_kept_and_only_where_the_host_writes_them() -> None:
    made = "req_01KAKIA0123456789ABCDEFGHJ"
    event = AuditEvent("tool.called", {**call({"request_id": "AKIA0123456789ABCDEF"}).data,
                                       "request_id": made})  # fmt: skip
    redactor = Redactor([made])  # not even a secret that is spelt like an id takes it away
    kept = redactor.redact(event)
    assert kept["request_id"] == made
    assert redactor.short(made) == made
    assert "AKIA" not in str(kept["params"])
    assert made not in str(redactor.redact(call({"text": made})))
    odd = AuditEvent("tool.called", {**event.data, "request_id": "req_ AKIA0123456789ABCDEF==="})
    assert "AKIA" not in str(redactor.redact(odd))
