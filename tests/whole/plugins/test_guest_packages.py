"""The SDKs as packages of their own: built, installed by the ecosystem's tools, used in a cage."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from whole.harness.daemon import Daemon
from whole.harness.plugin import PluginFolder

ROOT = Path(__file__).parents[3]
PYTHON = """
import os, sys
import kaged_sdk, kaged_sdk.storage
from kaged_sdk import CallContext, Plugin

plugin = Plugin("@NAME@", "1.0.0")


@plugin.method("a.b")
async def where(params: dict, context: CallContext) -> dict:
    await plugin.storage.exec("CREATE TABLE IF NOT EXISTS t (a TEXT)")
    touched = await plugin.storage.exec("INSERT INTO t VALUES (?)", ["x"])
    done = await plugin.storage.batch([("INSERT INTO t VALUES (?)", ["y"]), ("DELETE FROM t", ())])
    return {
        "file": kaged_sdk.__file__, "path": sys.path[0],
        "directory": os.environ["KAGED_PLUGIN_DIR"], "touched": touched.rows_affected,
        "done": [done.rows_affected, done.statements],
        "tables": (await plugin.storage.schema()).tables,
    }


plugin.start()
"""
NODE = """
import { createPlugin } from "@kaged/plugin-sdk";

const plugin = createPlugin({
  name: "@NAME@", version: "1.0.0",
  methods: {
    "a.b": async () => {
      await plugin.storage.exec("CREATE TABLE IF NOT EXISTS t (a TEXT)");
      const touched = await plugin.storage.exec("INSERT INTO t VALUES (?)", ["x"]);
      const insert = ["INSERT INTO t VALUES (?)", ["y"]];
      const done = await plugin.storage.batch([insert, ["DELETE FROM t"]]);
      return {
        file: import.meta.resolve("@kaged/plugin-sdk"),
        directory: process.env.KAGED_PLUGIN_DIR, touched: touched.rows_affected,
        done: [done.rows_affected, done.statements], tables: (await plugin.storage.schema()).tables,
      };
    },
  },
}).start();
"""
SAME = {"touched": 1, "done": [3, [1, 2]], "tables": ["t"]}


@pytest.fixture(scope="module")
def packages(module_path: Path) -> Path:
    """Return the folder with the built packages."""
    out = module_path / "packages"
    words = [sys.executable, str(ROOT / "scripts" / "guest_packages.py"), str(out)]
    subprocess.run(words, check=True, capture_output=True)
    return out


def written(daemon: Daemon, root: Path, source: str, main: str, **manifest: Any) -> PluginFolder:
    """Return a plugin with this source, not installed yet."""
    made = PluginFolder(
        daemon, root, capabilities=["kaged:storage:write"], methods=["a.b"], **manifest
    )
    for file in ("main.py", "behaviour.json"):
        (root / file).unlink()
    (root / main).write_text(source.replace("@NAME@", made.name), encoding="utf-8")
    return made


def fresh_venv(place: Path, wheel: Path) -> Path:
    """Make a virtual environment with nothing but a wheel in it; returns its Python."""
    subprocess.run(
        ["/usr/bin/python3", "-m", "venv", "--without-pip", "--copies", str(place)], check=True
    )
    python = place / "bin" / "python"
    words = ["uv", "pip", "install", "--quiet", "--no-index", "--offline", "--python", str(python)]
    subprocess.run(
        [str(Path(sys.executable).parent / words[0]), *words[1:], str(wheel)], check=True
    )
    return python


def test_a_python_plugin_finds_the_sdk_under_both_names_without_a_path_of_its_own(
    daemon: Daemon, tmp_path: Path
) -> None:
    for number, name in enumerate(("kaged_sdk", "kaged.sdk")):
        source = PYTHON.replace(
            "import kaged_sdk, kaged_sdk.storage", f"import {name} as kaged_sdk"
        )
        source = source.replace("from kaged_sdk", f"from {name}")
        folder = written(daemon, tmp_path / str(number), source, "main.py", name=f"finds-{number}")
        assert folder.run()["state"] == "running"
        found = folder.call()
        assert found.pop("file").startswith("/opt/kaged/sdk/python/kaged/sdk/")
        assert found.pop("path") == found.pop("directory"), "nothing was put in front"
        assert found == SAME


def test_the_wheel_of_the_sdk_runs_a_plugin(daemon: Daemon, packages: Path, tmp_path: Path) -> None:
    (wheel,) = packages.glob("kaged_sdk-*.whl")
    root = tmp_path / "wheel"
    python = fresh_venv(root / "own", wheel)
    (library,) = python.parents[1].glob("lib/python3*/site-packages")
    folder = written(
        daemon, root, PYTHON, "main.py", name="from-wheel",
        env={"PYTHONPATH": str(library.relative_to(root))},
    )  # fmt: skip
    shutil.rmtree(root / "own" / "bin")  # the cage's own Python runs it
    (root / "own" / "lib64").unlink()
    assert folder.run()["state"] == "running"
    found = folder.call()
    directory = found.pop("directory")
    assert found.pop("file").startswith(f"{directory}/own/lib/python3")
    assert found.pop("path") == directory
    assert found == SAME


def test_the_wheel_of_ash_sb_is_a_program_and_both_have_types(
    packages: Path, tmp_path: Path
) -> None:
    (wheel,) = packages.glob("ash_sb-*.whl")
    python = fresh_venv(tmp_path / "venv", wheel)
    shown = subprocess.run(
        [str(python.parent / "ash-sb"), "--help"], capture_output=True, text=True, check=True
    )
    assert "ash-sb" in shown.stdout
    for built, name in ((wheel, "ash_sb"), (next(packages.glob("kaged_sdk-*.whl")), "kaged_sdk")):
        listed = subprocess.run(
            [sys.executable, "-m", "zipfile", "-l", str(built)],
            capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip
        assert f"{name}/py.typed" in listed


def test_the_packed_npm_package_runs_a_plugin(
    daemon: Daemon, packages: Path, tmp_path: Path
) -> None:
    (packed,) = packages.glob("*.tgz")
    folder = written(
        daemon, tmp_path / "npm", NODE, "main.mjs", name="from-npm",
        command=["/usr/bin/env", "node", "./main.mjs"],
    )  # fmt: skip
    (folder.root / "package.json").write_text(json.dumps({"private": True}), encoding="utf-8")
    words = ["npm", "install", "--offline", "--no-audit", "--no-fund", "--silent", str(packed)]
    home = tmp_path / "home"
    subprocess.run(
        words, cwd=folder.root, check=True, env={"HOME": str(home), "PATH": "/usr/bin:/bin"}
    )
    shutil.rmtree(home, ignore_errors=True)
    own = folder.root / "node_modules" / "@kaged" / "plugin-sdk"
    assert (own / "src" / "index.d.ts").is_file()
    assert folder.run()["state"] == "running"
    found = folder.call()
    assert found.pop("file").startswith(f"file://{found.pop('directory')}/node_modules/")
    assert found == SAME
