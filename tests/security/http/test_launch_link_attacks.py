"""Somebody gets hold of a launch link, a cookie or a token that is no longer good."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx

from fakes.running_daemon import ANY_PORT, WAIT_S, InProcess, daemon_in_process
from kaged.base import ManualClock
from kaged.serve.http.connection import PeerConnection

TCP = PeerConnection("tcp", address="127.0.0.1")


async def _link(daemon: InProcess) -> str:
    url: str = (await daemon.client.post("/api/v1/auth/launch")).json()["url"]
    return url.removeprefix(daemon.url)


async def test_two_who_use_one_link_at_the_same_moment_do_not_both_get_in(
    served: InProcess,
) -> None:
    path = await _link(served)
    async with httpx.AsyncClient(base_url=served.url, trust_env=False, timeout=WAIT_S) as anyone:
        answers = await asyncio.gather(*(anyone.get(path) for _ in range(10)))
    assert sorted(answer.status_code for answer in answers) == [303, *[403] * 9]
    assert sum("set-cookie" in answer.headers for answer in answers) == 1


async def test_an_old_link_and_an_old_cookie_open_nothing(tmp_path: Path) -> None:
    clock = ManualClock()
    async with daemon_in_process(tmp_path / "h", clock=clock) as daemon:
        fresh, old = await _link(daemon), await _link(daemon)
        async with daemon.over(TCP) as browser:
            await browser.get(fresh)
            assert (await browser.get("/api/v1/status")).status_code == 200
            clock.advance(61)
            assert (await browser.get(old)).status_code == 403
            clock.advance(12 * 3600)
            assert (await browser.get("/api/v1/status")).status_code == 401


async def test_a_cookie_does_not_outlive_the_daemon_that_gave_it(tmp_path: Path) -> None:
    async with daemon_in_process(tmp_path / "h") as first, first.over(TCP) as browser:
        await browser.get(await _link(first))
        cookie = browser.cookies["kaged_session"]
    async with daemon_in_process(tmp_path / "h") as second, second.over(TCP) as browser:
        answer = await browser.get("/api/v1/status", headers={"cookie": f"kaged_session={cookie}"})
    assert answer.status_code == 401


async def test_a_cookie_of_the_attackers_choice_is_never_taken_over(served: InProcess) -> None:
    """Session fixation: the cookie planted before the launch is not the one after it."""
    path = await _link(served)
    planted = "kaged_session=planted-by-the-attacker"
    async with httpx.AsyncClient(base_url=served.url, trust_env=False, timeout=WAIT_S) as browser:
        answer = await browser.get(path, headers={"cookie": planted})
        assert "planted" not in answer.headers["set-cookie"]
        after = await browser.get("/api/v1/status", headers={"cookie": planted})
    assert after.status_code == 401


async def test_a_link_cannot_be_made_without_being_let_in_first(served: InProcess) -> None:
    async with httpx.AsyncClient(base_url=served.url, trust_env=False, timeout=WAIT_S) as stranger:
        assert (await stranger.post("/api/v1/auth/launch")).status_code == 401


async def test_after_a_reload_insecure_mode_does_not_open_a_wide_bound_daemon(
    tmp_path: Path,
) -> None:
    """Bound to all addresses in secure mode, then the files turn to loopback and insecure.

    The socket is still the wide one, so nobody may come in without a key.
    """
    from kaged.config.settings import read_settings

    wide = '[daemon]\nbind = "0.0.0.0:0"\n'
    async with daemon_in_process(tmp_path / "h", config=wide) as daemon:
        (tmp_path / "h" / "config.toml").write_text(
            f'{ANY_PORT}[auth]\nmode = "insecure"\n', encoding="utf-8"
        )
        state = daemon.daemon.state
        state.settings = read_settings(daemon.places, {})
        async with daemon.over(PeerConnection("tcp", address="203.0.113.9")) as stranger:
            assert (await stranger.get("/api/v1/status")).status_code == 401
        status = (await daemon.client.get("/api/v1/status")).json()
        assert status["auth_mode"] == "secure"
        assert "auth.mode was changed and needs a restart" in status["warnings"]


async def test_secrets_of_the_listener_are_in_no_log_line(tmp_path: Path, capsys: object) -> None:
    import os
    import re

    import pytest

    from fakes.running_daemon import start_daemon
    from kaged.config.token_file import read_token

    assert isinstance(capsys, pytest.CaptureFixture)
    daemon = start_daemon(tmp_path / "h", config=f'{ANY_PORT}[logging]\nlevel = "debug"\n')
    try:
        token = read_token(tmp_path / "h" / "http-token", os.getuid())
        with daemon.client() as client:
            url = client.post("/auth/launch").json()["url"]
        with httpx.Client(trust_env=False, timeout=WAIT_S) as browser:
            cookie = browser.get(url).cookies["kaged_session"]
            browser.get(
                f"{daemon.said['url']}/api/v1/status", headers={"authorization": f"Bearer {token}"}
            )
            browser.get(f"{daemon.said['url']}/api/v1/status?token={token}")
    finally:
        assert daemon.stop() == 0
    log = daemon.log()
    assert "request.answered" in log
    for secret in (token, cookie, re.sub(".*token=", "", url)):
        assert secret not in log
