"""The same questions to real language servers, as they come from their registries."""

from __future__ import annotations

import shutil
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from fakes.lsp_lab import LspLab
from fakes.runtimes import node, npm_tool
from kaged.toolbox.files import file_tools
from requirements import requirement

BIN = Path(sys.executable).parent
PYTHON_SERVERS = {
    "ty": (str(BIN / "ty"), "server"),
    "basedpyright": (str(BIN / "basedpyright-langserver"), "--stdio"),
    "pyright": (str(node()), str(npm_tool("pyright", "langserver.index.js")), "--stdio"),
}
TYPES = '''class User:
    name: str = "x"


def greet(user: User) -> str:
    """Say hello to somebody."""
    return "😀" + user.name
'''
MAIN = """from src.types_ import User, greet

print(greet(User()))
"""


@pytest.fixture(params=PYTHON_SERVERS)
async def python(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[LspLab]:
    command = PYTHON_SERVERS[request.param]
    assert shutil.which(command[0]), f"{request.param} is missing; run scripts/setup --tests"
    lab = LspLab(tmp_path, commands={"python": command}, limit_s=30.0, tools=file_tools())
    lab.write("src/types_.py", TYPES)
    lab.write("src/main.py", MAIN)
    lab.write("lib/other.py", "from src.types_ import greet\n\ng = greet\n")
    yield lab
    await lab.close()


@requirement("AT-LSP-27", "AT-LSP-28", "AT-SYNC-05")
async def test_an_error_appears_with_the_edit_and_goes_with_the_next(python: LspLab) -> None:
    assert (await python.lsp("diagnostics", path="./src/main.py", severity="error"))["count"] == 0
    await python.tool_lab.call("file.read", path="./src/main.py")
    await python.tool_lab.call(
        "edit.text",
        path="./src/main.py",
        old_string="print(greet(User()))",
        new_string="print(greet(User()).nope)",
    )
    said = await python.lsp("diagnostics", path="./src/main.py", severity="error")
    assert [(one["line"], one["severity"]) for one in said["diagnostics"]] == [(3, "error")]
    assert "nope" in said["diagnostics"][0]["message"]
    await python.tool_lab.call(
        "edit.text", path="./src/main.py", old_string=".nope", new_string=".upper()"
    )
    said = await python.lsp("diagnostics", path="./src/main.py", severity="error")
    assert (said["count"], said.get("complete", True)) == (0, True)


@requirement("AT-LSP-30", "AT-LSP-35", "AT-LSP-37", "AT-LSP-50", "AT-LSP-51")
async def test_finding_ones_way(python: LspLab) -> None:
    at = {"path": "./src/main.py", "line": 3, "symbol": "greet"}
    found = await python.lsp("definition", **at)
    assert found["definitions"] == [
        {
            "path": "./src/types_.py",
            "line": 5,
            "character": 4,
            "preview": "def greet(user: User) -> str:",
        }
    ]
    uses = await python.lsp("references", path="./src/types_.py", line=5, symbol="greet")
    places = {(one["path"], one["line"]) for one in uses["references"]}
    assert {("./src/main.py", 3), ("./lib/other.py", 3)} <= places  # imports count for some
    assert all("greet" in one["preview"] for one in uses["references"])
    hover = await python.lsp("hover", **at)
    assert "greet(user: User) -> str" in hover["content"]
    assert "Say hello to somebody." in hover["documentation"]
    assert hover["range"]["start"] == {"line": 3, "character": 6}
    outline = await python.lsp("symbols", path="./src/types_.py")
    assert {"User", "greet"} <= {one["name"] for one in outline["symbols"]}
    search = await python.lsp("symbols", path="./src", scope="workspace", query="greet")
    assert "./src/types_.py" in {one["path"] for one in search["symbols"]}


@requirement("AT-LSP-40", "AT-LSP-41", "AT-LSP-03")
async def test_renaming_reaches_every_file(python: LspLab) -> None:
    said = await python.lsp(
        "rename", path="./src/types_.py", line=7, symbol="user", new_name="person"
    )
    assert '"😀" + person.name' in (python.root / "src/types_.py").read_text("utf-8")
    said = await python.lsp(
        "rename", path="./src/types_.py", line=5, symbol="greet", new_name="welcome"
    )
    assert (said["files_changed"], said["total_edits"]) == (3, 5)
    assert (python.root / "src/main.py").read_text("utf-8") == MAIN.replace("greet", "welcome")
    assert "greet" not in (python.root / "lib/other.py").read_text("utf-8")
    refusal = await python.tool_lab.refusal(
        "code.lsp", action="rename", path="./src/main.py", line=1, symbol="import", new_name="x"
    )
    assert refusal.code == "rename_not_possible"
