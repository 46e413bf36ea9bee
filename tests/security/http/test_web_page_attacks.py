"""A web page in the operator's browser tries to use the daemon."""

from __future__ import annotations

import httpx
import pytest

from fakes.running_daemon import WAIT_S, InProcess, require_error_shape


def _client(daemon: InProcess) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=daemon.url, trust_env=False, timeout=WAIT_S)


async def test_a_rebound_name_reaches_nothing_not_even_health(
    served: InProcess, token: str
) -> None:
    async with _client(served) as page:
        for path in ("/healthz", "/api/v1/status", "/api/v1/auth/launch?token=x", "/nowhere"):
            answer = await page.get(
                path,
                headers={
                    "host": f"evil.example:{served.port}", "authorization": f"Bearer {token}"
                },
            )  # fmt: skip
            assert answer.status_code == 421
            require_error_shape(answer.json(), "host_not_allowed")


async def test_a_form_of_another_site_changes_nothing(served: InProcess) -> None:
    """What a page can send without asking first: a POST with a cookie and a simple body."""
    cookie = served.daemon.services.credentials.cookies.open()
    async with _client(served) as page:
        for headers in (
            {"origin": "http://evil.example"},
            {"origin": "null"},
            {"origin": f"http://127.0.0.1:{served.port + 1}"},
            {"sec-fetch-site": "cross-site"},
            {"sec-fetch-site": "same-site"},
            {},
        ):
            answer = await page.post(
                "/api/v1/projects",
                content=b'{"root": "/"}',
                headers={"content-type": "text/plain", "cookie": f"kaged_session={cookie}",
                         **headers},
            )  # fmt: skip
            assert answer.status_code == 403, headers
            require_error_shape(answer.json(), "origin_not_allowed")


async def test_a_preflight_of_another_site_is_never_allowed(served: InProcess) -> None:
    async with _client(served) as page:
        answer = await page.options(
            "/api/v1/projects",
            headers={
                "origin": "http://evil.example",
                "access-control-request-method": "POST",
                "access-control-request-headers": "authorization",
            },
        )
    assert answer.status_code == 403
    assert not [name for name in answer.headers if name.startswith("access-control-")]


async def test_an_image_of_another_site_reads_nothing_with_the_cookie(served: InProcess) -> None:
    cookie = served.daemon.services.credentials.cookies.open()
    async with _client(served) as page:
        answer = await page.get(
            "/api/v1/audit",
            headers={"cookie": f"kaged_session={cookie}", "sec-fetch-site": "cross-site"},
        )
    assert answer.status_code == 403


async def test_no_answer_can_be_framed_sniffed_cached_or_read_across_origins(
    served: InProcess, token: str
) -> None:
    async with _client(served) as page:
        headers = (
            await page.get("/api/v1/status", headers={"authorization": f"Bearer {token}"})
        ).headers
    assert headers["x-frame-options"] == "DENY"
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert headers["cross-origin-resource-policy"] == "same-origin"
    assert headers["referrer-policy"] == "no-referrer"


@pytest.mark.parametrize("scheme", ["http", "https", "ws"])
async def test_an_absolute_target_does_not_stand_in_for_the_host(
    served: InProcess, scheme: str
) -> None:
    """`GET http://127.0.0.1/…` with a foreign Host: the header counts, as the router has it."""
    import asyncio

    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    writer.write(
        f"GET {scheme}://127.0.0.1:{served.port}/healthz HTTP/1.1\r\n"
        "host: evil.example\r\nconnection: close\r\n\r\n".encode()
    )
    async with asyncio.timeout(20):
        answer = await reader.read()
    writer.close()
    assert answer.startswith((b"HTTP/1.1 421", b"HTTP/1.1 400"))
