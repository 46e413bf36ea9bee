"""memory-markdown, driven as the host would drive it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from fakes.example_plugins import load_example
from kaged.sdk import RpcError
from kaged.sdk.testing import PluginDriver

ALICE: dict[str, Any] = {"project_id": "/srv/music", "agent_path": "primary", "session_id": "ses_1"}
BOB: dict[str, Any] = {**ALICE, "agent_path": "primary.subagents.bob"}


@pytest.fixture
async def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[PluginDriver]:
    monkeypatch.setenv("KAGED_CONFIG_ROOT", str(tmp_path))
    monkeypatch.delenv("KAGED_PROJECT_ROOT", raising=False)
    async with PluginDriver(load_example("memory-markdown").plugin, config={}) as driver:
        yield driver


async def retain(host: PluginDriver, content: str, *tags: str, **who: Any) -> str:
    answer = await host.call(
        "memory-markdown.retain", {"content": content, "tags": list(tags)}, **(who or ALICE)
    )
    return str(answer["id"])


async def recall(host: PluginDriver, query: str, **params: Any) -> list[str]:
    who = params.pop("who", ALICE)
    answer = await host.call("memory-markdown.recall", {"query": query, **params}, **who)
    return [memory["content"] for memory in answer["memories"]]


async def test_what_is_retained_can_be_recalled_by_words_and_tags(host: PluginDriver) -> None:
    await retain(host, "We deploy on Fridays.", "deploy")
    await retain(host, "The database is Postgres.", "infra")
    await retain(host, "Deploys need an approval.", "deploy", "rules")
    assert (await recall(host, "which database do we use"))[0] == "The database is Postgres."
    assert set(await recall(host, "deploy", tags=["deploy"])) == {
        "We deploy on Fridays.",
        "Deploys need an approval.",
    }
    assert await recall(host, "deploy", tags=["deploy", "rules"]) == ["Deploys need an approval."]
    assert len(await recall(host, "deploy", limit=1)) == 1
    tags = await host.call("memory-markdown.list_tags", **ALICE)
    assert tags == {"tags": {"deploy": 2, "infra": 1, "rules": 1}}


async def test_memories_are_files_that_people_can_write(host: PluginDriver, tmp_path: Path) -> None:
    memory_id = await retain(host, "Tabs, not spaces.\n\nIn every file.", "style")
    path = next(tmp_path.rglob("*.md"))
    text = path.read_text(encoding="utf-8")
    assert text.startswith(f"---\nid: {memory_id}\ncreated: 2")
    assert text.endswith("tags: [style]\n---\n\nTabs, not spaces.\n\nIn every file.\n")
    (path.parent / "by-hand.md").write_text("Ask Erin about billing.\n", encoding="utf-8")
    (path.parent / "broken.md").write_bytes(b"---\nno end \xff billing")
    assert "Ask Erin about billing." in await recall(host, "billing erin")


async def test_a_forgotten_memory_stays_for_people_to_find(
    host: PluginDriver, tmp_path: Path
) -> None:
    memory_id = await retain(host, "The moon is made of cheese.")
    await host.call("memory-markdown.forget", {"id": memory_id}, **ALICE)
    assert await recall(host, "moon cheese") == []
    assert [path.parent.name for path in tmp_path.rglob("*.md")] == [".forgotten"]
    with pytest.raises(RpcError, match="no memory with id"):
        await host.call("memory-markdown.forget", {"id": memory_id}, **ALICE)


async def test_agents_are_apart_unless_the_project_shares(host: PluginDriver) -> None:
    await retain(host, "Only mine.")
    assert await recall(host, "mine", who=BOB) == []
    await host.configure({"isolation": "project"})
    await retain(host, "Ours together.")
    assert await recall(host, "together", who=BOB) == ["Ours together."]
    other_project: dict[str, Any] = {**ALICE, "project_id": "/srv/other"}
    assert await recall(host, "together", who=other_project) == []


async def test_the_session_begins_with_what_is_known(host: PluginDriver) -> None:
    assert await host.hook("on_session_start", **ALICE) is None
    await retain(host, "We deploy on Fridays.\nReally.")
    answer = await host.hook("on_session_start", **ALICE)
    assert answer["inject"].startswith("What you retained in earlier sessions:\n- We deploy on")
    assert "Really" not in answer["inject"]
    await host.configure({"inject_on_start": False})
    assert await host.hook("on_session_start", **ALICE) is None
    assert await host.hook("post_compact", {}, **ALICE) is not None


async def test_what_the_user_asks_to_remember_is_kept_once(host: PluginDriver) -> None:
    said = [
        {"role": "user", "content": "Hi.\nPlease remember that Erin owns billing."},
        {"role": "assistant", "content": "Remember that I said so."},
        "not a message",
    ]
    assert await host.hook("on_session_idle", {"transcript": said}, **ALICE) is None
    assert await recall(host, "billing") == ["Erin owns billing."]
    compacted = {
        "messages_being_compacted": [*said, {"role": "user", "content": "remember: x y z"}]
    }
    assert await host.hook("pre_compact", compacted, **ALICE) == {"retain": ["x y z"]}


async def test_knobs_change_what_is_written(host: PluginDriver, tmp_path: Path) -> None:
    await host.configure({"default_tag": "misc", "written_by": "smart-fast", "order": "newest"})
    await retain(host, "Untagged.")
    text = next(tmp_path.rglob("*.md")).read_text(encoding="utf-8")
    assert "tags: [misc]" in text
    assert "written_by: smart-fast" in text


@pytest.mark.parametrize("store", ["/etc", "config:memory", "config:/../x", "ftp:/x"])
async def test_a_store_elsewhere_is_refused(host: PluginDriver, store: str) -> None:
    async def use() -> None:
        await host.configure({"store": store})
        await retain(host, "x")

    with pytest.raises(RpcError, match="store must"):
        await use()


async def test_a_store_without_a_grant_says_how_to_get_one(host: PluginDriver) -> None:
    await host.configure({"store": "project:/memory"})
    with pytest.raises(RpcError, match="add write:fs:project:/memory to its grants"):
        await retain(host, "x")


async def test_nothing_to_say_is_an_error(host: PluginDriver) -> None:
    with pytest.raises(RpcError) as caught:
        await retain(host, "   ")
    assert caught.value.number == -32602
