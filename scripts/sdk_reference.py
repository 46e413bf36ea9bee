"""The reference of the SDKs, drawn from their code: `rewrite` writes the page."""

# ruff: noqa: E501 - the page's own lines are up to 120 wide

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from kaged.plugins.environment import FOLDERS, VARIABLES

ROOT = Path(__file__).resolve().parent.parent
SDK = ROOT / "src" / "kaged" / "sdk"
ERRORS = ROOT / "src" / "kaged" / "wire" / "errors.py"
TYPES = ROOT / "sdk" / "js" / "src" / "index.d.ts"
SHELL = ROOT / "src" / "kaged" / "plugins" / "templates" / "bash" / "main.sh.tmpl"
PYTHON = (
    (SDK / "plugin.py", ("Plugin", "create_plugin", "base64_text")),
    (SDK / "context.py", ("CallContext", "Cancellation")),
    (
        SDK / "storage.py",
        ("Storage", "Transaction", "Rows", "Changed", "Queued", "Committed", "Tables"),
    ),
    (SDK / "log.py", ("Log",)),
    (SDK / "http_request.py", ("http_request", "HttpAnswer", "HttpUnreachable")),
    (SDK / "http_client.py", ("request", "exchange", "connect", "Unreachable")),
    (SDK / "front_end.py", ("Assistant",)),
    (SDK / "shared_files.py", ("shared_file",)),
    (
        ERRORS,
        (
            "PluginError",
            "InvalidParams",
            "ConfigInvalid",
            "ResourceBusy",
            "NotApplicable",
            "RpcError",
        ),
    ),
    (SDK / "testing.py", ("PluginDriver",)),
    (
        SDK / "bridge.py",
        ("Bridge", "Capability", "BridgeCall", "BridgeError", "InvalidInput", "NotLinked"),
    ),
)
HEAD = """\
# The plugin SDKs

What plugins find inside their cage, and what the SDKs give them. A plugin needs none: any program that reads and writes
lines of JSON is one ([the protocol](plugin-protocol.md)).

<!-- drawn by `make docs` -->

## Environment

| Variable | Is |
|---|---|
{variables}

| Folder | Holds |
|---|---|
{folders}

Everything else of the file system is what the manifest's capabilities say ([capabilities](capabilities.md)).

## Python

`from kaged_sdk import Plugin`, or `from kaged.sdk import Plugin`: in a cage both are there without more. Elsewhere install the
wheel `kaged-sdk` (`make guest-packages` builds it). `kaged_sdk.testing` plays the host in tests, `kaged_sdk.bridge` is for
[bridges](../tutorial/write-a-bridge.md), `kaged_sdk.http_request` asks a service that `net:` allows; `kaged_sdk.http_client` does so
for plugins that always have a request open, and `kaged_sdk.front_end` hands what people say in a chat to an agent, each as
themselves. A plugin that brings a version of its own sets `PYTHONPATH` in its manifest.

{python}
## JavaScript and TypeScript

`import {{ createPlugin }} from "@kaged/plugin-sdk"`: there in a cage without more; `make guest-packages` packs it for npm.

```ts
{types}```

## Shell

No library is needed: this is what `kaged plugin new NAME --lang bash` writes, with `@NAME@` for the name. `jq` reads and
writes the lines ([write a plugin in shell](../how-to/write-a-shell-plugin.md)).

```bash
{shell}```
"""


def render() -> str:
    """Render the page."""
    return HEAD.format(
        variables=_rows(VARIABLES),
        folders=_rows(FOLDERS),
        python="\n".join(_python()),
        types=TYPES.read_text(encoding="utf-8"),
        shell=SHELL.read_text(encoding="utf-8"),
    )


def rewrite(page: Path) -> None:
    """Write the page."""
    page.write_text(render(), encoding="utf-8")


def _rows(pairs: tuple[tuple[str, str], ...]) -> str:
    return "\n".join(f"| `{name}` | {text} |" for name, text in pairs)


def _python() -> Iterator[str]:
    for file, names in PYTHON:
        tree = ast.parse(file.read_text(encoding="utf-8"))
        known = {
            node.name: node
            for node in tree.body
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        }
        for name in names:
            node = known[name]
            yield f"### `{name}`\n"
            yield f"{_first(node)}\n"
            if isinstance(node, ast.ClassDef):
                members = [*_members(node)]
                if members:
                    yield "| Member | Does |\n|---|---|"
                    yield from members
                    yield ""
            else:
                yield f"```python\n{_signature(node)}\n```\n"


def _members(node: ast.ClassDef) -> Iterator[str]:
    for one in node.body:
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name):
            if not one.target.id.startswith("_"):
                yield f"| `{one.target.id}: {_cell(ast.unparse(one.annotation))}` | |"
        elif isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef) and (
            not one.name.startswith("_") or (one.name == "__init__" and len(one.args.args) > 1)
        ):
            yield f"| `{_cell(_signature(one))}` | {_cell(_first(one))} |"


def _signature(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    word = "async " if isinstance(node, ast.AsyncFunctionDef) else ""
    given = ast.unparse(node.args).removeprefix("self, ").removeprefix("self")
    back = f" -> {ast.unparse(node.returns)}" if node.returns is not None else ""
    return f"{word}{node.name}({given}){back}"


def _first(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    text = ast.get_docstring(node) or ""
    return " ".join(text.partition("\n\n")[0].split())


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
