"""Where version managers keep toolchains, and which variables send their caches elsewhere.

A table only: `finding` looks at the host.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from kaged.base.lazy_dataclass import dataclass
from kaged.kernel.toolchains import Toolchain

PACKAGES: Final = "/var/cache/kaged-packages"
"""Where a cage sees the package caches of its project."""


@dataclass(frozen=True, slots=True)
class Place:
    """A folder in which a version manager keeps versions of one toolchain.

    `root` is below the home, unless it is absolute or the manager's `variable` names another.
    `versions` is a path below it, in which one part may be or begin with a star; empty is the root
    itself. A version is one that has one of `programs` in `bin`, and each of `files`. The file
    `default` names the version that people mean when they name none.
    """

    root: str
    versions: str
    programs: tuple[str, ...]
    variable: str = ""
    files: tuple[str, ...] = ()
    default: str = ""


@dataclass(frozen=True, slots=True)
class Beside:
    """What belongs to a toolchain beside its versions: a file or folder, shown where it lies.

    It is shown only with a version of `root`'s toolchain; a folder of programs goes on PATH.
    """

    root: str
    path: str
    variable: str = ""
    programs: bool = False


_PYTHON: Final = ("python3", "python")
# A workspace of Go may lie in ~/go as well; only the toolchain has this file.
_GO: Final = ("VERSION",)

PLACES: Final[Mapping[Toolchain, tuple[Place, ...]]] = MappingProxyType(
    {
        Toolchain.PYTHON: (
            Place(".pyenv", "versions/*", _PYTHON, "PYENV_ROOT", default="version"),
            Place(".local/share/uv/python", "*", _PYTHON, "UV_PYTHON_INSTALL_DIR"),
        ),
        Toolchain.NODE: (
            Place(".nvm", "versions/node/*", ("node",), "NVM_DIR", default="alias/default"),
            Place(".volta", "tools/image/node/*", ("node",), "VOLTA_HOME"),
            Place(".local/share/fnm", "node-versions/*/installation", ("node",), "FNM_DIR"),
        ),
        Toolchain.RUST: (
            Place(
                ".rustup",
                "toolchains/*",
                ("rustc", "cargo"),
                "RUSTUP_HOME",
                default="settings.toml",
            ),
        ),
        Toolchain.GO: (
            Place("sdk", "go*", ("go",), files=_GO),
            Place(".goenv", "versions/*", ("go",), "GOENV_ROOT", _GO, "version"),
            Place(".local/go", "", ("go",), "GOROOT", _GO),
            Place("go", "", ("go",), files=_GO),
            Place("/usr/local/go", "", ("go",), files=_GO),
        ),
        Toolchain.JAVA: (
            Place(".sdkman", "candidates/java/*", ("java",), "SDKMAN_DIR"),
            Place(".jdks", "*", ("java",)),
            Place(".sdkman", "candidates/maven/*", ("mvn",), "SDKMAN_DIR"),
            Place(".sdkman", "candidates/gradle/*", ("gradle",), "SDKMAN_DIR"),
        ),
    }
)

BESIDE: Final[Mapping[Toolchain, tuple[Beside, ...]]] = MappingProxyType(
    {
        Toolchain.RUST: (
            Beside(".rustup", "settings.toml", "RUSTUP_HOME"),
            # Its programs only: the folder around them holds tokens of registries.
            Beside(".cargo", "bin", "CARGO_HOME", programs=True),
        )
    }
)

ROOT_VARIABLES: Final[Mapping[Toolchain, tuple[tuple[str, Place], ...]]] = MappingProxyType(
    {Toolchain.RUST: (("RUSTUP_HOME", PLACES[Toolchain.RUST][0]),)}
)
"""Variables that must name the root of a place, when a version of that place is there."""

VERSION_VARIABLES: Final[Mapping[Toolchain, str]] = MappingProxyType({Toolchain.JAVA: "JAVA_HOME"})
"""Variables that name the folder of the first version."""

PACKAGE_VARIABLES: Final[Mapping[Toolchain, tuple[tuple[str, str], ...]]] = MappingProxyType(
    {
        Toolchain.PYTHON: (
            ("PIP_CACHE_DIR", f"{PACKAGES}/pip"),
            ("UV_CACHE_DIR", f"{PACKAGES}/uv"),
        ),
        Toolchain.NODE: (
            ("NPM_CONFIG_CACHE", f"{PACKAGES}/npm"),
            ("YARN_CACHE_FOLDER", f"{PACKAGES}/yarn"),
        ),
        Toolchain.RUST: (("CARGO_HOME", f"{PACKAGES}/cargo"),),
        Toolchain.GO: (
            ("GOPATH", f"{PACKAGES}/go"),
            ("GOMODCACHE", f"{PACKAGES}/go/pkg/mod"),
            ("GOCACHE", f"{PACKAGES}/go-build"),
        ),
        Toolchain.JAVA: (
            ("GRADLE_USER_HOME", f"{PACKAGES}/gradle"),
            ("MAVEN_ARGS", f"-Dmaven.repo.local={PACKAGES}/maven"),
        ),
    }
)
"""What sends each package manager's cache to the folder that the cage may write."""
