"""notify: notifications through an Apprise API server, which knows a hundred services."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Any

from kaged.sdk import CallContext, NotApplicable, Plugin, PluginError, ResourceBusy
from kaged.sdk.http_request import HttpUnreachable, http_request

HOUR_S = 3600.0

plugin = Plugin("notify", "0.1.0")
config: dict[str, Any] = {}
sent_at: deque[float] = deque()
counting = threading.Lock()


@plugin.config
def configure(new: dict[str, Any]) -> None:
    """Take a new configuration."""
    config.clear()
    config.update(new)


@plugin.tool("send")
def send(params: dict[str, Any], context: CallContext) -> dict[str, Any]:
    """Send one notification."""
    tag = str((context.config or {}).get("tag", ""))
    kind = str(params.get("type", "info"))
    return deliver(str(params["body"]), str(params.get("title", "")), kind, tag)


@plugin.hook("on_session_idle")
def on_session_idle(params: dict[str, Any], context: CallContext) -> None:
    """Notify that a session waits for somebody, where the project wants that."""
    settings = context.config or {}
    if settings.get("on_idle") is True:
        text = f"A session of {context.agent_path or 'an agent'} has nothing more to do."
        deliver(text, "Session idle", "info", str(settings.get("tag", "")))


def deliver(body: str, title: str, kind: str, tag: str) -> dict[str, Any]:
    """Hand a notification to Apprise: `POST /notify/KEY`."""
    require_room()
    message: dict[str, Any] = {"body": body, "type": kind, "format": "text"}
    if title:
        message["title"] = title
    if tag:
        message["tag"] = tag
    url = f"{str(config['url']).rstrip('/')}/notify/{config['key']}"
    try:
        answer = http_request("POST", url, body=message)
    except HttpUnreachable as error:
        raise PluginError(f"Apprise was not reached: {error}") from None
    if answer.status == 200:
        return {"sent": True}
    if answer.status == 204:
        raise NotApplicable("Apprise has no services under this key, or none with this tag")
    if answer.status == 424:
        raise PluginError("Apprise could not deliver it to at least one of its services")
    raise PluginError(f"Apprise answered {answer.status}")


def require_room() -> None:
    """Refuse more notifications than people would read."""
    limit = int(config.get("per_hour", 20))
    now_s = time.monotonic()
    with counting:
        while sent_at and now_s - sent_at[0] >= HOUR_S:
            sent_at.popleft()
        if len(sent_at) >= limit:
            raise ResourceBusy(f"{limit} notifications were sent within the last hour")
        sent_at.append(now_s)


if __name__ == "__main__":
    plugin.start()
