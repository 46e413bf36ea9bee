from __future__ import annotations

from pathlib import Path

import pytest

from kaged.config import ConfigFileInvalid, load_daemon_config
from kaged.config.coresections import AuthMode, LogFormat, LogLevel
from kaged.config.daemonconfig import DaemonConfig
from kaged.config.hostvalues import Bind
from kaged.config.toolsections import OptionalSource
from kaged.kernel.policy import CageLimits
from requirements import requirement
from unit.config.trials import OperatorFiles, errors, warnings

FULL = """\
[daemon]
bind = "[::1]:9000"
home = "~/data"

[auth]
mode = "secure"
operator = "ann"
trusted_proxies = ["10.0.0.0/8", "192.0.2.1", "::1"]
allowed_hosts = ["kaged.example.org"]
allowed_origins = ["https://kaged.example.org"]

[storage]
url = "sqlite:////srv/${DB_SECRET}/kaged.db"

[sandbox]
bwrap = "/usr/bin/bwrap"
no_sandbox = true
runtimes = { bun = "/opt/bun/bin/bun" }
limits = { memory_mb = 1024 }
agent_limits.pids = 50
[sandbox.plugins.memory-markdown]
memory_mb = 64

[logging]
level = "debug"
format = "json"
file = "logs/kaged.log"

[plugins]
dir = "/srv/plugins"
enabled = ["memory-markdown", "x"]
request_timeout_seconds = 12.5
allow_sources = ["git+file", "git+http-loopback"]
[plugins.capabilities]
rewind = ["session_write", "exec"]
[plugins.config.rewind]
depth = 3

[lsp]
idle_timeout_seconds = 60
[lsp.servers.typescript]
command = ["typescript-language-server", "--stdio"]

[dap.adapters.python]
type = "debugpy"
adapter = ["python", "-m", "debugpy.adapter"]

[lua]
dir = "scripts"
enabled = ["rewind"]

[skills.gog]
enabled = true

[capabilities.providers.mail]
command = "mail-bridge --stdio"

[pipeline]
file = "pipeline.yaml"
lenient = true

[mcp.servers.web-kit]
command = ["npx", "web-kit"]
env = { KEY = "${WEB_KEY}" }
"""

ENVIRON = {"HOME": "/home/me", "DB_SECRET": "db-secret", "WEB_KEY": "web-key"}


def test_a_full_file_becomes_frozen_values(operator: OperatorFiles, tmp_path: Path) -> None:
    loaded = operator.config(FULL, ENVIRON)
    config = loaded.value
    assert loaded.warnings == ()
    assert config.daemon.bind == Bind("::1", 9000)
    assert config.daemon.home == Path("/home/me/data")
    assert (config.auth.mode, config.auth.operator) == (AuthMode.SECURE, "ann")
    assert [str(network) for network in config.auth.trusted_proxies] == [
        "10.0.0.0/8",
        "192.0.2.1/32",
        "::1/128",
    ]
    assert config.storage.url is not None
    assert config.storage.url.reveal() == "sqlite:////srv/db-secret/kaged.db"
    assert config.sandbox.no_sandbox
    assert config.sandbox.runtimes["bun"] == Path("/opt/bun/bin/bun")
    assert config.sandbox.limits.over(CageLimits()).memory_mb == 1024
    assert config.sandbox.agent_limits.over(CageLimits()).pids == 50
    assert config.sandbox.plugins["memory-markdown"].memory_mb == 64
    assert (config.logging.level, config.logging.format) == (LogLevel.DEBUG, LogFormat.JSON)
    assert config.logging.file == tmp_path / "logs/kaged.log"
    assert config.plugins.enabled == ("memory-markdown", "x")
    assert config.plugins.allow_sources == (
        OptionalSource.GIT_FILE,
        OptionalSource.GIT_HTTP_LOOPBACK,
    )
    assert config.plugins.config["rewind"] == {"depth": 3}
    assert config.lsp.servers["typescript"].command == ("typescript-language-server", "--stdio")
    assert config.lua.dir == tmp_path / "scripts"
    assert config.mcp.servers.good["web-kit"].env["KEY"].reveal() == "web-key"
    assert loaded.provenance["plugins.enabled"].line == 31
    assert loaded.provenance["sandbox.plugins.memory-markdown.memory_mb"].line == 22


def test_secrets_of_the_file_do_not_show(operator: OperatorFiles) -> None:
    text = repr(operator.config(FULL, ENVIRON))
    assert "db-secret" not in text
    assert "web-key" not in text


def test_an_absent_or_empty_file_gives_the_defaults(operator: OperatorFiles) -> None:
    absent = load_daemon_config(operator.config_toml, {})
    assert absent.value == DaemonConfig()
    assert operator.config("").value == DaemonConfig()
    assert absent.value.daemon.bind == Bind("127.0.0.1", 7460)
    assert absent.value.auth.mode is AuthMode.SECURE
    assert absent.value.plugins.request_timeout_seconds == 30
    assert absent.value.storage.url is None


def test_unknown_keys_are_warned_about_with_the_nearest_name(operator: OperatorFiles) -> None:
    loaded = operator.config('[deamon]\nx = 1\n[plugins]\nenable = []\n[models.x]\nmodel = "a:b"\n')
    found = {warning.key_path: warning.fix for warning in loaded.warnings}
    assert found == {
        "deamon": "did you mean daemon?",
        "plugins.enable": "did you mean enabled?",
        "models": "models belong in local.toml: [models.<alias>]",
    }
    assert [w.line for w in loaded.warnings] == [1, 4, 5]


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ('[daemon]\nbind = "nowhere"', "daemon.bind"),
        ('[daemon]\nbind = "example.org:80"', "daemon.bind"),
        ('[daemon]\nbind = "127.0.0.1:70000"', "daemon.bind"),
        ('[daemon]\nbind = "::1:80"', "daemon.bind"),
        ('[daemon]\nbind = "[127.0.0.1]:80"', "daemon.bind"),
        ("[daemon]\nbind = 8080", "daemon.bind"),
        ('[daemon]\nhome = "~other/x"', "daemon.home"),
        ('[daemon]\nhome = "~/x"', "daemon.home"),
        ('[auth]\nmode = "open"', "auth.mode"),
        ('[auth]\ntrusted_proxies = ["10.0.0.1/8"]', "auth.trusted_proxies[0]"),
        ('[auth]\ntrusted_proxies = "10.0.0.1"', "auth.trusted_proxies"),
        ('[auth]\nallowed_origins = ["example.org"]', "auth.allowed_origins[0]"),
        ('[storage]\nurl = "mysql://x"', "storage.url"),
        ('[storage]\nurl = "postgresql://db/kaged"', "storage.url"),
        ('[storage]\nurl = "sqlite:///beside.db"', "storage.url"),
        ('[storage]\nurl = "sqlite://"', "storage.url"),
        ('[storage]\nurl = "${UNSET_DB}"', "storage.url"),
        ("[sandbox.limits]\nmemory_mb = 0", "sandbox.limits.memory_mb"),
        ('[logging]\nlevel = "loud"', "logging.level"),
        ('[plugins]\nenabled = ["A"]', "plugins.enabled[0]"),
        ('[plugins]\nenabled = ["a", "a"]', "plugins.enabled[1]"),
        ('[plugins]\nallow_sources = ["git+ssh"]', "plugins.allow_sources[0]"),
        ("[plugins]\nrequest_timeout_seconds = 0", "plugins.request_timeout_seconds"),
        ("[plugins]\nrequest_timeout_seconds = nan", "plugins.request_timeout_seconds"),
        ("[lsp.servers.x]\ncommand = []", "lsp.servers.x.command"),
        ("[lsp.servers.x]", "lsp.servers.x.command"),
        ('[dap.adapters.x]\ntype = "t"', "dap.adapters.x"),
        ("[lua]\ndir = 2026-01-01", "lua.dir"),
        ('[lua]\nnet_trusted = ["*"]', "lua.net_trusted[0]"),
        ('[lua]\nnet_trusted = ["a:1", "b"]', "lua.net_trusted[1]"),
        ("plugins = 1", "plugins"),
    ],
)
def test_a_wrong_value_stops_the_load_with_its_line(
    operator: OperatorFiles, text: str, path: str
) -> None:
    problems = operator.config_problems(text)
    assert [found for found, _ in errors(problems)] == [path]
    assert all(problem.line is not None for problem in problems)


def test_all_problems_of_the_file_come_at_once(operator: OperatorFiles) -> None:
    problems = operator.config_problems('[daemon]\nbind = 1\n[auth]\nmode = "x"\n[loging]\n')
    assert errors(problems) == [("daemon.bind", "wrong_type"), ("auth.mode", "invalid_value")]
    assert warnings(problems) == [("loging", "unknown_key")]


def test_a_database_password_is_not_repeated_in_a_message(operator: OperatorFiles) -> None:
    (problem,) = operator.config_problems('[storage]\nurl = "mysql://me:hunter2@db"')
    assert "hunter2" not in str(problem)


@pytest.mark.parametrize("bind", ["0.0.0.0:7460", "[::]:7460", "192.0.2.1:7460"])
def test_insecure_mode_may_not_listen_beyond_loopback(operator: OperatorFiles, bind: str) -> None:
    text = f'[auth]\nmode = "insecure"\n[daemon]\nbind = "{bind}"\n'
    (problem,) = operator.config_problems(text)
    assert (problem.key_path, problem.code, problem.line) == (
        "daemon.bind",
        "insecure_bind_refused",
        4,
    )
    assert operator.config(text.replace("insecure", "secure"))
    for fine in ("127.0.0.1:0", "[::1]:1", "localhost:7460", "off"):
        assert operator.config(text.replace(bind, fine))


def test_tcp_can_be_switched_off(operator: OperatorFiles) -> None:
    assert operator.config('[daemon]\nbind = "off"').value.daemon.bind is None


@requirement("AT-REG-21")
def test_a_bad_mcp_server_is_out_of_use_and_the_others_work(operator: OperatorFiles) -> None:
    loaded = operator.config(
        """\
        [mcp.servers.search]
        command = ["x"]
        [mcp.servers.both]
        command = ["x"]
        url = "http://localhost/"
        [mcp.servers.none]
        [mcp.servers.needy]
        command = ["x"]
        env = { K = "${NOT_SET}" }
        [mcp.servers.good]
        url = "https://example.org/mcp"
        """
    )
    servers = loaded.value.mcp.servers
    assert list(servers) == ["good"]
    assert set(servers.broken) == {"search", "both", "none", "needy"}
    assert "built-in" in servers.broken["search"][0].message
    with pytest.raises(ConfigFileInvalid, match="NOT_SET"):
        servers.get("needy")
    assert servers.get("absent") is None
    assert "good" in servers
    assert "needy" not in servers
    assert len(servers) == 1


@pytest.mark.parametrize("command", ['""', '"a \'b"', "[]", '["", " "]', "5"])
def test_a_command_must_name_a_program(operator: OperatorFiles, command: str) -> None:
    loaded = operator.config(f"[mcp.servers.x]\ncommand = {command}\n")
    assert "x" in loaded.value.mcp.servers.broken


def test_a_command_text_is_split_into_words_without_a_shell(operator: OperatorFiles) -> None:
    loaded = operator.config("[mcp.servers.x]\ncommand = \"run 'a b' $(id) ; rm\"\n")
    assert loaded.value.mcp.servers.good["x"].command == ("run", "a b", "$(id)", ";", "rm")


def test_broken_toml_and_a_file_anybody_may_change_are_refused(operator: OperatorFiles) -> None:
    (problem,) = operator.config_problems("[daemon\n")
    assert (problem.code, problem.line) == ("toml_syntax", 1)
    operator.config_toml.chmod(0o666)
    with pytest.raises(ConfigFileInvalid, match="any user may change"):
        load_daemon_config(operator.config_toml, {})


def test_a_file_its_group_may_change_is_warned_about(operator: OperatorFiles) -> None:
    operator.config("")
    operator.config_toml.chmod(0o664)
    loaded = load_daemon_config(operator.config_toml, {})
    assert [warning.code for warning in loaded.warnings] == ["file_permissions"]
