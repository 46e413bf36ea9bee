"""`NetProbe`: trial runs that tell what the gate can do on this machine."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from socket import socket

from kaged.base.lazy_dataclass import dataclass
from kaged.cage.net.address_table import SYNTHETIC_PREFIX
from kaged.cage.net.namespace import NamespaceHelper, NamespaceUnavailable, SocketSpec, TrialCage
from kaged.cage.net.netlink import NetlinkBatch, catch_all_route, extra_address, trap_rules
from kaged.cage.net.plan import (
    EXTRA_ADDRESS,
    LOOPBACK,
    LOOPBACK6,
    PROXY_PORT,
    TRAP_PORT,
    NetFacts,
)

# Addresses set aside for documentation: nobody's, so a trial can mean nobody.
_FOREIGN = "192.0.2.77"
_FOREIGN6 = "2001:db8::77"
_PORT = 443


@dataclass(frozen=True, slots=True)
class NetProbe:
    """One row for `kaged doctor`: what was tried, how it came out, what would help."""

    id: str
    ok: bool
    detail: str
    fix: str = ""


async def probe_network(
    helper: NamespaceHelper | None = None, bwrap: str | None = None
) -> list[NetProbe]:
    """Try each part of the gate in a trial cage that never runs anything.

    Takes some tens of milliseconds. `helper` is used and left running when given.
    """
    tool = bwrap or shutil.which("bwrap")
    if tool is None:
        return [
            NetProbe("net.namespace", ok=False, detail="bwrap is missing", fix=_FIX_NAMESPACE),
            *(_not_tried(row) for row in ("net.route", "net.ipv6", "net.trap")),
        ]
    own = None if helper is not None else NamespaceHelper()
    try:
        async with TrialCage(tool) as child_pid:
            net_fd = os.open(f"/proc/{child_pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
            try:
                return await _try_all(_Trial(helper or own or NamespaceHelper(), net_fd))
            finally:
                os.close(net_fd)
    except (NamespaceUnavailable, OSError) as error:
        return [
            NetProbe("net.namespace", ok=False, detail=str(error), fix=_FIX_NAMESPACE),
            *(_not_tried(row) for row in ("net.route", "net.ipv6", "net.trap")),
        ]
    finally:
        if own is not None:
            await own.close()


def facts_from(rows: Sequence[NetProbe]) -> NetFacts:
    """Read the facts for planning out of probe rows."""
    passed = {row.id for row in rows if row.ok}
    return NetFacts(
        trap="net.trap" in passed, route="net.route" in passed, ipv6="net.ipv6" in passed
    )


_FIX_NAMESPACE = (
    "install bubblewrap and allow user namespaces (sysctl user.max_user_namespaces); until then "
    "cages with net grants do not start"
)
_FIX_ROUTE = "without it grants of addresses are reached through the proxy only"
_FIX_IPV6 = "enable IPv6 in the kernel if cages should reach IPv6 addresses directly"
_FIX_TRAP = (
    "load nf_tables and nft_tproxy (modprobe nft_tproxy); until then net:host:* works through the "
    "proxy and on ports 22, 80 and 443, and denied connections are not all recorded"
)


def _not_tried(row: str) -> NetProbe:
    return NetProbe(row, ok=False, detail="not tried, because net.namespace failed")


@dataclass(frozen=True, slots=True)
class _Trial:
    helper: NamespaceHelper
    net_fd: int

    async def arrives(
        self, listener: SocketSpec, steps: Sequence[NetlinkBatch], dial: tuple[str, int]
    ) -> str:
        """Return "" when a connection from inside to `dial` arrives at `listener`, else why not."""
        try:
            listening, dialled = await self.helper.open(self.net_fd, [listener], steps, [dial])
        except NamespaceUnavailable as error:
            return error.message
        with listening, dialled:
            return _meant_for(listening, dial)


def _meant_for(listening: socket, dial: tuple[str, int]) -> str:
    try:
        accepted, _ = listening.accept()
    except BlockingIOError:
        return "the connection did not arrive"
    with accepted:
        name = accepted.getsockname()
    return "" if name[:2] == dial else f"the connection arrived for {name[0]} instead of {dial[0]}"


async def _try_all(trial: _Trial) -> list[NetProbe]:
    wrong = await trial.arrives(SocketSpec("tcp", LOOPBACK, PROXY_PORT), (), (LOOPBACK, PROXY_PORT))
    rows = [_row("net.namespace", wrong, "listeners open inside a cage", _FIX_NAMESPACE)]
    if wrong:
        return [*rows, *(_not_tried(row) for row in ("net.route", "net.ipv6", "net.trap"))]
    wrong = await trial.arrives(
        SocketSpec("tcp", _FOREIGN, _PORT),
        [extra_address(EXTRA_ADDRESS), catch_all_route(ipv6=False)],
        (_FOREIGN, _PORT),
    )
    rows.append(_row("net.route", wrong, "every address leads to the gate", _FIX_ROUTE))
    wrong = await trial.arrives(
        SocketSpec("tcp", _FOREIGN6, _PORT), [catch_all_route(ipv6=True)], (_FOREIGN6, _PORT)
    ) or await trial.arrives(SocketSpec("tcp", LOOPBACK6, _PORT), (), (LOOPBACK6, _PORT))
    rows.append(_row("net.ipv6", wrong, "IPv6 is served, too", _FIX_IPV6))
    ipv6 = not wrong
    rules = trap_rules(TRAP_PORT, SYNTHETIC_PREFIX, ipv6=ipv6)
    everywhere = "0.0.0.0"  # noqa: S104 - inside the trial cage
    wrong = await trial.arrives(
        SocketSpec("tcp", everywhere, TRAP_PORT, transparent=True), [rules], (_FOREIGN, _PORT + 1)
    )
    if not wrong and ipv6:
        wrong = await trial.arrives(
            SocketSpec("tcp", "::", TRAP_PORT, transparent=True), (), (_FOREIGN6, _PORT + 1)
        )
    rows.append(_row("net.trap", wrong, "every port leads to the gate", _FIX_TRAP))
    return rows


def _row(name: str, wrong: str, right: str, fix: str) -> NetProbe:
    return NetProbe(name, ok=not wrong, detail=wrong or right, fix=fix if wrong else "")
