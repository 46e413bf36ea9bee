from __future__ import annotations

import pytest

from kaged.config.providers import ProviderPlan, plan_providers
from kaged.kernel.net import NetTarget
from kaged.kernel.policy import CageLimits, FsGrant, FsMode
from requirements import requirement
from unit.config.trials import OperatorFiles


def plan(operator: OperatorFiles, text: str) -> ProviderPlan:
    loaded = operator.config(text, {"K": "v"})
    return plan_providers(loaded.value.skills, loaded.value.capabilities, loaded.provenance)


@requirement("SC-CFG-01")
def test_an_enabled_bundled_skill_brings_its_provider(operator: OperatorFiles) -> None:
    (gog,) = plan(operator, "[skills.gog]\nenabled = true\n").providers
    assert (gog.name, gog.namespace, gog.command, gog.timeout_s) == (
        "gog",
        "gog",
        ("gogcli", "bridge"),
        30,
    )
    # Only an explicit true does it, and only for a skill that ships one.
    assert plan(operator, "[skills.gog]\nmodel = 'x'\n").providers == ()
    assert plan(operator, "[skills.other]\nenabled = true\n").providers == ()


@requirement("SC-CFG-02")
@pytest.mark.parametrize(
    ("line", "field", "value"),
    [
        ('namespace = "mine"', "namespace", "mine"),
        ('command = ["other"]', "command", ("other",)),
        ("timeout_seconds = 5", "timeout_s", 5),
    ],
)
def test_each_override_changes_only_its_own_field(
    operator: OperatorFiles, line: str, field: str, value: object
) -> None:
    (default,) = plan(operator, "[skills.gog]\nenabled = true\n").providers
    text = f"[skills.gog]\nenabled = true\n[skills.gog.capability_provider]\n{line}\n"
    (changed,) = plan(operator, text).providers
    assert getattr(changed, field) == value
    for other in ("name", "namespace", "command", "timeout_s", "env", "cage"):
        if other != field:
            assert getattr(changed, other) == getattr(default, other)
    off = text.replace(line, "enabled = false")
    assert plan(operator, off) == ProviderPlan((), ())


@requirement("SC-AMB-29")
@pytest.mark.parametrize(
    ("skill", "section", "command", "timeout", "namespace"),
    [
        ("", "", ("gogcli", "bridge"), 30, "gog"),
        ("", 'command = ["b"]', ("b",), 30, "gog"),
        ("", "timeout_seconds = 9", ("gogcli", "bridge"), 9, "gog"),
        ('command = ["s"]', 'command = ["b"]', ("s",), 30, "gog"),
        ('command = ["s"]', "timeout_seconds = 9", ("s",), 9, "gog"),
        ("timeout_seconds = 7", 'command = ["b"]\ntimeout_seconds = 9', ("b",), 7, "gog"),
        ('namespace = "n"', 'namespace = "m"', ("gogcli", "bridge"), 30, "n"),
        ("", 'namespace = "m"', ("gogcli", "bridge"), 30, "m"),
    ],
)
def test_the_three_places_are_merged_key_by_key(
    operator: OperatorFiles,
    skill: str,
    section: str,
    command: tuple[str, ...],
    timeout: float,
    namespace: str,
) -> None:
    text = "[skills.gog]\nenabled = true\n"
    if skill:
        text += f"[skills.gog.capability_provider]\n{skill}\n"
    if section:
        text += f"[capabilities.providers.gog]\n{section}\n"
    (found,) = plan(operator, text).providers
    assert (found.command, found.timeout_s, found.namespace) == (command, timeout, namespace)


def test_a_switched_off_skill_has_no_provider_unless_the_host_has_its_own(
    operator: OperatorFiles,
) -> None:
    off = '[skills.gog]\nenabled = false\n[skills.gog.capability_provider]\ncommand = ["s"]\n'
    assert plan(operator, off).providers == ()
    own = plan(operator, off + '[capabilities.providers.gog]\ncommand = ["b"]\n').providers
    assert [provider.command for provider in own] == [("b",)]


@requirement("SC-CFG-05")
def test_the_timeout_is_a_number_from_1_to_300(operator: OperatorFiles) -> None:
    base = '[capabilities.providers.p]\ncommand = ["x"]\n'
    assert plan(operator, base).providers[0].timeout_s == 30
    for good in ("1", "300", "2.5"):
        assert plan(operator, f"{base}timeout_seconds = {good}\n").providers[0].timeout_s == float(
            good
        )
    for bad in ("0", "-1", "301", '"x"', "true"):
        found = plan(operator, f"{base}timeout_seconds = {bad}\n")
        assert found.providers == ()
        assert [p.key_path for p in found.problems] == ["capabilities.providers.p.timeout_seconds"]


def test_a_bad_provider_is_reported_by_name_and_the_others_go_on(operator: OperatorFiles) -> None:
    found = plan(
        operator,
        """\
        [skills.gog]
        enabled = true
        [skills.foo.capability_provider]
        enabled = true
        [capabilities.providers.empty]
        command = []
        [capabilities.providers.Bad]
        command = ["x"]
        [skills.odd]
        enabled = "yes"
        """,
    )
    assert [provider.name for provider in found.providers] == ["gog"]
    paths = [problem.key_path for problem in found.problems]
    assert "skills.foo.capability_provider.command" in paths
    assert "capabilities.providers.empty.command" in paths
    assert "capabilities.providers.Bad" in paths
    assert "skills.odd.enabled" in paths
    (foo,) = [p for p in found.problems if p.key_path.startswith("skills.foo")]
    assert "foo" in foo.message
    assert foo.line == 3


def test_a_provider_can_have_an_environment_and_a_cage(operator: OperatorFiles) -> None:
    (found,) = plan(
        operator,
        """\
        [capabilities.providers.mail]
        command = ["mail"]
        env = { TOKEN = "${K}" }
        [capabilities.providers.mail.cage]
        fs = [{ mode = "ro", path = "/srv/mail/" }]
        net = ["imap.example.org:993"]
        limits = { memory_mb = 64 }
        """,
    ).providers
    assert found.env["TOKEN"].reveal() == "v"
    assert "'v'" not in repr(found)
    assert found.cage is not None
    policy = found.cage.policy(CageLimits())
    assert policy.fs == (FsGrant("/srv/mail", FsMode.RO),)
    assert policy.net == (NetTarget("imap.example.org", 993),)
    assert policy.limits.memory_mb == 64
    assert found.origin.line == 2


def test_skill_settings_keep_their_extras_and_chat_ids(operator: OperatorFiles) -> None:
    skills = operator.config(
        """\
        [skills.defaults]
        allow_chat_ids = "only-one"
        [skills.notes]
        allow_chat_ids = []
        vault_path = "/notes"
        """
    ).value.skills
    assert skills.good["defaults"].allow_chat_ids == ("only-one",)
    assert skills.good["notes"].allow_chat_ids == ()
    assert skills.good["notes"].extras == {"vault_path": "/notes"}
