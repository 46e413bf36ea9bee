"""The vendors that `kaged model add` knows, and how each is asked for its models."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from kaged.base import KagedError
from kaged.base.lazy_dataclass import dataclass

MAX_LIST_BYTES: Final = 4 * 1024 * 1024
MAX_MODELS: Final = 1000
TIMEOUT_S: Final = 10.0

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,199}")


@dataclass(frozen=True, slots=True)
class Vendor:
    """One vendor: how `[models]` names it, what it is called, and where its server is.

    `auth` is the header that the key goes into. Without `listed` nobody can be asked for models.
    """

    name: str
    title: str
    server: str = ""
    listed: str = "/models"
    auth: str = "authorization"
    variable: str = ""
    needs_key: bool = True
    needs_url: bool = False


VENDORS: Final[Mapping[str, Vendor]] = MappingProxyType(
    {
        one.name: one
        for one in (
            Vendor(
                "anthropic", "Anthropic", "https://api.anthropic.com", "/v1/models?limit=1000",
                "x-api-key", "ANTHROPIC_API_KEY",
            ),
            Vendor(
                "openai", "OpenAI", "https://api.openai.com/v1", variable="OPENAI_API_KEY"
            ),
            Vendor(
                "openai-responses", "OpenAI, by its Responses API", "https://api.openai.com/v1",
                variable="OPENAI_API_KEY",
            ),
            Vendor(
                "google", "Google Gemini", "https://generativelanguage.googleapis.com",
                "/v1beta/models?pageSize=1000", "x-goog-api-key", "GEMINI_API_KEY",
            ),
            Vendor(
                "bedrock", "Amazon Bedrock", listed="", variable="AWS_BEARER_TOKEN_BEDROCK",
                needs_key=False, needs_url=True,
            ),
            Vendor(
                "openrouter", "OpenRouter", "https://openrouter.ai/api/v1",
                variable="OPENROUTER_API_KEY",
            ),
            Vendor("mistral", "Mistral", "https://api.mistral.ai/v1", variable="MISTRAL_API_KEY"),
            Vendor("groq", "Groq", "https://api.groq.com/openai/v1", variable="GROQ_API_KEY"),
            Vendor(
                "ollama", "Ollama, on this machine", "http://127.0.0.1:11434/v1", needs_key=False
            ),
        )
    }
)  # fmt: skip

OWN_SERVER: Final = Vendor(
    "openai", "Another server with an OpenAI-compatible API", needs_key=False, needs_url=True
)


def list_models(vendor: Vendor, base_url: str | None, key: str | None) -> list[str]:
    """Ask a vendor for its models; an empty list if it cannot be asked.

    Raises:
        KagedError: `model_refused`; it does not accept the key.
    """
    server = (base_url or vendor.server).rstrip("/")
    if not vendor.listed or not server:
        return []
    import httpx

    headers: dict[str, str] = {"accept-encoding": "identity"}
    if key:
        headers[vendor.auth] = f"Bearer {key}" if vendor.auth == "authorization" else key
    if vendor.name == "anthropic":
        headers["anthropic-version"] = "2023-06-01"
    data = b""
    try:
        with (
            # A key goes to the server that was named and nowhere else.
            httpx.Client(timeout=TIMEOUT_S, follow_redirects=False) as client,
            client.stream("GET", server + vendor.listed, headers=headers) as answer,
        ):
            if answer.status_code in {401, 403}:
                raise KagedError(
                    f"{vendor.title} does not accept the key.",
                    code="model_refused",
                    fix="Check the key, and run the command again.",
                )
            if answer.status_code != 200:
                return []
            for piece in answer.iter_bytes():
                data += piece
                if len(data) > MAX_LIST_BYTES:
                    return []
        return _names(json.loads(data))
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, RecursionError):
        return []


def _names(answer: Any) -> list[str]:
    """Read the names out of either of the two shapes that vendors use."""
    if not isinstance(answer, dict):
        return []
    listed = answer.get("data", answer.get("models"))
    if not isinstance(listed, list):
        return []
    found: set[str] = set()
    for one in listed[:MAX_MODELS]:
        name = (one.get("id") or one.get("name")) if isinstance(one, dict) else None
        plain = name.removeprefix("models/") if isinstance(name, str) else ""
        if _NAME.fullmatch(plain):
            found.add(plain)
    return sorted(found)
