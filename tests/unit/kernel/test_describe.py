"""The golden sentences: each kind of grant, policy, ask, change and denial, word for word."""

from __future__ import annotations

import re
from typing import ClassVar

import pytest

from kaged.kernel.capabilities import diff, parse_capabilities, parse_capability
from kaged.kernel.decision import CapabilityDenied, Decision, SeccompInsufficient, broken
from kaged.kernel.describe import (
    UNCAGED,
    Sentence,
    SentenceSeverity,
    ask_lines,
    brief_policy,
    change_lines,
    consent_question,
    describe_ask,
    describe_changes,
    describe_denial,
    describe_grant,
    describe_operation,
    describe_policy,
    describe_policy_refusal,
    not_allowed,
    operator_fix,
    require,
)
from kaged.kernel.extension_caps import ExtensionCapability, decide_extension
from kaged.kernel.lua_powers import LuaPower, decide_power
from kaged.kernel.net import NetTarget, decide_address, decide_net
from kaged.kernel.permissions import PathFact, decide_tool
from kaged.kernel.policy import (
    CageLimits,
    CagePolicy,
    CageState,
    ExecGrant,
    FsGrant,
    FsMode,
    SeccompProfile,
)
from kaged.kernel.requirements import (
    CapabilityRequirement,
    FsRequirement,
    NetRequirement,
    SeccompRequirement,
)
from kaged.kernel.service_ids import decide_offer, decide_service, parse_namespace, parse_service_id

RO, RW = FsMode.RO, FsMode.RW

# What a second look is for, in the words of every prompt and page.
EVERYTHING = "that is the whole machine"
SYSTEM = "it can change the system itself"
KEYS = "keys, passwords and other people's files are kept there"
CODE = "it can change code that you later run outside the cage"
RUNS = "it runs any commands that the plugin gives it"
ANYONE = "it can send anything it can read to anyone"
LOCAL = "services on this machine or network often trust their callers"

OWN_PROGRAMS = (
    "may start its own program and interpreter, sh, env and the coreutils, and no other program "
    "by name"
)
LIMITS = (
    "at most 512 MiB of memory, 100 processes, 1024 open files, files of 1024 MiB, "
    "a processor share of 256"
)
NEVER = (
    "never sees the daemon's database, configuration, tokens, sockets or environment, nor "
    "another plugin's files"
)


@pytest.mark.parametrize(
    ("text", "words", "warning"),
    [
        ("read:fs:/opt/x", "read everything in /opt/x", ""),
        ("write:fs:/srv/data", "read and change everything in /srv/data", ""),
        ("write:fs:/opt/x", "read and change everything in /opt/x", ""),
        ("read:fs:/", "read everything in /", EVERYTHING),
        ("write:fs:/usr/local", "read and change everything in /usr/local", SYSTEM),
        ("read:fs:/usr/share", "read everything in /usr/share", ""),
        ("read:fs:/etc", "read everything in /etc", KEYS),
        ("read:fs:/home/ann", "read everything in /home/ann", KEYS),
        ("read:fs:/home/ann/notes", "read everything in /home/ann/notes", ""),
        ("read:fs:/home/ann/.ssh", "read everything in /home/ann/.ssh", KEYS),
        (
            "write:fs:config:/memory",
            "read and change everything in /memory of its own configuration directory",
            "",
        ),
        ("read:fs:project:/", "read everything in / of each project that uses it", ""),
        (
            "write:fs:project:/",
            "read and change everything in / of each project that uses it",
            CODE,
        ),
        (
            "write:fs:project:/docs",
            "read and change everything in /docs of each project that uses it",
            "",
        ),
        ("exec:git:/opt/x", "run the program git in /opt/x", ""),
        ("exec:bash:/opt/x", "run the program bash in /opt/x", RUNS),
        ("net:api.test:443", "connect to api.test, port 443", ""),
        ("net:api.test:*", "connect to api.test, any port", ""),
        ("net:localhost:*", "connect to localhost, any port", LOCAL),
        ("net:169.254.169.254:80", "connect to 169.254.169.254, port 80", LOCAL),
        ("net:*", "connect to any host on the internet", ANYONE),
        ("net:[]", "use no network", ""),
        ("kaged:storage:read", "read its own tables in the host's storage", ""),
        ("kaged:storage:write", "read and write its own tables in the host's storage", ""),
    ],
)
def test_every_kind_of_grant_has_its_sentence(text: str, words: str, warning: str) -> None:
    sentence = describe_grant(parse_capability(text))
    assert (sentence.words, sentence.warning) == (words, warning)
    assert sentence.severity == ("danger" if warning else "plain")
    assert sentence.flag == (f"!! DANGEROUS: {warning}" if warning else "")
    assert sentence.as_json() == {"words": words, "dangerous": bool(warning), "warning": warning}


def test_an_operation_on_an_account_names_it_and_the_account() -> None:
    assert describe_operation("gog.email", "send").words == "send on gog.email"
    assert describe_operation("gog.email", "send", "a@b.c").words == "send on gog.email as a@b.c"


def test_the_flag_goes_below_the_words() -> None:
    sentence = Sentence("x", SentenceSeverity.DANGER, "y")
    assert sentence.lines("  ") == ["  x", "  !! DANGEROUS: y"]
    assert sentence.lines("  ", "    ") == ["  x", "    !! DANGEROUS: y"]
    assert Sentence("x", SentenceSeverity.WARNING, "y").lines("") == ["x", "!! y"]
    assert Sentence("x", SentenceSeverity.WARNING, fix="z").lines("") == ["x"]


# -- policies ------------------------------------------------------------------------------------


def policy_text(policy: CagePolicy, *, plugin: bool = True) -> list[str]:
    return [f"{one.words} {one.flag}".rstrip() for one in describe_policy(policy, plugin=plugin)]


def test_an_empty_policy_says_what_is_not_there() -> None:
    assert policy_text(CagePolicy()) == [
        "sees no other file of this machine, apart from system libraries, read-only",
        "has no network",
        OWN_PROGRAMS,
        "has 64 MiB of scratch space in /tmp, which is gone when it ends",
        "strict system-call filter: no debugging, no mounts, no namespaces, no kernel interfaces",
        LIMITS,
        NEVER,
    ]


def test_every_grant_of_a_policy_is_a_sentence() -> None:
    found = policy_text(
        CagePolicy(
            fs=(FsGrant("/a", RW), FsGrant("/a/b", RO), FsGrant("/c", RO)),
            net=(NetTarget("api.test", 443), NetTarget("h.test", None), NetTarget("localhost", 5)),
            exec=(ExecGrant("git", "/c"),),
            env=(("TOKEN", "secret-value"),),
            capabilities=frozenset({"shell", "exec"}),
            limits=CageLimits(walltime_sec=9),
        )
    )
    assert found == [
        "may read and change everything in /a",
        "may read everything in /a/b, but not change it although what is around it may be changed",
        "may read everything in /c, but not change it",
        "sees no other file of this machine, apart from system libraries, read-only",
        "may connect to api.test, port 443",
        "may connect to h.test, any port",
        f"may connect to localhost, port 5 !! DANGEROUS: {LOCAL}",
        "every connection is checked outside the cage and recorded",
        "may run the program git in /c",
        OWN_PROGRAMS,
        "may use tools that ask for these grants by name: exec, shell",
        "has 64 MiB of scratch space in /tmp, which is gone when it ends",
        "strict system-call filter: no debugging, no mounts, no namespaces, no kernel interfaces",
        LIMITS,
        "is killed after 9 seconds",
        "is given these variables beside the usual ones: TOKEN",
        NEVER,
    ]
    assert "secret-value" not in "\n".join(found)


def test_a_policy_says_a_grant_in_the_words_of_the_install_prompt() -> None:
    policy = CagePolicy(
        fs=(FsGrant("/etc", RW),),
        net=(NetTarget(None, None), NetTarget("127.0.0.1", 80)),
        exec=(ExecGrant("bash", "/srv"),),
    )
    found = {one.words: one.flag for one in describe_policy(policy, plugin=True)}
    for spelling in ("write:fs:/etc", "net:*", "net:127.0.0.1:80", "exec:bash:/srv"):
        sentence = describe_grant(parse_capability(spelling))
        assert sentence.dangerous
        assert found[f"may {sentence.words}"] == sentence.flag


def test_other_kinds_and_profiles_are_told_apart() -> None:
    policy = CagePolicy(seccomp=SeccompProfile.RELAXED, state=CageState.PERSISTENT)
    found = policy_text(policy, plugin=False)
    assert "may start the programs of this machine (system), inside its cage" in found
    assert "relaxed system-call filter: may debug and profile its own processes" in found
    assert "keeps its scratch space /tmp from one run to the next" in found


def test_no_cage_is_a_danger() -> None:
    assert UNCAGED.words == "has no cage: it reaches everything that the daemon's user can"
    assert UNCAGED.flag == "!! DANGEROUS: nothing stands between it and this machine"


# -- asks and changes ----------------------------------------------------------------------------


def test_an_ask_shows_each_capability_with_its_words_and_who_added_it() -> None:
    asked = describe_ask(parse_capabilities(["net:*"]), parse_capabilities(["read:fs:/srv"]))
    assert ask_lines(asked) == [
        "  capabilities:",
        "    - net:*",
        "        connect to any host on the internet",
        f"        !! DANGEROUS: {ANYONE}",
        "    - read:fs:/srv  (added by the operator)",
        "        read everything in /srv",
    ]
    assert asked[0].as_json() == {
        "text": "net:*",
        "words": "connect to any host on the internet",
        "warning": ANYONE,
        "dangerous": True,
        "widening": False,
        "operator_added": False,
    }
    assert ask_lines(()) == ["  capabilities: none"]


@pytest.mark.parametrize(
    ("old", "new", "lines"),
    [
        (["read:fs:/a"], ["read:fs:/a"], ["Capability changes: none"]),
        # Wider: something new, further, writable, or another host.
        (
            [],
            ["exec:git:/a"],
            [
                "Capability changes:",
                "  + exec:git:/a    (NEW)  !! WIDENS what it may do",
                "        run the program git in /a",
            ],
        ),
        (
            ["read:fs:/a/b"],
            ["read:fs:/a"],
            [
                "Capability changes:",
                "  + read:fs:/a    (NEW)  !! WIDENS what it may do",
                "        read everything in /a",
                "  - read:fs:/a/b    (REMOVED)",
            ],
        ),
        (
            ["read:fs:/a"],
            ["write:fs:/a"],
            [
                "Capability changes:",
                "  + write:fs:/a    (NEW)  !! WIDENS what it may do",
                "        read and change everything in /a",
                "  - read:fs:/a    (REMOVED)",
            ],
        ),
        (
            ["net:h.test:1"],
            ["net:*"],
            [
                "Capability changes:",
                "  + net:*    (NEW)  !! WIDENS what it may do",
                "        connect to any host on the internet",
                f"        !! DANGEROUS: {ANYONE}",
                "  - net:h.test:1    (REMOVED)",
            ],
        ),
        (
            ["kaged:storage:read"],
            ["kaged:storage:write"],
            [
                "Capability changes:",
                "  + kaged:storage:write    (NEW)  !! WIDENS what it may do",
                "        read and write its own tables in the host's storage",
                "  - kaged:storage:read    (REMOVED)",
            ],
        ),
        # Wider although nothing was added.
        (
            ["write:fs:/a", "read:fs:/a/b"],
            ["write:fs:/a"],
            [
                "Capability changes:",
                "  - read:fs:/a/b    (REMOVED)",
                "  !! Removing these widens what it may do: a narrower entry is gone",
            ],
        ),
        # Narrower.
        (
            ["read:fs:/a"],
            ["read:fs:/a/b"],
            [
                "Capability changes:",
                "  + read:fs:/a/b    (NEW)",
                "        read everything in /a/b",
                "  - read:fs:/a    (REMOVED)",
            ],
        ),
        (["net:h.test:1"], [], ["Capability changes:", "  - net:h.test:1    (REMOVED)"]),
    ],
)
def test_every_kind_of_change_has_its_lines(
    old: list[str], new: list[str], lines: list[str]
) -> None:
    change = diff(parse_capabilities(old), parse_capabilities(new))
    added, removed = describe_changes(change)
    assert change_lines(added, removed, widens=change.widens) == lines


@pytest.mark.parametrize(
    ("step", "question"),
    [
        ("fetch", "Fetch notes from https://x.test? [y/N]"),
        ("install", "Install notes? [y/N]"),
        ("upgrade", "Upgrade notes 1 → 2? [y/N]"),
        ("downgrade", "Downgrade notes 1 → 2? [y/N]"),
        ("renew", "Accept the changed files of notes? [y/N]"),
        ("use", "Let this project use notes? [y/N]"),
        ("path", "notes: https://x.test. Path of the plugin's directory?"),
    ],
)
def test_every_step_has_its_question(step: str, question: str) -> None:
    assert consent_question(step, "notes", source="https://x.test", old="1", new="2") == question


# -- denials -------------------------------------------------------------------------------------

NOTHING = CagePolicy()


@pytest.mark.parametrize(
    ("decision", "words", "fix"),
    [
        (
            decide_tool([FsRequirement(RO)], NOTHING, [PathFact("./x", "/p/x")]),
            "not allowed: ro:fs:./x",
            "grant ro on ./x",
        ),
        (
            decide_tool([FsRequirement(RW)], NOTHING, [PathFact("./x", "/p/x")]),
            "not allowed: rw:fs:./x",
            "grant rw on ./x",
        ),
        (
            decide_tool([NetRequirement(NetTarget("h.test", 1))], NOTHING),
            "not allowed: net:h.test:1",
            "add h.test:1 to the cage's net.allow",
        ),
        (
            decide_tool([CapabilityRequirement("shell")], NOTHING),
            "not allowed: shell",
            "add shell to the cage's capabilities",
        ),
        (
            decide_tool([SeccompRequirement()], NOTHING),
            "not allowed: requires relaxed, have default",
            "set seccomp: relaxed for the cage",
        ),
        (
            decide_net((), "h.test", 1),
            "not allowed: net:h.test:1",
            "grant net:h.test:1",
        ),
        (
            decide_address([NetTarget("h.test", 1)], "h.test", 1, "10.0.0.7"),
            "not allowed: net:h.test:1 leads to the private address 10.0.0.7",
            "grant net:10.0.0.7:1 as well, if that is meant",
        ),
        (
            decide_service(frozenset(), parse_service_id("gog.email")),
            "not allowed: gog.email",
            "declare gog.email in the skill's capabilities",
        ),
        (
            decide_offer(parse_namespace("imap"), parse_service_id("gog.email")),
            "not allowed: imap may not offer gog.email",
            "",
        ),
        (
            decide_extension(frozenset(), ExtensionCapability.READ_HEADERS),
            "not allowed: read_headers",
            "add read_headers to the plugin's capabilities",
        ),
        (
            decide_power(frozenset(), LuaPower.EXEC),
            "not allowed: exec",
            "grant exec in [plugins.capabilities] and let the script ask",
        ),
        (broken("some.rule", KeyError("secret")), "not allowed: the permission check failed", ""),
        (Decision.deny("some.rule", ""), "denied by some.rule", ""),
    ],
)
def test_every_kind_of_denial_has_its_sentence(decision: Decision, words: str, fix: str) -> None:
    sentence = describe_denial(decision)
    assert (sentence.words, sentence.fix) == (words, fix)
    assert sentence.severity is SentenceSeverity.WARNING
    with pytest.raises(CapabilityDenied, match=f"^{re.escape(words)}"):
        require(decision)


def test_a_policy_refuses_in_its_own_words() -> None:
    sentence = describe_policy_refusal("guard", "not today", "ask")
    assert (sentence.words, sentence.fix) == ("the policy guard refused: not today", "ask")


def test_a_remedy_for_others_says_whose_it_is() -> None:
    assert operator_fix("grant rw on ./x") == "the operator can change this: grant rw on ./x"
    assert operator_fix("") == ""
    assert not_allowed("net:h.test:1") == "not allowed: net:h.test:1"


class TeapotDenied(CapabilityDenied):
    code: ClassVar[str] = "teapot"


def test_an_allowed_decision_lets_the_caller_go_on() -> None:
    require(Decision.allow("tool.fs", "ro:fs:./x"))


def test_a_denial_raises_with_rule_detail_and_remedy() -> None:
    decision = Decision.deny("tool.fs", "rw:fs:./x", "grant rw on ./x")
    with pytest.raises(CapabilityDenied) as caught:
        require(decision)
    assert caught.value.code == "capability_denied"
    assert caught.value.message == "not allowed: rw:fs:./x"
    assert caught.value.fix == "grant rw on ./x"
    assert caught.value.data == {"rule": "tool.fs", "detail": "rw:fs:./x"}
    with pytest.raises(CapabilityDenied) as caught:
        require(decision, Sentence("in other words"))
    assert (caught.value.message, caught.value.fix) == ("in other words", None)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("capability_denied", CapabilityDenied),
        ("seccomp_insufficient", SeccompInsufficient),
        ("teapot", TeapotDenied),
        ("a code without a class", CapabilityDenied),
    ],
)
def test_the_code_of_a_denial_chooses_its_error(code: str, kind: type[CapabilityDenied]) -> None:
    with pytest.raises(CapabilityDenied) as caught:
        require(Decision.deny("r", "d", code=code))
    assert type(caught.value) is kind


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        (None, "no cage"),
        (CagePolicy(), "reads only, no network"),
        (CagePolicy(fs=(FsGrant("/p", RW),)), "writes the project, no network"),
        (CagePolicy(fs=(FsGrant("/", RW),)), "writes the project, no network"),
        (
            CagePolicy(fs=(FsGrant("/p", RO), FsGrant("/p/out", RW))),
            "writes some folders, no network",
        ),
        (CagePolicy(fs=(FsGrant("/pp", RO),), net=(NetTarget("a", 1),)), "reads only, 1 host"),
        (CagePolicy(net=(NetTarget("a", 1), NetTarget("b", 1))), "reads only, 2 hosts"),
        (CagePolicy(net=(NetTarget(None, None),)), "reads only, any host"),
    ],
)
def test_a_policy_in_a_few_words(policy: CagePolicy | None, words: str) -> None:
    assert brief_policy(policy, "/p") == words
