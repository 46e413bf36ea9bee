"""What holds after a reload: rules, restarts, warnings."""

from __future__ import annotations

from pathlib import Path

import pytest

from kaged.base import ManualClock
from kaged.config import ConfigFileInvalid, Locations
from kaged.config.coresections import AuthMode
from kaged.config.settings import Settings, read_settings
from kaged.config.token_file import token_file
from kaged.diagnostics.daemon_state import DaemonState, needs_restart
from kaged.serve.http.access import access_rules


def _settings(home: Path, config: str) -> Settings:
    home.mkdir(mode=0o700, exist_ok=True)
    (home / "config.toml").write_text(config, encoding="utf-8")
    (home / "config.toml").chmod(0o600)
    return read_settings(Locations.from_env({"KAGED_HOME": str(home)}), {})


def _state(home: Path, config: str, clock: ManualClock) -> DaemonState:
    return DaemonState(_settings(home, config), clock, None)


def test_without_a_file_the_rules_are_strict(tmp_path: Path, clock: ManualClock) -> None:
    rules = access_rules(_state(tmp_path, "", clock))
    assert rules.mode is AuthMode.SECURE
    assert rules.hosts == {"127.0.0.1", "localhost", "[::1]"}
    assert rules.origins == frozenset()
    assert rules.trusted_proxies == ()


def test_the_bound_address_is_one_of_the_names(tmp_path: Path, clock: ManualClock) -> None:
    rules = access_rules(_state(tmp_path, '[daemon]\nbind = "[fd00::5]:80"\n', clock))
    assert "[fd00::5]" in rules.hosts


def test_a_reload_changes_names_and_operator_at_once(tmp_path: Path, clock: ManualClock) -> None:
    state = _state(tmp_path, "", clock)
    state.settings = _settings(
        tmp_path, '[auth]\noperator = "ada"\nallowed_hosts = ["Desk.Example"]\n'
    )
    rules = access_rules(state)
    assert rules.operator_id == "ada"
    assert "desk.example" in rules.hosts
    assert needs_restart(state) == []


def test_insecure_mode_is_not_taken_up_while_others_can_reach_the_socket(
    tmp_path: Path, clock: ManualClock
) -> None:
    state = _state(tmp_path, '[daemon]\nbind = "0.0.0.0:80"\n', clock)
    state.settings = _settings(tmp_path, '[auth]\nmode = "insecure"\n')
    assert access_rules(state).mode is AuthMode.SECURE
    assert set(needs_restart(state)) == {"daemon.bind", "auth.mode"}


@pytest.mark.parametrize(("before", "after"), [("insecure", "secure"), ("secure", "insecure")])
def test_on_loopback_the_mode_is_taken_up_at_once(
    tmp_path: Path, clock: ManualClock, before: str, after: str
) -> None:
    state = _state(tmp_path, f'[auth]\nmode = "{before}"\n', clock)
    state.settings = _settings(tmp_path, f'[auth]\nmode = "{after}"\n')
    assert access_rules(state).mode.value == after
    assert needs_restart(state) == []


def test_address_home_and_database_need_a_restart(tmp_path: Path, clock: ManualClock) -> None:
    state = _state(tmp_path, "", clock)
    state.settings = _settings(
        tmp_path,
        '[daemon]\nbind = "off"\nhome = "/elsewhere"\n[storage]\nurl = "sqlite:////x.db"\n',
    )
    assert set(needs_restart(state)) == {"daemon.bind", "daemon.home", "storage.url"}


def test_uptime_does_not_follow_the_wall_clock(tmp_path: Path, clock: ManualClock) -> None:
    state = _state(tmp_path, "", clock)
    clock.advance(10)
    clock.set_wall(0)
    assert state.uptime_s == 10


def test_data_moves_with_the_home_setting_and_the_token_does_not(tmp_path: Path) -> None:
    settings = _settings(tmp_path, '[daemon]\nhome = "/elsewhere"\n')
    assert settings.database_url == "sqlite:////elsewhere/kaged.db"
    assert settings.audit_head == Path("/elsewhere/audit.head")
    assert settings.home_lock == Path("/elsewhere/daemon.lock")
    assert token_file(settings.places) == tmp_path / "http-token"


def test_a_configured_database_is_used(tmp_path: Path) -> None:
    settings = _settings(tmp_path, '[storage]\nurl = "sqlite:////data/x.db"\n')
    assert settings.database_url == "sqlite:////data/x.db"


def test_a_file_with_errors_gives_all_of_them(tmp_path: Path) -> None:
    with pytest.raises(ConfigFileInvalid) as caught:
        _settings(tmp_path, '[daemon]\nbind = 5\n[auth]\nmode = "maybe"\n')
    assert {problem.key_path for problem in caught.value.problems} == {"daemon.bind", "auth.mode"}
