"""For plugin authors: `create_plugin`, `Plugin`, `CallContext`, `Storage`, `Log`, `PluginError`.

Runs inside a cage with the standard library alone. The host never depends on it: the contract is
lines of JSON on stdin and stdout.
"""

from kaged.sdk.context import CallContext
from kaged.sdk.conversation import API_VERSION
from kaged.sdk.plugin import Plugin, base64_text, create_plugin
from kaged.wire.errors import (
    ConfigInvalid,
    InvalidParams,
    NotApplicable,
    PluginError,
    ResourceBusy,
    RpcError,
)

__all__ = [
    "API_VERSION",
    "CallContext",
    "ConfigInvalid",
    "InvalidParams",
    "NotApplicable",
    "Plugin",
    "PluginError",
    "ResourceBusy",
    "RpcError",
    "base64_text",
    "create_plugin",
]
