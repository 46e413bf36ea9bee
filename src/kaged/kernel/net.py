"""`NetTarget`: where a cage may connect to, `host:port`, `host:*` or `*`, and who may connect."""

from __future__ import annotations

import re
from collections.abc import Iterable

from kaged.base.lazy_dataclass import dataclass
from kaged.kernel.addresses import AddressClass, address_class, canonical_address
from kaged.kernel.decision import Decision, fail_closed
from kaged.kernel.hosts import LOCALHOST, NetTargetInvalid, is_local, normalise_host

MAX_PORT = 65535
_PORT = re.compile(r"[1-9][0-9]{0,4}")


@dataclass(frozen=True, slots=True)
class NetTarget:
    """One granted destination. `host` None means every host; `port` None means every port.

    The host is stored normalised: lower case, A-labels, no trailing dot; an address literal in its
    canonical form without brackets.
    """

    host: str | None
    port: int | None

    def __post_init__(self) -> None:
        """Refuse "every host, one port", which the grammar cannot say."""
        if self.host is None and self.port is not None:
            raise ValueError("a target for every host is for every port, too")

    @property
    def unrestricted(self) -> bool:
        """Whether this is `net:*`, which a person should be warned about."""
        return self.host is None

    @property
    def text(self) -> str:
        """The target as it is written: `host:port`, `[address]:port`, `host:*` or `*`."""
        if self.host is None:
            return "*"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{'*' if self.port is None else self.port}"

    def covers(self, other: NetTarget) -> bool:
        """Return whether everything that `other` reaches is reached by this target.

        `*` reaches the public network: `localhost` and special addresses must be named, so `*`
        does not cover them.
        """
        if self.host is None:
            return other.host is None or not is_local(other.host)
        return self.host == other.host and self.port in (None, other.port)


ANYWHERE = NetTarget(None, None)
"""`net:*`: every port of every public host."""


def parse_target(text: str) -> NetTarget:
    """Read `host:port`, `host:*`, `[address]:port` or `*`.

    Raises:
        NetTargetInvalid: any other text, a port outside 1 to 65535, or a host that is not one.
    """
    if text == "*":
        return ANYWHERE
    host, colon, port = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if not colon or (":" in host and not bracketed):
        raise NetTargetInvalid(
            "a target needs a host and a port",
            fix="write host:port, host:* for every port, or [address]:port for IPv6",
        )
    if not host:
        raise NetTargetInvalid("the host is missing", fix="write host:port")
    name = normalise_host(host)
    kind = address_class(name)
    if kind is not AddressClass.INVALID and not kind.connectable:
        raise NetTargetInvalid(
            f"nothing can be reached at {name} ({kind})",
            fix="name the host itself; localhost is this machine",
        )
    return NetTarget(name, None if port == "*" else _parse_port(port))


def matches(target: NetTarget, host: str, port: int) -> bool:
    """Return whether a grant covers this destination.

    Names match whole names only: no suffixes, and a name never grants the address behind it nor an
    address the name in front of it. False for anything that is no destination.
    """
    try:
        return target.covers(_destination(host, port))
    except NetTargetInvalid:
        return False


@fail_closed("net.host")
def decide_net(targets: Iterable[NetTarget], host: str, port: int) -> Decision:
    """Decide whether these grants name this host and port.

    Necessary, not sufficient, for a connection: the address behind a name is decided by
    `decide_address` once it is known.
    """
    try:
        wanted = _destination(host, port)
    except NetTargetInvalid as error:
        return Decision.deny("net.host", error.message, error.fix or "")
    if any(target.covers(wanted) for target in targets):
        return Decision.allow("net.host", f"net:{wanted.text}")
    return Decision.deny("net.host", f"net:{wanted.text}", f"grant net:{wanted.text}")


@fail_closed("net.address")
def decide_address(targets: Iterable[NetTarget], host: str, port: int, ip: str) -> Decision:
    """Decide whether a connection asked for as `host:port` may go to the address `ip`.

    Both must be granted: the destination by its own name, and, unless `ip` is public, that very
    address. The one name that stands for an address is `localhost`, for loopback.
    """
    grants = tuple(targets)
    named = decide_net(grants, host, port)
    if not named.allowed:
        return named
    kind, address = address_class(ip), canonical_address(ip)
    if address is None or not kind.connectable:
        return Decision.deny("net.address", f"{named.detail} leads to no usable address")
    asked = normalise_host(host)
    literal = NetTarget(address, port)
    if canonical_address(asked) is not None:
        # An address goes where it says; that it is public or granted was decided above.
        right = asked == address
    elif asked == LOCALHOST:
        right = kind is AddressClass.LOOPBACK
    else:
        # `*` covers no special address, so only a grant that names it counts here.
        right = kind is AddressClass.PUBLIC or any(target.covers(literal) for target in grants)
    if right:
        return Decision.allow("net.address", named.detail)
    return Decision.deny(
        "net.address",
        f"{named.detail} leads to the {kind} address {address}",
        f"grant net:{literal.text} as well, if that is meant",
    )


def _destination(host: str, port: int) -> NetTarget:
    if type(port) is not int or not 0 < port <= MAX_PORT:
        raise NetTargetInvalid(f"a port is a number from 1 to {MAX_PORT}")
    return NetTarget(normalise_host(host), port)


def _parse_port(text: str) -> int:
    if not _PORT.fullmatch(text) or int(text) > MAX_PORT:
        raise NetTargetInvalid(
            f"{text!a} is not a port", fix=f"a port is a number from 1 to {MAX_PORT}, or *"
        )
    return int(text)
