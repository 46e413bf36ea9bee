"""`Refusal`: what the gate answers instead of the server, in words for the program."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Final

from kaged.base.errors import KagedError
from kaged.base.lazy_dataclass import dataclass
from kaged.kernel.bindings import NoValue, NoValueReason
from kaged.kernel.decision import Decision

REFUSED_HEADER: Final = "kaged-refused"
_TEXT_LIMIT: Final = 1000


class RefusalRule(StrEnum):
    """Why a request was not sent, in one stable word."""

    MALFORMED = "credential.malformed"
    AUTHORITY = "credential.authority"
    PLACE = "credential.place"
    FOREIGN = "credential.foreign"
    BODY = "credential.body"
    SEVERAL = "credential.several"
    SIZE = "credential.size"
    RATE = "credential.rate"
    UPGRADE = "credential.upgrade"
    ENCODING = "credential.encoding"
    NO_VALUE = "credential.no_value"
    SERVER_CERTIFICATE = "credential.server_certificate"
    SERVER = "credential.server"
    CLIENT_REFUSED = "credential.client_refused_certificate"


@dataclass(frozen=True, slots=True)
class Refusal:
    """One refused request: the status for the program, the rule that spoke, and sentences."""

    status: int
    rule: str
    message: str
    fix: str = ""

    @property
    def body(self) -> bytes:
        """The answer's body."""
        error = {"code": self.rule, "message": self.message[:_TEXT_LIMIT]}
        if self.fix:
            error["fix"] = self.fix[:_TEXT_LIMIT]
        return json.dumps({"error": error}).encode("ascii") + b"\n"

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """The answer's headers, those that frame it included."""
        return [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(self.body)).encode()),
            (b"cache-control", b"no-store"),
            (REFUSED_HEADER.encode(), self.rule.encode("ascii", "replace")),
        ]


class RequestRefused(KagedError):
    """A request is not sent; `refusal` says why."""

    code = "credential_refused"

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message, fix=refusal.fix or None)
        self.refusal = refusal


def refused(rule: RefusalRule, message: str, fix: str = "", status: int = 403) -> RequestRefused:
    """Return the error for a request that is not sent."""
    return RequestRefused(Refusal(status, rule.value, message, fix))


def denied(decision: Decision) -> RequestRefused:
    """Return the error for a request that the kernel denied."""
    return RequestRefused(Refusal(403, decision.rule, decision.detail, decision.remedy))


def without_value(name: str, missing: NoValue) -> RequestRefused:
    """Return the error for a request whose credential has no value now."""
    status = 403 if missing.reason is NoValueReason.REVOKED else 503
    return RequestRefused(
        Refusal(
            status,
            RefusalRule.NO_VALUE.value,
            f"The credential {name} has no value now: {missing.detail}",
            missing.fix,
        )
    )


def malformed(why: str) -> RequestRefused:
    """Return the error for a request that could be read in more than one way."""
    return refused(
        RefusalRule.MALFORMED,
        f"The request cannot be sent to a bound host: {why}.",
        "send a well-formed request",
        status=400,
    )
