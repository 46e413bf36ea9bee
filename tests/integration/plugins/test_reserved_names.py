"""Names of built-in tool namespaces are refused, with a warning, at install and at load."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from fakes.store_lab import StoreLab, write_plugin
from kaged.plugins.storereader import Trouble
from raising import raises_code
from requirements import requirement

RESERVED = (
    "file", "edit", "search", "code", "debug", "shell", "compute", "project", "kaged", "web",
    "discover", "media", "job", "system",
)  # fmt: skip


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[StoreLab]:
    made = StoreLab(tmp_path)
    await made.open()
    yield made
    await made.close()


@requirement("PH-AMB-04", "PH-TOOL-07", "AT-AMB-25", "AT-REG-21")
async def test_a_built_in_namespace_is_no_plugin(store: StoreLab, tmp_path: Path) -> None:
    for name in RESERVED:
        source = write_plugin(tmp_path / "src" / name, name=name)
        with capture_logs() as logs, raises_code("reserved_plugin_name") as refused:
            await store.store.prepare(source)
        assert refused.value.code == "reserved_plugin_name"
        assert [entry["log_level"] for entry in logs] == ["warning"], name
        write_plugin(store.directory / name, name=name)  # put there by hand
    write_plugin(store.directory / "memory", name="memory")
    write_plugin(store.directory / "foo", name="foo", methods=["search.run"])
    with capture_logs() as logs:
        found = await store.store.open()
    assert [plugin.name for plugin in found.plugins] == ["foo", "memory"]
    assert {problem.name for problem in found.problems} == set(RESERVED)
    assert {problem.trouble for problem in found.problems} == {Trouble.INVALID_MANIFEST}
    warned = {entry["plugin"] for entry in logs if entry["log_level"] == "warning"}
    assert warned == set(RESERVED)
