"""`NetPlan`: what one cage is shown of the network, worked out before anything is started.

Pure: the same grants and facts give the same plan. A program inside finds its granted hosts by
name through the made-up files; each granted name has an address of its own in 127.77.0.0/16, so
TLS names and Host headers stay right and the gate knows from the address which name was meant.
"""

from __future__ import annotations

import functools
from enum import StrEnum
from ipaddress import ip_address

from kaged.base import KagedError
from kaged.base.lazy_dataclass import dataclass
from kaged.cage.net.address_table import SYNTHETIC_PREFIX, synthetic_address
from kaged.cage.net.limits import MAX_GRANTED_NAMES, MAX_LISTENERS
from kaged.cage.net.netlink import (
    NetlinkBatch,
    catch_all_route,
    extra_address,
    merge_batches,
    trap_rules,
)
from kaged.kernel.addresses import canonical_address
from kaged.kernel.hosts import LOCALHOST, normalise_host
from kaged.kernel.net import NetTarget

# All below 1024: a program inside has no power to take these ports, so it cannot meet ours by
# accident, nor stand in for the gate when a listener is gone.
PROXY_PORT = 808
TRAP_PORT = 809
DNS_PORT = 53
DNS_ADDRESS = "127.0.0.53"
LOOPBACK = "127.0.0.1"
LOOPBACK6 = "::1"
# Where the kernel cannot hand over every port, these are served for grants of every port.
COMMON_PORTS = (22, 80, 443)
EXTRA_ADDRESS = "127.77.255.254"
_CAGE_NAME = "cage"


class NetPlanTooLarge(KagedError):
    """The grants name more hosts or ports than one cage can be given."""

    code = "net_plan_too_large"


class ListenerKind(StrEnum):
    """What a listener in the cage's namespace is for."""

    TRAP = "trap"  # any destination; the accepted socket's own address says which
    GRANT = "grant"  # one granted host and port
    PROXY = "proxy"  # CONNECT and SOCKS5
    DNS = "dns"  # the name responder, UDP


@dataclass(frozen=True, slots=True)
class CageListener:
    """One socket that the daemon opens in the cage's namespace."""

    kind: ListenerKind
    address: str
    port: int
    host: str = ""  # for GRANT: the host a connection here is for

    @property
    def ipv6(self) -> bool:
        """Whether the socket is of the IPv6 family."""
        return ":" in self.address


@dataclass(frozen=True, slots=True)
class NetFacts:
    """What the network parts of this machine can do; the outcome of `probe_network`."""

    trap: bool = True
    route: bool = True
    ipv6: bool = True


@dataclass(frozen=True, slots=True)
class NetPlan:
    """Everything network about one cage.

    `files` are paths and texts to show read-only inside; `environment` are variables to set;
    `listeners` and `netlink` are for the gate. A plan without targets has no listener, no
    variable and no resolver, unless somebody may be asked for more (`asks`).
    """

    targets: tuple[NetTarget, ...]
    names: tuple[tuple[str, str], ...]
    files: tuple[tuple[str, str], ...]
    environment: tuple[tuple[str, str], ...]
    listeners: tuple[CageListener, ...]
    netlink: tuple[NetlinkBatch, ...]
    asks: bool = False

    @property
    def open_names(self) -> bool:
        """Whether every name leads to the gate, which then decides or asks."""
        return self.asks or self.dangerous

    @property
    def dangerous(self) -> bool:
        """Whether the cage may talk to any public host, which a person should be warned about."""
        return any(target.unrestricted for target in self.targets)

    @property
    def transparent(self) -> bool:
        """Whether every TCP connection of the cage meets the gate, granted or not."""
        return any(
            one.kind is ListenerKind.TRAP and one.port == TRAP_PORT for one in self.listeners
        )


@functools.lru_cache(maxsize=128)  # cages with the same grants start again and again
def plan_network(targets: tuple[NetTarget, ...], facts: NetFacts, asks: bool = False) -> NetPlan:
    """Work out what a cage with these grants is shown of the network.

    With `asks` every name and address leads to the gate, so that it can ask about it.

    Raises:
        NetPlanTooLarge: more names or listeners than one cage can be given.
    """
    if not targets and not asks:
        return _offline(facts)
    names = _granted_names(targets)
    listeners = _Listeners()
    _add_loopback(listeners, targets, facts)
    if facts.trap:
        listeners.add(ListenerKind.TRAP, "0.0.0.0", TRAP_PORT)  # noqa: S104 - the cage's own namespace
        if facts.ipv6:
            listeners.add(ListenerKind.TRAP, "::", TRAP_PORT)
    else:
        _add_ports(listeners, targets, dict(names), facts, asks=asks)
    proxy_port = next(
        port for port in range(PROXY_PORT, 0, -1) if not listeners.takes(LOOPBACK, port)
    )
    listeners.add(ListenerKind.PROXY, LOOPBACK, proxy_port)
    listeners.add(ListenerKind.DNS, DNS_ADDRESS, DNS_PORT)
    return NetPlan(
        targets=targets,
        names=names,
        files=(
            ("/etc/hosts", _hosts_file(names, ipv6=facts.ipv6)),
            ("/etc/nsswitch.conf", _nsswitch("files dns")),
            ("/etc/resolv.conf", f"nameserver {DNS_ADDRESS}\noptions timeout:2 attempts:2\n"),
        ),
        environment=_proxy_variables(proxy_port, targets, names, facts),
        listeners=listeners.done(),
        netlink=_netlink(facts),
        asks=asks,
    )


def _offline(facts: NetFacts) -> NetPlan:
    # `localhost` is still a name inside; there is nobody else to find and nobody to ask.
    return NetPlan(
        targets=(),
        names=(),
        files=(
            ("/etc/hosts", _hosts_file((), ipv6=facts.ipv6)),
            ("/etc/nsswitch.conf", _nsswitch("files")),
        ),
        environment=(),
        listeners=(),
        netlink=(),
    )


def _granted_names(targets: tuple[NetTarget, ...]) -> tuple[tuple[str, str], ...]:
    # localhost keeps its usual address, where its ports are served one by one; only "every port"
    # moves it, because the cage's own loopback would be swallowed whole.
    found: dict[str, None] = {}
    for target in targets:
        host = target.host
        if host is None or canonical_address(host) is not None:
            continue
        if normalise_host(host) != host:  # a host reaches a file below: its spelling is checked
            raise ValueError(f"{host!a} is not in its normal spelling")
        if host != LOCALHOST or target.port is None:
            found[host] = None
    if len(found) > MAX_GRANTED_NAMES:
        raise NetPlanTooLarge(
            f"{len(found)} hosts are granted and one cage takes {MAX_GRANTED_NAMES}",
            fix="grant fewer hosts, or net:* if every host is meant",
        )
    return tuple((name, synthetic_address(place)) for place, name in enumerate(found))


def _add_loopback(listeners: _Listeners, targets: tuple[NetTarget, ...], facts: NetFacts) -> None:
    for target in targets:
        if target.host is None or target.port is None:
            continue
        if target.host == LOCALHOST:
            listeners.add(ListenerKind.GRANT, LOOPBACK, target.port, LOCALHOST)
            if facts.ipv6:
                listeners.add(ListenerKind.GRANT, LOOPBACK6, target.port, LOCALHOST)
        elif _is_loopback(target.host) and (facts.ipv6 or ":" not in target.host):
            listeners.add(ListenerKind.GRANT, target.host, target.port, target.host)


def _add_ports(
    listeners: _Listeners,
    targets: tuple[NetTarget, ...],
    names: dict[str, str],
    facts: NetFacts,
    *,
    asks: bool,
) -> None:
    # The way without the kernel's help: one listener for each granted address and port.
    if facts.route and (asks or any(target.unrestricted for target in targets)):
        for port in COMMON_PORTS:
            listeners.add(ListenerKind.TRAP, "0.0.0.0", port)  # noqa: S104 - the cage's own namespace
            if facts.ipv6:
                listeners.add(ListenerKind.TRAP, "::", port)
    for target in targets:
        if target.host is None or (target.host == LOCALHOST and target.port is not None):
            continue
        address = names.get(target.host)
        if address is None:
            foreign = not _is_loopback(target.host)
            if not (foreign and facts.route and (facts.ipv6 or ":" not in target.host)):
                continue
            address = target.host
        for port in COMMON_PORTS if target.port is None else (target.port,):
            listeners.add(ListenerKind.GRANT, address, port, target.host)


def _netlink(facts: NetFacts) -> tuple[NetlinkBatch, ...]:
    steps = list[NetlinkBatch]()
    if facts.route:
        routes = [extra_address(EXTRA_ADDRESS), catch_all_route(ipv6=False)]
        if facts.ipv6:
            routes.append(catch_all_route(ipv6=True))
        steps.append(merge_batches(routes))
    if facts.trap:
        steps.append(trap_rules(TRAP_PORT, SYNTHETIC_PREFIX, ipv6=facts.ipv6))
    return tuple(steps)


def _hosts_file(names: tuple[tuple[str, str], ...], *, ipv6: bool) -> str:
    granted = dict(names)
    own = " ".join(name for name in (LOCALHOST, _CAGE_NAME) if name not in granted)
    addresses = (LOOPBACK, LOOPBACK6) if ipv6 else (LOOPBACK,)
    lines = [f"{address} {own}" for address in addresses if own]
    lines += [f"{address} {name}" for name, address in names]
    return "\n".join(lines) + "\n"


def _nsswitch(hosts: str) -> str:
    return f"passwd: files\ngroup: files\nhosts: {hosts}\n"


def _proxy_variables(
    port: int, targets: tuple[NetTarget, ...], names: tuple[tuple[str, str], ...], facts: NetFacts
) -> tuple[tuple[str, str], ...]:
    # There is no http_proxy on purpose: a client would send it `GET http://…`, which the gate
    # refuses, while the plain connection to the same host works.
    by_proxy = set[str]()
    if not facts.trap:
        by_proxy = {target.host for target in targets if target.host and target.port is None}
    # A loopback address with every port cannot be served in place; only the proxy reaches it.
    by_proxy |= {
        target.host
        for target in targets
        if target.host and target.port is None and _is_loopback(target.host)
    }
    around = [name for name in (LOCALHOST, LOOPBACK, LOOPBACK6) if name not in by_proxy]
    around += [name for name, _ in names if name not in by_proxy and name not in around]
    url = f"http://{LOOPBACK}:{port}"
    around_text = ",".join(around)
    return (
        ("HTTPS_PROXY", url),
        ("NO_PROXY", around_text),
        ("https_proxy", url),
        ("no_proxy", around_text),
    )


def _is_loopback(host: str) -> bool:
    return canonical_address(host) is not None and ip_address(host).is_loopback


class _Listeners:
    """Collects listeners; a port that is caught on every address is not opened once more."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str, int], CageListener] = {}

    def add(self, kind: ListenerKind, address: str, port: int, host: str = "") -> None:
        family = ("udp" if kind is ListenerKind.DNS else "tcp") + ("6" if ":" in address else "4")
        everywhere = "::" if ":" in address else "0.0.0.0"  # noqa: S104 - the cage's own namespace
        if (family, everywhere, port) in self._found or (family, address, port) in self._found:
            return
        if address == everywhere:
            for key in [key for key in self._found if key[0] == family and key[2] == port]:
                del self._found[key]
        self._found[family, address, port] = CageListener(kind, address, port, host)

    def takes(self, address: str, port: int) -> bool:
        """Return whether a TCP port is taken."""
        return ("tcp4", address, port) in self._found

    def done(self) -> tuple[CageListener, ...]:
        if len(self._found) > MAX_LISTENERS:
            raise NetPlanTooLarge(
                f"the grants need {len(self._found)} listeners and one cage takes {MAX_LISTENERS}",
                fix="grant fewer ports, or host:* where every port is meant",
            )
        return tuple(self._found.values())
