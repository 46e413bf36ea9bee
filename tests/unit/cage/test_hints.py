from __future__ import annotations

import errno
from pathlib import Path

import pytest

from kaged.cage.hints import install_command, limits_fix, namespace_fix, resource_fix


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("ID=ubuntu\nID_LIKE=debian\n", "sudo apt-get install -y bubblewrap"),
        ("ID=fedora\n", "sudo dnf install -y bubblewrap"),
        ('ID="opensuse-leap"\nID_LIKE="suse opensuse"\n', "sudo zypper install -y bubblewrap"),
        ("ID=unheard-of\n", "sudo apt-get install -y bubblewrap"),
    ],
)
def test_the_command_fits_the_distribution(tmp_path: Path, text: str, command: str) -> None:
    path = tmp_path / "os-release"
    path.write_text(text, encoding="utf-8")
    assert install_command("bubblewrap", path) == command
    assert install_command("bubblewrap", tmp_path / "none").endswith("bubblewrap")


def settings(tmp_path: Path, **values: str) -> Path:
    for name, value in values.items():
        path = tmp_path / "sys" / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(value + "\n", encoding="ascii")
    return tmp_path


def test_a_host_that_restricts_namespaces_gets_a_profile_for_bwrap_alone(tmp_path: Path) -> None:
    proc = settings(tmp_path, kernel__apparmor_restrict_unprivileged_userns="1")
    for row in ("cage.namespaces", "cage.loopback"):
        assert "/etc/apparmor.d/bwrap" in namespace_fix(row, proc)


def test_a_host_with_namespaces_switched_off_is_told_the_switch(tmp_path: Path) -> None:
    clone = settings(tmp_path / "a", kernel__unprivileged_userns_clone="0")
    assert "unprivileged_userns_clone=1" in namespace_fix("cage.namespaces", clone)
    count = settings(tmp_path / "b", user__max_user_namespaces="0")
    assert "max_user_namespaces" in namespace_fix("cage.namespaces", count)
    assert "container" in namespace_fix("cage.namespaces", tmp_path / "c")
    assert "container" in namespace_fix("cage.mounts", tmp_path / "c")


def test_the_fix_for_weak_limits_fits_what_the_host_offers(tmp_path: Path) -> None:
    controllers, systemd = tmp_path / "cgroup.controllers", tmp_path / "systemd"
    assert "unified_cgroup_hierarchy" in limits_fix(controllers, systemd)
    controllers.write_text("cpu io\n", encoding="ascii")
    assert "memory and pids" in limits_fix(controllers, systemd)
    controllers.write_text("cpu memory pids\n", encoding="ascii")
    assert "delegate" in limits_fix(controllers, systemd)
    systemd.mkdir()
    assert limits_fix(controllers, systemd).startswith("systemd-run --user --scope")


@pytest.mark.parametrize(
    ("number", "word"),
    [
        (errno.EMFILE, "LimitNOFILE"),
        (errno.EAGAIN, "TasksMax"),
        (errno.ENOMEM, "MemoryMax"),
        (errno.ENOSPC, "disk"),
        (errno.EPERM, "kaged doctor"),
    ],
)
def test_every_shortage_has_a_way_out(number: int, word: str) -> None:
    assert word in resource_fix(OSError(number, "no more"))
