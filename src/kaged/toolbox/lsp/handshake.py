"""`initialize`: what a language server is told of us; `Capabilities`: what it says of itself."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import PurePosixPath
from typing import Final, cast

from kaged import __version__
from kaged.base import JsonObject, JsonValue
from kaged.base.lazy_dataclass import dataclass
from kaged.toolbox.lsp.positions import Encoding, negotiated, to_uri

_DYNAMIC: Final[JsonObject] = {"dynamicRegistration": True}
_LINKS: Final[JsonObject] = {"dynamicRegistration": True, "linkSupport": True}
_TOKEN_TYPES: Final[list[JsonValue]] = [
    *("namespace", "type", "class", "enum", "interface", "struct", "typeParameter", "parameter"),
    *("variable", "property", "enumMember", "event", "function", "method", "macro", "keyword"),
    *("modifier", "comment", "string", "number", "regexp", "operator", "decorator"),
]
_TOKEN_MODIFIERS: Final[list[JsonValue]] = [
    *("declaration", "definition", "readonly", "static", "deprecated", "abstract", "async"),
    *("modification", "documentation", "defaultLibrary"),
]

_TEXT_DOCUMENT: Final[JsonObject] = {
    "synchronization": {"dynamicRegistration": True, "didSave": True},
    # Servers that are told of pull wait to be pulled; those that are not may stay silent.
    "diagnostic": {"dynamicRegistration": True, "relatedDocumentSupport": False},
    "publishDiagnostics": {"versionSupport": True, "relatedInformation": False},
    "definition": _LINKS,
    "typeDefinition": _LINKS,
    "implementation": _LINKS,
    "references": _DYNAMIC,
    "hover": {"dynamicRegistration": True, "contentFormat": ["markdown", "plaintext"]},
    "documentSymbol": {
        "dynamicRegistration": True,
        "hierarchicalDocumentSymbolSupport": True,
    },
    "rename": {"dynamicRegistration": True, "prepareSupport": True},
    "callHierarchy": _DYNAMIC,
    "formatting": _DYNAMIC,
    "semanticTokens": {
        "dynamicRegistration": False,  # the legend that explains the numbers comes at the start
        "requests": {"full": True},
        "tokenTypes": _TOKEN_TYPES,
        "tokenModifiers": _TOKEN_MODIFIERS,
        "formats": ["relative"],
        "overlappingTokenSupport": False,
        "multilineTokenSupport": False,
    },
    "codeAction": {
        "dynamicRegistration": True,
        "isPreferredSupport": True,
        "dataSupport": True,
        "resolveSupport": {"properties": ["edit"]},
        "codeActionLiteralSupport": {
            "codeActionKind": {"valueSet": ["quickfix", "refactor", "source"]}
        },
    },
}

CLIENT_CAPABILITIES: Final[JsonObject] = {
    "general": {"positionEncodings": [one.value for one in Encoding]},
    "window": {
        "workDoneProgress": True,
        "showMessage": {},
        "showDocument": {"support": False},
    },
    "workspace": {
        "applyEdit": True,
        "configuration": True,
        "workspaceFolders": True,
        "didChangeConfiguration": _DYNAMIC,
        "didChangeWatchedFiles": _DYNAMIC,
        "symbol": _DYNAMIC,
        "diagnostics": {"refreshSupport": True},
        "fileOperations": {"dynamicRegistration": True, "willRename": True, "didRename": True},
        "workspaceEdit": {
            "documentChanges": True,
            "resourceOperations": ["create", "rename", "delete"],
            "failureHandling": "transactional",
        },
    },
    "textDocument": _TEXT_DOCUMENT,
}

# Who may register later does so, and the first question about problems waits for it: ty would then
# begin to read the project before it says that it can be asked. pyright is asked only if it may.
_SAYS_AT_ONCE: Final = frozenset({"ty"})
_AT_ONCE: Final[JsonObject] = {
    **CLIENT_CAPABILITIES,
    "textDocument": {
        **_TEXT_DOCUMENT,
        "diagnostic": {"dynamicRegistration": False, "relatedDocumentSupport": False},
    },
}

# typescript-language-server answers from a second, syntax-only server while the project loads:
# a definition then is the import line. Others do not know the option and ignore it.
_WHOLE_PROJECT: Final[JsonObject] = {
    "initializationOptions": {"tsserver": {"useSyntaxServer": "never"}}
}
# gopls repeats no list of problems that did not change, and may push one about a text of which it
# had only half; so it is asked to tell when it begins and ends to look, and to do so at once.
_TELLS_OF_CHECKS: Final[JsonObject] = {
    "initializationOptions": {"verboseWorkDoneProgress": True, "diagnosticsDelay": "0s"}
}
_OPTIONS: Final[Mapping[str, JsonObject]] = {
    "typescript": _WHOLE_PROJECT,
    "javascript": _WHOLE_PROJECT,
    "go": _TELLS_OF_CHECKS,
}


@dataclass(slots=True)
class Capabilities:
    """What a server said it can do, at the start or later by registration."""

    raw: JsonObject = field(default_factory=dict)
    server_info: JsonValue = None
    registered: dict[str, JsonObject] = field(default_factory=dict)  # id → registration

    @property
    def encoding(self) -> Encoding:
        """The units in which the server counts columns."""
        return negotiated(self.raw)

    def offers(self, provider: str, method: str) -> bool:
        """Return whether the server can do something, as a capability or a registered method."""
        return self._said(self.raw.get(provider), method)

    def option(self, provider: str, name: str) -> JsonValue:
        """Return an option of a capability; None when there is none."""
        said = self.raw.get(provider)
        return said.get(name) if isinstance(said, dict) else None

    @property
    def wants_save(self) -> bool:
        """Whether the server asked for notifications of saved files."""
        sync = self.raw.get("textDocumentSync")
        save = sync.get("save") if isinstance(sync, dict) else None
        return self._said(save, "textDocument/didSave")

    @property
    def file_renames(self) -> bool:
        """Whether the server wants to be asked before a file is renamed."""
        workspace = self.raw.get("workspace")
        operations = workspace.get("fileOperations") if isinstance(workspace, dict) else None
        said = operations.get("willRename") if isinstance(operations, dict) else None
        return self._said(said, "workspace/willRenameFiles")

    def _said(self, capability: JsonValue, method: str) -> bool:
        return capability not in (None, False) or any(
            one.get("method") == method for one in self.registered.values()
        )

    def take(self, answer: JsonValue) -> None:
        """Read the answer to `initialize`; one without capabilities offers nothing."""
        if isinstance(answer, dict):
            said = answer.get("capabilities")
            self.raw = said if isinstance(said, dict) else {}
            self.server_info = answer.get("serverInfo")

    def register(self, params: JsonValue) -> None:
        """Note what a server registers later."""
        for one in _entries(params, "registrations"):
            self.registered[str(one.get("id"))] = one

    def unregister(self, params: JsonValue) -> None:
        """Forget it again; the field's name is misspelt in the protocol itself."""
        for one in _entries(params, "unregisterations"):
            self.registered.pop(str(one.get("id")), None)


def initialize_params(root: str, language: str, command: Sequence[str] = ()) -> JsonObject:
    """Return the parameters of `initialize` for a project root and a language's server."""
    uri = to_uri(root)
    program = PurePosixPath(command[0]).name if command else ""
    return {
        "processId": os.getpid(),
        "clientInfo": {"name": "kaged", "version": __version__},
        "rootPath": root,
        "rootUri": uri,
        "workspaceFolders": [{"uri": uri, "name": PurePosixPath(root).name}],
        "capabilities": _AT_ONCE if program in _SAYS_AT_ONCE else CLIENT_CAPABILITIES,
        **_OPTIONS.get(language, {}),
        "trace": "off",
    }


def _entries(params: JsonValue, name: str) -> list[JsonObject]:
    found = params.get(name) if isinstance(params, dict) else None
    if not isinstance(found, list):
        return []
    return [cast("JsonObject", one) for one in found if isinstance(one, dict)]
