"""web-search: the web through a search service of the operator's choice."""

from __future__ import annotations

import re
from typing import Any

from kaged.sdk import CallContext, ConfigInvalid, Plugin, PluginError
from kaged.sdk.http_request import HttpUnreachable, http_request

BRAVE = "https://api.search.brave.com"
EXTRACT_CHARS = 400
TAG = re.compile(r"<[^>]{0,200}>")

plugin = Plugin("web-search", "0.1.0")
config: dict[str, Any] = {}


@plugin.config
def configure(new: dict[str, Any]) -> None:
    """Take a new configuration."""
    if new.get("provider") == "brave" and not new.get("token"):
        raise ConfigInvalid("brave needs a token: `kaged plugin secret set web-search token`")
    if new.get("provider", "searxng") == "searxng" and not new.get("url"):
        raise ConfigInvalid("searxng needs a url: `kaged plugin secret set web-search url`")
    config.clear()
    config.update(new)


@plugin.tool("search")
def search(params: dict[str, Any], context: CallContext) -> dict[str, Any]:
    """Search the web."""
    limit, page = int(params.get("limit", 8)), int(params.get("page", 1))
    found = (by_brave if config.get("provider") == "brave" else by_searxng)(
        str(params["query"]), limit, page
    )
    return {"results": found[:limit], "count": len(found[:limit])}


def by_searxng(query: str, _limit: int, page: int) -> list[dict[str, str]]:
    """Ask SearXNG; it has a fixed number of results per page, whatever the limit."""
    asked = {"q": query, "format": "json", "pageno": page, "language": config.get("language")}
    said = get(f"{str(config['url']).rstrip('/')}/search", asked, {}, "SearXNG")
    return shown(said.get("results"), "content")


def by_brave(query: str, limit: int, page: int) -> list[dict[str, str]]:
    """Ask the Brave Search API."""
    language = str(config.get("language", "")).partition("-")[0]
    asked = {"q": query, "count": limit, "offset": page - 1, "search_lang": language}
    base = str(config.get("url") or BRAVE).rstrip("/")
    headers = {"X-Subscription-Token": str(config["token"])}
    said = get(f"{base}/res/v1/web/search", asked, headers, "Brave")
    web = said.get("web")
    return shown(web.get("results") if isinstance(web, dict) else None, "description")


def get(url: str, query: dict[str, Any], headers: dict[str, str], who: str) -> dict[str, Any]:
    """Return the JSON of an answer."""
    from urllib.parse import urlencode  # noqa: PLC0415 - not needed while waiting

    words = urlencode({key: value for key, value in query.items() if value})
    try:
        answer = http_request("GET", f"{url}?{words}", headers)
    except HttpUnreachable as error:
        raise PluginError(f"{who} was not reached: {error}") from None
    said = answer.json()
    if answer.status == 403 and who == "SearXNG":
        raise PluginError("SearXNG refused: enable `json` in search.formats of its settings.yml")
    if answer.status == 429:
        raise PluginError(f"{who} has had too many questions; try again later")
    if answer.status != 200 or not isinstance(said, dict):
        raise PluginError(f"{who} answered {answer.status}")
    return said


def shown(results: Any, extract: str) -> list[dict[str, str]]:
    """Return title, address and extract of each result; what is none is left out."""
    found: list[dict[str, str]] = []
    for one in results if isinstance(results, list) else []:
        if isinstance(one, dict) and str(one.get("url", "")).startswith(("http://", "https://")):
            text = TAG.sub("", str(one.get(extract) or ""))
            found.append(
                {
                    "title": TAG.sub("", str(one.get("title") or ""))[:200],
                    "url": str(one["url"])[:2000],
                    "extract": " ".join(text.split())[:EXTRACT_CHARS],
                }
            )
    return found


if __name__ == "__main__":
    plugin.start()
