"""`OpaPolicy`: an Open Policy Agent server decides, with policies in Rego."""

from __future__ import annotations

import ipaddress
import json
import ssl
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pydantic import Field, field_validator

from kaged.base import JsonObject
from kaged.pipeline.policies.engine import EnginePolicy, NoDecision, Verdict
from kaged.pipeline.policies.options import Options, read_options
from kaged.pipeline.settings import PluginConfig

if TYPE_CHECKING:
    import httpx

MAX_ANSWER_BYTES = 256 * 1024


class OpaOptions(Options):
    """Where the server is, and which of its documents has the decision."""

    url: str
    token: str = Field(default="", max_length=10_000)
    ca_file: str = ""
    timeout_s: float = Field(default=2.0, gt=0, le=60)

    @field_validator("url")
    @classmethod
    def _reachable(cls, value: str) -> str:
        parts = urlsplit(value)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ValueError("write the address of a document: http://127.0.0.1:8181/v1/data/…")
        if parts.username is not None or parts.password is not None:
            raise ValueError("the address must not contain a password; use token")
        if "/v1/data/" not in parts.path:
            raise ValueError("the address must name a document of OPA's data API: …/v1/data/…")
        if parts.scheme == "http" and not _is_loopback(parts.hostname):
            raise ValueError("a server on another machine needs https")
        return value


class OpaPolicy(EnginePolicy):
    """Asks OPA's data API; the call goes on when the document says so.

    The document is `true` or `false`, or an object with `allow` and, if wanted, `reason`,
    `description` and `code`. A document that is undefined for a call denies it.
    """

    depends_on = "the answer of OPA"
    edits = False

    engine = "OPA"

    def __init__(self, config: PluginConfig) -> None:
        super().__init__(config)
        self._options = read_options(OpaOptions, config)
        written = self._options.ca_file
        self._ca_file = Path(written).expanduser() if written else None
        self._client: httpx.AsyncClient | None = None

    async def initialize(self) -> None:
        """Prepare the connection; whether the server is there shows at the first call."""
        import httpx  # noqa: PLC0415 - not for daemons without such a policy

        options = self._options
        context = ssl.create_default_context(cafile=self._ca_file)
        headers = {"content-type": "application/json"}
        if options.token:
            headers["authorization"] = f"Bearer {options.token}"
        self._client = httpx.AsyncClient(
            verify=context, timeout=options.timeout_s, headers=headers, trust_env=False
        )

    async def shutdown(self) -> None:
        """Close the connections."""
        if self._client is not None:
            await self._client.aclose()

    async def ask(self, question: JsonObject) -> Verdict:
        """Ask the server. Raises NoDecision."""
        answer = await self._post(json.dumps({"input": question}).encode())
        details: JsonObject = {}
        if isinstance(answer.get("decision_id"), str):
            details["decision_id"] = str(answer["decision_id"])[:200]
        if "result" not in answer:
            return Verdict(
                allowed=False,
                reason="OPA has no decision about this call",
                description=f"{urlsplit(self._options.url).path} is undefined for it",
                details=details,
            )
        result = answer["result"]
        if isinstance(result, bool):
            return Verdict(allowed=result, details=details)
        if not isinstance(result, dict) or not isinstance(result.get("allow"), bool):
            raise NoDecision("OPA's document is neither true, false nor an object with allow")
        words = {name: _text(result.get(name)) for name in ("reason", "description", "code")}
        return Verdict(allowed=bool(result["allow"]), details=details, **words)

    async def _post(self, body: bytes) -> dict[str, Any]:
        import httpx  # noqa: PLC0415 - loaded by initialize already

        assert self._client is not None
        read = bytearray()
        try:
            async with self._client.stream("POST", self._options.url, content=body) as response:
                async for chunk in response.aiter_bytes():
                    read += chunk
                    if len(read) > MAX_ANSWER_BYTES:
                        raise NoDecision(f"OPA's answer has more than {MAX_ANSWER_BYTES} bytes")
        except httpx.TimeoutException as error:
            message = f"OPA did not answer within {self._options.timeout_s:g} s"
            raise NoDecision(message) from error
        except httpx.HTTPError as error:
            where = urlsplit(self._options.url).netloc
            message = f"OPA at {where} cannot be reached: {error or type(error).__name__}"
            raise NoDecision(f"{message}; start the server, or mend config.url") from error
        if not response.is_success:
            fix = "; check config.token" if response.status_code in {401, 403} else ""
            raise NoDecision(f"OPA answered {response.status_code}{fix}")
        try:
            answer = json.loads(bytes(read))
        except ValueError as error:
            raise NoDecision("OPA's answer is not JSON") from error
        if not isinstance(answer, dict):
            raise NoDecision("OPA's answer is not a JSON object")
        return answer


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
