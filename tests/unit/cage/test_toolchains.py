"""What of the version managers in a home a cage is shown, and what never."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from kaged.cage import CageRequest, HostMount
from kaged.cage.errors import GrantRefused
from kaged.cage.toolchains.finding import MAX_VERSIONS, FoundToolchain, ToolchainFinder
from kaged.cage.toolchains.kit import ToolchainKits
from kaged.kernel.policy import CagePolicy, FsGrant, FsMode
from kaged.kernel.toolchains import Toolchain


class Home:
    """A home with folders as version managers leave them."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "home"
        self.path.mkdir()
        self.daemon = self.path / ".kaged"
        self.daemon.mkdir()

    def program(self, path: str, *, mode: int = 0o755) -> Path:
        file = self.path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("#!/bin/sh\n", encoding="utf-8")
        file.chmod(mode)
        return file

    def text(self, path: str, text: str) -> None:
        file = self.path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")

    def finder(self, **environ: str) -> ToolchainFinder:
        return ToolchainFinder({"HOME": str(self.path), **environ}, (str(self.daemon),))

    def find(self, name: str, *changeable: Path, **environ: str) -> FoundToolchain:
        return self.finder(**environ).find(Toolchain(name), [str(one) for one in changeable])

    def bins(self, name: str, *changeable: Path, **environ: str) -> list[str]:
        found = self.find(name, *changeable, **environ)
        return [one.removeprefix(f"{self.path}/") for one in found.bins]


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path.resolve())


@pytest.mark.parametrize(
    ("name", "program", "also"),
    [
        ("python", ".pyenv/versions/3.12.1/bin/python3", ""),
        ("python", ".local/share/uv/python/cpython-3.13.1-linux-x86_64-gnu/bin/python3", ""),
        ("node", ".nvm/versions/node/v22.1.0/bin/node", ""),
        ("node", ".volta/tools/image/node/20.2.0/bin/node", ""),
        ("node", ".local/share/fnm/node-versions/v20.1.0/installation/bin/node", ""),
        ("rust", ".rustup/toolchains/stable-x86_64-unknown-linux-gnu/bin/cargo", ""),
        ("go", "sdk/go1.22.1/bin/go", "sdk/go1.22.1/VERSION"),
        ("go", ".goenv/versions/1.22.1/bin/go", ".goenv/versions/1.22.1/VERSION"),
        ("go", ".local/go/bin/go", ".local/go/VERSION"),
        ("go", "go/bin/go", "go/VERSION"),
        ("java", ".sdkman/candidates/java/21.0.1-tem/bin/java", ""),
        ("java", ".sdkman/candidates/maven/3.9.6/bin/mvn", ""),
        ("java", ".sdkman/candidates/gradle/8.5/bin/gradle", ""),
        ("java", ".jdks/openjdk-21/bin/java", ""),
    ],
)
def test_each_manager_is_found_and_shown_where_it_lies(
    home: Home, name: str, program: str, also: str
) -> None:
    file = home.program(program)
    if also:
        home.text(also, "1\n")
    found = home.find(name)
    assert found.present
    assert str(file.parent) in found.bins
    folder = str(file.parent.parent)
    assert (folder, folder) in found.shown
    assert not any(dest == str(home.path) for _, dest in found.shown)


def test_a_folder_without_the_program_is_no_toolchain(home: Home) -> None:
    home.program(".pyenv/versions/3.12.1/bin/pip")
    home.program(".nvm/versions/node/v22.1.0/bin/node", mode=0o644)
    home.program("go/bin/go")  # a workspace of Go, with what a person installed into it
    assert [home.find(one).shown for one in ("python", "node", "go")] == [(), (), ()]


def test_the_default_comes_first_and_then_the_newest(home: Home) -> None:
    for version in ("3.9.18", "3.12.1", "3.11.7"):
        home.program(f".pyenv/versions/{version}/bin/python3")
    newest = [f".pyenv/versions/{one}/bin" for one in ("3.12.1", "3.11.7", "3.9.18")]
    assert home.bins("python") == newest
    home.text(".pyenv/version", "3.11.7\n")
    assert home.bins("python")[0] == ".pyenv/versions/3.11.7/bin"
    for version in ("v18.2.0", "v20.9.0", "v9.0.0"):
        home.program(f".nvm/versions/node/{version}/bin/node")
    assert home.bins("node")[0] == ".nvm/versions/node/v20.9.0/bin"
    home.text(".nvm/alias/default", "18\n")
    assert home.bins("node")[0] == ".nvm/versions/node/v18.2.0/bin"


def test_rust_has_its_home_and_the_default_that_rustup_names(home: Home) -> None:
    for version in ("nightly-x86_64", "stable-x86_64"):
        home.program(f".rustup/toolchains/{version}/bin/cargo")
    home.text(".rustup/settings.toml", 'version = "12"\ndefault_toolchain = "nightly-x86_64"\n')
    home.program(".cargo/bin/rustup")
    home.text(".cargo/credentials.toml", "secret")
    found = home.find("rust")
    assert home.bins("rust") == [
        ".rustup/toolchains/nightly-x86_64/bin",
        ".rustup/toolchains/stable-x86_64/bin",
        ".cargo/bin",
    ]
    assert found.env == (("RUSTUP_HOME", f"{home.path}/.rustup"),)
    dests = {dest.removeprefix(f"{home.path}/") for _, dest in found.shown}
    assert {".rustup/settings.toml", ".cargo/bin"} < dests
    assert not dests & {".cargo", ".rustup", ".cargo/credentials.toml"}


def test_the_current_java_is_its_home_and_is_there_by_both_names(home: Home) -> None:
    for version in ("17.0.1-tem", "21.0.1-tem"):
        home.program(f".sdkman/candidates/java/{version}/bin/java")
    java = home.path / ".sdkman/candidates/java"
    (java / "current").symlink_to("17.0.1-tem")
    found = home.find("java")
    assert found.env == (("JAVA_HOME", f"{java}/current"),)
    assert found.bins == (f"{java}/current/bin", f"{java}/21.0.1-tem/bin")
    real = f"{java}/17.0.1-tem"
    assert {(real, real), (real, f"{java}/current")} < set(found.shown)


def test_variables_of_managers_say_where_they_are(home: Home, tmp_path: Path) -> None:
    elsewhere = tmp_path.resolve() / "opt" / "pyenv"
    (elsewhere / "versions/3.12.1/bin").mkdir(parents=True)
    python = elsewhere / "versions/3.12.1/bin/python3"
    python.write_text("#!/bin/sh\n", encoding="utf-8")
    python.chmod(0o755)
    assert home.bins("python") == []
    assert home.bins("python", PYENV_ROOT=str(elsewhere)) == [str(python.parent)]
    assert home.bins("python", PYENV_ROOT="opt/pyenv") == []


def test_links_lead_to_other_versions_and_never_elsewhere_in_the_home(home: Home) -> None:
    uv = ".local/share/uv/python/cpython-3.13.1"
    home.program(f"{uv}/bin/python3")
    home.program("work/other/bin/python3")
    home.program(".kaged/python/bin/python3")
    home.program("bin/python3")
    versions = home.path / ".pyenv/versions"
    versions.mkdir(parents=True)
    (versions / "linked").symlink_to(home.path / uv)
    (versions / "other").symlink_to(home.path / "work/other")
    (versions / "daemon").symlink_to(home.path / ".kaged/python")
    (versions / "home").symlink_to(home.path)
    (versions / "above").symlink_to("/")
    assert home.bins("python") == [".pyenv/versions/linked/bin"]


def test_what_the_cage_may_change_is_not_believed(home: Home) -> None:
    home.program(".pyenv/versions/3.12.1/bin/python3")
    home.program(".nvm/versions/node/v22.1.0/bin/node")
    assert home.bins("python", home.path / ".nvm")
    for changeable in (".pyenv", ".pyenv/versions", ".pyenv/versions/3.12.1", ""):
        assert not home.bins("python", home.path / changeable)
    outside = home.path.parent / "opt/python"
    (outside / "bin").mkdir(parents=True)
    shutil.copy(home.path / ".pyenv/versions/3.12.1/bin/python3", outside / "bin")
    (home.path / ".pyenv/versions/planted").symlink_to(outside)
    assert ".pyenv/versions/planted/bin" in home.bins("python")
    for changeable in (".pyenv", ".pyenv/versions"):
        assert not home.bins("python", home.path / changeable)
    moved = home.path / "work/versions"
    (home.path / "work").mkdir()
    (home.path / ".pyenv/versions").rename(moved)
    (home.path / ".pyenv/versions").symlink_to(moved)
    assert not home.bins("python", home.path / "work")


def test_the_daemons_own_folders_and_a_home_as_a_place_are_never_shown(home: Home) -> None:
    home.program(".kaged/versions/3.12.1/bin/python3")
    assert not home.bins("python", PYENV_ROOT=str(home.daemon))
    home.program("tools/bin/python3")
    assert not home.bins("python", UV_PYTHON_INSTALL_DIR=str(home.path))
    assert ToolchainFinder({}, ()).find(Toolchain.PYTHON).shown == ()


def test_only_so_many_versions_are_shown(home: Home) -> None:
    for number in range(MAX_VERSIONS + 3):
        home.program(f".pyenv/versions/3.{number}.0/bin/python3")
    bins = home.bins("python")
    assert len(bins) == MAX_VERSIONS
    assert bins[0] == f".pyenv/versions/3.{MAX_VERSIONS + 2}.0/bin"


# -- kits ------------------------------------------------------------------------------------------


def kits_of(home: Home) -> ToolchainKits:
    return ToolchainKits(home.finder(), home.path / ".cache/kaged")


def policy_of(root: Path, *names: str) -> CagePolicy:
    grants = (FsGrant(str(root), FsMode.RW),)
    return CagePolicy(fs=grants, toolchains=tuple(Toolchain(one) for one in names))


def test_a_kit_is_read_only_but_for_the_packages_of_its_project(home: Home) -> None:
    python = home.program(".pyenv/versions/3.12.1/bin/python3").parent
    kits, root = kits_of(home), home.path / "work/shop"
    root.mkdir(parents=True)  # a daemon of root asks it whom its cage runs as
    kit = kits.kit(policy_of(root, "python"), "prj_a")
    writable = [one for one in kit.mounts if one.mode is FsMode.RW]
    packages = home.path / ".cache/kaged/packages"
    assert writable == [HostMount(str(packages / "prj_a"), "/var/cache/kaged-packages", FsMode.RW)]
    assert (packages / "prj_a").stat().st_mode & 0o777 == 0o700
    assert kit.bins == (str(python),)
    assert dict(kit.env)["PIP_CACHE_DIR"] == "/var/cache/kaged-packages/pip"
    other = kits.kit(policy_of(root, "python"), "prj_b")
    assert str(packages / "prj_b") in {one.source for one in other.mounts}
    assert str(packages / "prj_a") not in {one.source for one in other.mounts}
    assert kits.kit(policy_of(root), "prj_c").mounts == ()
    assert not (packages / "prj_c").exists()


def test_what_a_grant_shows_is_not_mounted_again(home: Home) -> None:
    home.program(".pyenv/versions/3.12.1/bin/python3")
    grant = FsGrant(f"{home.path}/.pyenv/ver*", FsMode.RO)
    policy = CagePolicy(fs=(grant,), toolchains=(Toolchain.PYTHON,))
    kit = kits_of(home).kit(policy, "")
    assert kit.mounts == ()
    assert kit.bins == (f"{home.path}/.pyenv/versions/3.12.1/bin",)


def test_a_folder_for_packages_that_is_a_link_or_not_a_projects_is_refused(home: Home) -> None:
    packages = home.path / ".cache/kaged/packages"
    packages.mkdir(parents=True)
    (packages / "prj_a").symlink_to(home.path)
    policy = policy_of(home.path / "work", "python")
    for project in ("prj_a", "../x", "a/b"):
        with pytest.raises(GrantRefused):
            kits_of(home).kit(policy, project)


def test_a_root_daemon_gives_the_folder_to_whom_the_cage_will_run_as(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[tuple[str, int, int]] = []

    def chown(path: Path, uid: int, gid: int, *, follow_symlinks: bool) -> None:
        assert not follow_symlinks
        given.append((path.name, uid, gid))

    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr("os.chown", chown)
    root = home.path / "work"
    root.mkdir()
    grants = (FsGrant("/etc", FsMode.RO), FsGrant(f"{root}/*", FsMode.RW))
    policy = CagePolicy(fs=grants, toolchains=(Toolchain.PYTHON,))
    kits_of(home).kit(policy, "prj_a")
    owner = root.stat()
    assert given == [("prj_a", owner.st_uid, owner.st_gid)]
    assert (home.path / ".cache/kaged/packages").stat().st_mode & 0o777 == 0o711


def test_a_persons_own_try_of_a_cage_has_the_programs_and_keeps_nothing(home: Home) -> None:
    python = home.program(".pyenv/versions/3.12.1/bin/python3").parent
    policy = policy_of(home.path / "work", "python")
    request = kits_of(home).added_to(CageRequest("try", policy, ("/bin/sh",)))
    assert [one.mode for one in request.mounts] == [FsMode.RO]
    assert dict(request.fixed_env)["PATH"].startswith(f"{python}:/usr/local/bin:")
    assert not (home.path / ".cache").exists()
