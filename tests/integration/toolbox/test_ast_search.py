from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fakes.search_lab import SearchLab, opened_search_lab, write_tree
from kaged.toolbox.ast import LANGUAGES, AstSettings, ast_tools
from kaged.toolbox.ast.engine import AstJob, PatternFacts, Read, Take
from requirements import requirement


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncGenerator[SearchLab]:
    root = tmp_path / "project"
    root.mkdir()
    async with opened_search_lab(root, tmp_path / "cache") as made:
        yield made


async def found(lab: SearchLab, pattern: str, lang: str, **more: Any) -> list[Any]:
    result = await lab.call("search.ast", pattern=pattern, lang=lang, **more)
    assert result["count"] == len(result["matches"])
    return result["matches"]


SNIPPETS = {
    "typescript": ("a.ts", "let x: number = f(1);\n", "f($X)"),
    "javascript": ("a.js", "f(1);\n", "f($X)"),
    "tsx": ("a.tsx", "const a = <div>{f(1)}</div>;\n", "f($X)"),
    "python": ("a.py", "f(1)\n", "f($X)"),
    "rust": ("a.rs", "fn main() { f(1); }\n", "f($X)"),
    "go": ("a.go", "package a\nfunc main() { f(1) }\n", "f($X)"),
    "java": ("A.java", "class A { void m() { f(1); } }\n", "f($X)"),
    "c": ("a.c", "int main() { return f(1); }\n", "return f(1);"),
    "cpp": ("a.cpp", "int main() { return f(1); }\n", "return f(1);"),
    "css": ("a.css", "a { color: red; }\n", "a { color: $C }"),
    "html": ("a.html", "<p>hi</p>\n", "<p>hi</p>"),
    "json": ("a.json", '{"a": 1}\n', '{"a": $X}'),
    "yaml": ("a.yaml", "a: 1\n", "a: $X"),
    "bash": ("a.sh", "echo a b\n", "echo a b"),
    "csharp": ("a.cs", "class A { void M() { C.W(1); } }\n", "C.W($X)"),
    "dart": ("a.dart", "class A { }\n", "class A { }"),
    "elixir": ("a.ex", "IO.puts(1)\n", "IO.puts($X)"),
    "haskell": ("a.hs", "main = print 1\n", "print $X"),
    "hcl": ("a.tf", "x = 1\n", "x = 1"),
    "kotlin": ("a.kt", "fun f() { println(1) }\n", "println($X)"),
    "lua": ("a.lua", "print(1)\n", "print($X)"),
    "markdown": ("a.md", "# hi\n", "# hi"),
    "nix": ("a.nix", "{ a = 1; }\n", "{ a = $X; }"),
    "php": ("a.php", "<?php foo(1);\n", "foo($A)"),
    "ruby": ("a.rb", "puts(1)\n", "puts($X)"),
    "scala": ("a.scala", "object A { println(1) }\n", "println($X)"),
    "solidity": ("a.sol", "contract C { int x; }\n", "contract $C { $$$B }"),
    "swift": ("a.swift", "print(1)\n", "print($X)"),
    "zig": ("a.zig", "fn f() void { g(1); }\n", "g($X)"),
}
SPECIFIED = {
    *("typescript", "javascript", "tsx", "python", "rust", "go", "java"),
    *("c", "cpp", "css", "html", "json", "yaml"),
}


@requirement("AT-AST-02")
async def test_every_language_parses(lab: SearchLab) -> None:
    write_tree(lab.root, {name: text for name, text, _ in SNIPPETS.values()})
    for lang in LANGUAGES:
        name, _, pattern = SNIPPETS[lang]
        assert len(await found(lab, pattern, lang, paths=[name])) == 1, lang
    assert set(LANGUAGES) >= SPECIFIED


async def test_a_panic_of_the_binding_stays_in_its_process(lab: SearchLab) -> None:
    write_tree(lab.root, {"a.py": "f(1)\n"})
    with pytest.raises(Exception, match="the parser failed"):
        await lab.ast.prepare(AstJob("klingon", ("x",)))
    assert len(await found(lab, "f($X)", "python")) == 1


BROKEN = [
    ("console.log(", "typescript"),
    ("print(", "python"),
    ("def :", "python"),
    ("fn foo(", "rust"),
    ('{"a": ', "json"),
    ("foo bar baz", "javascript"),
    ("", "python"),
    ("   ", "python"),
    ("$$$", "javascript"),
    ("$$$ARGS", "python"),
    ("f($$A)", "python"),
    ("a; b;", "javascript"),
]


@requirement("AT-AST-09", "AT-FAIL-11")
async def test_a_broken_pattern_is_refused_with_guidance(lab: SearchLab) -> None:
    write_tree(lab.root, {"a.ts": "console.log(1)\n", "a.py": "print(1)\n", "a.js": "foo\n"})
    for pattern, lang in BROKEN:
        for call in (
            lab.refusal("search.ast", pattern=pattern, lang=lang),
            lab.refusal("edit.ast", rewrites={pattern: "x"}, lang=lang),
        ):
            error = await call
            assert error.code == "invalid_pattern", pattern
            assert "$NAME" in str(error)


@requirement("AT-AST-16")
async def test_order_ignoring_and_files_that_are_no_source(lab: SearchLab, tmp_path: Path) -> None:
    tree: dict[str, str | bytes] = {
        f"d{number % 5}/f{number}.py": "f(2); f(f(1))\nf(3)\n" for number in range(40)
    }
    tree |= {
        ".gitignore": "build/\n",
        "build/x.py": "f(1)\n",
        "bin.py": b"f(1)\0\n",
        "latin.py": "f('\xe9')\n".encode("latin-1"),
        "broken.py": "def (:\nf(9)\n",
        "empty.py": "",
    }
    write_tree(lab.root, tree)
    runs = [await found(lab, "f($X)", "python") for _ in range(2)]
    assert runs[0] == runs[1]
    order = [(one["file"], one["line"]) for one in runs[0]]
    assert order == sorted(order)
    files = {one["file"] for one in runs[0]}
    assert not files & {"./build/x.py", "./bin.py", "./latin.py"}
    first = [one["content"] for one in runs[0] if one["file"] == "./d0/f0.py"]
    assert first == ["f(2)", "f(f(1))", "f(1)", "f(3)"]
    assert AstSettings().time_s == 60
    # The time is up before the second file is read.
    lab.ast_settings = replace(lab.ast_settings, time_s=0.0)
    result = await lab.call("search.ast", pattern="f($X)", lang="python")
    assert result["truncated"] is True


async def test_columns_and_texts_survive_bom_crlf_and_astral_characters(lab: SearchLab) -> None:
    write_tree(lab.root, {"a.py": b"\xef\xbb\xbfs = '\xf0\x9f\x98\x80'; f('\xc3\xa9')\r\nf(2)\r\n"})
    matches = await found(lab, "f($X)", "python", context=1)
    assert [one["content"] for one in matches] == ["f('é')", "f(2)"]
    assert matches[0]["context_after"] == ["f(2)"]
    assert matches[1]["context_before"] == ["s = '😀'; f('é')"]


async def test_the_text_looked_for_first_never_loses_a_match(lab: SearchLab) -> None:
    write_tree(
        lab.root,
        {
            "a.py": "import os\nos . path .join(a)\nassert y, 'm'\n@dec\ndef g(): pass\n",
            "b.py": "class C(B):\n    def m(self): return os.path.join(1)\n",
            "c.js": "async function f() { await g(`t${1}`) }\nconst h = async () => {}\n",
        },
    )
    for pattern, lang, expected in (
        ("os.path.join($$$)", "python", 2),
        ("assert $X", "python", 1),
        ("def $F($$$A): $$$B", "python", 2),
        ("class $C($$$B): $$$X", "python", 1),
        ("async function $F($$$A) { $$$B }", "javascript", 1),
        ("await $X", "javascript", 1),
    ):
        with_text = await found(lab, pattern, lang)
        assert len(with_text) == expected


async def test_output_is_bounded_and_the_count_is_not(lab: SearchLab) -> None:
    write_tree(lab.root, {"a.py": f"f('{'x' * 400}')\n" * 2_000})
    result = await lab.call("search.ast", pattern="f($X)", lang="python")
    assert len(json.dumps(result["matches"])) <= 262_144
    assert result["truncated"] is True
    assert result["count"] == 2_000


async def test_a_cancelled_search_leaves_no_worker_busy(lab: SearchLab) -> None:
    write_tree(lab.root, {f"f{number}.py": "f(1)\n" * 20_000 for number in range(12)})
    async with asyncio.TaskGroup() as tasks:
        call = tasks.create_task(lab.call("search.ast", pattern="$X", lang="python"))
        while not lab.spawner.running:  # noqa: ASYNC110 - the spawner tells nobody
            await asyncio.sleep(0)
        call.cancel()
    assert len(await found(lab, "nothing_like_that($X)", "python")) == 0


async def test_a_worker_that_dies_is_an_error_and_not_the_end(lab: SearchLab) -> None:
    write_tree(lab.root, {"a.py": "f(1)\n"})
    assert len(await found(lab, "f($X)", "python")) == 1
    for process in lab.spawner.running:
        os.kill(process.pid, 9)
        await process.wait()
    error = await lab.refusal("search.ast", pattern="f($X)", lang="python")
    assert error.code in {"invalid_pattern", "internal_error"}
    assert len(await found(lab, "f($X)", "python")) == 1


class FakeAstEngine:
    """An engine in this process, for the same tools."""

    async def prepare(self, job: AstJob) -> list[PatternFacts]:
        return [PatternFacts(("X",), (), None) for _ in job.patterns]

    async def scan(self, job: AstJob, count: int, read: Read, take: Take, time_s: float) -> bool:
        for index in range(count):
            data = read(index)
            if data is not None and job.templates is None:
                take(index, {"matches": [[1, "f(1)", {"X": "1"}, [], []]], "found": 1})
            elif data is not None:
                take(index, {"edits": [[0, 4, 1, 1, 1, 5, "f(1)", "g(1)"]]})
        return True


@requirement("AT-REG-30")
async def test_another_engine_leaves_parameters_and_results_as_they_are(lab: SearchLab) -> None:
    write_tree(lab.root, {"a.py": "f(1)\n"})
    real = lab.tool_lab()
    tools = ast_tools(FakeAstEngine(), lab.engine)
    fake = type(real)(lab.root, tools)
    for name, params in (
        ("search.ast", {"pattern": "f($X)", "lang": "python"}),
        ("edit.ast", {"rewrites": {"f($X)": "g($X)"}, "lang": "python"}),
    ):
        assert await real.call_with(name, params) == await fake.call_with(name, params)
    for tool in tools:
        assert tool.definition in [one.definition for one in real.registry.list()]
