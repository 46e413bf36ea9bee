"""A real debugger: `debug`, a project's `DapBridge`, its `DebugSession`s, adapters and their wire.

tool → bridge → session → protocol (Content-Length frames) → adapter process, caged as its caller
"""

from kaged.toolbox.dap.adapters import BUILTIN
from kaged.toolbox.dap.backend import caged_launcher
from kaged.toolbox.dap.bridge import DapBridge
from kaged.toolbox.dap.tool import dap_tools

__all__ = ["BUILTIN", "DapBridge", "caged_launcher", "dap_tools"]
