"""`project_ask`: what a project's files want to be allowed, agent by agent, in words.

Everything that the files alone decide and that reaches beyond kaged's own defaults is in it: cages
or their absence, network, tools, plugins, commands, another model than `default`, and every text
that an agent takes as its instructions. Two asks are compared by `config.ask_order`.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Iterator
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import Final

from kaged.base import JsonObject, JsonValue
from kaged.config.cageblock import CageBlock, CageWord
from kaged.config.files import file_problem
from kaged.config.plugindecl import PluginDeclaration
from kaged.config.problems import ConfigFileInvalid, KeyPath
from kaged.config.project import (
    DEFAULT_MAX_STEPS,
    DEFAULT_MODEL,
    AgentSpec,
    CompactionStrategy,
    Project,
    agent_specs,
    parse_project,
)
from kaged.config.prompts import Prompt
from kaged.config.scaffold import scaffold_text
from kaged.config.toolrules import ToolRule
from kaged.config.workflows import Workflow
from kaged.kernel.ask import MAX_ASKED_THINGS, Ask, AskedThing
from kaged.kernel.capabilities import NetCapability
from kaged.kernel.describe import (
    UNCAGED,
    Sentence,
    SentenceSeverity,
    describe_grant,
    describe_named_grant,
    describe_toolchain,
)
from kaged.kernel.policy import CageState, FsMode, SeccompProfile

MAX_WORDS: Final = 600
MAX_LISTED: Final = 40
_BEGINNING: Final = 120
DRY_RUN: Final = "dry_run"
RULES: Final = "rules"
_ONLY_REPORTED: Final = ", of which those that change something only report it"
_NOT_SHOWN: Final = "more that are not shown"
_HIDDEN: Final = "it is too long to be shown whole: read it in the project's files before you agree"

_OUTSIDE: Final = "it runs outside every cage, with all that the daemon's user may do"


def project_ask(project: Project) -> Ask:
    """Return what a project's files ask for. Pure.

    Raises:
        ConfigFileInvalid: it is more than a person could read.
    """
    things = [*_commands(project)]
    dry: set[KeyPath] = set()
    for path, spec in agent_specs(project.primary):  # each after the one above it
        if spec.dry_run or path[:-2] in dry:
            dry.add(path)
        things += _agent(".".join(map(str, path)), spec, dry_run=path in dry)
    things += [_workflow(name, one) for name, one in project.workflows.items()]
    if len(things) > MAX_ASKED_THINGS:
        problem = file_problem(
            project.file,
            "asks_too_much",
            f"asks for {len(things)} things, and nobody agrees to more than {MAX_ASKED_THINGS}",
            "have fewer agents, plugins or workflows",
        )
        raise ConfigFileInvalid([problem])
    return Ask.of(things)


@cache
def unasked() -> Ask:
    """Return what no project needs to ask for: what `kaged project init` writes."""
    return project_ask(parse_project(scaffold_text(), Path("/")).value)


def digest_of(value: JsonValue) -> str:
    """Return the SHA-256 of a JSON value."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("ascii")).hexdigest()


# -- agents ----------------------------------------------------------------------------------------


def _agent(path: str, spec: AgentSpec, *, dry_run: bool) -> Iterator[AskedThing]:
    cage = spec.cage
    if cage is None and path != "primary":
        cage = CageBlock()
    if cage is None or isinstance(cage, CageWord):
        yield _thing(path, "cage", None, UNCAGED)
    else:
        yield _thing(path, "cage", cage_value(cage), Sentence(_cage_words(cage)))
        yield from _cage_grants(path, cage)
    # A dry run changes nothing: without it the same tools are more.
    rules, said = _rules_value(spec.tools), _tools_words(spec.tools)
    if dry_run:
        yield _thing(path, "tools", {DRY_RUN: True, RULES: rules}, Sentence(said + _ONLY_REPORTED))
    else:
        yield _thing(path, "tools", rules, Sentence(said))
    if spec.max_steps > DEFAULT_MAX_STEPS:
        words = f"may take {spec.max_steps} steps in one run, at the price of its model"
        yield _thing(path, "steps", spec.max_steps, Sentence(words))
    if spec.model != DEFAULT_MODEL:
        words = f"sends what it reads to the model {spec.model} of your local.toml, at its price"
        yield _thing(path, "model", spec.model, Sentence(words))
    meant: list[JsonValue] = [spec.system_prompt.text, spec.description]
    yield _thing(path, "instructions", digest_of(meant), Sentence(_prompt(spec.system_prompt)))
    for key, declaration in spec.plugins.items():
        yield _plugin(path, key, declaration)
    if spec.compaction.delegate is not None or (
        spec.compaction.strategy is CompactionStrategy.DELEGATE
    ):
        name = "" if spec.compaction.delegate is None else spec.compaction.delegate.plugin
        words = f"gives its conversation to the plugin {name} to shorten"
        yield _thing(path, "compaction", name, Sentence(words))


def _cage_grants(path: str, cage: CageBlock) -> Iterator[AskedThing]:
    for target in cage.net.allow:
        granted = describe_grant(NetCapability(target))
        words = Sentence(f"may {granted.words}", granted.severity, granted.warning)
        yield _thing(path, f"net {target.text}", target.text, words)
    for name in cage.capabilities:
        named = describe_named_grant(name)
        said = replace(named, words=f"may {named.words}")
        yield _thing(path, f"grant {name}", name, said)
    for name in cage.credentials:
        words = f"may use your credential {name} in its cage, without seeing it"
        yield _thing(path, f"credential {name}", name, Sentence(words))
    for toolchain in cage.toolchains:
        words = f"may {describe_toolchain(toolchain)}"
        yield _thing(path, f"toolchain {toolchain}", toolchain.value, Sentence(words))


def cage_value(cage: CageBlock) -> JsonObject:
    """Return what a cage block gives beside network and named grants, for comparison."""
    return {
        "fs": [[entry.mode.value, entry.path] for entry in cage.fs],
        "state": cage.state.value,
        "seccomp": cage.seccomp.value,
        "env": {name: digest_of(value) for name, value in cage.env.items()},
        "limits": {
            item.name: getattr(cage.limits, item.name)
            for item in fields(cage.limits)
            if getattr(cage.limits, item.name) is not None
        },
    }


def _cage_words(cage: CageBlock) -> str:
    reads = [entry.path for entry in cage.fs if entry.mode is FsMode.RO]
    writes = [entry.path for entry in cage.fs if entry.mode is FsMode.RW]
    parts = [f"is caged and may change {_listed(writes)} of the project"] if writes else []
    if reads:
        parts.append(f"{'may' if parts else 'is caged and may'} read {_listed(reads)}")
    if not parts:
        parts.append("is caged and reaches no file")
    if cage.state is CageState.PERSISTENT:
        parts.append("keeps its scratch space")
    if cage.seccomp is SeccompProfile.RELAXED:
        parts.append("has the relaxed system-call filter")
    if cage.env:
        parts.append(f"sets the variables {_listed(sorted(cage.env))}")
    limits = [
        f"{item.name} {getattr(cage.limits, item.name)}"
        for item in fields(cage.limits)
        if getattr(cage.limits, item.name) is not None
    ]
    if limits:
        parts.append(f"has the limits {_listed(limits)}")
    return ", ".join(parts)


def _rules_value(rules: tuple[ToolRule, ...]) -> list[JsonValue]:
    return [[rule.pattern, rule.enabled] for rule in rules]


def _tools_words(rules: tuple[ToolRule, ...]) -> str:
    on = [rule.pattern for rule in rules if rule.enabled]
    off = [rule.pattern for rule in rules if not rule.enabled]
    words = f"has the tools {_listed(on)}" if on else "switches no tool on"
    return f"{words}, but not {_listed(off)}" if off else words


def _prompt(prompt: Prompt) -> str:
    where = f"the file {prompt.location}" if prompt.location else "the project file"
    beginning = " ".join(prompt.text.split())
    if len(beginning) > _BEGINNING:
        beginning = f"{beginning[:_BEGINNING]}…"
    return f"is instructed by {where} ({len(prompt.text)} characters): {_plain(beginning)}"


def _plugin(path: str, key: str, said: PluginDeclaration) -> AskedThing:
    source = None if said.source is None else said.source.location
    version = None if said.version is None else said.version.text
    value: JsonObject = {
        "package": said.package,
        "source": source,
        "version": version,
        "isolation": None if said.isolation is None else said.isolation.value,
        "hooks": None if said.hooks is None else [hook.value for hook in said.hooks],
        "settings": {name: digest_of(one) for name, one in (said.config or {}).items()},
    }
    hooks = "all of its hooks"
    if said.hooks is not None:
        hooks = f"the hooks {_listed([one.value for one in said.hooks])}" if said.hooks else ""
    words = f"uses the plugin {said.package or key}"
    words += f" {version}" if version else ""
    words += f" from {source}" if source else ""
    words += f", with {hooks}" if hooks else ", with no hook"
    if said.config:
        words += f", and sets its {_listed(sorted(said.config))}"
    return _thing(path, f"plugin {key}", value, Sentence(words))


# -- the project as a whole --------------------------------------------------------------------


def _commands(project: Project) -> Iterator[AskedThing]:
    for server in project.dsl.lsp.servers:
        words = f"starts the language server for {server.lang}: {shlex.join(server.command)}"
        yield _thing("project", f"lsp {server.lang}", list(server.command), _outside(words))
    for one in project.dsl.dap.adapters:
        commands = [shlex.join(each) for each in (one.adapter, one.command) if each]
        value: JsonObject = {
            "type": one.type,
            "adapter": None if one.adapter is None else list(one.adapter),
            "command": None if one.command is None else list(one.command),
            "ptrace": one.requires_ptrace,
        }
        words = f"starts the debugger for {one.runtime}: {'; '.join(commands)}"
        yield _thing("project", f"dap {one.runtime}", value, _outside(words))


def _workflow(name: str, job: Workflow) -> AskedThing:
    inputs: JsonObject = {
        key: [one.type.value, one.required, one.description, one.default, list(one.values)]
        for key, one in job.inputs.items()
    }
    steps: list[JsonValue] | None = None
    if job.steps is not None:
        steps = [[step.message, step.agent] for step in job.steps]
    meant: list[JsonValue] = [job.description, inputs, job.agent, steps]
    value: JsonObject = {
        "digest": digest_of(meant),
        "by": [*sorted(one.value for one in job.invokable_by)],
        "seconds": job.timeout_seconds,
    }
    by = " and ".join(sorted(one.value for one in job.invokable_by))
    said = job.description or (job.steps[0].message if job.steps else "")
    beginning = " ".join(said.split())[:_BEGINNING]
    words = f"instructs {job.agent} by the workflow {name}, which {by} may start: {beginning}"
    return _thing("project", f"workflow {name}", value, Sentence(words))


def _outside(words: str) -> Sentence:
    return Sentence.dangerous_if(words, _OUTSIDE)


def _thing(about: str, what: str, value: JsonValue, said: Sentence) -> AskedThing:
    words = _plain(f"{about} {said.words}")
    cut = len(words) > MAX_WORDS
    if cut:
        words = f"{words[: MAX_WORDS - 1]}…"
    warning = said.warning
    if cut or _NOT_SHOWN in said.words:  # what matters may stand where nobody sees it
        warning = f"{warning}; {_HIDDEN}" if warning else _HIDDEN
    severity = SentenceSeverity.DANGER if warning != said.warning else said.severity
    return AskedThing(f"{about}: {what}", value, Sentence(words, severity, warning))


def _listed(names: list[str]) -> str:
    more = len(names) - MAX_LISTED
    return ", ".join(names[:MAX_LISTED]) + (f" and {more} {_NOT_SHOWN}" if more > 0 else "")


def _plain(text: str) -> str:
    """Return a text without characters that could change how the rest of it is shown."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)
