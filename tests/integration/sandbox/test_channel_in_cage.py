"""ash-sb in real cages: who gets a token and a channel, and who does not."""

from __future__ import annotations

import shlex
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from fakes.channel_lab import KEY, ChannelLab, EchoMethods, channel_lab
from fakes.tool_lab import RecordedAudit
from kaged.base import SystemClock
from kaged.kernel.identity import Actor, VouchedBy
from kaged.wire.tokens import mint_token
from requirements import requirement

LIST = "ash-sb capability list"
WHO = "ash-sb capability invoke -c a.b -o who --json"


@pytest.fixture
def methods() -> EchoMethods:
    return EchoMethods(SystemClock())


@pytest.fixture
def audit() -> RecordedAudit:
    return RecordedAudit()


@pytest.fixture
async def lab(
    tmp_path: Path, methods: EchoMethods, audit: RecordedAudit
) -> AsyncIterator[ChannelLab]:
    async with channel_lab(tmp_path, methods, audit=audit) as made:
        yield made


async def test_a_command_of_a_granted_agent_acts_for_its_person(
    lab: ChannelLab, methods: EchoMethods
) -> None:
    done = await lab.run(WHO)
    assert (done["exit_code"], '"user": "ann"' in done["stdout"]) == (0, True), done
    ((_, token, _),) = methods.calls
    assert token.routing.chat_id == "c-ann"
    assert token.routing.session_key == "ses_1"
    assert token.expires_at - token.issued_at == 300


async def test_every_command_gets_a_token_of_its_own(lab: ChannelLab) -> None:
    said = [(await lab.run('printf %s "$ASH_CONTEXT_TOKEN"'))["stdout"] for _ in range(2)]
    assert len(set(said)) == 2
    assert all(one.count(".") == 2 for one in said)


async def test_a_long_command_gets_a_token_that_lives_as_long(
    lab: ChannelLab, methods: EchoMethods
) -> None:
    await lab.run(LIST, timeout=600_000)
    token = methods.calls[0][1]
    assert token.expires_at - token.issued_at == 630


async def test_nobody_gets_a_token_without_the_grant_a_cage_and_a_person(lab: ChannelLab) -> None:
    dump = "env; command -v ash-sb; true"
    ungranted = await lab.run(dump, capabilities=("shell",))
    uncaged = await lab.run("env", caged=False)
    assert "ASH_" not in ungranted["stdout"] + uncaged["stdout"]
    assert "ash-sb" not in ungranted["stdout"]
    for nobody in (None, Actor(" ", VouchedBy.BEARER)):
        said = await lab.run(f"env | grep ASH_; {LIST}", identity=nobody)
        assert said["exit_code"] == 1
        assert said["stdout"].startswith("Error: ASH_CONTEXT_TOKEN is not set")


async def test_the_daemons_own_signing_secret_stays_with_the_daemon(
    lab: ChannelLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASH_CONTEXT_TOKEN_SECRET", "s3cret-of-the-host-s3cret")
    inside = await lab.run("env; cat /proc/*/environ")
    outside = await lab.run("env", caged=False)
    for said in (inside["stdout"], outside["stdout"]):
        assert "s3cret" not in said
        assert "ASH_CONTEXT_TOKEN_SECRET" not in said


async def test_a_command_cannot_choose_its_token_or_channel(
    lab: ChannelLab, methods: EchoMethods
) -> None:
    forged = {"ASH_CONTEXT_TOKEN": "a.b.c", "ASH_RPC_PORT": "1", "PATH": "/usr/bin:/bin"}
    done = await lab.run(WHO, env=forged)
    assert done["exit_code"] == 0
    assert methods.calls[0][1].effective_user_id == "ann"


async def test_a_good_token_of_another_cage_is_refused_and_put_on_record(
    lab: ChannelLab, methods: EchoMethods, audit: RecordedAudit
) -> None:
    """What leaks out of one command, into a transcript for example, opens nothing elsewhere."""
    others = mint_token(KEY, "bob", clock=SystemClock())
    done = await lab.run(f"ASH_CONTEXT_TOKEN={others} {LIST}")
    assert done["exit_code"] == 1
    assert done["stdout"].startswith("Error: Invalid context token (claims)")
    assert methods.calls == []
    assert [one["reason"] for one in audit.of("capability_token_rejected")] == ["claims"]
    assert others not in repr(audit.events)


async def test_the_channel_ends_with_the_command(lab: ChannelLab, methods: EchoMethods) -> None:
    await lab.run(f"(sleep 60; {LIST}) & true")
    assert methods.calls == []
    assert not lab.spawner.running


async def test_many_at_once_are_all_answered(lab: ChannelLab, methods: EchoMethods) -> None:
    one = shlex.quote(f"{WHO} >/dev/null && echo done")
    done = await lab.run(f"seq 12 | xargs -P 12 -I{{}} sh -c {one} | wc -l")
    assert done["stdout"].strip() == "12", done
    assert len(methods.calls) == 12


@requirement("SC-CLI-07")
async def test_ash_sb_opens_one_channel_and_loads_guest_code_only(lab: ChannelLab) -> None:
    look = (
        "import sys; sys.path.insert(0, '/opt/kaged/ash/lib'); sys.argv[1:] = ['capability','list']"
        "; opened = []; sys.addaudithook(lambda name, args: opened.append((name, args[1:])) "
        "if name in ('socket.connect', 'subprocess.Popen', 'os.system', 'os.exec') else None)"
        "; from kaged.sandbox.main import main; main(); print(opened)"
        "; own = [m for m in sys.modules if m.split('.')[0] == 'kaged']; print(sorted(own))"
        "; print([m for m in sys.modules if getattr(sys.modules[m], '__file__', None)"
        " and 'site-packages' in sys.modules[m].__file__])"
    )
    done = await lab.run(f'python3 -IS -c "{look}"')
    said = done["stdout"].splitlines()
    assert said[0] == "No capabilities available.", done
    assert said[1] == "[('socket.connect', (('127.0.0.1', 731),))]"
    assert all(
        one == "kaged" or one.startswith("kaged.sandbox")
        for one in said[2].strip("[]'").split("', '")
    )
    assert said[3] == "[]"
    found = await lab.run("find / -xdev -name '*vault*' -not -path '/usr/*' -not -path '/proc/*'")
    assert "vault" not in found["stdout"]


async def test_a_host_without_a_system_python_uses_the_daemons_own(tmp_path: Path) -> None:
    async with channel_lab(tmp_path, pythons=("/usr/bin/python3.2", sys.executable)) as lab:
        done = await lab.run(WHO)
    assert done["exit_code"] == 0, done
