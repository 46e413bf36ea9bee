from __future__ import annotations

import os
import pwd
import stat
from pathlib import Path

import pytest

from kaged.config import Locations, LocationUnsafe
from kaged.config.locations import MAX_SOCKET_PATH_BYTES, SYSTEM_CACHE, ensure_private_dir
from raising import raises_code


def test_the_xdg_rules_say_where_files_go() -> None:
    found = Locations.from_env({"HOME": "/home/me"})
    assert found.config_toml == Path("/home/me/.config/kaged/config.toml")
    assert found.local_toml == Path("/home/me/.config/kaged/local.toml")
    assert found.database == Path("/home/me/.local/share/kaged/kaged.db")
    assert found.plugins_dir == Path("/home/me/.local/share/kaged/plugins")
    assert found.logs_dir == Path("/home/me/.local/state/kaged/logs")
    assert found.socket == Path("/home/me/.local/state/kaged/run/kaged/kaged.sock")
    assert found.audit_key == found.home / "audit.key"


def test_xdg_variables_move_them_and_relative_ones_are_ignored() -> None:
    found = Locations.from_env(
        {
            "HOME": "/home/me",
            "XDG_CONFIG_HOME": "/c",
            "XDG_DATA_HOME": "data",
            "XDG_STATE_HOME": "/s",
            "XDG_RUNTIME_DIR": "/run/user/7",
        }
    )
    assert found.config_dir == Path("/c/kaged")
    assert found.data_dir == Path("/home/me/.local/share/kaged")
    assert found.logs_dir == Path("/s/kaged/logs")
    assert found.socket == Path("/run/user/7/kaged/kaged.sock")
    assert found.lock.parent == found.runtime_dir


def test_kaged_home_overrides_everything() -> None:
    found = Locations.from_env({"HOME": "/home/me", "KAGED_HOME": "/k", "XDG_RUNTIME_DIR": "/r"})
    listed = [getattr(found, name) for name in Locations.__slots__]
    assert all(path == Path("/k") or Path("/k") in path.parents for path in listed)
    assert found.plugins_dir == Path("/k/plugins")


def test_the_cache_of_a_user_lies_in_their_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert Locations.from_env({"HOME": "/home/me"}).cache_dir == Path("/home/me/.cache/kaged")
    moved = Locations.from_env({"HOME": "/home/me", "XDG_CACHE_HOME": "/c"})
    assert moved.cache_dir == Path("/c/kaged")


def test_the_cache_of_root_lies_where_the_users_of_its_cages_can_reach_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    home = pwd.getpwuid(0).pw_dir
    assert Locations.from_env({"HOME": home}).cache_dir == SYSTEM_CACHE
    assert Locations.from_env({}).cache_dir == SYSTEM_CACHE
    assert Locations.from_env({"HOME": home, "KAGED_HOME": "/k"}).cache_dir == Path("/k/cache")
    assert Locations.from_env({"HOME": "/sandbox"}).cache_dir == Path("/sandbox/.cache/kaged")
    chosen = Locations.from_env({"HOME": home, "XDG_CACHE_HOME": "/c"})
    assert chosen.cache_dir == Path("/c/kaged")
    assert chosen.with_home(Path("/srv/kaged")).cache_dir == Path("/c/kaged")


def test_a_relative_kaged_home_is_refused() -> None:
    with raises_code("locations_unknown", match="absolute"):
        Locations.from_env({"KAGED_HOME": "kaged"})


def test_without_home_the_user_database_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Locations.from_env({})
    assert found.config_dir == Path(pwd.getpwuid(os.geteuid()).pw_dir) / ".config" / "kaged"

    def nobody(_: int) -> pwd.struct_passwd:
        raise KeyError

    monkeypatch.setattr(pwd, "getpwuid", nobody)
    with raises_code("locations_unknown", match="KAGED_HOME"):
        Locations.from_env({})


def test_a_path_too_long_for_a_socket_is_refused_beforehand() -> None:
    fits = "/" + "x" * (MAX_SOCKET_PATH_BYTES - len("/run/kaged.sock") - 1)
    assert Locations.from_env({"KAGED_HOME": fits})
    with raises_code("locations_unknown", match="shorter"):
        Locations.from_env({"KAGED_HOME": fits + "x"})


def test_looking_creates_nothing_and_ensure_makes_private_directories(tmp_path: Path) -> None:
    home = tmp_path / "home"
    found = Locations.from_env({"KAGED_HOME": str(home)})
    assert not home.exists()
    found.ensure()
    found.ensure()
    for path in (home, found.runtime_dir, found.plugins_dir, found.logs_dir):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert not found.config_toml.exists()


def test_data_can_be_moved_without_moving_configuration(tmp_path: Path) -> None:
    found = Locations.from_env({"KAGED_HOME": str(tmp_path)})
    moved = found.with_home(Path("/srv/kaged"))
    assert moved.config_toml == found.config_toml
    assert moved.socket == found.socket
    assert moved.database == Path("/srv/kaged/kaged.db")
    assert moved.audit_key == Path("/srv/kaged/audit.key")


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702])
def test_a_directory_that_others_may_change_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "d"
    path.mkdir()
    path.chmod(mode)
    with pytest.raises(LocationUnsafe, match="chmod go-w"):
        ensure_private_dir(path)


def test_a_directory_of_somebody_else_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "d"
    path.mkdir(mode=0o700)
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    with pytest.raises(LocationUnsafe, match="belongs to user"):
        ensure_private_dir(path)


def test_a_file_a_broken_link_and_an_impossible_path_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x", encoding="utf-8")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for name in ("file", "link", "file/below"):
        with pytest.raises(LocationUnsafe):
            ensure_private_dir(tmp_path / name)
