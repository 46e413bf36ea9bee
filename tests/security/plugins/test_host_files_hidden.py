"""A capability never reaches the host's own files, whatever the operator was talked into."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from fakes.host_over_http import http_host, write_stub
from fakes.running_daemon import ANY_PORT
from requirements import requirement


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """Yield a folder whose path is short enough for a socket below it, unlike pytest's own."""
    with tempfile.TemporaryDirectory(prefix="kgd-") as folder:
        yield Path(folder).resolve()


@pytest.mark.parametrize("elsewhere", [False, True])
@requirement("PH-CAGE-19")
async def test_host_files_other_plugins_and_missing_paths_are_never_shown(
    tmp_path: Path, elsewhere: bool
) -> None:
    home, store = tmp_path / "h", tmp_path / ("store" if elsewhere else "h/plugins")
    database = tmp_path / ("d/k.db" if elsewhere else "h/kaged.db")
    database.parent.mkdir(mode=0o700, parents=True)
    config = ANY_PORT
    if elsewhere:
        config += f'[plugins]\ndir = "{store}"\n[storage]\nurl = "sqlite:///{database}"\n'
    async with http_host(home, config) as host:
        await host.install(write_stub(tmp_path / "neighbour", name="neighbour"))
        paths = [
            "/",
            "/proc",
            "/sys/kernel",
            "/dev",
            str(home),
            str(database),
            str(home / "config.toml"),
            str(home / "http-token"),
            str(home / "run"),
            str(tmp_path),  # it contains the home
            str(store / "neighbour"),
            str(tmp_path / "no-such-place"),
        ]
        for number, path in enumerate(paths):
            for mode in ("read", "write") if number in {4, 10} else ("read",):
                name = f"nosy-{number}-{mode}"
                capabilities = [f"{mode}:fs:{path}"]
                await host.install(
                    write_stub(tmp_path / "src" / name, name=name, capabilities=capabilities)
                )
                state = await host.post(f"/plugins/{name}/enable")
                assert state["state"] == "failed", path
                assert state["pid"] is None
                assert path in state["note"], state["note"]
                row = (await host.events("plugin.failed"))[-1]
                assert row["data"]["name"] == name
                assert path in row["data"]["reason"]
        assert await host.events("plugin.spawned") == []
