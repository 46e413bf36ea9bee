"""`WebPlace`: a web address as a destination that grants are about. Pure."""

from __future__ import annotations

from typing import Final, NamedTuple

from kaged.kernel.hosts import NetTargetInvalid, normalise_host
from kaged.kernel.net import NetTarget
from kaged.tools import InvalidToolParams

MAX_URL_CHARS: Final = 2048
_PORTS: Final = {"http": 80, "https": 443}


class WebPlace(NamedTuple):
    """One address of `http` or `https`, without fragment and without a name and password."""

    url: str
    host: str
    port: int

    @property
    def target(self) -> NetTarget:
        """Return what a grant must cover."""
        return NetTarget(self.host, self.port)

    @property
    def shown(self) -> str:
        """Return the host and port, as messages name a place."""
        return self.target.text


def read_place(url: str, *, base: WebPlace | None = None) -> WebPlace:
    """Read an address; with `base` it may be relative to that.

    The one reading of it: what is decided about is what is connected to. Raises InvalidToolParams.
    """
    import httpx  # noqa: PLC0415 - loaded when a page is first asked for

    if not 0 < len(url) <= MAX_URL_CHARS:
        raise _invalid(f"has no or more than {MAX_URL_CHARS} characters")
    try:
        asked = httpx.URL(url) if base is None else httpx.URL(base.url).join(url)
        host = normalise_host(asked.raw_host.decode("ascii"))
    except (httpx.InvalidURL, NetTargetInvalid, ValueError) as error:
        raise _invalid("is no web address with a host") from error
    if asked.scheme not in _PORTS:
        raise _invalid("must begin with http:// or https://")
    if asked.userinfo:
        raise _invalid("must not have a name or password in it")
    port = asked.port or _PORTS[asked.scheme]
    if not 0 < port <= 65535:
        raise _invalid("has no port from 1 to 65535")
    whole = str(asked.copy_with(fragment=None))
    if len(whole) > MAX_URL_CHARS:
        raise _invalid(f"has more than {MAX_URL_CHARS} characters")
    return WebPlace(whole, host, port)


def _invalid(problem: str) -> InvalidToolParams:
    return InvalidToolParams.of_field(
        "url", problem, fix="give an address such as https://docs.example.org/page"
    )
