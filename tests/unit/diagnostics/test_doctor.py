"""Doctor without a daemon: every state of the files is a row with a fix, never an exception."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kaged.base.checks import CheckRow, CheckStatus
from kaged.config import Locations
from kaged.config.settings import Settings
from kaged.config.token_file import TokenFile, token_file
from kaged.diagnostics.doctor import examine, worst

OK, WARN, FAIL = CheckStatus.OK, CheckStatus.WARN, CheckStatus.FAIL


async def _rows(home: Path, config: str | None = None) -> dict[str, CheckRow]:
    if config is not None:
        home.mkdir(mode=0o700, exist_ok=True)
        (home / "config.toml").write_text(config, encoding="utf-8")
        (home / "config.toml").chmod(0o600)
    places = Locations.from_env({"KAGED_HOME": str(home)})
    return {row.id: row for row in await examine(places, {})}


async def test_on_a_fresh_machine_nothing_fails_and_nothing_is_made(tmp_path: Path) -> None:
    rows = await _rows(tmp_path / "none")
    assert worst([row for row in rows.values() if row.id != "user"]) is OK
    assert not (tmp_path / "none").exists()


async def test_every_row_that_is_not_ok_says_what_to_do(tmp_path: Path) -> None:
    home = tmp_path / "h"
    home.mkdir(mode=0o777)
    home.chmod(0o777)
    rows = await _rows(home, '[auth]\nmode = "insecure"\n')
    for row in rows.values():
        assert row.what
        assert row.cause
        assert bool(row.fix) or row.status is OK, row
    assert rows["home"].status is FAIL
    assert "chmod 700" in rows["home"].fix
    assert rows["access"].status is WARN


async def test_a_broken_config_is_one_row_and_the_rest_is_still_looked_at(tmp_path: Path) -> None:
    rows = await _rows(tmp_path / "h", "[daemon\n")
    assert rows["config"].status is FAIL
    assert "config.toml" in rows["config"].cause
    assert rows["home"].status is OK


async def test_a_misspelt_key_is_a_warning_with_the_right_name(tmp_path: Path) -> None:
    rows = await _rows(tmp_path / "h", '[daemon]\nbnd = "off"\n')
    assert rows["config"].status is WARN
    assert "bind" in rows["config"].cause


async def test_a_home_that_others_can_look_into_is_a_warning(tmp_path: Path) -> None:
    home = tmp_path / "h"
    home.mkdir(mode=0o755)
    home.chmod(0o755)
    assert (await _rows(home))["home"].status is WARN


async def test_a_token_that_others_can_read_fails(tmp_path: Path) -> None:
    home = tmp_path / "h"
    home.mkdir(mode=0o700)
    path = token_file(Locations.from_env({"KAGED_HOME": str(home)}))
    TokenFile.open(path, os.getuid())
    assert (await _rows(home))["token"].status is OK
    path.chmod(0o644)
    row = (await _rows(home))["token"]
    assert row.status is FAIL
    assert "chmod 600" in row.fix


async def test_a_file_in_place_of_the_socket_fails(tmp_path: Path) -> None:
    home = tmp_path / "h"
    (home / "run").mkdir(parents=True, mode=0o700)
    (home / "run" / "kaged.sock").touch()
    assert (await _rows(home))["socket"].status is FAIL


async def test_a_database_that_is_none_fails_and_is_left_alone(tmp_path: Path) -> None:
    home = tmp_path / "h"
    home.mkdir(mode=0o700)
    (home / "kaged.db").write_bytes(b"not a database" * 1000)
    row = (await _rows(home))["store"]
    assert row.status is FAIL
    assert row.fix
    assert (home / "kaged.db").read_bytes() == b"not a database" * 1000


@pytest.mark.parametrize(
    ("config", "status"),
    [
        ('[daemon]\nbind = "off"\n', OK),
        ('[daemon]\nbind = "127.0.0.1:1"\n', OK),
        ('[daemon]\nbind = "0.0.0.0:1"\n', WARN),
        ('[auth]\nmode = "insecure"\n', WARN),
    ],
)
async def test_the_listener_is_judged_by_who_can_reach_it(
    tmp_path: Path, config: str, status: CheckStatus
) -> None:
    assert (await _rows(tmp_path / "h", config))["access"].status is status


async def test_a_probe_that_breaks_is_a_finding_and_not_the_end(tmp_path: Path) -> None:
    async def broken(_settings: Settings) -> list[CheckRow]:
        raise RuntimeError("boom")

    places = Locations.from_env({"KAGED_HOME": str(tmp_path)})
    rows = await examine(places, {}, probe=broken)
    assert (rows[-1].id, rows[-1].status) == ("probe", FAIL)
    assert "boom" in rows[-1].cause
