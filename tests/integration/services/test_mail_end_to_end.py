"""A mailbox, from linking it in a browser to an agent that reads and sends from its cage."""

from __future__ import annotations

import json
import re
from email.message import EmailMessage
from pathlib import Path

import httpx

from fakes.mail_servers import deliver, dovecot, smtp_sink
from fakes.service_home import service_home
from requirements import requirement

USERS = {"ann@example.org": "ann-pass-phrase-1", "bob@example.org": "bob-pass-phrase-1"}
ANN = {"user": "ann", "chat_type": "private", "chat_id": "c-ann"}
BOB = {"user": "bob", "chat_type": "private", "chat_id": "c-bob"}


def letter(subject: str) -> EmailMessage:
    message = EmailMessage()
    message["From"], message["To"], message["Subject"] = "zoe@example.net", "x@y.example", subject
    message.set_content("See you at the pier.")
    return message


@requirement("SC-SEC-01", "SC-SEC-04")
async def test_a_mailbox_is_linked_read_and_written_without_its_password(tmp_path: Path) -> None:
    """What the cage ever sees is kept, and searched for every secret at the end."""
    with dovecot(USERS) as server, smtp_sink(USERS) as sink:
        for user in USERS:
            deliver(server, user, [letter(f"For {user}")])
        more = (
            '[capabilities.providers.imap]\ntype = "imap"\n[capabilities.providers.imap.settings]\n'
            f'imap = "127.0.0.1:{server.port}"\nsmtp = "127.0.0.1:{sink.port}"\n'
            'security = "plain"\nsent_folder = "Sent"\n'
        )
        seen: list[str] = []
        async with service_home(tmp_path, more=more) as home:

            async def run(command: str, who: dict[str, str]) -> str:
                done = await home.run(f"{command}; echo rc=$?; env", **dict(who))
                seen.append(done["stdout"])
                return str(done["stdout"])

            def invoke(operation: str, **given: object) -> str:
                data = json.dumps(given)
                return (
                    f"ash-sb capability invoke -c imap.email -o {operation} --input-json '{data}'"
                )

            for who, address in ((ANN, "ann@example.org"), (BOB, "bob@example.org")):
                begun = await run("ash-sb capability auth begin -c imap.email --account work", who)
                flow = re.search(r"flow_id=(caf_\w+)", begun)
                url = re.search(r"Auth URL: (\S+)", begun)
                assert flow is not None
                assert url is not None
                async with httpx.AsyncClient(trust_env=False, timeout=60) as browser:
                    page = await browser.post(
                        url[1], data={"email": address, "password": USERS[address]}
                    )
                code = re.search(r"<code>([^<]+)</code>", page.text)
                assert code is not None, page.text
                complete = f"ash-sb capability auth complete --flow-id {flow[1]} --code {code[1]}"
                assert "account_ref=acct_work" in await run(complete, who)
            anns = await run(invoke("list"), ANN)
            assert "For ann@example.org" in anns
            assert "For bob@example.org" not in anns
            read = await run(invoke("read", uid=1), BOB)
            assert "See you at the pier." in read
            sent = await run(invoke("send", to=["zoe@example.net"], subject="Hi", text="x"), ANN)
            assert "rc=0" in sent, sent
            assert sink.letters[-1].mail_from == "ann@example.org"
            for operation, given in (
                ("folders", {}),
                ("search", {"subject": "For"}),
                ("draft", {"text": "later"}),
                ("move", {"uids": [1], "to_folder": "Drafts"}),
            ):
                assert "rc=0" in await run(invoke(operation, **given), ANN), seen[-1]
            listed = await run("ash-sb capability list", ANN)
            assert "acct_work (ann@example.org)" in listed
            assert "capability_invalid_input" in await run(invoke("list", limit=0), ANN)
            group = {**ANN, "chat_type": "group"}
            assert "capability_access_denied" in await run(invoke("list"), group)
            stored = b"".join(
                path.read_bytes() for path in (tmp_path / "home").rglob("*") if path.is_file()
            )
            everything = "\n".join(seen).encode() + stored
    for secret in USERS.values():
        assert secret.encode() not in everything
