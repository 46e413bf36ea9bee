"""gopls on a real Go module: errors after an edit, finding one's way, renaming."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from fakes.lsp_lab import LspLab
from fakes.runtimes import ROOT
from kaged.toolbox.files import file_tools
from kaged.toolbox.lsp import DEFAULT_COMMANDS
from requirements import requirement

USER = """package hello

// User is somebody.
type User struct {
	Name string
}

// Greet says hello to somebody.
func Greet(user User) string {
	return "😀" + user.Name
}
"""
MAIN = """package main

import "example.org/hello"

func main() {
	println(hello.Greet(hello.User{Name: "ada"}))
}
"""


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[LspLab]:
    assert shutil.which("gopls"), "gopls is missing: run scripts/setup --tests"
    assert shutil.which("go"), "go is missing: run scripts/setup --tests"
    cache = ROOT / "build" / "go-cache"
    cache.mkdir(parents=True, exist_ok=True)
    made = LspLab(
        tmp_path,
        commands={"go": DEFAULT_COMMANDS["go"]},
        limit_s=60.0,
        tools=file_tools(),
        environ={**os.environ, "GOCACHE": str(cache), "GOFLAGS": "-mod=mod", "GOPROXY": "off"},
    )
    made.write("go.mod", "module example.org/hello\n\ngo 1.19\n")
    made.write("user.go", USER)
    made.write("cmd/main.go", MAIN)
    yield made
    await made.close()


async def edit(lab: LspLab, path: str, old: str, new: str) -> None:
    await lab.tool_lab.call("file.read", path=path)
    await lab.tool_lab.call("edit.text", path=path, old_string=old, new_string=new)


async def errors(lab: LspLab, path: str) -> list[tuple[int, str]]:
    said = await lab.lsp("diagnostics", path=path, severity="error")
    for _ in range(5):  # its first build may take longer than one question waits
        if said.get("complete", True):
            break
        said = await lab.lsp("diagnostics", path=path, severity="error")
    assert said.get("complete", True), said
    return [(one["line"], one["message"]) for one in said["diagnostics"]]


@requirement("AT-LSP-27", "AT-LSP-28", "AT-SYNC-05")
async def test_go_errors_come_with_the_edit_that_makes_them(lab: LspLab) -> None:
    assert await errors(lab, "./user.go") == []
    await edit(lab, "./user.go", "user.Name", "user.Nobody")
    (found,) = await errors(lab, "./user.go")
    assert found[0] == 10
    assert "Nobody" in found[1]
    await edit(lab, "./user.go", "user.Nobody", "user.Name")
    assert await errors(lab, "./user.go") == []


@requirement("AT-LSP-30", "AT-LSP-35", "AT-LSP-50")
async def test_finding_ones_way_and_renaming_in_go(lab: LspLab) -> None:
    at = {"path": "./cmd/main.go", "line": 6, "symbol": "Greet"}
    found = await lab.lsp("definition", **at)
    assert [(one["path"], one["line"]) for one in found["definitions"]] == [("./user.go", 9)]
    hover = await lab.lsp("hover", **at)
    assert "func hello.Greet(user hello.User) string" in hover["content"]
    assert "says hello" in hover["documentation"]
    spot = {"path": "./user.go", "line": 9, "symbol": "Greet"}
    uses = await lab.lsp("references", include_declaration=True, **spot)
    places = {(one["path"], one["line"]) for one in uses["references"]}
    assert {("./user.go", 9), ("./cmd/main.go", 6)} <= places
    outline = await lab.lsp("symbols", path="./user.go")
    assert {"User", "Greet"} <= {one["name"] for one in outline["symbols"]}
    # Behind a character that is two units long in the server's counting.
    await lab.lsp("rename", path="./user.go", line=10, symbol="user", new_name="who")
    assert '"😀" + who.Name' in (lab.root / "user.go").read_text("utf-8")
    said = await lab.lsp("rename", path="./user.go", line=9, symbol="Greet", new_name="Welcome")
    assert said["files_changed"] == 2
    assert (lab.root / "cmd/main.go").read_text("utf-8") == MAIN.replace("Greet", "Welcome")
    assert await errors(lab, "./cmd/main.go") == []
