"""`PolicySite`: an operator's pipeline file and policy classes, put in force as operators do it.

The classes lie in a module beside the file. `Spy` writes down what it is given, `Returns` gives
back what its entry says; a test may add classes of its own. The file is read by `SIGHUP`.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from whole.harness.daemon import Daemon, wait_for

PRE, POST = "tool_pre_invoke", "tool_post_invoke"
FIRED = (
    PRE,
    POST,
    "prompt_pre_fetch",
    "prompt_post_fetch",
    "resource_pre_fetch",
    "resource_post_fetch",
    "agent_pre_invoke",
    "agent_post_invoke",
    "cmf.llm_input",
    "cmf.llm_output",
)
CAPABILITIES = (
    "read_subject",
    "read_roles",
    "read_teams",
    "read_claims",
    "read_permissions",
    "read_agent",
    "read_headers",
    "write_headers",
    "read_labels",
    "append_labels",
    "read_delegation",
    "append_delegation",
)
SLOTS = (
    "request",
    "agent",
    "http",
    "security",
    "delegation",
    "mcp",
    "completion",
    "provenance",
    "llm",
    "framework",
    "meta",
    "custom",
)

CLASSES = '''\
"""Policy classes of an operator."""
import datetime, enum, json, pickle
from cpex.framework import (
    Plugin, PluginResult, PluginViolation, PluginViolationError, ToolPreInvokeResult, hook)
from cpex.framework.extensions.extensions import Extensions
from cpex.framework.extensions.agent import AgentExtension
from cpex.framework.extensions.completion import CompletionExtension
from cpex.framework.extensions.delegation import DelegationExtension, DelegationHop
from cpex.framework.extensions.framework import FrameworkExtension
from cpex.framework.extensions.http import HttpExtension
from cpex.framework.extensions.llm import LLMExtension
from cpex.framework.extensions.mcp import MCPExtension
from cpex.framework.extensions.meta import MetaExtension
from cpex.framework.extensions.provenance import ProvenanceExtension
from cpex.framework.extensions.request import RequestExtension
from cpex.framework.extensions.security import (
    DataPolicy, ObjectSecurityProfile, SecurityExtension, SubjectExtension)

SEEN = "@SEEN@"
FIRED = @FIRED@


def plain(value):
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    if isinstance(value, datetime.datetime):
        return value.isoformat()
    if hasattr(value, "model_dump"):
        return value.model_dump()
    return dict(value) if hasattr(value, "keys") else str(value)


def note(who, **what):
    with open(SEEN, "a", encoding="utf-8") as file:
        file.write(json.dumps({"by": who, **what}, default=plain) + "\\n")


def noted(who, hook, payload, context, extensions):
    shared = context.global_context
    note(who, hook=hook, payload=payload, user=shared.user, identity=shared.user_context,
         request_id=shared.request_id, state=context.state,
         kind=type(extensions).__name__,
         extensions=None if extensions is None else extensions.model_dump())


def grown(extensions, *labels):
    """Return the security slot with these labels on top."""
    before = extensions.security
    return before.model_copy(update={"labels": before.labels | set(labels)})


def _spy(name):
    async def look(self, payload, context, extensions):
        noted(self.name, name, payload, context, extensions)
    return hook(name)(look)


def _returns(name):
    async def act(self, payload, context, extensions):
        options = self.config.config
        if options.get("hook", name) != name:
            return None
        ext = extensions
        return eval(options["gives"], {**globals(), **locals()})
    return hook(name)(act)


def _for_all(maker):
    return {name.replace(".", "_"): maker(name) for name in FIRED}


Spy = type("Spy", (Plugin,), _for_all(_spy))
Returns = type("Returns", (Plugin,), _for_all(_returns))


def change(ext, **slots):
    """Return a result with these slots changed."""
    return PluginResult(modified_extensions=ext.model_copy(update=slots))
'''

_numbers = itertools.count(1)


def spy(name: str = "spy", *capabilities: str, **more: Any) -> dict[str, Any]:
    """Return the entry of a policy that writes down what it is given."""
    return entry(name, "Spy", *capabilities, **more)


def gives(expression: str, *capabilities: str, **more: Any) -> dict[str, Any]:
    """Return the entry of a policy that gives back what a Python expression says.

    The expression knows `ext`, `payload` and `context`, and everything in the policies' module.
    """
    config = {"gives": expression, **more.pop("config", {})}
    return entry(str(more.pop("name", "giver")), "Returns", *capabilities, config=config, **more)


def changes(slots: str, *capabilities: str, **more: Any) -> dict[str, Any]:
    """Return the entry of a policy that gives back its view with some slots changed."""
    return gives(f"change(ext, {slots})", *capabilities, **more)


def entry(name: str, kind: str, *capabilities: str, **more: Any) -> dict[str, Any]:
    """Return an entry of the pipeline file; `hooks` is `tool_pre_invoke` unless said."""
    made: dict[str, Any] = {"name": name, "kind": kind, "hooks": [PRE]}
    if capabilities:
        made["capabilities"] = list(capabilities)
    return {**made, **more}


class PolicySite:
    """A pipeline file beside its modules, and the daemon that reads it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "policies.yaml"
        self.seen_file = folder / "seen.jsonl"
        self.daemon: Daemon
        self.module = ""
        folder.mkdir(parents=True, exist_ok=True)
        self.write()

    def config_toml(self, more: str = "") -> str:
        """Return the section of `config.toml` that names the file."""
        return f'[pipeline]\nfile = "{self.file}"\n{more}'

    def write(
        self, *entries: Mapping[str, Any], source: str = "", top: Mapping[str, Any] | None = None
    ) -> None:
        """Write the file and its module; a class without a dot is one of that module."""
        self.module = f"house_{self.folder.name.replace('-', '_')}_{next(_numbers)}"
        (self.folder / "mine").mkdir(exist_ok=True)
        text = CLASSES.replace("@SEEN@", str(self.seen_file)).replace("@FIRED@", repr(FIRED))
        path = self.folder / "mine" / f"{self.module}.py"
        path.write_text(f"{text}\n\n{source}", encoding="utf-8")
        plugins = [self._named(one) for one in entries]
        document = {"plugin_dirs": ["mine"], "plugins": plugins, **(top or {})}
        self.file.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
        self.seen_file.write_text("", encoding="utf-8")

    def _named(self, one: Mapping[str, Any]) -> dict[str, Any]:
        made = json.loads(json.dumps(one))
        inner = made.get("config") or {}
        if "." not in inner.get("class_name", "."):
            inner["class_name"] = f"{self.module}.{inner['class_name']}"
        kind = str(made["kind"])
        if kind[0].isupper():
            made["kind"] = f"{self.module}.{kind}"
        return dict(made)

    def hang_up(self) -> dict[str, Any]:
        """Let the daemon read the file again; returns what it reports about it."""
        last = self.loads()[-1]["seq"] if self.loads() else 0
        os.kill(self.daemon.pid, signal.SIGHUP)
        rows = wait_for(lambda: [one for one in self.loads() if one["seq"] > last])
        data: dict[str, Any] = rows[-1]["data"]
        return data

    def loads(self) -> Sequence[dict[str, Any]]:
        """Return the audit rows about reading the file, oldest first."""
        return self.daemon.audit("pipeline.loaded")

    def put(
        self, *entries: Mapping[str, Any], source: str = "", top: Mapping[str, Any] | None = None
    ) -> None:
        """Put these entries in force."""
        self.write(*entries, source=source, top=top)
        report = self.hang_up()
        assert report["in_force"], report["problems"]
        assert not report["problems"], report

    def refused(self, *entries: Mapping[str, Any], source: str = "") -> list[str]:
        """Offer entries that have to be refused; returns what is said about them."""
        self.write(*entries, source=source)
        report = self.hang_up()
        assert report["in_force"] is False, report
        problems: list[str] = report["problems"]
        return problems

    def seen(self, by: str | None = None, hook: str | None = None) -> list[dict[str, Any]]:
        """Return what policies wrote down, oldest first; of one of them, of one hook."""
        lines = self.seen_file.read_text(encoding="utf-8").splitlines()
        rows: list[dict[str, Any]] = [json.loads(line) for line in lines]
        return [
            one
            for one in rows
            if by in {None, one["by"]} and (hook is None or one.get("hook") == hook)
        ]

    def view(self, by: str = "spy", hook: str | None = None) -> dict[str, Any]:
        """Return the extensions that one policy saw in its only call."""
        (one,) = self.seen(by, hook)
        shown: dict[str, Any] = one["extensions"]
        return shown
