"""A wheel, built and installed outside the checkout, is a whole kaged."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from fakes.running_daemon import make_home, make_project
from kaged import __version__

ROOT = Path(__file__).resolve().parents[3]
TIMEOUT_S = 240


def run(
    words: list[str], cwd: Path, variables: dict[str, str] | None = None, *, checked: bool = True
) -> subprocess.CompletedProcess[str]:
    """Run a program away from the checkout, with nothing of it in the environment."""
    done = subprocess.run(
        words, cwd=cwd, env={"PATH": os.environ["PATH"], **(variables or {})}, capture_output=True,
        text=True, check=False, timeout=TIMEOUT_S,
    )  # fmt: skip
    assert not checked or done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("w")
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "-d", str(folder)]
    run(build, ROOT)
    (found,) = folder.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install it into an environment of its own; what it needs comes from ours, unchanged."""
    place = tmp_path_factory.mktemp("v") / "venv"
    venv.create(place, with_pip=False, symlinks=True)
    python = place / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
    run([*pip, "--no-index", "--no-deps", "--disable-pip-version-check", str(wheel)], place)
    # A path file inside a folder that a path file names is not read: our editable kaged, which is
    # such a file, stays out of sight.
    (libraries,) = (place / "lib").glob("python*/site-packages")
    ours = sysconfig.get_path("purelib")
    (libraries / "needs.pth").write_text(f"{ours}\n", encoding="utf-8")
    (place / "bin" / "rg").symlink_to(Path(sysconfig.get_path("scripts")) / "rg")
    return place


def test_the_wheel_has_what_cages_and_people_need_and_no_tests(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert f"kaged-{__version__}" in wheel.name
    for part in ("kaged/py.typed", "kaged/_js_sdk/", "kaged/plugins/templates/"):
        assert any(name.startswith(part) for name in names), part
    kinds = {name.split("/")[0] for name in names}
    assert kinds == {"kaged", f"kaged-{__version__}.dist-info"}
    source = ROOT / "src"
    missing = {
        str(path.relative_to(source))
        for path in (source / "kaged").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    } - set(names)
    assert missing == set()


@pytest.mark.timeout(300)
def test_the_installed_command_is_the_wheels_own(installed: Path, tmp_path: Path) -> None:
    kaged = str(installed / "bin" / "kaged")
    assert run([kaged, "--version"], tmp_path).stdout == f"kaged {__version__}\n"
    where = "import kaged, sys; print(kaged.__file__)"
    found = run([str(installed / "bin" / "python"), "-c", where], tmp_path).stdout
    assert found.startswith(str(installed))
    home = make_home(tmp_path / "home")
    looked = run([kaged, "doctor", "--json"], tmp_path, {"KAGED_HOME": str(home)}, checked=False)
    assert looked.returncode in {0, 8}, looked.stderr  # 8: this machine lacks something
    assert json.loads(looked.stdout)
    assert (installed / "bin" / "ash-sb").exists()


@pytest.mark.timeout(300)
def test_a_daemon_of_the_wheel_runs_a_caged_plugin_and_an_agent(
    installed: Path, tmp_path: Path
) -> None:
    kaged = str(installed / "bin" / "kaged")
    home = make_home(tmp_path / "home")
    project = make_project(tmp_path / "p", (
        "version: 1\nproject: sample\nprimary:\n  model: scripted\n"
        "  system_prompt: You help.\n  tools: {'hello.*': {enabled: true}}\n"
        "  plugins: {hello: {package: hello}}\n"
    ))  # fmt: skip
    where = {"KAGED_HOME": str(home), "HOME": str(tmp_path)}
    try:
        run([kaged, "plugin", "new", str(tmp_path / "hello"), "--lang", "python"], project, where)
        run([kaged, "plugin", "install", str(tmp_path / "hello"), "--yes"], project, where)
        run([kaged, "project", "load"], project, where)
        run([kaged, "plugin", "enable", "hello"], project, where)
        said = run([kaged, "tool", "call", "hello.greet", "name=Ada"], project, where)
        assert json.loads(said.stdout) == {"text": "Hello, Ada!"}
        assert "scripted model" in run([kaged, "run", "Hello?"], project, where).stdout
        assert "all as they were written" in run([kaged, "audit", "verify"], project, where).stdout
    finally:
        run([kaged, "daemon", "stop", "--force"], tmp_path, where, checked=False)
