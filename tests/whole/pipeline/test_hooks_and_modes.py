"""How the daemon calls policies: signatures, hooks, results, memory, order and modes."""

from __future__ import annotations

import pytest

from requirements.marker import whole
from whole.harness.conversation import begin, say_to
from whole.harness.daemon import Daemon, exactly
from whole.harness.model import ModelServer, call, say
from whole.harness.policies import (
    CAPABILITIES,
    FIRED,
    POST,
    PRE,
    PolicySite,
    changes,
    entry,
    gives,
    spy,
)
from whole.harness.project import Project

CPEX_IMPORTS = """
from cpex.framework import hook, Plugin, PluginContext, PluginResult
from cpex.framework import ToolPreInvokePayload, ToolPreInvokeResult
from cpex.framework.extensions.extensions import Extensions
from cpex.framework.extensions.http import HttpExtension
from cpex.framework.extensions.request import RequestExtension
from cpex.framework.extensions.security import SecurityExtension
"""
OWN_IMPORTS = """
from kaged.pipeline import hook, Plugin, PluginContext, PluginResult
from kaged.pipeline import ToolPreInvokePayload, ToolPreInvokeResult
from kaged.pipeline import Extensions, HttpExtension, RequestExtension, SecurityExtension
from kaged.pipeline import filter_extensions, merge_extensions
"""
EXAMPLES = """
class HeaderInspectorPlugin(Plugin):
    @hook("tool_pre_invoke")
    async def inspect_headers(
        self,
        payload: ToolPreInvokePayload,
        context: PluginContext,
        extensions: Extensions,
    ) -> ToolPreInvokeResult:
        if extensions.http:
            auth = extensions.http.headers.get("authorization", "none")
            context.set_state("auth_method", auth.split()[0] if " " in auth else auth)
        return ToolPreInvokeResult(continue_processing=True)


class TokenDelegationPlugin(Plugin):
    async def _exchange_token(self, extensions):
        return "delegated-token"

    @hook("tool_pre_invoke")
    async def delegate_token(
        self,
        payload: ToolPreInvokePayload,
        context: PluginContext,
        extensions: Extensions,
    ) -> ToolPreInvokeResult:
        delegated_token = await self._exchange_token(extensions)

        updated_http = HttpExtension(
            headers={**(extensions.http.headers if extensions.http else {}),
                     "authorization": f"Bearer {delegated_token}"},
        )
        updated_ext = extensions.model_copy(update={"http": updated_http})

        return ToolPreInvokeResult(
            continue_processing=True,
            modified_extensions=updated_ext,
        )


class Recalls(HeaderInspectorPlugin):
    async def tool_post_invoke(self, payload, context):
        note(self.name, recalls=context.get_state("auth_method"))
"""


@whole("EX-HOOK-06", "EX-HOOK-07")
@pytest.mark.parametrize(
    ("headers", "recorded"),
    [
        ({"authorization": "Bearer x"}, "Bearer"),
        ({"authorization": "opaque"}, "opaque"),
        ({"other": "y"}, "none"),
        (None, None),
    ],
)
def test_the_header_inspector_remembers_how_the_caller_authenticated(
    site: PolicySite, shared: Project, headers: dict[str, str] | None, recorded: str | None
) -> None:
    fills = changes(f"http=HttpExtension(headers={headers})", "write_headers", name="fills")
    inspector = entry("inspector", "Recalls", "read_headers", hooks=[PRE, POST])
    other = entry("other", "Recalls", hooks=[POST])
    filler = [] if headers is None else [fills]
    site.put(*filler, inspector, other, source=CPEX_IMPORTS + EXAMPLES)
    shared.call("file.read", path="a.txt")
    assert [one["recalls"] for one in site.seen("inspector")] == [recorded]
    assert [one["recalls"] for one in site.seen("other")] == [None], "a memory is one policy's own"
    if headers is not None:  # and it lasts for one request
        site.put(inspector, source=CPEX_IMPORTS + EXAMPLES)
        shared.call("file.read", path="a.txt")
        assert [one["recalls"] for one in site.seen("inspector")] == [None]


@whole("EX-AMB-13", "EX-HOOK-05", "EX-HOOK-01")
@pytest.mark.parametrize("imports", [CPEX_IMPORTS, OWN_IMPORTS], ids=["cpex", "own"])
def test_the_published_examples_run_with_their_import_lines_and_with_ours(
    site: PolicySite, shared: Project, imports: str
) -> None:
    fills = changes(
        "http=HttpExtension(headers={'authorization': 'Bearer old', 'x-t': '1'})",
        "write_headers",
        name="fills",
    )
    delegates = entry("delegates", "TokenDelegationPlugin", "read_headers", "write_headers")
    inspects = entry("inspects", "Recalls", "read_headers", hooks=[PRE, POST])
    site.put(fills, delegates, inspects, spy("after", "read_headers"), source=imports + EXAMPLES)
    shared.call("file.read", path="a.txt")
    assert site.view("after")["http"]["headers"] == {
        "authorization": "Bearer delegated-token",
        "x-t": "1",
    }
    assert [one["recalls"] for one in site.seen("inspects")] == ["Bearer"]
    text = (site.folder / "mine" / f"{site.module}.py").read_text(encoding="utf-8")
    assert imports in text


SIGNATURES = """
import functools


def wraps(function):
    @functools.wraps(function)
    async def inner(*args, **kwargs):
        return await function(*args, **kwargs)
    return inner


def waits(function):
    @functools.wraps(function)
    def inner(*args):
        return function(*args)
    return inner


def told(who, *ext, **named):
    note(who, given=[type(one).__name__ for one in ext],
         named={name: type(one).__name__ for name, one in named.items()})


class Two(Plugin):
    async def tool_pre_invoke(self, payload, context):
        told(self.name)


class Three(Plugin):
    async def tool_pre_invoke(self, payload, context, whatever):
        told(self.name, whatever)


class Default(Plugin):
    async def tool_pre_invoke(self, payload, context, extensions=None):
        told(self.name, extensions)


class Star(Plugin):
    async def tool_pre_invoke(self, payload, context, *args):
        told(self.name, *args)


class KeywordOnly(Plugin):
    async def tool_pre_invoke(self, payload, context, *, ext):
        told(self.name, ext=ext)


class DoubleStar(Plugin):
    async def tool_pre_invoke(self, payload, context, **kw):
        told(self.name, **kw)


class Decorated(Plugin):
    @wraps
    async def tool_pre_invoke(self, payload, context, extensions):
        told(self.name, extensions)


class Awaited(Plugin):
    @waits
    async def tool_pre_invoke(self, payload, context, extensions):
        told(self.name, extensions)


class One(Plugin):
    async def tool_pre_invoke(self, payload): ...


class Four(Plugin):
    async def tool_pre_invoke(self, payload, context, extensions, more): ...


class FourDefaults(Plugin):
    async def tool_pre_invoke(self, payload, context, extensions=None, more=None): ...


class Plain(Plugin):
    def tool_pre_invoke(self, payload, context): ...
"""
VIEW = "ExtensionsView"


@whole("EX-AMB-10", "EX-HOOK-01", "EX-HOOK-02")
def test_a_third_parameter_brings_the_extensions_whatever_it_looks_like(
    site: PolicySite, shared: Project
) -> None:
    wanted = {
        "Two": ([], {}),
        "Three": ([VIEW], {}),
        "Default": ([VIEW], {}),
        "Star": ([VIEW], {}),
        "KeywordOnly": ([], {"ext": VIEW}),
        "DoubleStar": ([], {"extensions": VIEW}),
        "Decorated": ([VIEW], {}),
        "Awaited": ([VIEW], {}),
    }
    site.put(*(entry(name, name) for name in wanted), source=SIGNATURES)
    shared.call("file.read", path="a.txt")
    assert {one["by"]: (one["given"], one["named"]) for one in site.seen()} == wanted
    assert len(site.seen()) == len(wanted), "each was called once"


@whole("EX-AMB-10")
@pytest.mark.parametrize("name", ["One", "Four", "FourDefaults", "Plain"])
def test_any_other_signature_is_refused_at_load(site: PolicySite, name: str) -> None:
    (problem,) = site.refused(entry("odd", name), source=SIGNATURES)
    assert "'odd'" in problem
    assert PRE in problem
    assert ("async" in problem) is (name == "Plain")


@whole("EX-AMB-11", "EX-HOOK-02")
@pytest.mark.parametrize("capability", ["write_headers", "read_headers"])
def test_a_hook_without_extensions_may_still_give_some_back(
    site: PolicySite, shared: Project, capability: str
) -> None:
    source = """
class Blind(Plugin):
    async def tool_pre_invoke(self, payload, context):
        given = Extensions(http=HttpExtension(headers={"x": "1"}),
                           request=RequestExtension(environment="forged"))
        return PluginResult(modified_extensions=given)
"""
    site.put(entry("blind", "Blind", capability), spy("after", *CAPABILITIES), source=source)
    shared.call("file.read", path="a.txt")
    after = site.view("after")
    kept = {"headers": {"x": "1"}} if capability == "write_headers" else None
    assert after["http"] == kept
    assert after["request"]["environment"] is None


BOUND = """
class Bound(Plugin):
    @hook("tool_pre_invoke")
    async def before(self, payload, context):
        note(self.name, was="before")

    @hook(["tool_post_invoke", "agent_pre_invoke"])
    async def both(self, payload, context):
        note(self.name, was="both")

    async def agent_post_invoke(self, payload, context):
        note(self.name, was="after")
"""


@whole("EX-HOOK-03", "EX-CFG-03")
def test_a_policy_is_called_for_the_events_of_its_entry_and_no_other(
    site: PolicySite, shared: Project, model: ModelServer
) -> None:
    site.put(
        entry("pre", "Bound", hooks=[PRE]),
        entry("post", "Bound", hooks=[POST]),
        entry("agent", "Bound", hooks=["agent_pre_invoke", "agent_post_invoke"]),
        entry("none", "Bound", hooks=[]),
        spy("all", hooks=[*FIRED]),
        source=BOUND,
    )
    model.play("numbat-hooks", call("file.read", path="a.txt"), say("Done."))
    assert say_to(shared, begin(shared), "numbat-hooks")["status"] == "completed"
    assert {PRE, POST, "agent_pre_invoke", "cmf.llm_input"} <= {
        one["hook"] for one in site.seen("all")
    }
    for name, calls in (
        ("pre", ["before"]),
        ("post", ["both"]),
        ("agent", ["both", "after"]),
        ("none", []),
    ):
        assert [one["was"] for one in site.seen(name)] == calls, name


@whole("EX-AMB-18")
def test_both_events_around_a_tool_carry_the_extensions(site: PolicySite, shared: Project) -> None:
    site.put(
        changes("custom={'from': 'before'}", config={"hook": PRE}),
        spy("spy", *CAPABILITIES, hooks=[PRE, POST]),
    )
    shared.call("file.read", path="a.txt")
    before, after = site.view("spy", PRE), site.view("spy", POST)
    assert after == before
    assert after["custom"] == {"from": "before"}


@whole("EX-AMB-18")
def test_a_hook_without_a_method_is_refused_and_any_word_with_one_is_taken(
    site: PolicySite,
) -> None:
    (problem,) = site.refused(entry("odd", "Bound", hooks=["tool_pre_invok"]), source=BOUND)
    assert "'odd'" in problem
    assert "tool_pre_invok'" in problem
    own = BOUND.replace('"tool_pre_invoke"', '"house.inspection"')
    site.put(entry("own", "Bound", hooks=["house.inspection"]), source=own)


DENIES = (
    "PluginResult(continue_processing=False,"
    " violation=PluginViolation('not that', 'nobody does that', 'DANGER'))"
)


def test_a_denial_with_a_delay_tells_the_caller_when_to_try_again(
    site: PolicySite, shared: Project
) -> None:
    later = f"{DENIES[:-1]}, retry_delay_ms=payload.args['limit'])"
    site.put(gives(f"{later} if payload.name == 'file.read' else PluginResult()", name="busy"))
    shared.write("there.txt", "x")
    for delay_ms, told in ((1500, "try again in 1.5 s"), (90_000, "try again in 90 s")):
        refused = shared.fail("file.read", path="there.txt", limit=delay_ms)
        assert refused["code"] == "pipeline_refused"
        assert told in str(refused)


@whole("EX-HOOK-04")
def test_a_denial_keeps_the_tool_from_running_and_later_policies_from_being_asked(
    daemon: Daemon, site: PolicySite, shared: Project, model: ModelServer
) -> None:
    deny = f"{DENIES} if payload.name == 'file.create' else PluginResult()"
    # Also of the phases that come after the sequential ones nobody is asked.
    phases = [spy(mode, mode=mode) for mode in ("transform", "audit", "concurrent")]
    site.put(spy("first"), gives(deny, name="guard"), spy("later"), *phases)
    refused = shared.fail("file.create", path="made.txt", content="x")
    assert refused["code"] == "pipeline_refused"
    assert "not that" in refused["message"]
    assert not (shared.root / "made.txt").exists()
    assert [one["by"] for one in site.seen()] == ["first"]
    # An agent is told so, and goes on; continue_processing is true unless somebody says no.
    model.play(
        "echidna-denied",
        call("file.create", path="made.txt", content="x"),
        call("file.read", path="a.txt"),
        say("Could not."),
    )
    assert say_to(shared, begin(shared), "echidna-denied")["status"] == "completed"
    assert not (shared.root / "made.txt").exists()
    told = model.asked("echidna-denied")
    assert "not that" in str(told[1]["messages"][-1])
    assert "1: one" in str(told[2]["messages"][-1])
    assert [one["payload"]["name"] for one in site.seen("later")] == ["file.read"]
    rows = [one["data"] for one in daemon.audit("pipeline.plugin_denied")]
    mine = [one for one in rows if one["plugin"] == "guard"]
    assert [(one["violation_code"], one["mode"]) for one in mine] == [("DANGER", "sequential")] * 2


@whole("EX-CFG-02")
def test_policies_of_one_mode_run_in_order_each_on_what_came_before(
    site: PolicySite, shared: Project
) -> None:
    append = "custom={'order': [*(ext.custom or {}).get('order', []), self.name]}"
    names = ["zulu", "alpha", "mike"]
    site.put(*(changes(append, name=one) for one in names), spy("after", priority=200))
    shared.call("file.read", path="a.txt")
    assert site.view("after")["custom"] == {"order": names}
    ranked = [
        changes(append, name="late", priority=101),
        changes(append, name="usual"),
        changes(append, name="early", priority=99),
        changes(append, name="said", priority=100, mode="sequential"),
    ]
    site.put(*ranked, spy("after", priority=200))
    shared.call("file.read", path="a.txt")
    assert site.view("after")["custom"] == {"order": ["early", "usual", "said", "late"]}


MODES = ["sequential", "transform", "audit", "concurrent", "fire_and_forget"]


@whole("EX-AMB-12")
def test_modes_run_in_the_order_of_their_phases_whatever_their_priority(
    site: PolicySite, shared: Project
) -> None:
    entries = [
        gives("note('order', mode=self.mode)", name=mode, mode=mode, priority=100 - number)
        for number, mode in enumerate(MODES)
    ]
    off = gives("note('order', mode='off')", name="off", mode="disabled")
    site.put(*entries[::-1], off)
    shared.call("file.read", path="a.txt")
    rows = exactly(len(MODES), lambda: site.seen("order"))
    assert [one["mode"] for one in rows] == MODES


@whole("EX-AMB-12", "EX-CFG-01")
@pytest.mark.parametrize(
    ("mode", "may_change", "may_deny"),
    [
        (None, True, True),
        ("sequential", True, True),
        ("enforce", True, True),
        ("enforce_ignore_error", True, True),
        ("transform", True, False),
        ("permissive", True, False),
        ("audit", False, False),
        ("concurrent", False, True),
        ("fire_and_forget", False, False),
        ("disabled", False, False),
    ],
)
def test_a_mode_says_what_a_policy_may_do(
    site: PolicySite, shared: Project, mode: str | None, may_change: bool, may_deny: bool
) -> None:
    more = {} if mode is None else {"mode": mode}
    site.put(
        changes("custom={'changed': True}", **more),
        spy("behind", mode="audit", priority=200),
        spy("post", hooks=[POST]),
    )
    shared.call("file.read", path="a.txt")
    expected = {"changed": True} if may_change else None
    assert site.view("post")["custom"] == site.view("behind")["custom"] == expected
    site.put(gives(DENIES, **more))
    if may_deny:
        assert "not that" in shared.fail("file.read", path="a.txt")["message"]
    else:
        assert shared.call("file.read", path="a.txt")["content"] == "1: one"
    # The older word with a tail means sequential, with errors passed over.
    site.put(gives("1 / 0", **more))
    fails = mode in {None, "sequential", "enforce", "transform", "permissive", "audit"} | {
        "concurrent"
    }
    if fails:
        assert shared.fail("file.read", path="a.txt")["code"] == "plugin_error"
    else:
        assert shared.call("file.read", path="a.txt")["content"] == "1: one"


@whole("EX-AMB-12")
def test_an_unknown_mode_is_refused_with_the_known_ones(site: PolicySite) -> None:
    (problem,) = site.refused(spy("odd", mode="parallel"))
    assert "parallel" in problem
    assert all(word in problem for word in [*MODES, "disabled"])


@whole("EX-CFG-01")
def test_the_example_of_an_entry_is_put_in_force_as_written(
    daemon: Daemon, site: PolicySite, shared: Project
) -> None:
    (site.folder / "mine" / "my_app.py").write_text(
        "from cpex.framework import Plugin, PluginResult\n"
        "from cpex.framework.extensions.http import HttpExtension\n\n\n"
        "class HeaderInjectorPlugin(Plugin):\n"
        "    async def tool_pre_invoke(self, payload, context, extensions):\n"
        "        made = HttpExtension(headers={'injected': self.name})\n"
        "        return PluginResult(\n"
        "            modified_extensions=extensions.model_copy(update={'http': made}))\n",
        encoding="utf-8",
    )
    site.write()
    example = """\
plugin_dirs: [mine]
plugins:
  - name: header_injector
    kind: my_app.HeaderInjectorPlugin
    hooks:
      - tool_pre_invoke
    mode: sequential
    capabilities:
      - read_headers
      - write_headers
"""
    after = f"  - name: after\n    kind: {site.module}.Spy\n    capabilities: [read_headers]\n"
    site.file.write_text(f"{example}{after}    hooks: [{PRE}]\n", encoding="utf-8")
    assert site.hang_up()["plugins"] == ["header_injector", "after"]
    shared.call("file.read", path="a.txt")
    assert site.view("after")["http"]["headers"] == {"injected": "header_injector"}
    (hook,) = daemon.cli("pipeline", "explain", "--json").json["hooks"]
    first = hook["steps"][0]
    assert (first["plugin"], first["kind"], first["mode"]) == (
        "header_injector",
        "my_app.HeaderInjectorPlugin",
        "sequential",
    )
    assert first["capabilities"] == ["read_headers", "write_headers"]
