"""The systemd units that `kaged daemon unit` writes."""

from __future__ import annotations

import pytest

from kaged.cli.units import unit_file

# A masked /proc forbids a fresh one in a user namespace, so each of these would end every cage.
BREAKS_CAGES = (
    "ProtectKernelTunables", "ProtectKernelLogs", "ProtectProc", "ProcSubset",
    "ProtectControlGroups", "RestrictNamespaces", "PrivateUsers", "ProtectKernelModules",
)  # fmt: skip


@pytest.mark.parametrize("system", [False, True])
def test_a_unit_narrows_the_daemon_and_leaves_cages_alone(system: bool) -> None:
    text = unit_file("/usr/bin/kaged", system=system)
    keys = {line.partition("=")[0] for line in text.splitlines() if "=" in line}
    assert {"NoNewPrivileges", "Delegate", "RestrictSUIDSGID", "ExecReload"} <= keys
    assert not keys & set(BREAKS_CAGES)
    assert "ExecStart=/usr/bin/kaged daemon run\n" in text
    assert ("User=kaged" in text) is system
    assert ("WantedBy=multi-user.target" in text) is system


def test_odd_paths_survive() -> None:
    assert 'ExecStart="/opt/my kaged/100%%/kaged" daemon run' in unit_file(
        "/opt/my kaged/100%/kaged", system=False
    )
