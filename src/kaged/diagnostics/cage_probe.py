"""`probe_cages`: the rows of doctor about what cages need on this machine."""

from __future__ import annotations

from kaged.base.checks import CheckRow, CheckStatus
from kaged.cage.configured import cage_settings
from kaged.cage.net import NetProbe, probe_network
from kaged.cage.probe import probe_host
from kaged.cage.proberow import ProbeRow
from kaged.config.settings import Settings


async def probe_cages(settings: Settings) -> list[CheckRow]:
    """Try out everything a cage needs on this machine. Call it from the main thread."""
    chosen = cage_settings(settings)
    host = [_from_host(row) for row in await probe_host(chosen)]
    network = [_from_network(row) for row in await probe_network(bwrap=chosen.bwrap)]
    return [*host, *network]


def _from_host(row: ProbeRow) -> CheckRow:
    return CheckRow(row.id, CheckStatus(row.status.value), row.protects, row.detail, row.fix)


def _from_network(row: NetProbe) -> CheckRow:
    # Without it network grants are refused or served in a narrower way, never in a wider one.
    status = CheckStatus.OK if row.ok else CheckStatus.WARN
    return CheckRow(f"cage.{row.id}", status, "network grants of cages", row.detail, row.fix)
