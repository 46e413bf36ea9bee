"""A bridge in thirty lines: each person's letters, out of one file that only the bridge reads."""

import json
import os
from pathlib import Path

from kaged.sdk.bridge import Bridge, BridgeCall, InvalidInput, NotLinked

LETTERS = Path(os.environ["LETTERS"])

bridge = Bridge()
box = bridge.capability("post.box", "A person's letters.", sensitive=True)


@box.auth_begin
def begin(call: BridgeCall) -> dict[str, object]:
    return {"auth_url": "https://post.example/agree"}


@box.auth_complete
def complete(call: BridgeCall) -> dict[str, object]:
    if call.code != "agreed":
        raise InvalidInput("that is not the code that the page showed")
    return {"account_ref": f"acct_{call.params.get('account_hint') or 'post'}"}


@box.operation("list", "List the letters.")
def list_letters(call: BridgeCall) -> dict[str, object]:
    everybody = json.loads(LETTERS.read_text(encoding="utf-8"))
    if call.user_id not in everybody:
        raise NotLinked
    return {"letters": everybody[call.user_id]}


raise SystemExit(bridge.run())
