"""People's letters, from an agent's cage through ash-sb and the host to a bridge and back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from fakes.service_home import ServiceHome, service_home
from requirements import requirement

GUESTS = Path(__file__).parents[2] / "guests"
LIST = "ash-sb capability invoke -c post.box -o list"
ANN = {"user": "ann", "chat_type": "private", "chat_id": "c-ann"}
BOB = {"user": "bob", "chat_type": "private", "chat_id": "c-bob"}


@pytest.fixture
async def home(tmp_path: Path) -> AsyncIterator[ServiceHome]:
    async with service_home(tmp_path) as made:
        yield made


@requirement("SC-ISO-10")
async def test_the_same_skill_gives_each_person_their_own_letters(home: ServiceHome) -> None:
    """Two people, one command line, real ash-sb processes in real cages, at the same time."""
    unlinked = await home.run(LIST, **ANN)
    assert unlinked["exit_code"] == 1
    assert unlinked["stdout"].startswith("Error: capability_auth_required")
    await home.link(**ANN)
    anns = await home.run(LIST, **ANN)
    assert anns["exit_code"] == 0, anns
    assert "the boat leaves at nine" in anns["stdout"]
    bobs = await home.run(LIST, **BOB)
    assert bobs["stdout"].startswith("Error: capability_auth_required")
    assert "boat" not in bobs["stdout"]
    listed = await home.run("ash-sb capability list", **BOB)
    assert "Authenticated: no" in listed["stdout"]
    assert "acct" not in listed["stdout"]
    await home.link(**BOB)
    many = 8
    loop = f"for n in $(seq {many}); do {LIST} --json || exit 1; done"
    said = await asyncio.gather(*(home.run(loop, **dict(who)) for who in (ANN, BOB)))
    for one, own in zip(
        said, ("Dear Ann, the boat leaves at nine.", "Bob, bring rope."), strict=True
    ):
        assert one["exit_code"] == 0, one
        answers = [json.loads(line) for line in one["stdout"].splitlines()]
        assert [answer["output"]["letters"] for answer in answers] == [[own]] * many


@requirement("SC-POL-02")
async def test_a_group_chat_is_refused_and_learns_nothing(home: ServiceHome) -> None:
    await home.link(**ANN)
    for chat_type in ("group", "supergroup"):
        group = {"user": "ann", "chat_type": chat_type, "chat_id": "g-1"}
        refused = await home.run(LIST, **dict(group))
        assert refused["exit_code"] == 1
        assert refused["stdout"].startswith("Error: capability_access_denied")
        listed = await home.run("ash-sb capability list --all", **dict(group))
        assert "Available: no" in listed["stdout"]
        assert "acct" not in listed["stdout"]
        assert (
            "No capabilities" in (await home.run("ash-sb capability list", **dict(group)))["stdout"]
        )
    denied = await home.audit("capability_invoke")
    assert {one["data"]["outcome"] for one in denied} == {"denied"}


@requirement("SC-AMB-38")
async def test_whose_session_it_is_decides_who_acts(home: ServiceHome) -> None:
    """The operator's own listeners, a named front end, and anybody else."""
    own = await home.run("ash-sb capability auth begin -c post.box --json")
    assert own["exit_code"] == 0, own
    stated = await home.run("ash-sb capability auth begin -c post.box", **ANN)
    assert stated["exit_code"] == 0
    silent = await home.run("ash-sb capability auth begin -c post.box", user="ann")
    assert silent["stdout"].startswith("Error: capability_access_denied")
    await home.link()  # as the operator
    # The same headers from somewhere else change nothing: it is still the operator.
    stranger = await home.run(LIST, address="10.9.8.7", **ANN)
    assert "To whom it may concern" in stranger["stdout"]
    assert "boat" not in stranger["stdout"]


@requirement("SC-SEC-07")
async def test_the_cage_holds_a_token_an_address_and_nothing_else(home: ServiceHome) -> None:
    await home.link(**ANN)
    said = await home.run(f"env; {LIST}", **ANN)
    names = {line.partition("=")[0] for line in said["stdout"].splitlines() if "=" in line}
    ordinary = {
        *("PATH", "HOME", "LANG", "TMPDIR", "XDG_CACHE_HOME", "USER", "LOGNAME", "TERM", "PWD"),
        *("NO_COLOR", "PAGER", "GIT_PAGER", "GIT_TERMINAL_PROMPT", "DEBIAN_FRONTEND"),
        *("SHLVL", "_", "OLDPWD"),
    }
    extra = {one for one in names - ordinary if one.isidentifier() and one.isupper()}
    assert extra == {"ASH_CONTEXT_TOKEN", "ASH_RPC_HOST", "ASH_RPC_PORT"}
    assert "the boat leaves" in said["stdout"]


async def test_an_agent_without_the_grant_has_nothing_to_ask_with(home: ServiceHome) -> None:
    agent = "primary.subagents.outsider"
    said = await home.run("command -v ash-sb || echo none; env", agent, **ANN)
    assert said["stdout"].startswith("none")
    assert "ASH_" not in said["stdout"]


async def test_a_token_that_leaked_into_a_transcript_opens_nothing(home: ServiceHome) -> None:
    """Bob's agent has seen Ann's token; in Bob's cage, and in any later one, it is refused."""
    await home.link(**ANN)
    leaked = (await home.run('printf %s "$ASH_CONTEXT_TOKEN"', **ANN))["stdout"]
    for who in (BOB, ANN):
        said = await home.run(f"ASH_CONTEXT_TOKEN={leaked} {LIST}", **dict(who))
        assert said["stdout"].startswith("Error: Invalid context token (claims)")
    rejected = await home.audit("capability_token_rejected")
    assert {one["data"]["reason"] for one in rejected} == {"claims"}
    everything = json.dumps(await home.audit("tool.called")) + json.dumps(rejected)
    assert leaked.rpartition(".")[2] not in everything


@requirement("SC-BRG-22")
async def test_the_bridge_is_out_of_the_cages_reach(home: ServiceHome, tmp_path: Path) -> None:
    """Its process, file and secret are not there, and the program alone has no secret."""
    await home.link(**ANN)
    letters = tmp_path / "letters.json"
    look = (
        f"{LIST} >/dev/null & ps -ef; cat /proc/*/cmdline | tr '\\0' ' '; cat {letters};"
        " cat /proc/*/environ | tr '\\0' '\\n'; wait"
    )
    said = (await home.run(look, **ANN))["stdout"]
    assert "bridge.py" not in said
    assert "bring rope" not in said
    assert "ASH_CONTEXT_TOKEN_SECRET" not in said
    # A bridge of one's own, started inside with one's own token, has nothing to check it with.
    own = (GUESTS / "bridge_g1.py").read_text(encoding="utf-8")
    (tmp_path / "project" / "own.py").write_text(own, encoding="utf-8")
    request = (
        '{"version": 1, "id": "x", "namespace": "post", "method": "invoke", "params": '
        '{"context_token": "\'$ASH_CONTEXT_TOKEN\'", "account_ref": "acct_post"}}'
    )
    alone = await home.run(f"echo '{request}' | python3 own.py; echo rc=$?", **ANN)
    assert "not here: 'ASH_CONTEXT_TOKEN_SECRET'" in alone["stdout"]
    assert '"result"' not in alone["stdout"]
