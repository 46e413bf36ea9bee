"""Why a page was not fetched, as errors with codes."""

from __future__ import annotations

from typing import Final

from kaged.cage.net.dial import NotDialled
from kaged.cage.net.handshake import ProxyOutcome
from kaged.kernel.decision import Decision
from kaged.tools import ToolCapabilityRefused, ToolError

NOT_FOUND: Final = frozenset({404, 410})
_NOT_NAMED: Final = "net.host"


class PageMissing(ToolError):
    """The server says that it has no such page."""

    code = "web_not_found"


class PageFailed(ToolError):
    """The server answered with an error, or with what is no answer."""

    code = "web_failed"


class PageTooLarge(ToolError):
    """The page is larger than is fetched."""

    code = "web_too_large"


class PageNotText(ToolError):
    """What is there cannot be shown as text."""

    code = "web_not_text"


class PageTooSlow(ToolError):
    """The page did not arrive in time."""

    code = "web_timeout"


class HostUnreachable(ToolError):
    """The host is unknown, or could not be connected to."""

    code = "web_unreachable"


def not_dialled(found: NotDialled, port: int, led_from: str) -> ToolError:
    """Return why there was no connection. `led_from` is the page that redirected there, if any."""
    told = f", where {led_from} leads" if led_from else ""
    if found.outcome is not ProxyOutcome.DENIED:
        slow = found.outcome is ProxyOutcome.TIMED_OUT
        kind = PageTooSlow if slow else HostUnreachable
        return kind(f"{found.detail}{told}", fix="check the address, or try again later")
    shown = f"[{found.host}]" if ":" in found.host else found.host
    detail = f"net:{shown}:{port}{told}" if found.rule == _NOT_NAMED else f"{found.detail}{told}"
    if found.address:
        literal = f"[{found.address}]" if ":" in found.address else found.address
        remedy = f"add {literal}:{port} to the cage's net.allow as well, if that is meant"
    else:
        remedy = f"add {shown}:{port} to the cage's net.allow"
    return ToolCapabilityRefused.of(Decision.deny("tool.net", detail, remedy))


def bad_status(status: int, place: str) -> ToolError:
    """Return the error for an answer that is no page. Its body is not shown."""
    if status in NOT_FOUND:
        return PageMissing(
            f"{place} answered {status}: there is no such page",
            fix="check the address; links of a page that you have read are absolute",
            detail={"status": status},
        )
    return PageFailed(
        f"{place} answered {status}",
        fix="the page may want a login, or not be there now; try another one or again later",
        detail={"status": status},
    )
