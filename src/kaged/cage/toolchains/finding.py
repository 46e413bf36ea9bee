"""`ToolchainFinder`: which toolchains lie in this person's home, and what of them may be shown.

A folder is taken by what it holds, at a place where a version manager puts it, and only when no
cage that gets it could have put something else there.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final

from kaged.base.lazy_dataclass import dataclass
from kaged.cage.compile import SYSTEM_PATH
from kaged.cage.grants import KERNEL_TREES, RESERVED, Protected
from kaged.cage.toolchains.places import (
    BESIDE,
    PLACES,
    ROOT_VARIABLES,
    VERSION_VARIABLES,
    Beside,
    Place,
)
from kaged.kernel.toolchains import Toolchain

MAX_LISTED: Final = 500
MAX_VERSIONS: Final = 12
"""How many versions of one place a cage is shown, the default and the newest first."""
MAX_DEFAULT_BYTES: Final = 4096

_DEFAULT_TOOLCHAIN = re.compile(r'^default_toolchain\s*=\s*"([^"]+)"', re.MULTILINE)
_NUMBERS = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class FoundToolchain:
    """One toolchain of this host: folders and files to show, programs, variables.

    `shown` are pairs of where something lies and where a cage sees it. Without any of them it may
    still be one of the `system`, which every agent's cage has.
    """

    name: Toolchain
    shown: tuple[tuple[str, str], ...] = ()
    bins: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    system: bool = False

    @property
    def present(self) -> bool:
        """Whether a cage that asks for it has its programs."""
        return bool(self.bins) or self.system


class ToolchainFinder:
    """Looks in one home; `environ` are the host's variables, `protected` the daemon's own paths."""

    def __init__(self, environ: Mapping[str, str], protected: Sequence[str]) -> None:
        self._environ = environ
        home = environ.get("HOME", "")
        self._home = posixpath.normpath(home) if _plain(home) else ""
        self._protected = Protected(tuple(protected))

    def find(self, name: Toolchain, changeable: Sequence[str] = ()) -> FoundToolchain:
        """Return what there is of a toolchain for a cage that may write to these paths.

        What lies where the cage may write is left out: an agent could have put a link there.
        """
        versions: dict[str, str] = {}
        variables: list[tuple[str, str]] = []
        for place in PLACES[name]:
            root = self._root(place)
            if not root or self._changed_by(root, place.versions, changeable):
                continue
            found = dict(islice(self._versions(place, root, changeable), MAX_VERSIONS))
            known = set(versions.values())
            versions |= {listed: real for listed, real in found.items() if real not in known}
            if found:
                roots = ROOT_VARIABLES.get(name, ())
                variables += [(word, root) for word, meant in roots if meant is place]
        if name in VERSION_VARIABLES and versions:
            variables.append((VERSION_VARIABLES[name], next(iter(versions))))
        shown = [pair for listed, real in versions.items() for pair in _pairs(real, listed)]
        bins = [f"{listed}/bin" for listed in versions]
        if versions:
            for beside in BESIDE.get(name, ()):
                path, real = self._beside(beside, changeable)
                if path:
                    shown += _pairs(real, path)
                    bins += [path] if beside.programs else []
        return FoundToolchain(
            name, tuple(dict.fromkeys(shown)), tuple(bins), tuple(variables), _of_system(name)
        )

    def _root(self, place: Place | Beside) -> str:
        """Return where a manager keeps its things; empty when nobody can say."""
        named = self._environ.get(place.variable, "") if place.variable else ""
        if _plain(named):
            return posixpath.normpath(named)
        if place.root.startswith("/"):
            return place.root
        return f"{self._home}/{place.root}" if self._home else ""

    def _versions(
        self, place: Place, root: str, changeable: Sequence[str]
    ) -> Iterator[tuple[str, str]]:
        """Yield the versions that may be shown, the default first, then the newest."""
        default = _default_of(place, root)
        seen: set[str] = set()
        for listed in _listed(root, place.versions, default):
            real = os.path.realpath(listed)
            if real in seen or not self._may_show(real, changeable):
                continue
            has_program = any(_program(f"{real}/bin/{one}") for one in place.programs)
            if has_program and all(os.path.isfile(f"{real}/{one}") for one in place.files):  # noqa: PTH113 - string paths throughout
                seen.add(real)
                yield listed, real

    def _beside(self, beside: Beside, changeable: Sequence[str]) -> tuple[str, str]:
        root = self._root(beside)
        path = f"{root}/{beside.path}"
        real = os.path.realpath(path)
        if (
            not root
            or self._changed_by(root, beside.path, changeable)
            or not self._may_show(real, changeable)
        ):
            return "", ""
        there = os.path.isdir(real) if beside.programs else os.path.isfile(real)  # noqa: PTH112, PTH113 - string paths throughout
        return (path, real) if there else ("", "")

    def _changed_by(self, root: str, below: str, changeable: Sequence[str]) -> bool:
        """Return whether whoever writes to these paths decides what lies in a manager's folder."""
        folder = _fixed(root, below)
        return any(_within_any(os.path.realpath(one), changeable) for one in (root, folder))

    def _may_show(self, real: str, changeable: Sequence[str]) -> bool:
        """Return whether what lies here, behind all links, may be shown to such a cage."""
        home = os.path.realpath(self._home) if self._home else ""
        if not _plain(real) or real.count("/") < 2 or real in RESERVED:
            return False
        if any(_within(real, tree) for tree in KERNEL_TREES):
            return False
        if home and _within(home, real):
            return False
        if home and _within(real, home) and not self._kept_here(real):
            return False
        return self._protected.reason(real) is None and not _within_any(real, changeable)

    def _kept_here(self, real: str) -> bool:
        """Return whether a path of the home lies where some manager keeps versions.

        A link to anywhere else in the home would show what nobody meant to show.
        """
        every = [place for places in PLACES.values() for place in places]
        roots = [(one, self._root(one)) for one in every]
        kept = [_fixed(root, one.versions) for one, root in roots if root]
        beside = [one for found in BESIDE.values() for one in found]
        kept += [f"{root}/{one.path}" for one in beside if (root := self._root(one))]
        home = os.path.realpath(self._home)
        places = (os.path.realpath(one) for one in kept)
        return any(_within(real, one) and not _within(home, one) for one in places)


def _on_system(path: str) -> bool:
    """Return whether every agent's cage shows this path anyway."""
    return _within(path, "/usr")


def _pairs(real: str, listed: str) -> list[tuple[str, str]]:
    # Programs find themselves by either name: what pip writes into `bin` begins with the first.
    pairs = [(real, listed)] if _on_system(real) else [(real, real), (real, listed)]
    return [(source, dest) for source, dest in pairs if not _on_system(dest)]


def _fixed(root: str, versions: str) -> str:
    """Return the folder in which versions are listed; the root itself, when it is one."""
    head = versions.partition("*")[0]
    return posixpath.normpath(posixpath.join(root, posixpath.dirname(head)))


def _listed(root: str, versions: str, default: str) -> list[str]:
    """Return what is called like a version, the default first, then the newest."""
    if not versions:
        return [root]
    head, _, tail = versions.partition("*")
    folder = _fixed(root, versions)
    start = posixpath.basename(head)
    try:
        with os.scandir(folder) as entries:
            names = [one.name for one in islice(entries, MAX_LISTED)]
    except OSError:
        return []
    names = [one for one in names if one.startswith(start) and one[0] != "." and one.isprintable()]
    names.sort(key=_newness, reverse=True)
    names.sort(key=lambda one: not _is_default(one, default))
    return [f"{folder}/{name}{tail}" for name in names]


def _newness(name: str) -> tuple[tuple[int, ...], str]:
    return tuple(int(one[:12]) for one in _NUMBERS.findall(name)[:8]), name


def _is_default(name: str, default: str) -> bool:
    if name == "current":
        return True
    names = (default, f"v{default}") if default else ()
    return any(name == one or name.startswith((f"{one}.", f"{one}-")) for one in names)


def _default_of(place: Place, root: str) -> str:
    """Return the version that a manager's own file names, as far as it names one."""
    if not place.default:
        return ""
    try:
        with open(f"{root}/{place.default}", "rb") as file:  # noqa: PTH123 - string paths throughout
            text = file.read(MAX_DEFAULT_BYTES).decode("utf-8", "replace")
    except (OSError, ValueError):
        return ""
    if place.default.endswith(".toml"):
        said = _DEFAULT_TOOLCHAIN.search(text)
        return said[1] if said else ""
    return next(iter(text.split()), "")


def _of_system(name: Toolchain) -> bool:
    programs = {one for place in PLACES[name][:1] for one in place.programs}
    return any(_program(f"{folder}/{one}") for folder in SYSTEM_PATH.split(":") for one in programs)


def _program(path: str) -> bool:
    return os.path.isfile(path) and os.access(path, os.X_OK)  # noqa: PTH113 - string paths throughout


def _plain(path: str) -> bool:
    return path.startswith("/") and path.isprintable() and ":" not in path


def _within(path: str, folder: str) -> bool:
    return folder in {"/", path} or path.startswith(f"{folder}/")


def _within_any(path: str, folders: Iterable[str]) -> bool:
    return any(_within(path, one) for one in folders)
