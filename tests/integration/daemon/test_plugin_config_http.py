"""The configuration of plugins from the operator's files and the project's."""

from __future__ import annotations

import json
from pathlib import Path

from fakes.host_over_http import http_host, write_project, write_stub
from requirements import requirement

ECHO = {"on": {"a.b": [{"echo": True}], "c.d": [{"env": True}]}}


@requirement("PH-CONF-01", "PH-CONF-02", "PH-CONF-11", "PH-CONF-20", "PH-AMB-28")
async def test_both_halves_reach_the_plugin_and_a_missing_variable_stops_one(
    home: Path, tmp_path: Path
) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    system = {
        "type": "object",
        "properties": {"token": {"type": "string"}, "machine": {"type": "string"}},
        "required": ["token"],
    }
    project_half = {
        "store": "config:/memory", "budget": 3, "model": "fast", "isolation": "project",
        "tags": ["a"],
    }  # fmt: skip
    schema = {"type": "object", "properties": {name: {} for name in project_half}}
    schema["properties"]["isolation"] = {"type": "string", "enum": ["agent", "project"]}  # type: ignore[index]
    home.mkdir(mode=0o700)
    local = home / "local.toml"
    local.write_text(
        '[plugins."@scope/mem"]\ntoken = "${KAGED_DEBUG}-secret"\nmachine = "/srv/private/place"\n'
        '[plugins.lost]\ntoken = "${NO_SUCH_VARIABLE}"\n',
        encoding="utf-8",
    )
    local.chmod(0o600)
    async with http_host(home) as host:
        for name, package in (("mem", "@scope/mem"), ("lost", None), ("plain", None)):
            more = {} if package is None else {"package": package}
            stub = write_stub(
                tmp_path / name,
                {**ECHO, "log": str(logs / name)},
                name=name,
                capabilities=[f"write:fs:{logs}"],
                **({} if name == "plain" else {"system_config_schema": system}),
                **({"config_schema": schema} if name == "mem" else {}),
                **more,
            )
            await host.install(stub)
        lost = await host.post("/plugins/lost/enable")
        assert lost["state"] == "failed"
        for part in ("local.toml", "token", "NO_SUCH_VARIABLE"):
            assert part in lost["note"], lost["note"]
        for name in ("mem", "plain"):
            assert (await host.post(f"/plugins/{name}/enable"))["state"] == "running"
        root = write_project(
            tmp_path / "boats",
            {"plugins": {"mem": {"package": "@scope/mem", "isolation": "project",
                                 "config": project_half}}},
        )  # fmt: skip
        file = root / ".kaged" / "project.yaml"
        committed = file.read_text(encoding="utf-8")
        await host.load(root)
        await host.settle()
        lines = (logs / "mem").read_text(encoding="utf-8").splitlines()
        updates = [json.loads(line) for line in lines if "config.update" in line]
        config = updates[-1]["params"]["config"]
        assert config == {**project_half, "token": "1-secret", "machine": "/srv/private/place"}
        assert file.read_text(encoding="utf-8") == committed
        everything = json.dumps(await host.events("plugin.*")) + json.dumps(
            await host.get("/plugins")
        )
        assert "1-secret" not in everything
        assert "/srv/private/place" not in everything
