from __future__ import annotations

from pathlib import Path

import pytest

from kaged.cage.hints import install_command, namespace_fix


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
