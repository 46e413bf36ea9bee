"""`SourceFetcher`: bring a plugin from where a project says it is into quarantine.

`./path` is read where it lies. Git sources are cloned, shallow and without submodules, by a git in
a cage that sees the quarantine directory and one host, has no credentials and nobody's
configuration. Nothing in a repository is run. Only ever called after the operator's first yes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import field
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from kaged.base import Ids, JsonValue, KagedError, Tasks
from kaged.base.lazy_dataclass import dataclass
from kaged.cage import CageKind, CageRequest, Spawner
from kaged.cage.collect import Collected, collect
from kaged.config.pluginwords import MANIFEST_NAME, PluginSource, SourceKind
from kaged.config.semver import Version, VersionInvalid, VersionRange, parse_version
from kaged.config.toolsections import OptionalSource
from kaged.kernel.net import NetTarget
from kaged.kernel.policy import CageLimits, CagePolicy, FsGrant, FsMode
from kaged.plugins.errors import TreeRefused
from kaged.plugins.storesteps import remove_tree
from kaged.plugins.treecopy import TreeLimits, read_tree

MAX_TAGS: Final = 10_000
MAX_TAGS_SHOWN: Final = 40
MAX_OUTPUT_BYTES: Final = 4 * 1024 * 1024
_WATCH_S: Final = 0.5
_PORTS: Final = {"https": 443, "http": 80}
_SCHEMES: Final[Mapping[SourceKind, str]] = {
    SourceKind.GITHUB: "https",
    SourceKind.GIT_HTTPS: "https",
    SourceKind.GIT_FILE: "file",
    SourceKind.GIT_HTTP_LOOPBACK: "http",
}
# A file and not options: git hands no options on to the programs it starts for a local repository.
_GIT_CONFIG: Final = """[core]
    hooksPath = /dev/null
    fsmonitor = false
    attributesFile = /dev/null
[protocol]
    allow = never
[protocol "{scheme}"]
    allow = always
[credential]
    helper =
[http]
    followRedirects = initial
[submodule]
    recurse = false
[transfer]
    fsckObjects = true
[safe]
    directory = *
[advice]
    detachedHead = false
"""


@dataclass(frozen=True, slots=True)
class FetchLimits:
    """How long a fetch may take and how large what it brings may be."""

    timeout_s: float = 120.0
    tree: TreeLimits = field(default_factory=TreeLimits)
    disk_bytes: int = 1024 * 1024 * 1024
    disk_entries: int = 200_000


@dataclass(frozen=True, slots=True)
class FetchedSource:
    """A plugin's directory that can be looked at; `tag` is empty for the default branch."""

    directory: Path
    tag: str = ""


class SourceFetcher:
    """Fetches into `quarantine`, which belongs to the host and lies outside the store."""

    def __init__(
        self,
        spawner: Spawner,
        quarantine: Path,
        ids: Ids,
        *,
        allowed: Collection[OptionalSource] = (),
        limits: FetchLimits | None = None,
    ) -> None:
        self._spawner = spawner
        self._quarantine = quarantine
        self._ids = ids
        self._allowed = frozenset(kind.value for kind in allowed)
        self._limits = limits or FetchLimits()

    def require_allowed(self, source: PluginSource) -> None:
        """Refuse a kind that the operator's configuration must allow first and does not."""
        optional = {kind.value for kind in OptionalSource}
        kind = source.kind.value
        if kind in optional - self._allowed:
            raise KagedError(
                f"{kind} sources are not allowed on this machine",
                code="plugin_source_not_allowed",
                fix=f'the operator can allow them: [plugins] allow_sources = ["{kind}"]',
            )

    @asynccontextmanager
    async def fetch(
        self, source: PluginSource, version: VersionRange | None, project_root: Path
    ) -> AsyncGenerator[FetchedSource]:
        """Yield a plugin's directory for the time of a `with` block, then remove it.

        Raises:
            KagedError: `plugin_source_not_allowed`; the operator's configuration does not allow
                this kind.
            KagedError: `plugin_source_unavailable`; it is not there, no tag fits, or git failed.
            TreeRefused: it holds something that is never installed.
        """
        self.require_allowed(source)
        if source.kind is SourceKind.PATH:
            yield FetchedSource(await asyncio.to_thread(relative_source, project_root, source))
            return
        place = self._quarantine / self._ids.tagged("fetch")
        try:
            await asyncio.to_thread(_make_place, place, _SCHEMES[source.kind])
            yield await self._clone(source, version, place)
        finally:
            await asyncio.to_thread(remove_tree, place)

    async def _clone(
        self, source: PluginSource, version: VersionRange | None, place: Path
    ) -> FetchedSource:
        tag = ""
        if version is not None:
            tag = choose_tag(await self._tags(source, place), version)
        branch = ("--branch", tag) if tag else ()
        target = place / "tree"
        await self._git(
            source,
            place,
            "clone",
            "--quiet",
            "--depth=1",
            "--single-branch",
            "--no-tags",
            "--no-recurse-submodules",
            "--no-local",
            "--template=",
            *branch,
            "--",
            source.location,
            str(target),
        )
        await asyncio.to_thread(_check_clone, target, self._limits.tree)
        return FetchedSource(target, tag)

    async def _tags(self, source: PluginSource, place: Path) -> tuple[str, ...]:
        done = await self._git(source, place, "ls-remote", "--tags", "--", source.location)
        found = dict.fromkeys(
            line.partition("refs/tags/")[2].removesuffix("^{}")
            for line in done.stdout.decode("utf-8", "replace").splitlines()
            if "refs/tags/" in line
        )
        return tuple(found)[:MAX_TAGS]

    async def _git(self, source: PluginSource, place: Path, *args: str) -> Collected:
        request = _request(source, place, args)
        watch = Tasks(f"fetch {place.name}", _ignore)
        try:
            async with asyncio.timeout(self._limits.timeout_s):
                process = await self._spawner.spawn(request)
                watching = watch.start(self._watch(place, process.kill), "size")
                done = await collect(process, limit_bytes=MAX_OUTPUT_BYTES)
        except TimeoutError:
            raise _unavailable(
                f"{source.location} did not answer in {self._limits.timeout_s:g} s",
                "try again, or install the plugin by hand from a directory",
            ) from None
        except TreeRefused:
            raise
        except KagedError as error:
            raise _unavailable(
                f"git could not be started for {source.location}: {error.message}", error.fix
            ) from error
        finally:
            await watch.close()
        if watching.done() and not watching.cancelled():
            raise TreeRefused(f"{source.location} is larger than a plugin may be", path=".")
        if not done.report.clean:
            said = done.stderr.decode("utf-8", "replace").strip().splitlines()
            raise _unavailable(
                f"{source.location} could not be fetched: {_last(said) or done.report.detail}",
                "check the address, or install the plugin by hand from a directory",
            )
        return done

    async def _watch(self, place: Path, kill: Callable[[], object]) -> None:
        """End git when it has written more than a plugin may be."""
        while True:
            if not await asyncio.to_thread(self._fits, place):
                kill()
                return
            await asyncio.sleep(_WATCH_S)

    def _fits(self, place: Path) -> bool:
        size = entries = 0
        for path in place.rglob("*"):
            entries += 1
            try:
                size += path.lstat().st_size
            except FileNotFoundError:
                continue  # git's own temporary files come and go
            if size > self._limits.disk_bytes or entries > self._limits.disk_entries:
                return False
        return True


def relative_source(project_root: Path, source: PluginSource) -> Path:
    """Return the directory of a `./path` source. Blocks on the disk.

    Raises:
        KagedError: `plugin_source_unavailable`; it leaves the project, is no directory or has no
            manifest.
    """
    root = project_root.resolve()
    found = (root / source.location).resolve()
    if not found.is_relative_to(root):
        raise _unavailable(
            f"{source.location} leads out of the project", "keep the plugin in the project"
        )
    _require_manifest(found, source.location)
    return found


def choose_tag(tags: Collection[str], wanted: VersionRange) -> str:
    """Pick the tag for a constraint: `v<version>`, then `<version>`; a range takes the highest.

    Raises:
        KagedError: `plugin_source_unavailable`; none fits; the message lists the tags.
    """
    exact = wanted.exact
    if exact is not None:
        for tag in (f"v{wanted.text}", wanted.text):
            if tag in tags:
                return tag
    else:
        versions: dict[Version, str] = {}
        for tag in tags:
            try:
                version = parse_version(tag.removeprefix("v"))
            except VersionInvalid:
                continue
            if version not in versions or tag.startswith("v"):
                versions[version] = tag
        best = wanted.highest(versions)
        if best is not None:
            return versions[best]
    shown = sorted(tags)
    more = f" and {len(shown) - MAX_TAGS_SHOWN} more" if len(shown) > MAX_TAGS_SHOWN else ""
    listed = ", ".join(shown[:MAX_TAGS_SHOWN]) + more if shown else "none"
    data: list[JsonValue] = list(shown[:MAX_TAGS_SHOWN])
    raise _unavailable(
        f"no tag fits version {wanted.text}; the repository has: {listed}",
        "ask for a version that is there, or leave version out for the default branch",
        tags=data,
    )


def _request(source: PluginSource, place: Path, args: tuple[str, ...]) -> CageRequest:
    address = urlsplit(source.location)
    grants = [FsGrant(str(place), FsMode.RW)]
    net: tuple[NetTarget, ...] = ()
    if source.kind is SourceKind.GIT_FILE:
        grants.append(FsGrant(address.path, FsMode.RO))
    elif source.kind is SourceKind.GIT_HTTP_LOOPBACK:
        # Inside a cage this machine's loopback has this name only; 127.0.0.1 leads there, too.
        net = (NetTarget("localhost", address.port or _PORTS["http"]),)
    else:
        net = (NetTarget(address.hostname or "", address.port or _PORTS["https"]),)
    limits = CageLimits(memory_mb=1024, open_files=1024, file_size_mb=1024)
    return CageRequest(
        name=f"fetch:{address.hostname or 'file'}",
        policy=CagePolicy(fs=tuple(grants), net=net, limits=limits),
        command=("git", *args),
        kind=CageKind.WORKER,
        cwd=str(place),
        home=str(place),
        env=(
            ("GIT_CONFIG_NOSYSTEM", "1"),
            ("GIT_CONFIG_GLOBAL", str(place / "gitconfig")),
            ("GIT_TERMINAL_PROMPT", "0"),
            ("GIT_ASKPASS", "/bin/false"),
            ("GIT_LFS_SKIP_SMUDGE", "1"),
            ("LC_ALL", "C.UTF-8"),
        ),
        own_dirs=(str(place),),
    )


def _make_place(place: Path, scheme: str) -> None:
    place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    place.mkdir(mode=0o700)
    (place / "gitconfig").write_text(_GIT_CONFIG.format(scheme=scheme), encoding="utf-8")
    (place / "gitconfig").chmod(0o644)
    # A daemon that is root runs cages as another user; the parent keeps everybody else out.
    place.chmod(0o777)


def _check_clone(target: Path, limits: TreeLimits) -> None:
    remove_tree(target / ".git")
    _require_manifest(target, "the repository")
    read_tree(target, limits)


def _require_manifest(directory: Path, what: str) -> None:
    if not directory.is_dir():
        raise _unavailable(f"{what} is no directory", "correct the source")
    if not (directory / MANIFEST_NAME).is_file():
        raise _unavailable(f"{what} has no {MANIFEST_NAME}", "the manifest belongs at its top")


def _unavailable(message: str, fix: str | None, **data: JsonValue) -> KagedError:
    return KagedError(message, code="plugin_source_unavailable", fix=fix, **data)


def _last(lines: list[str]) -> str:
    told = [line for line in lines if line.startswith(("fatal:", "error:", "remote:"))]
    return (told or lines or [""])[-1][:300]


def _ignore(_name: str, _error: BaseException) -> None:
    """A watcher that failed is seen by its caller."""
