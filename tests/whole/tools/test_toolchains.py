"""Toolchains of a home in a caged agent's commands, and the packages that each project keeps."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from whole.harness.daemon import Daemon
from whole.harness.project import Project

PYTHON = ".pyenv/versions/3.12.1"
NODE = ".nvm/versions/node/v22.1.0"
PACKAGES = "/var/cache/kaged-packages"
SYSTEM = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"
PROGRAMS = {"go": "go", "java": "java", "rust": "cargo"}


class Tools:
    """A person's home with version managers and secrets in it, and a daemon of that person."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder / "person"
        self.put(".ssh/id", "the private key")
        self.put(".cache/pip/wheel", "the person's own cache")
        self.put(".pyenv/plugins/note", "not a version")
        self.put(".nvm/alias/default", "22")
        # Scripts begin with the full path of their interpreter, as pip writes them.
        self.program(
            f"{PYTHON}/bin/python3",
            '[ -n "$1" ] && exec /bin/sh "$@"; cat "${0%/bin/*}/lib/version"',
        )
        self.put(f"{PYTHON}/lib/version", "python of the person\n")
        fetch = 'mkdir -p "$PIP_CACHE_DIR" && echo "$1" >> "$PIP_CACHE_DIR/got"'
        self.program(f"{PYTHON}/bin/pip", fetch, f"{self.home}/{PYTHON}/bin/python3")
        self.program(f"{NODE}/bin/node", 'echo "node of the person"')
        self.program(f"{NODE}/bin/npm", 'mkdir -p "$NPM_CONFIG_CACHE"; echo "$NPM_CONFIG_CACHE"')
        self.daemon = Daemon(folder / "h", env={"HOME": str(self.home)})
        self.daemon.start()

    def put(self, path: str, text: str, mode: int = 0o644) -> Path:
        """Write a file of the home."""
        file = self.home / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        file.chmod(mode)
        return file

    def program(self, path: str, script: str, interpreter: str = "/bin/sh") -> Path:
        """Write a program of the home."""
        return self.put(path, f"#!{interpreter}\n{script}\n", 0o755)

    def project(self, name: str, *asked: str, **cage: Any) -> Project:
        """Return a loaded project whose agent's cage names these toolchains."""
        full = {
            "fs": [{"mode": "rw", "path": "."}],
            "capabilities": ["shell"],
            "toolchains": list(asked),
            **cage,
        }
        return self.daemon.load(Project(self.folder / name, cage=full))


@pytest.fixture(scope="module")
def tools(module_path: Path) -> Iterator[Tools]:
    """Yield a home with toolchains and its daemon."""
    made = Tools(module_path)
    yield made
    made.daemon.close()


def out(project: Project, command: str) -> str:
    """Run a command of the agent; returns what it printed."""
    return str(project.call("shell.bash", command=command)["stdout"]).replace("\r\n", "\n")


def test_programs_of_a_toolchain_come_first_and_work(tools: Tools) -> None:
    shop = tools.project("first", "python", "node")
    said = out(
        shop, "for one in python3 pip node npm; do command -v $one; done; python3; node; echo $PATH"
    )
    bins = [f"{tools.home}/{one}" for one in (f"{PYTHON}/bin", f"{NODE}/bin")]
    assert said.splitlines() == [
        f"{bins[0]}/python3",
        f"{bins[0]}/pip",
        f"{bins[1]}/node",
        f"{bins[1]}/npm",
        "python of the person",
        "node of the person",
        f"{bins[0]}:{bins[1]}:{SYSTEM}",
    ]


def test_the_rest_of_the_home_stays_invisible_and_toolchains_cannot_be_changed(
    tools: Tools,
) -> None:
    shop = tools.project("rest", "python", "node")
    home = tools.home
    seen = out(shop, f"ls -A {home} {home}/.pyenv {home}/.nvm {home}/.nvm/versions")
    assert set(seen.split()) & {".ssh", ".cache", "plugins", "alias"} == set()
    assert ".pyenv" in seen
    said = out(
        shop,
        f"cat {home}/.ssh/id {home}/.cache/pip/wheel {home}/.pyenv/plugins/note; "
        f"echo worse > {home}/{PYTHON}/lib/version; rm -f {home}/{NODE}/bin/node; "
        f"echo x > {home}/{PYTHON}/bin/new; ls {home}/{NODE}/bin",
    )
    assert "private key" not in said
    assert "own cache" not in said
    assert "not a version" not in said
    assert said.count("Read-only file system") == 3, said
    assert (home / PYTHON / "lib/version").read_text(encoding="utf-8") == "python of the person\n"
    assert not (home / PYTHON / "bin/new").exists()
    assert (home / NODE / "bin/node").exists()


def test_a_cage_has_only_the_toolchains_that_it_names(tools: Tools) -> None:
    none, one = tools.project("none"), tools.project("one", "node")
    assert out(none, f"echo $PATH; ls -d {tools.home} {PACKAGES} 2>&1").splitlines()[0] == SYSTEM
    assert "node of the person" not in out(none, "node; ls -A /var/cache")
    assert "node of the person" in out(one, "node")
    assert "python of the person" not in out(
        one, f"python3 -c 1; {tools.home}/{PYTHON}/bin/python3"
    )
    assert out(one, "echo [$PIP_CACHE_DIR]") == "[]\n"


def test_packages_are_kept_for_the_project_and_for_no_other(tools: Tools) -> None:
    shop, other = tools.project("shop", "python"), tools.project("other", "python")
    out(shop, "pip one")
    out(shop, "pip two")
    out(other, "pip three")
    assert out(shop, f"cat {PACKAGES}/pip/got") == "one\ntwo\n"
    assert out(other, f"cat {PACKAGES}/pip/got") == "three\n"
    kept = tools.daemon.home / "cache" / "packages"
    assert (kept / shop.id / "pip/got").read_text(encoding="utf-8") == "one\ntwo\n"
    assert (kept / other.id / "pip/got").read_text(encoding="utf-8") == "three\n"
    assert "three" not in out(shop, f"grep -r three {kept} {PACKAGES}; true").replace(str(kept), "")
    assert (tools.home / ".cache/pip/wheel").read_text(encoding="utf-8") == "the person's own cache"
    assert [one.name for one in (tools.home / ".cache/pip").iterdir()] == ["wheel"]


def test_the_project_may_set_such_variables_itself(tools: Tools) -> None:
    shop = tools.project("vars", "python", env={"PIP_CACHE_DIR": "/tmp/mine", "PATH": "/usr/bin"})
    said = out(shop, "echo $PIP_CACHE_DIR $PATH")
    assert said == f"/tmp/mine {tools.home}/{PYTHON}/bin:/usr/bin\n"


def test_what_was_installed_since_is_there_at_the_next_command(tools: Tools) -> None:
    shop = tools.project("later", "node")
    assert "node of the person" in out(shop, "node")
    newer = tools.program(".nvm/versions/node/v23.0.0/bin/node", 'echo "a newer node"')
    tools.put(".nvm/alias/default", "23")
    assert out(shop, "node") == "a newer node\n"
    shutil.rmtree(newer.parent.parent)
    tools.put(".nvm/alias/default", "22")
    assert out(shop, "node") == "node of the person\n"


def test_a_link_to_elsewhere_in_the_home_shows_nothing(tools: Tools) -> None:
    tools.program("work/secret/bin/node", "echo stolen")
    link = tools.home / ".nvm/versions/node/v99.0.0"
    link.symlink_to(tools.home / "work/secret")
    try:
        shop = tools.project("links", "node")
        said = out(shop, f"node; {link}/bin/node; ls {tools.home}/work; echo $PATH")
        assert said.startswith("node of the person\n")
        assert "stolen" not in said
        assert "v99" not in said.splitlines()[-1]
        assert "secret" not in said.replace(f"{tools.home}/work", "")
    finally:
        link.unlink()


def test_a_toolchain_is_part_of_what_the_project_asks_for(tools: Tools) -> None:
    shop = tools.project("asks", "python")
    text = shop.read(".kaged/project.yaml").replace("- python", "- python\n    - node")
    shop.write(".kaged/project.yaml", text)
    tools.daemon.post(f"/projects/{shop.id}/reload", {})
    view = tools.daemon.get(f"/projects/{shop.id}")
    assert view["trusted"] is False
    words = "primary may use the node toolchain in your home, read-only, with a package cache"
    assert words in str(view["ask"])
    shop.reload()
    assert out(shop, "node") == "node of the person\n"


def test_an_unknown_name_is_refused_with_the_known_ones(tools: Tools) -> None:
    shop = Project(tools.folder / "wrong", cage={"toolchains": ["cobol"]})
    done = tools.daemon.cli("project", "check", str(shop.root), code=6)
    assert "'cobol' is not one of go, java, node, python, rust" in done.out
    assert "primary.cage.toolchains" in done.out


def test_a_toolchain_that_is_not_there_is_a_warning(tools: Tools) -> None:
    absent = next(one for one, name in PROGRAMS.items() if shutil.which(name, path=SYSTEM) is None)
    shop = tools.project("absent", "python", absent)
    done = tools.daemon.cli("project", "check", str(shop.root), "--json")
    (problem,) = json.loads(done.out)["problems"]
    assert problem["code"] == "toolchain_missing"
    assert problem["severity"] == "warning"
    assert problem["message"] == f"this host has no toolchain {absent}"
    said = tools.daemon.cli("cage", "explain", "primary", "--project", str(shop.root)).out
    assert f"has python first on PATH from {tools.home}/{PYTHON}" in said
    assert f"asks for the toolchain {absent} and does not have it" in said
    assert out(shop, "python3") == "python of the person\n"  # the others are there all the same


def test_no_folder_for_packages_is_an_error_that_says_which(tools: Tools) -> None:
    shop = tools.project("blocked", "python")
    place = tools.daemon.home / "cache" / "packages" / shop.id
    place.parent.mkdir(exist_ok=True)
    place.symlink_to(tools.home)
    error = shop.fail("shell.bash", command="python3")
    assert error["code"] == "shell_spawn_failed"
    assert f"{place}: the folder for packages is a symbolic link" in error["message"]
    place.unlink()
    assert out(shop, "python3") == "python of the person\n"
