"""Where a value comes from: asked once, kept for a while, refused when it could break a header."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kaged.base import ManualClock
from kaged.config.credentials_section import OAuthClient
from kaged.config.locations import Locations
from kaged.config.settings import Settings
from kaged.credentials.secret_keeper import KeeperLocked
from kaged.credentials.value_sources import CredentialProgramFailed, CredentialValues
from kaged.kernel.bindings import NoValue, NoValueReason, SecretValue
from unit.config.trials import OperatorFiles

HOSTS = 'hosts = ["a.example"]\n'
OAUTH = (
    f"[credentials.x]\n{HOSTS}[credentials.x.oauth]\n"
    'token_url = "https://a.example/t"\nclient_id = "k"\nclient_secret = "of-client"\n'
)


class Keeper:
    """A vault with what a test puts into it."""

    def __init__(self) -> None:
        self.held: dict[str, str] = {}
        self.locked = False

    async def get(self, name: str) -> str | None:
        if self.locked:
            raise KeeperLocked("it does not open", fix="put the key back")
        return self.held.get(name)

    async def put(self, name: str, value: str) -> None:
        self.held[name] = value

    async def delete(self, name: str) -> bool:
        return self.held.pop(name, None) is not None

    async def access_token(
        self, name: str, client: OAuthClient, secret: str | None
    ) -> tuple[str, str] | None:
        assert client.client_id == "k"
        refresh = self.held.get(name)
        return None if refresh is None else (f"access for {secret}", refresh)


class Desk:
    """Values of settings that a test writes; programs print what it says."""

    def __init__(self, files: OperatorFiles) -> None:
        self._files = files
        self.keeper, self.clock = Keeper(), ManualClock()
        self.ran: list[tuple[str, ...]] = []
        self.prints = "printed\n"
        self.settings: Settings
        self.values = CredentialValues(lambda: self.settings, self.keeper, self._run, self.clock)

    def write(self, config: str, local: str = "") -> None:
        places = Locations.from_env({"KAGED_HOME": "/nowhere"})
        self.settings = Settings(places, self._files.config(config), self._files.local(local))

    async def _run(self, name: str, command: tuple[str, ...], seconds: float) -> str:
        assert (name, seconds) == ("x", 10.0)
        self.ran.append(command)
        await asyncio.sleep(0)  # others may ask meanwhile
        if not self.prints:
            raise CredentialProgramFailed("it failed")
        return self.prints


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    """Return values over files of an operator."""
    return Desk(OperatorFiles(tmp_path))


async def reason(desk: Desk, name: str = "x") -> NoValueReason:
    found = await desk.values.value_of(name)
    assert isinstance(found, NoValue), found
    assert found.detail
    return found.reason


async def test_the_private_file_counts_unless_the_vault_is_named(desk: Desk) -> None:
    local = '[credentials.x]\nvalue = "written"\n'
    desk.write(f"[credentials.x]\n{HOSTS}", local)
    assert await desk.values.value_of("x") == SecretValue("written")
    desk.write(f"[credentials.x]\n{HOSTS}vault = true\n", local)
    assert await reason(desk) is NoValueReason.MISSING
    desk.keeper.held["x"] = "sealed"
    assert await desk.values.value_of("x") == SecretValue("sealed")
    desk.keeper.locked = True
    assert await reason(desk) is NoValueReason.LOCKED


async def test_nothing_is_found_under_a_name_that_is_not_configured(desk: Desk) -> None:
    desk.write("", '[credentials.x]\nvalue = "left over"\n')
    desk.keeper.held["x"] = "left over"
    assert await reason(desk) is NoValueReason.MISSING
    desk.write("[credentials.x]\nhosts = ['*']\n")
    assert await reason(desk) is NoValueReason.FAILED


async def test_a_program_runs_once_for_many_and_again_when_its_time_is_over(desk: Desk) -> None:
    desk.write(f'[credentials.x]\n{HOSTS}command = ["p", "1"]\ncache_seconds = 60\n')
    found = await asyncio.gather(*(desk.values.value_of("x") for _ in range(20)))
    assert found == [SecretValue("printed")] * 20
    assert len(desk.ran) == 1
    desk.clock.advance(59)
    await desk.values.value_of("x")
    assert len(desk.ran) == 1
    desk.clock.advance(1)
    desk.prints = "renewed\n"
    assert await desk.values.value_of("x") == SecretValue("renewed")
    desk.write(f'[credentials.x]\n{HOSTS}command = ["p", "2"]\n')
    await desk.values.value_of("x")
    assert desk.ran == [("p", "1"), ("p", "1"), ("p", "2")]  # another program is asked at once
    desk.values.forget("x")
    desk.prints = ""
    assert await reason(desk) is NoValueReason.FAILED
    desk.prints = "\n"
    assert await reason(desk) is NoValueReason.FAILED


@pytest.mark.parametrize("value", ["two\nlines", "a\r\nX-Other: b", "nul\0", "\x7f", "x" * 70_000])
async def test_what_could_break_a_header_is_no_value(desk: Desk, value: str) -> None:
    desk.write(f"[credentials.x]\n{HOSTS}")
    desk.keeper.held["x"] = value
    assert await reason(desk) is NoValueReason.FAILED


async def test_a_token_comes_with_everything_that_is_as_secret(desk: Desk) -> None:
    desk.write(OAUTH)
    assert await reason(desk) is NoValueReason.MISSING  # the client's secret
    desk.write(OAUTH, '[secrets]\nof-client = "s3cret"\n')
    assert await reason(desk) is NoValueReason.MISSING  # the refresh token
    desk.keeper.held["x"] = "refresh"
    assert await desk.values.value_of("x") == SecretValue(
        "access for s3cret", ("refresh", "s3cret")
    )
