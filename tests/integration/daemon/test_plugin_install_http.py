"""Installing and starting plugins over HTTP: manifests, versions, the enabled ones, their place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fakes.host_over_http import HttpHost, http_host, write_stub
from requirements import requirement

ECHO = {"on": {"a.b": [{"echo": True}], "c.d": [{"env": True}]}}
OBJECT = {"type": "object"}
KNOB = {"type": "boolean", "label": "On", "default": True, "binds_to": "config.on"}
FIELD = {"type": "object", "properties": {"on": {"type": "boolean"}}}
SECRET = {"type": "object", "properties": {"key": {"type": "boolean"}}}
FAULTY: list[tuple[dict[str, Any], str]] = [
    ({"version": "1.4"}, "version"),
    ({"version": "latest"}, "version"),
    ({"env": {"N": 1}}, "env"),
    ({"config_schema": {"type": "nonsense"}}, "config_schema"),
    ({"system_config_schema": {"type": "object", "properties": 1}}, "system_config_schema"),
    ({"config_schema": FIELD, "system_config_schema": FIELD}, "on"),
    ({"knobs": {"on": {**KNOB, "type": "dial"}}, "config_schema": FIELD}, "knobs"),
    ({"knobs": {"on": {**KNOB, "binds_to": "on"}}, "config_schema": FIELD}, "binds_to"),
    (
        {"knobs": {"on": {**KNOB, "binds_to": "config.nothing"}}, "config_schema": FIELD},
        "knob_binds_to_unknown_field",
    ),
    (
        {
            "knobs": {"on": {**KNOB, "binds_to": "config.key"}},
            "config_schema": FIELD,
            "system_config_schema": SECRET,
        },
        "knob_binds_to_system_config",
    ),
    ({"tools": [{"name": "Retain", "description": "d", "parameters_schema": OBJECT}]}, "tools"),
    ({"tools": [{"name": "a.b", "description": "d", "parameters_schema": OBJECT}]}, "tools"),
    ({"tools": [{"name": "list-tags", "description": "d", "parameters_schema": OBJECT}]}, "tools"),
    ({"roles": ["compactor"], "hooks": ["post_compact"]}, "pre_compact"),
    ({"roles": [], "hooks": ["post_compact"]}, "roles"),
    ({"kaged_api": 0}, "kaged_api"),
    ({"kaged_api": 2}, "kaged_api"),
    ({"name": "file"}, "file"),
    ({"name": "system"}, "system"),
]


@requirement(
    "PH-MANI-19", "PH-MANI-20", "PH-MANI-22", "PH-MANI-30", "PH-MANI-31", "PH-KNOB-17",
    "PH-CONF-08", "PH-TOOL-02",
)  # fmt: skip
async def test_a_faulty_manifest_is_refused_at_install(host: HttpHost, tmp_path: Path) -> None:
    for number, (manifest, says) in enumerate(FAULTY):
        body = {"path": str(write_stub(tmp_path / f"s{number}", ECHO, **manifest))}
        refused = (await host.post("/plugins/preview", body, expect=422))["error"]
        assert says in json.dumps(refused), (manifest, refused)
        await host.post("/plugins", {**body, "digest": "sha256:00000000"}, expect=422)
    assert await host.get("/plugins") == {"items": [], "kept": []}


@requirement("PH-SUP-01", "PH-SUP-04", "PH-FAIL-04", "PH-SUP-03")
async def test_at_start_only_the_enabled_run_and_a_broken_one_harms_nobody(
    home: Path, tmp_path: Path
) -> None:
    async with http_host(home) as host:
        for name in ("good", "resting", "invalid"):
            await host.install(write_stub(tmp_path / name, ECHO, name=name))
        kinds = {
            "early": ({}, ["read:fs:/no/such/place"]),  # the cage
            "absent": ({}, []),  # the program
            "quits": ({"greet": "exit"}, []),  # the handshake
            "liar": ({"answer": {"version": "9.9.9"}}, []),  # its answer
        }
        for name, (behaviour, capabilities) in kinds.items():
            more = {"command": ["./no-such-program"]} if name == "absent" else {}
            stub = write_stub(
                tmp_path / name, behaviour, name=name, capabilities=capabilities, **more
            )
            await host.install(stub)
        for name in ("good", "invalid", *kinds):
            await host.post(f"/plugins/{name}/enable")
    (home / "plugins" / "invalid" / "kaged-plugin.yaml").write_text("name: [", encoding="utf-8")
    config = (home / "config.toml").read_text(encoding="utf-8")
    async with http_host(home, config) as host:
        listed = {one["name"]: one for one in (await host.get("/plugins"))["items"]}
        states = {name: one["state"] for name, one in listed.items()}
        assert states == {
            "good": "running",
            "resting": "disabled",
            "invalid": "disabled (invalid manifest)",
            **dict.fromkeys(kinds, "failed"),
        }
        assert listed["resting"]["pid"] is None
        assert (await host.call("good"))["_context"]
        started = await host.events("daemon.started", "plugin.failed", "plugin.version_mismatch",
                                    "plugin.disabled")  # fmt: skip
        told = {row["data"].get("name") for row in started}
        assert {*kinds, "invalid"} <= told
