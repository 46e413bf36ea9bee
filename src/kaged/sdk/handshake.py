"""`GuestHandshake`: the handshake and the health check, before anything else is loaded.

Most plugins of a host wait most of the time. Until one is called, all there is to answer are a
greeting, pings and a configuration; the event loop, which takes as much memory as the interpreter
itself and longer to load, comes with the first call.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from enum import Enum
from typing import Any, NoReturn

from kaged.sdk.declared import DeclaredPlugin
from kaged.sdk.early_config import EarlyConfig, is_plain
from kaged.wire.framing import Unsendable
from kaged.wire.lines import encode_line
from kaged.wire.methods import HOOK_NAMESPACE, SystemMethod

API_VERSION = 1
_PROJECTS = {SystemMethod.PROJECTS_ACTIVATED, SystemMethod.PROJECTS_DEACTIVATED}
_MEMBERS = {"jsonrpc", "id", "method", "params"}
# Deeper values are for the conversation to refuse; a bracket is needed for every level.
_BRACKETS_LIMIT = 64


class HandshakePhase(Enum):
    """Where the conversation stands."""

    NEW = "new"
    GREETED = "greeted"
    READY = "ready"
    STOPPING = "stopping"


class GuestHandshake:
    """Takes the lines of the host that need no event loop, and leaves all others alone.

    It answers exactly what `Conversation` would answer, which goes on in the `phase` reached here.
    """

    def __init__(self, plugin: DeclaredPlugin, write: Callable[[bytes], None]) -> None:
        self.phase = HandshakePhase.NEW
        self._plugin = plugin
        self._write = write

    def take(self, line: bytes) -> bool:
        """Deal with a line; False, and nothing done, when it is for the conversation."""
        message = _plain_message(line)
        if message is None:
            return False
        method, asked = message["method"], "id" in message
        if method == SystemMethod.PING and asked and self.phase is HandshakePhase.READY:
            return self._answer(message["id"], {"status": "ok"})
        if method == SystemMethod.INITIALIZE and asked and self.phase is HandshakePhase.NEW:
            fits = is_for(self._plugin, message.get("params"))
            if fits and self._answer(message["id"], introduction(self._plugin)):
                self.phase = HandshakePhase.GREETED
                return True
        elif (
            method == SystemMethod.INITIALIZED
            and not asked
            and self.phase is HandshakePhase.GREETED
        ):
            self.phase = HandshakePhase.READY
            return True
        elif method == SystemMethod.CONFIG_UPDATE and asked and "params" in message:
            return self._configure(message["id"], message["params"])
        elif method in _PROJECTS and asked and self.phase is HandshakePhase.READY:
            return not self._hears(method) and self._answer(message["id"], None)
        elif method == SystemMethod.SHUTDOWN and not asked:
            return self.end()
        return False

    def end(self) -> bool:
        """Stop, at a shutdown or when the host is gone; False when the conversation has to."""
        if self._plugin.on_shutdown is None:
            self.phase = HandshakePhase.STOPPING
        return self.phase is HandshakePhase.STOPPING

    def _configure(self, message_id: int | str, params: dict[str, Any]) -> bool:
        # The host sends the first one between the greeting and `initialized`.
        if self.phase not in {HandshakePhase.GREETED, HandshakePhase.READY}:
            return False
        if not is_plain(self._plugin.on_config_update):
            return False
        wrapped = params.get("config")
        config = wrapped if isinstance(wrapped, dict) else params
        EarlyConfig(self._plugin, message_id, config, self._write).start()
        return True

    def _hears(self, method: str) -> bool:
        plugin, activated = self._plugin, method == SystemMethod.PROJECTS_ACTIVATED
        handler = plugin.on_project_activated if activated else plugin.on_project_deactivated
        return handler is not None

    def _answer(self, message_id: object, result: dict[str, Any] | None) -> bool:
        answer = {"jsonrpc": "2.0", "id": message_id, "result": result}
        try:
            payload = json.dumps(answer, ensure_ascii=False, separators=(",", ":")).encode()
            line = encode_line(payload)
        except (TypeError, ValueError, Unsendable):  # the conversation says what is wrong with it
            return False
        self._write(line)
        return True


def introduction(plugin: DeclaredPlugin) -> dict[str, Any]:
    """Return the result of `initialize`."""
    return {
        "name": plugin.name,
        "version": plugin.version,
        "api_version": API_VERSION,
        # Tools may stand among the methods (PH-AMB-18); hooks are the host's own names.
        "methods": [name for name in plugin.handlers if not name.startswith(HOOK_NAMESPACE)],
        "notifications": plugin.notifications,
        "capabilities_used": plugin.capabilities_used,
    }


def is_for(plugin: DeclaredPlugin, params: object) -> bool:
    """Return whether a greeting is meant for this plugin and has its version of the API."""
    if not isinstance(params, dict):
        return False
    api = params.get("api_version")
    return params.get("plugin_name") == plugin.name and type(api) is int and api == API_VERSION


def _plain_message(line: bytes) -> dict[str, Any] | None:
    """Decode a call of the plainest form; None for all that needs a closer look."""
    if not line.isascii() or b"\\" in line:
        return None
    if line.count(b"{") + line.count(b"[") > _BRACKETS_LIMIT:
        return None
    try:
        message = _DECODER.decode(line.decode("ascii"))
    except ValueError:
        return None
    if not isinstance(message, dict) or not message.keys() <= _MEMBERS:
        return None
    fits = (
        message.get("jsonrpc") == "2.0"
        and isinstance(message.get("method"), str)
        and isinstance(message.get("params", {}), dict)
        and type(message.get("id", 0)) in {int, str}
    )
    return message if fits else None


def _finite(text: str) -> float:
    """Read a number that is no integer; one too large for that needs a closer look."""
    number = float(text)
    if number - number != 0:
        raise ValueError
    return number


def _closer_look(_text: str) -> NoReturn:
    """Refuse a number that is not JSON."""
    raise ValueError


_DECODER = json.JSONDecoder(parse_float=_finite, parse_constant=_closer_look)
