"""The leak corpus: credentials wherever a provider could put them, and texts that are fine."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from structlog.testing import capture_logs

from fakes.service_lab import FakeProvider, ServiceLab, definition, operations
from kaged.services.contract import (
    AuthCompleteCall,
    CapabilityAuthCompleteResult,
    CapabilityOperation,
    InvokeCall,
)
from kaged.services.errors import CapabilityBackendUnavailable, CapabilityError
from kaged.services.sanitize import OutputRefused, harden
from requirements import requirement

SECRET = "rt-9f8e7d6c5b4a3928-QWERTY/zxcv+8=="
PASSWORD = "correct horse battery"
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9P"
PEM = "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBgkqhkiG9w0BAQEFAASC\n-----END PRIVATE KEY-----"


@dataclass
class Row:
    """What a provider in Python might return."""

    access_token: str
    name: str = "x"


def _deep(value: Any, depth: int) -> Any:
    for _ in range(depth):
        value = {"x": [value]}
    return value


# By key: the value does not matter.
KEYS: list[Any] = [
    {key: "v"}
    for key in (
        "access_token",
        "accessToken",
        "Access-Token",
        " ACCESS_TOKEN ",
        "AccessToken",
        "accesstoken",
        "refresh_token",
        "refreshToken",
        "id_token",
        "idToken",
        "client_secret",
        "clientSecret",
        "cookie",
        "Cookies",
        "SET-COOKIE",
        "setCookie",
        "Authorization",
        "proxy-authorization",
        "www-authenticate",
        "api_key",
        "apiKey",
        "X-Api-Key",
        "secret",
        "private key",
        "password",
        "passwd",
        "bearer",
        "session_token",
        "csrf_token",
        "device_code",
        "code_verifier",
        "credentials",
        "vault_ref",
        "client_assertion",
    )
]
PLACES: list[Any] = [
    {"outer": {"inner": {"access_token": "v"}}},
    {"items": [{"a": 1}, {"refresh_token": None}]},
    {"list": [[{"x": [{"cookie": {}}]}]]},
    _deep({"client_secret": "v"}, 12),
    {"headers": [["Authorization", "Bearer abc def"]]},
    {"headers": [["Set-Cookie", "sid=0123456789"]]},
    {"headers": [{"name": "authorization", "value": "Basic Zm9vOmJhcg=="}]},
    {"headers": [{"key": "Cookie", "value": "sid=abcdef0123"}]},
    {"token": "q9w8e7r6t5y4u3i2o1p0aQWE"},
    {"user_token": "q9w8e7r6t5y4u3i2o1p0aQWE"},
    {"row": Row("x")},
    {"rows": (Row("x"),)},
    {"tuple": ({"password": "x"},)},
    {"raw": b"bytes"},
    {"set": {b"x"}},
]
# By value: the host knows this credential of the user.
KNOWN: list[Any] = [
    {"note": SECRET},
    {"note": f"before {SECRET} after"},
    {"notes": ["a", {"b": f"x{SECRET}"}]},
    {SECRET: 1},
    {"x": {f"prefix-{SECRET}": None}},
    {"b64": base64.b64encode(SECRET.encode()).decode()},
    {"b64": base64.urlsafe_b64encode(SECRET.encode()).decode()},
    {"hex": SECRET.encode().hex()},
    {"url": f"https://h/?x={quote(SECRET, safe='')}"},
    {"mail": f"your password is {PASSWORD}"},
    {"deep": _deep(SECRET, 10)},
]
# By shape: masked, or refused in strict mode.
SHAPES: list[Any] = [
    {"t": "Bearer abcdefghijklmnop0123"},
    {"t": "Basic dXNlcjpwYXNzd29yZDEyMw=="},
    {"t": f"see {JWT}"},
    {"t": PEM},
    {"t": "ghp_0123456789abcdef0123456789abcdef0123"},
    {"t": "github_pat_0123456789abcdefghij"},
    {"t": "glpat-0123456789abcdefghij"},
    {"t": "sk-0123456789abcdefghijklmnop"},
    {"t": "xoxb-0123456789-abcdef"},
    {"t": "AKIAIOSFODNN7EXAMPLE"},
    {"t": "AIzaSyA-0123456789abcdefghijklmnopqrstu"},
    {"t": "ya29.a0AfH6SMBx0123456789abc"},
    {"t": "https://user:hunter2secret@host.example/"},
    {"deep": [{"x": ["Bearer abcdefghijklmnop0123"]}]},
    {"Bearer abcdefghijklmnop0123": 1},
]
BENIGN: list[Any] = [
    {"messages": []},
    {"next_page_token": "CAoQq9w8e7r6t5y4u3i2o1p0aQWE"},
    {"nextPageToken": "CAoQq9w8e7r6t5y4u3i2o1p0aQWE"},
    {"sync_token": "q9w8e7r6t5y4u3i2o1p0aQWE"},
    {"text": "this mentions access_token in words"},
    {"subject": "Re: the cookie recipe", "tags": ["cookie", "bread"]},
    {"token": "short"},
    {"token_count": 12, "tokens": 5},
    {"author": "Basic Instinct", "title": "Bearers of bad news"},
    {"id": "18c2f0a9d3b4e5f6", "thread_id": "0b1c2d3e4f5061728394"},
    {"link": "https://calendar.example/event?eid=NmU0ZjE2"},
    {"from": "alice@example.org", "to": ["bob@example.org"]},
    {"etag": '"3316182910"', "when": "2026-01-01T10:00:00+01:00"},
    {"subject": "Password: see the note", "text": "token = 5, Cookie: none"},
    {"secretary": "Carol", "passenger": "Dave", "keyboard": "de"},
    {"password_required": True, "has_password": False},
    {"key": "value", "name": "authorization", "value": "granted"},
    {"list": ["authorization", "granted"]},
    {"number": 1.5, "none": None, "flag": True, "empty": {}},
    {"unicode": "Grüße 🎉", "account": "acct_work"},
]


def test_the_corpus_is_large_enough() -> None:
    assert len(KEYS) + len(PLACES) + len(KNOWN) + len(SHAPES) >= 60


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[ServiceLab]:
    found = ServiceLab(tmp_path)
    await found.open()
    free = CapabilityOperation(
        "read",
        "Read.",
        output_schema={
            "type": "object",
            "properties": {"body": {"type": "string", "x-free-text": True}},
        },
    )
    found.provider = FakeProvider("gog", definition(operations=operations(free)))

    async def complete(call: AuthCompleteCall) -> CapabilityAuthCompleteResult:
        await call.credentials.put(
            {"refresh_token": SECRET, "password": PASSWORD, "username": "alice@example.org"}
        )
        return CapabilityAuthCompleteResult("acct_work")

    found.provider.on_complete = complete
    await found.register()
    await found.link()
    yield found
    await found.close()


async def _give(lab: ServiceLab, value: Any, operation: str = "whoami") -> Any:
    async def give(call: InvokeCall) -> Any:
        return value

    lab.provider.on_invoke = give
    return await lab.invoke(operation)


@requirement("SC-AMB-22", "SC-RPC-11")
async def test_credentials_never_leave_by_key_place_or_value(lab: ServiceLab) -> None:
    for leak in (*KEYS, *PLACES, *KNOWN):
        with pytest.raises(CapabilityError) as refused:
            await _give(lab, leak)
        assert refused.value.code == "capability_invalid_output", leak
        for text in (SECRET, PASSWORD):
            assert text not in str(refused.value)
    records = json.dumps(await lab.seen())
    for text in (SECRET, PASSWORD, "hunter2"):
        assert text not in records


async def test_shapes_are_masked_and_on_record(lab: ServiceLab) -> None:
    for leak in SHAPES:
        before = json.dumps(leak)
        answer = await _give(lab, leak)
        text = json.dumps(answer["output"])
        assert "[redacted]" in text, leak
        assert text != before
    rejected = await lab.seen("capability_output_rejected")
    assert len(rejected) == len(SHAPES)
    assert all(one["masked"] is True for one in rejected)
    for marker in ("abcdefghijklmnop0123", "AKIAIOSFODNN7", "hunter2", "MIIEvQ"):
        assert marker not in json.dumps(rejected)


async def test_strict_mode_refuses_shapes(tmp_path: Path) -> None:
    lab = ServiceLab(tmp_path)
    await lab.open(strict_output=True)
    await lab.register()
    for leak in SHAPES:
        with pytest.raises(CapabilityError) as refused:
            await _give(lab, leak, "ping")
        assert refused.value.code == "capability_invalid_output", leak
    await lab.close()


async def test_what_is_fine_passes_unchanged(lab: ServiceLab) -> None:
    for value in BENIGN:
        assert (await _give(lab, value))["output"] == value


async def test_free_text_is_left_alone_but_known_secrets_are_not(lab: ServiceLab) -> None:
    body = "Your one-time link: https://u:p@h.example/ and Bearer abcdefghijklmnop0123"
    assert (await _give(lab, {"body": body}, "read"))["output"] == {"body": body}
    masked = (await _give(lab, {"subject": body}, "read"))["output"]["subject"]
    assert "abcdefghijklmnop0123" not in masked
    with pytest.raises(CapabilityError):
        await _give(lab, {"body": f"and {SECRET}"}, "read")


async def test_errors_logs_and_tracebacks_hold_no_secret(lab: ServiceLab) -> None:
    texts = [
        f"upstream said {SECRET}",
        f"Authorization: Bearer {SECRET}",
        f"password={PASSWORD}",
        f"Traceback (most recent call last):\n  File x\nValueError: {SECRET}",
        f"GET https://h/?refresh_token={SECRET} failed",
        f'{{"refresh_token": "{SECRET}"}}',
    ]
    kinds: list[Any] = [RuntimeError, CapabilityBackendUnavailable, OSError, ValueError]
    with capture_logs() as logs:
        for text in texts:
            for kind in kinds:

                async def fail(call: InvokeCall, kind: Any = kind, text: str = text) -> Any:
                    raise kind(text)

                lab.provider.on_invoke = fail
                with pytest.raises(CapabilityError) as failed:
                    await lab.invoke("whoami")
                shown = f"{failed.value} {failed.value.data} {failed.value.__cause__}"
                assert SECRET not in shown
                assert PASSWORD not in shown
                assert "\n" not in failed.value.message
                assert failed.value.__cause__ is None
    for text in (SECRET, PASSWORD):
        assert text not in json.dumps(logs, default=str)
        assert text not in json.dumps(await lab.seen())


def test_outputs_have_limits() -> None:
    for value in (
        {"x": "y" * (1024 * 1024)},
        _deep("x", 20),
        {"x": float("nan")},
        {"x": float("inf")},
        {1: "x"},
        {"x": object()},
        ["not an object"],
        "text",
        None,
    ):
        with pytest.raises(OutputRefused):
            harden(value)


def test_a_large_output_is_checked_in_one_pass() -> None:
    rows = [{"id": f"m{n}", "subject": f"Subject {n}", "unread": n % 2 == 0} for n in range(1800)]
    found = harden({"messages": rows})
    assert 80_000 < found.size_bytes < 120_000
    assert found.masked == ()
