"""A sidecar that repeats its secrets: what the input names, in the encoding that it names.

`what` is `typed` (what the person typed in to link the account) or a variable of its environment,
`where` is `output`, `message` (of an error), `stderr` or `key` (of an output). Every process
leaves its key in the folder `KEYS`, for the test.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from kaged.sdk.bridge import Bridge, BridgeCall, InvalidInput

sys.path.insert(0, str(Path(__file__).parents[1]))

from encodings_of_secrets import encodings

KEY = os.environ["ASH_CONTEXT_TOKEN_SECRET"]
sidecar = Bridge()
box = sidecar.capability("shadow.box", "Repeats.")


@box.auth_begin
def begin(call: BridgeCall) -> dict[str, Any]:
    return {"fields": [{"name": "pin", "label": "PIN", "secret": True}]}


@box.auth_submit
def submit(call: BridgeCall) -> dict[str, Any]:
    pin = call.params["values"]["pin"]
    if pin.startswith("wrong"):
        raise InvalidInput(f"{pin} is not the PIN")
    return {"account_ref": "acct_shadow", "metadata": {"account_name": "Shadow"}}


@box.operation("quote", "Repeats a secret.")
def quote(call: BridgeCall) -> dict[str, Any]:
    Path(os.environ["KEYS"], str(os.getpid())).write_text(KEY, encoding="utf-8")
    what, where = call.input["what"], call.input["where"]
    secret = call.credentials["pin"] if what == "typed" else os.environ[what]
    written = encodings(secret)[call.input["as"]]
    if where == "output":
        return {"note": f"it is {written}."}
    if where == "key":
        return {"rows": [{written: 1}]}
    if where == "message":
        raise InvalidInput(f"refused {written}")
    sys.stderr.write(f"my secret is {written}\n")
    sys.stderr.flush()
    return {}


raise SystemExit(sidecar.run())
