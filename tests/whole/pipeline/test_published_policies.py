"""Policy plugins that other people published are in force in a daemon, unmodified."""

from __future__ import annotations

import base64
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from whole.harness.conversation import begin
from whole.harness.daemon import Daemon
from whole.harness.mcp import typescript
from whole.harness.policies import POST, PRE, PolicySite, entry
from whole.harness.project import Project

BUILD = Path(__file__).parents[3] / "build"
PUBLISHED, FRAMEWORK = BUILD / "policy-plugins", BUILD / "cpex-framework"
SERVER = "cpex.framework.external.mcp.server.runtime"
BESIDE = {"plugin_dirs": ["mine", "published"]}
KEY = "AKIAIOSFODNN7EXAMPLE"
CLASSES = {
    "exfil": "cpex_encoded_exfil_detection.encoded_exfil_detection.EncodedExfilDetectorPlugin",
    "limiter": "cpex_rate_limiter.rate_limiter.RateLimiterPlugin",
    "pii": "cpex_pii_filter.pii_filter.PIIFilterPlugin",
    "retry": "cpex_retry_with_backoff.retry_with_backoff.RetryWithBackoffPlugin",
    "secrets": "cpex_secrets_detection.secrets_detection.SecretsDetectionPlugin",
    "sql": "cpex_sql_sanitizer.sql_sanitizer.SQLSanitizerPlugin",
    "urls": "cpex_url_reputation.url_reputation.URLReputationPlugin",
}


def published(name: str, *capabilities: str, caged: bool = False, **more: Any) -> dict[str, Any]:
    """Return the entry of a published plugin; its settings are `config`."""
    if caged:
        more["config"] = {"class_name": CLASSES[name], **more.get("config", {})}
    return entry(name, "caged" if caged else CLASSES[name], *capabilities, **more)


@pytest.fixture(scope="module")
def site(module_path: Path) -> PolicySite:
    """Return the place of the module's pipeline file, with the published plugins beside it."""
    assert PUBLISHED.is_dir(), "the policy plugins are missing: run scripts/setup --tests"
    made = PolicySite(module_path / "policies")
    shutil.copytree(PUBLISHED, made.folder / "published")
    return made


def in_force(site: PolicySite, *entries: dict[str, Any]) -> None:
    """Put published plugins in force."""
    site.put(*entries, top=BESIDE)


def refusal(project: Project, tool: str, **params: Any) -> str:
    """Call a tool that a policy has to refuse; returns the policy's name."""
    said = project.fail(tool, **params)
    assert said["code"] == "pipeline_refused", said
    assert KEY not in str(said)
    return next(name for name in CLASSES if f"the policy {name} refused" in said["message"])


@pytest.mark.parametrize("caged", [False, True], ids=["in-process", "caged"])
def test_personal_data_is_masked_on_the_way_in_and_on_the_way_out(
    site: PolicySite, shared: Project, caged: bool
) -> None:
    options = {"detect_email": True, "detect_ssn": True, "redaction_text": "[GONE]"}
    in_force(site, published("pii", caged=caged, hooks=[PRE, POST], config=options))
    path = f"pii-{caged}.txt"
    shared.call("file.write", path=path, content="to bob@example.com, twice: ann@example.com\n")
    assert shared.read(path) == "to [GONE], twice: [GONE]\n"
    shared.write("people.txt", "ssn 123-45-6789\n")
    said = str(shared.call("file.read", path="people.txt"))
    assert "[GONE]" in said
    assert "123-45-6789" not in said


@pytest.mark.parametrize("caged", [False, True], ids=["in-process", "caged"])
def test_a_key_is_not_written_and_one_that_is_read_is_masked(
    site: PolicySite, shared: Project, caged: bool
) -> None:
    blocks = published("secrets", caged=caged, config={"block_on_detection": True})
    in_force(site, blocks)
    path = f"key-{caged}.txt"
    assert refusal(shared, "file.write", path=path, content=f"key {KEY}\n") == "secrets"
    assert not (shared.root / path).exists()
    shared.call("file.write", path=path, content="no key\n")

    masks = {"redact": True, "block_on_detection": False}
    in_force(site, published("secrets", caged=caged, hooks=[POST], config=masks))
    shared.write("key.txt", f"key {KEY}\n")
    said = str(shared.call("file.read", path="key.txt"))
    assert "REDACTED" in said
    assert KEY not in said


def test_the_third_call_within_a_minute_is_refused_and_another_tool_is_not(
    site: PolicySite, shared: Project
) -> None:
    limits = {"by_user": None, "by_tenant": None, "by_tool": {"file.read": "2/m"}}
    in_force(site, published("limiter", "read_subject", config=limits))
    for _ in range(2):
        shared.call("file.read", path="a.txt")
    assert refusal(shared, "file.read", path="a.txt") == "limiter"
    shared.call("file.write", path="other.txt", content="x\n")


def test_a_statement_that_would_empty_a_table_is_refused(site: PolicySite, shared: Project) -> None:
    in_force(site, published("sql", config={"fields": ["content"]}))
    for statement in ("DROP TABLE users;\n", "DELETE FROM users;\n"):
        assert refusal(shared, "file.write", path="q.sql", content=statement) == "sql"
    shared.call("file.write", path="q.sql", content="DELETE FROM users WHERE id = 5;\n")
    assert shared.read("q.sql") == "DELETE FROM users WHERE id = 5;\n"


def test_an_encoded_secret_does_not_reach_the_agent(site: PolicySite, shared: Project) -> None:
    in_force(site, published("exfil", hooks=[POST]))
    hidden = base64.b64encode(b"authorization: bearer api_key=password-4711 curl webhook").decode()
    shared.write("note.txt", f"send {hidden}\n")
    assert refusal(shared, "file.read", path="note.txt") == "exfil"
    assert "one" in str(shared.call("file.read", path="a.txt"))


def test_a_resource_is_read_where_its_address_is_allowed_and_refused_elsewhere(
    site: PolicySite, shared: Project, daemon: Daemon
) -> None:
    reading = ("readResource", {"uri": f"kaged://sessions/{begin(shared)}"})
    hooks = ["resource_pre_fetch"]
    in_force(site, published("urls", hooks=hooks, config={"allowed_patterns": ["^kaged://"]}))
    _, read = typescript(daemon, shared, reading)
    assert read["result"]["contents"]
    in_force(site, published("urls", hooks=hooks, config={"blocked_patterns": ["//sessions/"]}))
    _, refused = typescript(daemon, shared, reading)
    assert "the policy urls refused" in refused["error"]["message"]


def test_all_seven_are_in_force_in_one_chain(site: PolicySite, shared: Project) -> None:
    in_force(
        site,
        published("limiter", "read_subject", priority=1, config={"by_user": "60/m"}),
        published("sql", priority=2),
        published("secrets", priority=3, config={"redact": True, "block_on_detection": False}),
        published("pii", priority=4, config={"redaction_text": "[GONE]"}),
        published("exfil", priority=5, hooks=[POST]),
        published("retry", priority=6, hooks=[POST]),
        published("urls", hooks=["resource_pre_fetch"]),
    )
    shared.call("file.write", path="all.txt", content=f"{KEY} bob@example.com\n")
    text = shared.read("all.txt")
    assert "[GONE]" in text
    assert KEY not in text
    # A failing tool stays the tool's own failure, whatever is asked about trying again.
    assert shared.fail("file.read", path="absent.txt")["code"] == "file_not_found"
    assert refusal(shared, "file.write", path="x.sql", content="TRUNCATE users;\n") == "sql"


def test_a_setting_that_a_published_plugin_does_not_take_is_a_problem_of_the_file(
    site: PolicySite,
) -> None:
    site.write(published("limiter", config={"by_user": "often"}), top=BESIDE)
    report = site.hang_up()
    assert report["in_force"] is False
    assert "limiter" in str(report["problems"])
    assert "often" in str(report["problems"])


def test_published_plugins_run_in_their_own_frameworks_server(
    site: PolicySite, shared: Project
) -> None:
    """Only the call is ours: the plugin, the framework around it and its server are theirs."""
    folder = site.folder / "served"
    folder.mkdir()
    theirs = {
        "plugins": [{"name": "sql", "kind": CLASSES["sql"], "hooks": [PRE], "config": {}}],
        "plugin_dirs": [],
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(theirs), encoding="utf-8")
    readable = [str(one) for one in (folder, PUBLISHED, FRAMEWORK)]
    server = {
        "cmd": [str(Path(sys.executable).resolve()), "-m", SERVER],
        "cwd": str(folder),
        "env": {
            "PYTHONPATH": f"{PUBLISHED}:{FRAMEWORK}",
            "PLUGINS_CONFIG_PATH": str(folder / "config.yaml"),
            "PLUGINS_TRANSPORT": "stdio",
        },
        "cage": {"read": readable, "memory_mb": 2048},
    }
    site.put(entry("sql", "external", mcp=server))
    path = "served.sql"
    assert refusal(shared, "file.write", path=path, content="DROP TABLE users;\n") == "sql"
    assert not (shared.root / path).exists()
    shared.call("file.write", path=path, content="SELECT 1 -- why\n")
    assert shared.read(path).startswith("SELECT 1")
