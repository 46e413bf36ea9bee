"""For plugin authors: `create_plugin`, `Plugin`, `CallContext`, `Storage`, `Log`, `PluginError`.

Runs inside a cage with the standard library alone. The host never depends on it: the contract is
lines of JSON on stdin and stdout.
"""

from typing import TYPE_CHECKING

from kaged.sdk.handshake import API_VERSION
from kaged.sdk.plugin import Plugin, base64_text, create_plugin
from kaged.sdk.shared_files import shared_file
from kaged.wire.errors import (
    ConfigInvalid,
    InvalidParams,
    NotApplicable,
    PluginError,
    ResourceBusy,
    RpcError,
)

if TYPE_CHECKING:
    from kaged.sdk.context import CallContext

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
    "shared_file",
]


def __getattr__(name: str) -> object:
    # For annotations mostly; what makes it costs as much as a third of the interpreter's start.
    if name == "CallContext":
        from kaged.sdk.context import CallContext  # noqa: PLC0415 - see above

        return CallContext
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
