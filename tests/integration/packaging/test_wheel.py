"""A wheel, built and installed outside the checkout, is a whole kaged."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import tempfile
import venv
import zipfile
from collections.abc import Iterator
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
    assert f"kaged-{__version__}.dist-info/sboms/sbom.cdx.json" in names
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
        run([kaged, "project", "load", "--trust"], project, where)
        run([kaged, "plugin", "enable", "hello"], project, where)
        said = run([kaged, "tool", "call", "hello.greet", "name=Ada"], project, where)
        assert json.loads(said.stdout) == {"text": "Hello, Ada!"}
        assert "scripted model" in run([kaged, "run", "Hello?"], project, where).stdout
        assert "all as they were written" in run([kaged, "audit", "verify"], project, where).stdout
    finally:
        run([kaged, "daemon", "stop", "--force"], tmp_path, where, checked=False)


@pytest.fixture(scope="module")
def for_one_user(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install it as `pip install --user` does, with the Python that ours was made from."""
    base = tmp_path_factory.mktemp("u")
    python = os.path.realpath(sys.executable)
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--user"]
    options = ["--no-index", "--no-deps", "--disable-pip-version-check", "--break-system-packages"]
    run(
        [*pip, *options, "--no-warn-script-location", str(wheel)],
        base,
        {"PYTHONUSERBASE": str(base)},
    )
    (libraries,) = (base / "lib").glob("python*/site-packages")
    (libraries / "needs.pth").write_text(f"{sysconfig.get_path('purelib')}\n", encoding="utf-8")
    (base / "bin" / "rg").symlink_to(Path(sysconfig.get_path("scripts")) / "rg")
    return base


@pytest.fixture
def person() -> Iterator[Path]:
    """A home folder like people's, in a short path: a socket's name has about a hundred letters."""
    with tempfile.TemporaryDirectory(prefix="kgd-") as folder:
        home = Path(folder) / "home"
        make_home(home / ".config" / "kaged")
        yield home


STORY = """
trap '"$0" daemon stop --force >&2' EXIT
set -e
"$0" daemon start >&2
"$0" status --json
"$0" daemon stop >&2
if "$0" daemon status >&2; then exit 9; fi
"""
# A disk of its own that nothing can be started from, and then the same user as before.
NOTHING_STARTS = (
    'mount -t tmpfs -o noexec,mode=1777 none "$1"; TMPDIR=$1; export TMPDIR; user=$2; group=$3; '
    'shift 3; cp /bin/true "$TMPDIR"; if "$TMPDIR/true" 2>/dev/null; then exit 8; fi; '
    'exec unshare -U --map-user="$user" --map-group="$group" "$@"'
)


def _lives(kaged: Path, home: Path, *before: str, **variables: str) -> dict[str, str]:
    """Start a daemon, ask it and stop it, as over SSH: with a home and little else."""
    where = {"HOME": str(home), "PATH": "/usr/bin:/bin", **variables}
    done = run([*before, "sh", "-c", STORY, str(kaged)], home, where)
    return json.loads(done.stdout)


def test_installed_for_one_user_it_finds_its_parts(for_one_user: Path, person: Path) -> None:
    """Its programs lie below the home folder, where a remote command does not look."""
    said = _lives(for_one_user / "bin" / "kaged", person, PYTHONUSERBASE=str(for_one_user))
    assert said["home"].startswith(str(person))


def test_a_link_to_the_command_and_a_home_behind_a_link(installed: Path, person: Path) -> None:
    (person / "bin").mkdir()
    (person / "bin" / "kaged").symlink_to(installed / "bin" / "kaged")
    (person.parent / "link").symlink_to("home")
    _lives(person / "bin" / "kaged", person.parent / "link")


def test_folders_that_the_desktop_standard_moved_are_used(installed: Path, person: Path) -> None:
    moved = {name: person.parent / name.lower() for name in ("CONFIG", "STATE", "DATA", "CACHE")}
    make_home(moved["CONFIG"] / "kaged")
    before = sorted(str(path) for path in person.rglob("*"))
    (person.parent / "run").mkdir(mode=0o700)
    said = _lives(
        installed / "bin" / "kaged", person, XDG_RUNTIME_DIR=str(person.parent / "run"),
        **{f"XDG_{name}_HOME": str(path) for name, path in moved.items()},
    )  # fmt: skip
    assert said["home"].startswith(str(moved["DATA"]))
    assert said["socket"].startswith(str(person.parent / "run"))
    assert sorted(str(path) for path in person.rglob("*")) == before


def test_a_home_with_blanks_and_a_tmp_that_starts_nothing(installed: Path, person: Path) -> None:
    home = person.rename(person.parent / "h \u00fc")
    (home / "t").mkdir()
    before = ("unshare", "-rm", "sh", "-ec", NOTHING_STARTS, "sh")
    who = (str(home / "t"), str(os.getuid()), str(os.getgid()))
    _lives(installed / "bin" / "kaged", home, *before, *who)
