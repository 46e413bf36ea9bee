"""Code intelligence: `code.lsp`, a project's `LspBridge`, its `LspPool` of servers, `FileSync`.

tool → bridge → pool → server (peer, Content-Length frames); workspace changes → filesync → server
"""

from kaged.toolbox.lsp.bridge import LspBridge
from kaged.toolbox.lsp.languages import DEFAULT_COMMANDS
from kaged.toolbox.lsp.pool import ServerStopReason
from kaged.toolbox.lsp.tool import lsp_tools

__all__ = ["DEFAULT_COMMANDS", "LspBridge", "ServerStopReason", "lsp_tools"]
