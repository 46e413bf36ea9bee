"""`code.lsp` with servers that people have: pyright, its fork, ty, TypeScript's, gopls, clangd."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from requirements.marker import whole
from whole.harness.agents import agent, caged, path_of
from whole.harness.code import trust
from whole.harness.daemon import Daemon, wait_for
from whole.harness.model import ModelServer
from whole.harness.project import Project

NPM = Path(__file__).parents[3] / "build" / "tools" / "node_modules" / ".bin"
COMMANDS = {
    "ty": [str(Path(sys.executable).with_name("ty")), "server"],
    "basedpyright": [str(Path(sys.executable).with_name("basedpyright-langserver")), "--stdio"],
}
READER = path_of("reader")


@pytest.fixture(scope="module")
def daemon(module_path: Path, model: ModelServer) -> Iterator[Daemon]:
    """Yield a daemon with nothing configured, and the servers on its search path."""
    cache = module_path / "go-cache"
    env = {
        "PATH": os.pathsep.join([str(NPM), os.environ["PATH"]]),
        "GOCACHE": str(cache),
        "GOFLAGS": "-mod=mod",
        "GOPROXY": "off",
        "GOPATH": str(module_path / "go"),
    }
    config = "[lsp]\nrequest_timeout_seconds = 120\n"
    made = Daemon(module_path / "h", config=config, local=model.local_toml(), env=env)
    made.start()
    yield made
    made.close()


def ask(project: Project, action: str, who: str = "primary", /, **params: Any) -> Any:
    """Call `code.lsp`; it has to work."""
    return project.call("code.lsp", who, action=action, **params)


def edit(project: Project, path: str, old: str, new: str) -> None:
    """Change a file as an agent does."""
    project.call("file.read", path=path)
    project.call("edit.text", path=path, old_string=old, new_string=new)


def rewrite(project: Project, path: str, text: str) -> None:
    """Change a file past the tools, a second after its last change.

    ty is told of the change and still asks for the file's time: with the old one nothing happened.
    """
    before = (project.root / path).stat()
    file = project.write(path, text)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns + 1_000_000_000))


def errors(project: Project, path: str) -> list[dict[str, Any]]:
    """Return the errors of a file, once the server has told all of them."""

    def look() -> Any:
        said = ask(project, "diagnostics", path=path, severity="error")
        return said if said.get("complete", True) else None

    return list(wait_for(look)["diagnostics"])


@whole("AT-LSP-13", "AT-LSP-52")
def test_without_settings_each_language_has_the_server_that_most_people_use(
    project: Project,
) -> None:
    told = {one["language"]: one for one in project.get("/lsp")["servers"]}
    assert {name: one["command"] for name, one in told.items()} == {
        **told_commands(told),
        "typescript": ["typescript-language-server", "--stdio"],
        "javascript": ["typescript-language-server", "--stdio"],
        "python": ["pyright-langserver", "--stdio"],
        "rust": ["rust-analyzer"],
        "go": ["gopls"],
    }
    assert {one["state"] for one in told.values()} == {"not_started"}


def told_commands(told: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return the commands of further languages, whatever they are."""
    return {name: one["command"] for name, one in told.items()}


TYPES = '''class User:
    name: str = "x"


def greet(user: User) -> str:
    """Greet somebody."""
    return "😀" + user.name
'''
MAIN = """from src.types_ import User, greet

print(greet(User()))
who = User()
"""


@whole(
    "AT-BEY-07",
    "AT-LSP-27",
    "AT-LSP-28",
    "AT-LSP-30",
    "AT-LSP-31",
    "AT-LSP-35",
    "AT-LSP-36",
    "AT-LSP-40",
    "AT-LSP-41",
    "AT-LSP-50",
    "AT-LSP-51",
)
@pytest.mark.parametrize("name", ["pyright", *COMMANDS])
def test_a_python_project(project: Project, name: str) -> None:
    top: dict[str, Any] = {}
    if name in COMMANDS:
        top = {"lsp": {"servers": [{"lang": "python", "command": COMMANDS[name]}]}}
    reader = agent("code.*", cage=caged("ro:./src"))
    project.describe(cage="disabled", top=top, subagents={"reader": reader})
    project.reload()
    trust(project)
    project.write("src/types_.py", TYPES)
    project.write("src/main.py", MAIN)
    project.write("lib/other.py", "from src.types_ import greet\n\ng = greet\n")
    main = "./src/main.py"

    assert errors(project, main) == []
    edit(project, main, "print(greet(User()))", "print(greet(User()).nope)")
    [found] = errors(project, main)
    assert (found["line"], found["severity"], "nope" in found["message"]) == (3, "error", True)
    edit(project, main, ".nope", ".upper()")
    assert errors(project, main) == []
    # What no tool has done to a file that nobody reads is known before the next question.
    rewrite(project, "src/types_.py", TYPES.replace("-> str", "-> int"))
    assert 3 in [one["line"] for one in errors(project, main)]
    rewrite(project, "src/types_.py", TYPES)
    assert errors(project, main) == []

    at = {"path": main, "line": 3, "symbol": "greet"}
    assert ask(project, "definition", **at)["definitions"] == [
        {
            "path": "./src/types_.py",
            "line": 5,
            "character": 4,
            "preview": "def greet(user: User) -> str:",
        }
    ]
    of_user = ask(project, "type_definition", path=main, line=4, symbol="who")["definitions"]
    assert [(one["path"], one["line"]) for one in of_user] == [("./src/types_.py", 1)]
    std = ask(project, "definition", path=main, line=3, symbol="print")["definitions"]
    assert std
    assert all(one["outside_project"] and "preview" not in one for one in std)

    declared = {"path": "./src/types_.py", "line": 5, "symbol": "greet"}
    uses = ask(project, "references", **declared)
    assert {(one["path"], one["line"]) for one in uses["references"]} >= {
        (main, 3),
        ("./lib/other.py", 3),
    }
    assert all("greet" in one["preview"] for one in uses["references"])
    more = ask(project, "references", include_declaration=True, **declared)
    assert more["count"] == uses["count"] + 1 or (name, more["count"]) == ("ty", 5)
    seen = ask(project, "references", READER, **declared)
    assert seen["count"] == uses["count"]
    outside = [one for one in seen["references"] if one["path"].startswith("./lib")]
    assert outside
    assert all(set(one) == {"path", "line", "outside_cage"} for one in outside)

    hover = ask(project, "hover", **at)
    assert "greet(user: User) -> str" in hover["content"]
    assert "```" not in hover["content"]
    assert "Greet somebody." in hover["documentation"]
    assert hover["range"]["start"] == {"line": 3, "character": 6}
    nothing = ask(project, "hover", path=main, line=2, character=0)
    assert nothing == {"content": None, "documentation": None, "range": None}
    outlining(project)
    renaming(project, declared)


def outlining(project: Project) -> None:
    """Ask for the symbols of a file and for one of the project."""
    outline = ask(project, "symbols", path="./src/types_.py")["symbols"]
    assert {"User", "greet"} <= {one["name"] for one in outline}
    known = ask(project, "symbols", path="./src", scope="workspace", query="greet")["symbols"]
    assert "./src/types_.py" in [one["path"] for one in known]


def renaming(project: Project, declared: dict[str, Any]) -> None:
    """Rename a parameter and a function, and try to rename a keyword."""
    rename = {"path": "./src/types_.py", "line": 7, "symbol": "user", "new_name": "person"}
    ask(project, "rename", **rename)
    assert '"😀" + person.name' in project.read("src/types_.py")
    said = ask(project, "rename", new_name="welcome", **declared)
    assert (said["files_changed"], said["total_edits"]) == (3, 5)
    assert "greet" not in project.read("lib/other.py") + project.read("src/main.py")
    keyword = {"path": "./src/main.py", "line": 1, "symbol": "import", "new_name": "x"}
    refused = project.fail("code.lsp", action="rename", **keyword)
    assert refused["code"] == "rename_not_possible"


USERS, FILLERS = 40, 500


@whole("AT-LSP-40")
@pytest.mark.parametrize("name", ["pyright", "basedpyright"])
def test_a_rename_right_after_the_start_reaches_every_file(project: Project, name: str) -> None:
    top: dict[str, Any] = {}
    if name in COMMANDS:
        top = {"lsp": {"servers": [{"lang": "python", "command": COMMANDS[name]}]}}
    project.describe(cage="disabled", top=top)
    project.reload()
    trust(project)
    project.write("pack/__init__.py", "")
    project.write("pack/base.py", "class Query:\n    rows = 1\n")
    for number in range(FILLERS):
        project.write(f"pack/more{number:03}/filler.py", f"value = {number}\n")
    for number in range(USERS):
        text = f"from pack.base import Query\n\nclass Own{number}(Query):\n    pass\n"
        project.write(f"pack/more{number:03}/user.py", text)
    said = ask(project, "rename", path="./pack/base.py", line=1, symbol="Query", new_name="Select")
    assert (said["files_changed"], said["total_edits"]) == (USERS + 1, 2 * USERS + 1)
    left = [one for one in project.root.rglob("*.py") if "Query" in one.read_text(encoding="utf-8")]
    assert left == []


@whole("AT-LSP-45")
def test_a_module_is_not_moved_away_from_its_importers(project: Project) -> None:
    reader = agent("code.*", cage=caged("rw:./pack"))
    project.describe(cage="disabled", subagents={"reader": reader})
    project.reload()
    project.write("pack/__init__.py", "")
    project.write("pack/util.py", "def greet() -> str:\n    return 'x'\n")
    project.write("pack/alone.py", "x = 'util'\n")
    project.write("lib/use.py", "import os\nfrom pack import util\n\nprint(util.greet(), os)\n")
    move = {"path": "./pack/util.py", "new_path": "./pack/tool.py"}
    refused = project.fail("code.lsp", action="rename_file", **move)
    assert refused["code"] == "rename_not_possible"
    [importer] = refused["data"]["detail"]["imported_by"]
    assert importer == {"path": "./lib/use.py", "line": 2, "preview": "from pack import util"}
    hidden = project.fail("code.lsp", READER, action="rename_file", **move)
    [importer] = hidden["data"]["detail"]["imported_by"]
    assert importer == {"path": "./lib/use.py", "line": 2, "outside_cage": True}
    assert (project.root / "pack/util.py").exists()
    assert not (project.root / "pack/tool.py").exists()
    moved = ask(project, "rename_file", path="./pack/alone.py", new_path="./pack/single.py")
    assert (moved["files_changed"], project.read("pack/single.py")) == (0, "x = 'util'\n")
    project.write("lib/use.py", "print()\n")
    ask(project, "rename_file", **move)
    assert (project.root / "pack/tool.py").exists()


TS_TYPES = """export interface User {
  name: string;
  speak(): string;
}

/** Says hello to somebody. */
export function greet(user: User): string {
  return "😀" + user.name;
}

export class Ada implements User {
  name = "ada";
  speak() { return this.name; }
}
"""
TS_MAIN = """import { greet, Ada } from "./types";

export const said: string = greet(new Ada());
export const length = new Ada().namee;
"""


@whole("AT-LSP-34", "AT-LSP-38", "AT-LSP-45", "AT-LSP-47", "AT-LSP-48", "AT-LSP-39")
def test_a_typescript_project(project: Project) -> None:
    project.describe(cage="disabled")
    project.reload()
    config = {"compilerOptions": {"strict": True}, "include": ["src", "lib"]}
    project.write("tsconfig.json", json.dumps(config))
    project.write("src/types.ts", TS_TYPES)
    project.write("src/main.ts", TS_MAIN)
    project.write(
        "lib/other.ts", 'import { greet } from "../src/types";\nexport const g = greet;\n'
    )
    [found] = errors(project, "./src/main.ts")
    assert (found["line"], "namee" in found["message"]) == (4, True)

    at = {"path": "./src/main.ts", "line": 4, "symbol": "namee"}
    fixes = ask(project, "code_actions", **at)["actions"]
    [spelling] = [one for one in fixes if one["title"] == "Change spelling to 'name'"]
    assert spelling["edits"] == [
        {"path": "./src/main.ts", "line": 4, "old": "namee", "new": "name"}
    ]
    assert project.read("src/main.ts") == TS_MAIN
    without = ask(project, "code_actions", include_diagnostics=False, **at)["actions"]
    assert "Change spelling to 'name'" not in [one["title"] for one in without]

    method = {"path": "./src/types.ts", "line": 3, "symbol": "speak"}
    implementers = ask(project, "implementation", **method)["definitions"]
    assert ("./src/types.ts", 13) in [(one["path"], one["line"]) for one in implementers]
    outline = ask(project, "symbols", path="./src/types.ts")["symbols"]
    kinds = {one["name"]: one["kind"] for one in outline}
    assert (kinds["User"], kinds["greet"], kinds["Ada"]) == ("interface", "function", "class")
    assert kinds["speak"] == "method"
    assert [one["line"] for one in outline] == sorted(one["line"] for one in outline)
    found = ask(project, "symbols", path="./src/main.ts", scope="workspace", query="greet")
    assert "./src/types.ts" in [one["path"] for one in found["symbols"]]

    said = ask(project, "rename_file", path="./src/types.ts", new_path="./lib/kinds.ts")
    assert (said["old_path"], said["new_path"]) == ("./src/types.ts", "./lib/kinds.ts")
    assert said["files_changed"] >= 2
    assert not (project.root / "src/types.ts").exists()
    assert "../lib/kinds" in project.read("src/main.ts")
    assert "./kinds" in project.read("lib/other.ts")
    assert [one["line"] for one in errors(project, "./src/main.ts")] == [4]


USER_GO = """package hello

// User is somebody.
type User struct {
	Name string
}

// Greet says hello to somebody.
func Greet(user User) string {
	return "😀" + user.Name
}
"""
MAIN_GO = """package main

import "example.org/hello"

func main() {
	println(hello.Greet(hello.User{Name: "ada"}))
}
"""


@whole("AT-LSP-28", "AT-LSP-30", "AT-LSP-33", "AT-LSP-35", "AT-LSP-40", "AT-LSP-50")
def test_a_go_project(project: Project) -> None:
    project.describe(cage="disabled")
    project.reload()
    project.write("go.mod", "module example.org/hello\n\ngo 1.19\n")
    project.write("user.go", USER_GO)
    project.write("cmd/main.go", MAIN_GO)
    main = "./cmd/main.go"
    assert errors(project, main) == []
    edit(project, main, 'Name: "ada"', "Nam: 1")
    assert [one["line"] for one in errors(project, main)] == [6]
    edit(project, main, "Nam: 1", 'Name: "ada"')
    assert errors(project, main) == []
    found = ask(project, "definition", path=main, line=6, symbol="Greet")["definitions"]
    assert [(one["path"], one["line"], one["preview"]) for one in found] == [
        ("./user.go", 9, "func Greet(user User) string {")
    ]
    typed = ask(project, "type_definition", path="./user.go", line=10, symbol="user")
    assert [(one["path"], one["line"]) for one in typed["definitions"]] == [("./user.go", 4)]
    hover = ask(project, "hover", path=main, line=6, symbol="Greet")
    assert "func hello.Greet(user hello.User) string" in hover["content"]
    assert "says hello" in hover["documentation"]
    declared = {"path": "./user.go", "line": 9, "symbol": "Greet"}
    uses = ask(project, "references", include_declaration=True, **declared)["references"]
    assert {("./user.go", 9), (main, 6)} <= {(one["path"], one["line"]) for one in uses}
    outline = ask(project, "symbols", path="./user.go")["symbols"]
    assert {"User", "Greet"} <= {one["name"] for one in outline}
    # Behind a character that is two units long in the server's counting.
    ask(project, "rename", path="./user.go", line=10, symbol="user", new_name="who")
    assert '"😀" + who.Name' in project.read("user.go")
    said = ask(project, "rename", new_name="Welcome", **declared)
    assert (said["files_changed"], "hello.Welcome(" in project.read("cmd/main.go")) == (2, True)
    assert errors(project, main) == []


USER_H = "struct user { int age; };\nint greet(struct user *who);\n"
USER_C = '#include "user.h"\n\nint greet(struct user *who) { /* 😀 */ return who->age; }\n'
MAIN_C = """#include "user.h"

int main(void) {
  struct user one = {1};
  return greet(&one);
}
"""


@whole("AT-LSP-28", "AT-LSP-30", "AT-LSP-35", "AT-LSP-40", "AT-LSP-50")
def test_a_c_project(project: Project) -> None:
    servers = [{"lang": "c", "command": [str(Path(sys.executable).with_name("clangd"))]}]
    project.describe(cage="disabled", top={"lsp": {"servers": servers}})
    project.reload()
    trust(project)
    for name, text in (("user.h", USER_H), ("user.c", USER_C), ("main.c", MAIN_C)):
        project.write(name, text)
    built = [
        {"directory": str(project.root), "command": f"cc -c {name}", "file": name}
        for name in ("user.c", "main.c")
    ]
    project.write("compile_commands.json", json.dumps(built))
    main = "./main.c"
    assert errors(project, main) == []
    edit(project, main, "greet(&one)", "greet(&two)")
    [found] = errors(project, main)
    assert (found["line"], "two" in found["message"]) == (5, True)
    edit(project, main, "greet(&two)", "greet(&one)")
    assert errors(project, main) == []
    at = {"path": main, "line": 5, "symbol": "greet"}
    found = ask(project, "definition", **at)["definitions"]
    assert {(one["path"], one["line"]) for one in found} <= {("./user.c", 3), ("./user.h", 2)}
    assert found
    assert "greet" in ask(project, "hover", **at)["content"]
    declared = {"path": "./user.h", "line": 2, "symbol": "greet"}
    uses = ask(project, "references", **declared)["references"]
    assert (main, 5) in {(one["path"], one["line"]) for one in uses}
    assert ask(project, "rename", new_name="welcome", **at)["files_changed"] == 3
    assert project.read("user.c") == USER_C.replace("greet", "welcome")
    assert project.read("user.h") == USER_H.replace("greet", "welcome")
    assert errors(project, main) == []
