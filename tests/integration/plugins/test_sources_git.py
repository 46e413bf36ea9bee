"""Real git in real cages: tags, branches, loopback HTTP, and what hostile repositories try."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from fakes.git_repo import commit, git, git_server, plugin_repository, publish
from fakes.stocked_cache import stocked
from fakes.store_lab import write_plugin
from kaged.base import Ids, JsonObject, SystemClock
from kaged.cage import CageProcess, CageRequest, CageSettings, Spawner
from kaged.cage.net import NetGate
from kaged.config.manifest import load_manifest
from kaged.config.pluginwords import parse_source
from kaged.config.semver import parse_range
from kaged.config.toolsections import OptionalSource
from kaged.kernel.net import NetTarget
from kaged.kernel.policy import FsGrant, FsMode
from kaged.plugins.errors import TreeRefused
from kaged.plugins.sources import FetchLimits, SourceFetcher
from kaged.plugins.treecopy import TreeLimits
from raising import raises_code
from requirements import requirement

BOTH = (OptionalSource.GIT_FILE, OptionalSource.GIT_HTTP_LOOPBACK)


class Lab:
    def __init__(self, root: Path, spawner: Spawner, requests: list[list[str]]) -> None:
        self.root = root
        self.quarantine = root / "home" / "quarantine"
        self.spawner = spawner
        self.requests = requests

    def fetcher(self, *, limits: FetchLimits | None = None) -> SourceFetcher:
        return SourceFetcher(
            self.spawner, self.quarantine, Ids(SystemClock()), allowed=BOTH, limits=limits
        )

    async def version(self, source: str, wanted: str | None) -> str:
        constraint = None if wanted is None else parse_range(wanted)
        fetcher = self.fetcher()
        async with fetcher.fetch(parse_source(source), constraint, self.root) as fetched:
            assert not (fetched.directory / ".git").exists()
            return str(load_manifest(fetched.directory).value.version)


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[Lab]:
    tmp_path.chmod(0o755)
    (tmp_path / "home").mkdir()
    requests: list[list[str]] = []

    def note(name: str, data: JsonObject) -> None:
        argv = data.get("argv")
        if name == "cage.started" and isinstance(argv, list):
            assert data["caged"] is True
            requests.append([str(word) for word in argv])

    gate = NetGate(lambda _event: None)
    spawner = Spawner(
        CageSettings(cache_dir=stocked(tmp_path / "cache"), protected=(str(tmp_path / "home"),)),
        gate=gate,
        on_event=note,
    )
    yield Lab(tmp_path, spawner, requests)
    await spawner.close()
    await gate.close()


@requirement("PH-AMB-66")
async def test_versions_are_found_as_tags(lab: Lab, tmp_path: Path) -> None:
    bare = plugin_repository(tmp_path, {"v1.0.0": "1.0.0", "1.1.0": "1.1.0", "next": "2.0.0"})
    source = f"git+file://{bare}"
    assert await lab.version(source, "1.0.0") == "1.0.0"
    clone = lab.requests[-1]
    assert "--depth=1" in clone
    assert clone[clone.index("--branch") + 1] == "v1.0.0"
    assert await lab.version(source, "1.1.0") == "1.1.0"
    assert await lab.version(source, "^1") == "1.1.0"
    assert await lab.version(source, None) == "2.0.0"
    with raises_code("plugin_source_unavailable", match=r"has: 1\.1\.0, next, v1\.0\.0"):
        await lab.version(source, "9.9.9")
    with raises_code("plugin_source_invalid", match="not supported"):
        parse_source("ftp://example.org/x")
    fetcher = SourceFetcher(lab.spawner, lab.quarantine, Ids(SystemClock()))
    for refused in (source, "git+http://127.0.0.1:1/x"):
        with raises_code("plugin_source_not_allowed", match="not allowed"):
            async with fetcher.fetch(parse_source(refused), None, tmp_path):
                pass
    assert list(lab.quarantine.iterdir()) == []


class Rerouted:
    """Notes each request and lets git fetch from a local repository in place of the internet."""

    def __init__(self, spawner: Spawner, bare: Path) -> None:
        self.requests: list[CageRequest] = []
        self._spawner = spawner
        self._bare = bare

    async def spawn(self, request: CageRequest) -> CageProcess:
        self.requests.append(request)
        config = Path(dict(request.env)["GIT_CONFIG_GLOBAL"])
        text = config.read_text(encoding="utf-8")
        assert '[protocol]\n    allow = never\n[protocol "https"]' in text
        config.write_text(text + '[protocol "file"]\n    allow = always\n', encoding="utf-8")
        local = f"file://{self._bare}"
        command = [local if word.startswith("https://") else word for word in request.command]
        grants = (*request.policy.fs, FsGrant(str(self._bare), FsMode.RO))
        policy = replace(request.policy, net=(), fs=grants)
        return await self._spawner.spawn(replace(request, command=tuple(command), policy=policy))


@requirement("PH-INST-18", "PH-INST-19")
@pytest.mark.parametrize(
    ("source", "host"),
    [
        ("https://github.com/someone/sample", "github.com"),
        ("git+https://git.example.org/sample.git", "git.example.org"),
    ],
)
async def test_https_sources_are_cloned_shallow_at_the_tag(
    lab: Lab, tmp_path: Path, source: str, host: str
) -> None:
    bare = plugin_repository(tmp_path, {"v1.0.0": "1.0.0", "v1.1.0": "1.1.0"})
    rerouted = Rerouted(lab.spawner, bare)
    fetcher = SourceFetcher(cast("Spawner", rerouted), lab.quarantine, Ids(SystemClock()))
    parsed = parse_source(source)
    async with fetcher.fetch(parsed, parse_range("1.0.0"), tmp_path) as fetched:
        assert str(load_manifest(fetched.directory).value.version) == "1.0.0"
    clone = rerouted.requests[-1]
    assert {"clone", "--depth=1", source.removeprefix("git+")} <= set(clone.command)
    assert clone.command[clone.command.index("--branch") + 1] == "v1.0.0"
    assert clone.policy.net == (NetTarget(host, 443),)
    assert dict(clone.env)["GIT_TERMINAL_PROMPT"] == "0"
    empty = write_plugin(tmp_path / "bare-work", name="x")
    (empty / "kaged-plugin.yaml").unlink()
    git(empty, "init", "--quiet", "--initial-branch=main")
    commit(empty, "one")
    missing = Rerouted(lab.spawner, publish(empty, tmp_path / "empty.git"))
    fetcher = SourceFetcher(cast("Spawner", missing), lab.quarantine, Ids(SystemClock()))
    with raises_code("plugin_source_unavailable", match=r"no kaged-plugin\.yaml"):
        async with fetcher.fetch(parsed, None, tmp_path):
            pass


async def test_a_loopback_server_is_reached_through_the_gate(lab: Lab, tmp_path: Path) -> None:
    plugin_repository(tmp_path / "repos", {"v1.0.0": "1.0.0"})
    with git_server(tmp_path / "repos") as (address, seen):
        assert await lab.version(f"git+{address}/sample.git", "1.0.0") == "1.0.0"
        with raises_code("plugin_source_unavailable", match="could not be fetched"):
            await lab.version(f"git+{address}/nothing.git", None)
    assert any("git-upload-pack" in request for request in seen)


async def test_a_repository_without_a_manifest_is_refused(lab: Lab, tmp_path: Path) -> None:
    work = tmp_path / "work"
    (work / "sub").mkdir(parents=True)
    write_plugin(work / "sub")
    git(work, "init", "--quiet", "--initial-branch=main")
    commit(work, "one")
    bare = publish(work, tmp_path / "bare.git")
    with raises_code("plugin_source_unavailable", match=r"no kaged-plugin\.yaml"):
        await lab.version(f"git+file://{bare}", None)


async def test_submodules_are_not_fetched_and_nothing_is_run(lab: Lab, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    other = plugin_repository(tmp_path, {"v1.0.0": "1.0.0"}, name="other")
    work = write_plugin(tmp_path / "work")
    git(work, "init", "--quiet", "--initial-branch=main")
    git(work, "submodule", "--quiet", "add", str(other), "inner")
    (work / ".gitattributes").write_text("* filter=evil\n", encoding="utf-8")
    (work / ".gitconfig").write_text(
        f'[filter "evil"]\n\tsmudge = touch {mark}\n', encoding="utf-8"
    )
    commit(work, "one")
    bare = publish(work, tmp_path / "bare.git")
    hook = bare / "hooks" / "post-checkout"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\ntouch {mark}\n", encoding="utf-8")
    hook.chmod(0o755)
    source = parse_source(f"git+file://{bare}")
    async with lab.fetcher().fetch(source, None, tmp_path) as fetched:
        assert list((fetched.directory / "inner").iterdir()) == []
    assert not mark.exists()


@pytest.mark.parametrize("leads_to", ["/etc/passwd", "../../../etc/passwd"])
async def test_links_in_a_repository_cannot_leave(lab: Lab, tmp_path: Path, leads_to: str) -> None:
    work = write_plugin(tmp_path / "work")
    (work / "link").symlink_to(leads_to)
    git(work, "init", "--quiet", "--initial-branch=main")
    commit(work, "one")
    bare = publish(work, tmp_path / "bare.git")
    with pytest.raises(TreeRefused, match="leaves the plugin's directory"):
        await lab.version(f"git+file://{bare}", None)


async def test_a_repository_that_is_too_large_is_refused(lab: Lab, tmp_path: Path) -> None:
    bare = plugin_repository(tmp_path, {"v1.0.0": "1.0.0"})
    fetcher = lab.fetcher(limits=FetchLimits(tree=TreeLimits(entries=2)))
    with pytest.raises(TreeRefused, match="one too many"):
        async with fetcher.fetch(parse_source(f"git+file://{bare}"), None, tmp_path):
            pass
    tiny = lab.fetcher(limits=FetchLimits(disk_bytes=1))
    with pytest.raises(TreeRefused, match="larger than"):
        async with tiny.fetch(parse_source(f"git+file://{bare}"), None, tmp_path):
            pass


async def test_options_in_an_address_are_not_options_of_git(lab: Lab, tmp_path: Path) -> None:
    with raises_code("plugin_source_unavailable"):
        await lab.version(f"git+file://{tmp_path}/--upload-pack=touch", None)
