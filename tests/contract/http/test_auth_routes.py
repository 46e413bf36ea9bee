"""Launch links, browser sessions and the bearer token, as a browser and a program see them."""

from __future__ import annotations

import os
from http.cookies import SimpleCookie
from pathlib import Path

import httpx
import pytest

from fakes.running_daemon import ANY_PORT, WAIT_S, InProcess, daemon_in_process, require_error_shape
from kaged.config.token_file import read_token, token_file
from kaged.serve.http.connection import PeerConnection

TCP = PeerConnection("tcp", address="127.0.0.1")
OPERATOR = {"operator_id": "operator", "operator": True, "roles": [], "teams": [], "leads": []}


async def _launch(daemon: InProcess) -> str:
    answer = await daemon.client.post("/api/v1/auth/launch")
    assert answer.status_code == 200
    url: str = answer.json()["url"]
    assert url.startswith(f"{daemon.url}/api/v1/auth/launch?token=")
    return url.removeprefix(daemon.url)


async def test_a_launch_link_opens_a_browser_session(inside: InProcess) -> None:
    path = await _launch(inside)
    async with inside.over(TCP) as browser:
        answer = await browser.get(path)
        assert answer.status_code == 303
        assert answer.headers["location"] == "/"
        cookie = SimpleCookie(answer.headers["set-cookie"])["kaged_session"]
        assert cookie["httponly"]
        assert cookie["samesite"] == "strict"
        assert cookie["path"] == "/"
        assert int(cookie["max-age"]) > 0
        me = (await browser.get("/api/v1/auth/whoami")).json()
        assert me == {**OPERATOR, "via": "cookie"}
        assert (await browser.get("/")).json()["name"] == "kaged"


async def test_a_launch_link_works_once(inside: InProcess) -> None:
    path = await _launch(inside)
    async with inside.over(TCP) as first, inside.over(TCP) as second:
        assert (await first.get(path)).status_code == 303
        again = await second.get(path)
        assert again.status_code == 403
        require_error_shape(again.json(), "launch_token_invalid")
        assert "set-cookie" not in again.headers
        assert (await second.get("/api/v1/status")).status_code == 401


async def test_signing_out_ends_this_session_and_no_other(inside: InProcess) -> None:
    async with inside.over(TCP) as one, inside.over(TCP) as other:
        for browser in (one, other):
            await browser.get(await _launch(inside))
        cookie = one.cookies["kaged_session"]
        origin = {"origin": "http://127.0.0.1"}
        assert (await one.delete("/api/v1/auth/session", headers=origin)).status_code == 204
        assert (
            await one.get("/api/v1/status", headers={"cookie": f"kaged_session={cookie}"})
        ).status_code == 401
        assert (await other.get("/api/v1/status")).status_code == 200


async def test_a_program_comes_in_with_the_token_from_its_file(inside: InProcess) -> None:
    token = read_token(token_file(inside.places), os.getuid())
    async with inside.over(TCP) as program:
        me = await program.get("/api/v1/auth/whoami", headers={"authorization": f"Bearer {token}"})
    assert me.json() == {**OPERATOR, "via": "bearer"}


async def test_a_new_token_ends_the_old_one_and_every_session(inside: InProcess) -> None:
    old = read_token(token_file(inside.places), os.getuid())
    async with inside.over(TCP) as browser, inside.over(TCP) as program:
        await browser.get(await _launch(inside))
        answer = await inside.client.post("/api/v1/auth/token/rotate")
        assert answer.json() == {"token_file": str(token_file(inside.places))}
        new = read_token(token_file(inside.places), os.getuid())
        assert new not in answer.text
        assert (await browser.get("/api/v1/status")).status_code == 401
        for token, status in ((old, 401), (new, 200)):
            found = await program.get(
                "/api/v1/status", headers={"authorization": f"Bearer {token}"}
            )
            assert found.status_code == status


async def test_every_way_in_is_on_record_without_the_secret(inside: InProcess) -> None:
    path = await _launch(inside)
    async with inside.over(TCP) as browser:
        await browser.get(path)
        cookie = browser.cookies["kaged_session"]
    await inside.client.post("/api/v1/auth/token/rotate")
    page = (await inside.client.get("/api/v1/audit?event=access.token_issued")).json()
    kinds = [row["data"]["kind"] for row in page["items"]]
    assert kinds == ["bearer", "browser_session", "launch_url"]
    text = str(page)
    assert cookie not in text
    assert path.partition("token=")[2] not in text
    assert read_token(token_file(inside.places), os.getuid()) not in text


async def test_without_tcp_there_is_no_launch_link(tmp_path: Path) -> None:
    async with daemon_in_process(tmp_path / "h", config='[daemon]\nbind = "off"\n') as daemon:
        answer = await daemon.client.post("/api/v1/auth/launch")
        assert answer.status_code == 409
        require_error_shape(answer.json(), "tcp_disabled")
        assert (await daemon.client.get("/api/v1/status")).json()["url"] is None


async def test_insecure_mode_asks_nobody_and_says_so(tmp_path: Path) -> None:
    config = f'{ANY_PORT}[auth]\nmode = "insecure"\n'
    async with daemon_in_process(tmp_path / "h", config=config) as daemon:
        async with daemon.over(TCP) as anyone:
            me = (await anyone.get("/api/v1/auth/whoami")).json()
            status = (await anyone.get("/api/v1/status")).json()
        assert me == {**OPERATOR, "operator_id": None, "via": "insecure"}
        assert status["auth_mode"] == "insecure"
        assert any("insecure" in warning for warning in status["warnings"])


@pytest.mark.parametrize(
    ("peer", "expected"), [("10.1.1.1", "grace"), ("127.0.0.1", "ada"), ("11.1.1.1", "ada")]
)
async def test_only_a_proxy_that_the_config_names_says_who_the_user_is(
    tmp_path: Path, peer: str, expected: str
) -> None:
    config = f'{ANY_PORT}[auth]\noperator = "ada"\ntrusted_proxies = ["10.0.0.0/8"]\n'
    async with daemon_in_process(tmp_path / "h", config=config) as daemon:
        token = read_token(token_file(daemon.places), os.getuid())
        headers = {"authorization": f"Bearer {token}", "x-kaged-user-id": "grace"}
        async with daemon.over(PeerConnection("tcp", address=peer)) as proxy:
            me = (await proxy.get("/api/v1/auth/whoami", headers=headers)).json()
    assert me["operator_id"] == expected


async def test_configured_hosts_and_origins_are_answered(tmp_path: Path) -> None:
    config = (
        f'{ANY_PORT}[auth]\nallowed_hosts = ["desk.example"]\n'
        'allowed_origins = ["https://desk.example"]\n'
    )
    async with daemon_in_process(tmp_path / "h", config=config) as daemon:
        token = read_token(token_file(daemon.places), os.getuid())
        headers = {
            "authorization": f"Bearer {token}",
            "host": "desk.example",
            "origin": "https://desk.example",
        }
        async with daemon.over(TCP) as page:
            assert (await page.get("/api/v1/status", headers=headers)).status_code == 200
            headers["host"] = "other.example"
            assert (await page.get("/api/v1/status", headers=headers)).status_code == 421


async def test_health_is_open_and_tells_nothing(served: InProcess) -> None:
    async with httpx.AsyncClient(base_url=served.url, trust_env=False, timeout=WAIT_S) as stranger:
        answer = await stranger.get("/healthz")
        assert (answer.status_code, answer.json()) == (200, {"status": "ok"})
        assert (await stranger.get("/metrics")).status_code == 401
        assert (await stranger.get("/api/v1/openapi.json")).status_code == 401
