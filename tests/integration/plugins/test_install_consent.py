"""Two steps of consent for a project's plugins, with real repositories and a real store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from fakes.git_repo import plugin_repository
from fakes.plugin_lab import PluginLab
from fakes.store_home import StoreHome
from fakes.store_lab import write_plugin
from kaged.config.agents import resolve_agents
from kaged.config.daemonconfig import DaemonConfig
from kaged.config.localconfig import LocalConfig
from kaged.config.problems import ConfigFileInvalid
from kaged.config.project import load_project
from kaged.config.reading import Loaded
from kaged.config.toolsections import OptionalSource
from kaged.inbox import Inbox, RequestKind, RequestState
from kaged.kernel.identity import Actor, VouchedBy
from kaged.plugins.admission import PluginAdmission
from kaged.plugins.consent import ConsentRequest, ConsentService, ConsentStep
from kaged.plugins.installation import PluginStore
from kaged.plugins.installer import PluginInstaller
from kaged.plugins.sources import SourceFetcher
from kaged.plugins.supervisor import PluginSupervisor
from raising import raises_code
from requirements import requirement

OPERATOR = Actor.operator("op", VouchedBy.UNIX)


class Host:
    def __init__(self, lab: PluginLab, root: Path, inbox: Inbox) -> None:
        self.lab = lab
        self.root = root
        parts = lab.parts
        (root / "conf").mkdir()
        self.local_toml = root / "conf" / "local.toml"
        self.store = PluginStore(
            root / "home" / "store",
            data_dir=root / "data",
            local_toml=self.local_toml,
            config_toml=root / "conf" / "config.toml",
            audit=parts.audit,
            clock=parts.clock,
            ids=parts.ids,
        )
        self.supervisor = PluginSupervisor(
            parts, may_use=lambda project, plugin: self.store.may_use(project, plugin.installed)
        )
        self.quarantine = root / "home" / "quarantine"
        self.fetcher = SourceFetcher(
            lab.spawner, self.quarantine, parts.ids, allowed=(OptionalSource.GIT_FILE,)
        )
        self.installer = PluginInstaller(self.store, self.supervisor)
        self.inbox = inbox
        self.service = ConsentService(self.installer, self.fetcher, inbox, parts.audit, parts.ids)

    async def load(
        self, project: str, declaration: dict[str, Any]
    ) -> tuple[PluginAdmission, tuple[ConsentRequest, ...]]:
        root = self.root / project
        (root / ".kaged").mkdir(parents=True, exist_ok=True)
        spec = {"model": "m", "system_prompt": "x", "plugins": {"sample": declaration}}
        (root / ".kaged" / "project.yaml").write_text(
            yaml.safe_dump({"primary": spec}), encoding="utf-8"
        )
        tree = resolve_agents(load_project(root), Loaded(DaemonConfig()), Loaded(LocalConfig()))
        admitted = await self.supervisor.load_project(project, tree)
        return admitted, await self.service.request(project, admitted.missing)

    def untouched(self) -> bool:
        return not self.local_toml.exists() and not (self.store.directory / "sample").exists()

    def fetches(self) -> int:
        return len(list(self.quarantine.iterdir())) if self.quarantine.exists() else 0


@pytest.fixture
async def host(lab: PluginLab, tmp_path: Path) -> AsyncIterator[Host]:
    database = StoreHome(tmp_path / "database", lab.parts.clock, lab.parts.ids)
    inbox = Inbox(
        (await database.store()).inbox,
        record=lab.parts.audit.record,
        post=lab.parts.audit.post,
        announce=lambda _name, _data: None,
        clock=lab.parts.clock,
    )
    made = Host(lab, tmp_path, inbox)
    yield made
    await made.service.close()
    await made.supervisor.stop_all()
    await database.close()
    assert made.fetches() == 0


def git_declaration(root: Path) -> dict[str, Any]:
    bare = plugin_repository(root, {"v1.0.0": "1.0.0", "v1.2.0": "1.2.0", "v2.0.0": "2.0.0"})
    return {"package": "@scope/sample", "source": f"git+file://{bare}", "version": "^1"}


@requirement("PH-AMB-44", "PH-INST-12", "PH-INST-13", "PH-INST-21")
async def test_a_git_source_is_fetched_after_one_yes_and_installed_after_two(
    host: Host, tmp_path: Path
) -> None:
    declaration = git_declaration(tmp_path)
    _, (request,) = await host.load("p1", declaration)
    assert (request.plugin, request.step) == ("sample", ConsentStep.FETCH)
    assert (request.version, request.source) == ("^1", declaration["source"])
    assert declaration["source"] in request.question
    assert host.fetches() == 0
    assert host.untouched()
    second = await host.service.answer(request.id, allowed=True)
    assert second is not None
    assert second.step is ConsentStep.INSTALL
    assert second.prompt is not None
    assert second.prompt.version == "1.2.0"
    assert second.capabilities == ("read:fs:/opt/sample",)
    assert host.untouched()
    with raises_code("plugin_consent_missing"):
        await host.service.answer(request.id, allowed=True, digest="wrong")
    assert host.untouched()
    assert await host.service.answer(request.id, allowed=True, digest=second.prompt.digest) is None
    assert host.store.get("sample").version == "1.2.0"
    assert not host.service.requests("p1")
    assert host.fetches() == 0
    asked = await host.lab.seen("plugin.consent_requested", "plugin.consent_answered")
    assert [(name, data["step"]) for name, data in asked][:3] == [
        ("plugin.consent_requested", "fetch"),
        ("plugin.consent_answered", "fetch"),
        ("plugin.consent_requested", "install"),
    ]


@requirement("PH-INST-14")
async def test_a_no_leaves_the_project_pending_and_fetches_nothing(
    host: Host, tmp_path: Path
) -> None:
    _, (request,) = await host.load("p1", git_declaration(tmp_path))
    declined = await host.service.answer(request.id, allowed=False)
    assert declined is not None
    assert declined.declined
    assert host.service.requests("p1")
    assert host.fetches() == 0
    assert not host.quarantine.exists()
    assert host.untouched()
    (event,) = await host.lab.seen("plugin.consent_answered")
    assert event[1]["allowed"] is False
    again = await host.service.answer(request.id, allowed=True)  # the no was not the last word
    assert again is not None
    assert again.step is ConsentStep.INSTALL
    assert host.fetches() == 1


@requirement("PH-INST-15")
async def test_a_second_project_needs_its_own_yes(host: Host) -> None:
    declaration = {"package": "sample", "source": "./tools/sample"}
    for project in ("p1", "p2"):
        write_plugin(host.root / project / "tools" / "sample")
    _, (request,) = await host.load("p1", declaration)
    assert request.step is ConsentStep.INSTALL
    assert request.capabilities == ("read:fs:/opt/sample",)
    assert request.prompt is not None
    await host.service.answer(request.id, allowed=True, digest=request.prompt.digest)
    assert "local = false" in host.local_toml.read_text(encoding="utf-8")
    admitted, requests = await host.load("p1", declaration)
    assert [d.plugin_name for d in admitted.accepted] == ["sample"]
    assert requests == ()
    admitted, (second,) = await host.load("p2", declaration)
    assert admitted.accepted == ()
    assert second.step is ConsentStep.USE
    assert second.capabilities == ("read:fs:/opt/sample",)
    await host.service.answer(second.id, allowed=True)
    admitted, requests = await host.load("p2", declaration)
    assert [d.plugin_name for d in admitted.accepted] == ["sample"]
    assert requests == ()


@requirement("PH-INST-20", "PH-AMB-27")
async def test_without_a_source_the_operator_names_a_directory(host: Host) -> None:
    _, (request,) = await host.load("p1", {"package": "sample"})
    assert request.step is ConsentStep.PATH
    assert "source not specified" in request.question
    with raises_code("plugin_source_unavailable", match="source not specified"):
        await host.service.answer(request.id, allowed=True)
    path = write_plugin(host.root / "by-hand")
    second = await host.service.answer(request.id, allowed=True, path=path)
    assert second is not None
    assert second.prompt is not None
    await host.service.answer(request.id, allowed=True, digest=second.prompt.digest)
    assert host.store.get("sample").version == "1.0.0"
    with pytest.raises(ConfigFileInvalid, match=r"write them under primary\.plugins"):
        _project_level(host.root / "p3")


def _project_level(root: Path) -> None:
    (root / ".kaged").mkdir(parents=True)
    (root / ".kaged" / "project.yaml").write_text(
        yaml.safe_dump(
            {
                "primary": {"model": "m", "system_prompt": "x"},
                "plugins": {"sample": {"source": "./x"}},
            }
        ),
        encoding="utf-8",
    )
    load_project(root)


async def test_the_wrong_plugin_or_version_is_not_installed(host: Host, tmp_path: Path) -> None:
    bare = plugin_repository(tmp_path, {"v1.0.0": "1.5.0"}, name="other")
    source = f"git+file://{bare}"
    _, (request,) = await host.load("p1", {"package": "sample", "source": source})
    with raises_code("plugin_source_unavailable", match="holds the plugin other"):
        await host.service.answer(request.id, allowed=True)
    assert host.service.get(request.id).problem
    _, (request,) = await host.load(
        "p2", {"package": "other", "source": source, "version": "1.0.0"}
    )
    with raises_code("plugin_source_unavailable", match=r"holds version 1\.5\.0"):
        await host.service.answer(request.id, allowed=True)
    assert host.fetches() == 0


async def test_requests_are_kept_over_a_restart(host: Host, tmp_path: Path) -> None:
    _, (request,) = await host.load("p1", git_declaration(tmp_path))
    await host.service.answer(request.id, allowed=True)
    await host.service.close()
    service = ConsentService(
        host.installer,
        host.fetcher,
        host.inbox,
        host.lab.parts.audit,
        host.lab.parts.ids,
    )
    await service.restore()
    restored = service.get(request.id)
    assert restored.step is ConsentStep.FETCH
    assert service.requests("p1")
    second = await service.answer(request.id, allowed=True)
    assert second is not None
    await service.close()
    with raises_code("plugin_consent_unknown"):
        service.get("consent_nobody")


async def test_the_inbox_has_each_step_and_answers_it(host: Host, tmp_path: Path) -> None:
    """A yes in the inbox is a yes to exactly the files that were shown."""
    _, (request,) = await host.load("p1", git_declaration(tmp_path))
    first = await host.inbox.get(request.id, OPERATOR)
    assert (first.kind, first.project_id) == (RequestKind.PLUGIN_CONSENT, "p1")
    await host.inbox.answer(first.id, OPERATOR, first.digest, {"choice": "yes"})
    second = await host.inbox.get(request.id, OPERATOR)
    assert second.state is RequestState.PENDING
    assert any("read:fs:/opt/sample" in line for line in second.details)
    with raises_code("inbox_request_changed"):
        await host.inbox.answer(first.id, OPERATOR, first.digest, {"choice": "yes"})
    assert host.untouched()
    await host.inbox.answer(first.id, OPERATOR, second.digest, {"choice": "yes"})
    assert host.store.get("sample").version == "1.2.0"
    assert not host.service.requests("p1")
    with raises_code("inbox_request_closed"):
        await host.inbox.answer(first.id, OPERATOR, second.digest, {"choice": "yes"})
    await host.lab.seen("inbox.asked", "inbox.answered")


async def test_what_cannot_be_fetched_waits_for_an_answer_again(host: Host, tmp_path: Path) -> None:
    bare = plugin_repository(tmp_path, {"v1.0.0": "1.5.0"}, name="other")
    _, (request,) = await host.load("p1", {"package": "sample", "source": f"git+file://{bare}"})
    asked = await host.inbox.get(request.id, OPERATOR)
    with raises_code("plugin_source_unavailable"):
        await host.inbox.answer(asked.id, OPERATOR, asked.digest, {"choice": "yes"})
    again = await host.inbox.get(request.id, OPERATOR)
    assert again.state is RequestState.PENDING
    assert any("holds the plugin other" in line for line in again.details)
    await host.inbox.answer(asked.id, OPERATOR, again.digest, {"choice": "no"})
    assert host.service.get(request.id).declined
