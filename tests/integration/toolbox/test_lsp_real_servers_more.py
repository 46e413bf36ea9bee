"""TypeScript's two servers and clangd: errors after an edit, finding one's way, renaming."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from fakes.lsp_lab import LspLab
from fakes.runtimes import node, npm_tool
from kaged.toolbox.files import file_tools
from kaged.toolbox.lsp import diagnostics
from requirements import requirement

TS_SERVERS = {
    "typescript-language-server": ("typescript-language-server", "lib/cli.mjs", "--stdio"),
    "typescript 7": ("typescript-native", "bin/tsc", "--lsp", "--stdio"),
}
TYPES = """export interface User {
  name: string;
}

/** Says hello to somebody. */
export function greet(user: User): string {
  return "😀" + user.name;
}
"""
MAIN = """import { greet } from "./types";

export const said: string = greet({ name: "x" });
"""
OTHER = 'import { greet } from "../src/types";\n\nexport const g = greet;\n'
HEADER = "struct user { int age; };\nint greet(struct user *who);\n"
SOURCE = '#include "user.h"\n\nint greet(struct user *who) { /* 😀 */ return who->age; }\n'
CALLER = """#include "user.h"

int main(void) {
  struct user one = {1};
  return greet(&one);
}
"""


pytestmark = pytest.mark.asyncio(loop_scope="module")
_numbers = count(1)


@dataclass(frozen=True, slots=True)
class Corner:
    """A folder with a `tsconfig.json` of its own: a server is slow to load, and serves many."""

    lab: LspLab
    name: str

    @property
    def root(self) -> Path:
        return self.lab.root / self.name

    def at(self, path: str) -> str:
        """Return a path of this folder as the project's."""
        return f"./{self.name}/{path.removeprefix('./')}"

    async def lsp(self, action: str, **params: Any) -> Any:
        """Ask the server about files of this folder."""
        paths = {name: self.at(params[name]) for name in ("path", "new_path") if name in params}
        return await self.lab.lsp(action, **{**params, **paths})


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=TS_SERVERS)
async def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[LspLab]:
    package, program, *options = TS_SERVERS[request.param]
    lab = LspLab(
        tmp_path_factory.mktemp("ts"),
        commands={"typescript": (str(node()), str(npm_tool(package, program)), *options)},
        limit_s=30.0,
        tools=file_tools(),
    )
    yield lab
    await lab.close()


@pytest.fixture
def typescript(server: LspLab) -> Corner:
    corner = Corner(server, f"corner{next(_numbers)}")
    settings = '{"compilerOptions": {"strict": true}, "include": ["src", "lib"]}'
    server.write(corner.at("tsconfig.json"), settings)
    server.write(corner.at("src/types.ts"), TYPES)
    server.write(corner.at("src/main.ts"), MAIN)
    server.write(corner.at("lib/other.ts"), OTHER)
    return corner


@pytest_asyncio.fixture(loop_scope="module")
async def clang(tmp_path: Path) -> AsyncIterator[LspLab]:
    command = (str(Path(sys.executable).parent / "clangd"),)
    lab = LspLab(tmp_path, commands={"c": command}, limit_s=30.0, tools=file_tools())
    lab.write("user.h", HEADER)
    lab.write("user.c", SOURCE)
    lab.write("main.c", CALLER)
    lab.write(
        "compile_commands.json",
        json.dumps(
            [
                {"directory": str(lab.root), "command": f"cc -c {name}", "file": name}
                for name in ("user.c", "main.c")
            ]
        ),
    )
    yield lab
    await lab.close()


async def edit(place: LspLab | Corner, path: str, old: str, new: str) -> None:
    lab = place
    if isinstance(place, Corner):
        lab, path = place.lab, place.at(path)
    assert isinstance(lab, LspLab)
    await lab.tool_lab.call("file.read", path=path)
    await lab.tool_lab.call("edit.text", path=path, old_string=old, new_string=new)


async def errors(lab: LspLab | Corner, path: str) -> list[tuple[int, str]]:
    said = await lab.lsp("diagnostics", path=path, severity="error")
    assert said.get("complete", True), said
    return [(one["line"], one["message"]) for one in said["diagnostics"]]


@requirement("AT-LSP-27", "AT-LSP-28", "AT-SYNC-05")
async def test_typescript_reports_an_error_with_the_edit_that_makes_it(typescript: Corner) -> None:
    assert await errors(typescript, "./src/main.ts") == []
    await edit(typescript, "./src/main.ts", 'greet({ name: "x" })', "greet({ nam: 1 })")
    (found,) = await errors(typescript, "./src/main.ts")
    assert found[0] == 3
    assert "nam" in found[1]
    await edit(typescript, "./src/main.ts", "greet({ nam: 1 })", 'greet({ name: "y" })')
    assert await errors(typescript, "./src/main.ts") == []


async def test_typescript_says_that_a_file_is_as_clean_as_before_the_edit(
    typescript: Corner,
) -> None:
    assert await errors(typescript, "./src/main.ts") == []
    await edit(typescript, "./src/main.ts", '"x"', '"y"')
    assert await errors(typescript, "./src/main.ts") == []
    # A rename sends several files; what is found between two of them is not the answer.
    await typescript.lsp("rename", path="./src/types.ts", line=6, symbol="greet", new_name="hail")
    for path in ("./src/main.ts", "./lib/other.ts", "./src/types.ts"):
        assert await errors(typescript, path) == []


async def test_typescript_counts_columns_behind_wide_characters(typescript: Corner) -> None:
    await edit(typescript, "./src/types.ts", '"😀" + user.name', '"😀" + user.nam')
    said = await typescript.lsp("diagnostics", path="./src/types.ts", severity="error")
    (one,) = said["diagnostics"]
    line = (typescript.root / "src/types.ts").read_text("utf-8").splitlines()[one["line"] - 1]
    assert line[one["character"] : one["end_character"]] == "nam"
    assert one["code"] is not None


async def test_typescript_sees_an_error_that_an_edit_of_another_file_makes(
    typescript: Corner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(diagnostics, "RECHECK_S", 30.0)  # the machine may be busy
    assert await errors(typescript, "./src/main.ts") == []
    await edit(typescript, "./src/types.ts", "name: string;", "name: string;\n  age: number;")
    (found,) = await errors(typescript, "./src/main.ts")
    assert "age" in found[1]


@requirement("AT-LSP-30", "AT-LSP-35", "AT-LSP-50")
async def test_finding_ones_way_in_typescript(typescript: Corner) -> None:
    at = {"path": "./src/main.ts", "line": 3, "symbol": "greet"}
    found = await typescript.lsp("definition", **at)
    places = [(one["path"], one["line"]) for one in found["definitions"]]
    assert places == [(typescript.at("src/types.ts"), 6)]
    uses = await typescript.lsp("references", path="./src/types.ts", line=6, symbol="greet")
    used = {(one["path"], one["line"]) for one in uses["references"]}
    assert {(typescript.at(name), 3) for name in ("src/main.ts", "lib/other.ts")} <= used
    hover = await typescript.lsp("hover", **at)
    assert "greet(user: User): string" in hover["content"]
    assert "Says hello" in hover["documentation"]
    outline = await typescript.lsp("symbols", path="./src/types.ts")
    assert {"User", "greet"} <= {one["name"] for one in outline["symbols"]}


@requirement("AT-LSP-40", "AT-LSP-03")
async def test_renaming_in_typescript_reaches_every_file(typescript: Corner) -> None:
    await typescript.lsp("rename", path="./src/types.ts", line=7, symbol="user", new_name="who")
    assert '"😀" + who.name' in (typescript.root / "src/types.ts").read_text("utf-8")
    said = await typescript.lsp(
        "rename", path="./src/types.ts", line=6, symbol="greet", new_name="welcome"
    )
    assert said["files_changed"] == 3
    assert (typescript.root / "src/main.ts").read_text("utf-8") == MAIN.replace("greet", "welcome")
    assert "greet(" not in (typescript.root / "src/types.ts").read_text("utf-8")
    assert await errors(typescript, "./lib/other.ts") == []


@requirement("AT-LSP-45")
async def test_moving_a_typescript_file_mends_its_importers(typescript: Corner) -> None:
    said = await typescript.lsp("rename_file", path="./src/types.ts", new_path="./lib/kinds.ts")
    assert not (typescript.root / "src/types.ts").exists()
    assert said["files_changed"] >= 2
    assert "../lib/kinds" in (typescript.root / "src/main.ts").read_text("utf-8")
    assert "./kinds" in (typescript.root / "lib/other.ts").read_text("utf-8")
    assert await errors(typescript, "./src/main.ts") == []


@requirement("AT-LSP-28", "AT-SYNC-05")
async def test_clangd_reports_an_error_with_the_edit_that_makes_it(clang: LspLab) -> None:
    assert await errors(clang, "./main.c") == []
    await edit(clang, "./main.c", "greet(&one)", "greet(&two)")
    (found,) = await errors(clang, "./main.c")
    assert found[0] == 5
    assert "two" in found[1]
    await edit(clang, "./main.c", "greet(&two)", "greet(&one)")
    assert await errors(clang, "./main.c") == []


@requirement("AT-LSP-30", "AT-LSP-35", "AT-LSP-50")
async def test_finding_ones_way_in_c(clang: LspLab) -> None:
    at = {"path": "./main.c", "line": 5, "symbol": "greet"}
    uses = await clang.lsp("references", path="./user.h", line=2, symbol="greet")
    assert ("./main.c", 5) in {(one["path"], one["line"]) for one in uses["references"]}
    found = await clang.lsp("definition", **at)
    assert {(one["path"], one["line"]) for one in found["definitions"]} <= {
        ("./user.c", 3),
        ("./user.h", 2),
    }
    assert found["definitions"]
    hover = await clang.lsp("hover", **at)
    assert "greet" in str(hover["content"]) + str(hover["documentation"])


@requirement("AT-LSP-40")
async def test_renaming_in_c_reaches_every_file(clang: LspLab) -> None:
    said = await clang.lsp("rename", path="./main.c", line=5, symbol="greet", new_name="welcome")
    assert said["files_changed"] == 3
    assert (clang.root / "main.c").read_text("utf-8") == CALLER.replace("greet", "welcome")
    assert (clang.root / "user.h").read_text("utf-8") == HEADER.replace("greet", "welcome")
    assert (clang.root / "user.c").read_text("utf-8") == SOURCE.replace("greet", "welcome")
