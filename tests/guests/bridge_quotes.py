"""A bridge that repeats its secrets: the variable that the input names, in the encoding it names.

`where` is `output`, `message` (of an error), `code`, `stderr` or `key` (of an output). On its
first start it writes its key to `KEY_FILE`, for the test.
"""

import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from encodings_of_secrets import encodings  # noqa: E402 - found there

OPERATION = {"name": "quote", "description": "Repeats a secret.", "requires_auth": False}
BOX = {"id": "quotes.box", "description": "Repeats.", "operations": [OPERATION]}


def quoted(given):
    where = given["where"]
    secret = os.environ[given["variable"]]
    written = encodings(secret)[given["as"]]
    if where == "output":
        return {"result": {"output": {"note": f"it is {written}."}}}
    if where == "key":
        return {"result": {"output": {"rows": [{written: {"cookie": 1}}]}}}
    if where == "stderr":
        print(f"my secret is {written}", file=sys.stderr)
        return {"result": {"output": {}}}
    if where == "code":
        return {"error": {"code": written, "message": "no"}}
    message = f"{'x ' * 100}refused {written}"
    return {"error": {"code": "capability_invalid_input", "message": message}}


KEY = Path(os.environ["KEY_FILE"])
if not KEY.exists():  # whole or not at all: another start of it may be read already
    fresh = KEY.with_name(f"key-{os.getpid()}")
    fresh.write_text(os.environ["ASH_CONTEXT_TOKEN_SECRET"], encoding="utf-8")
    fresh.replace(KEY)
request = json.loads(sys.stdin.read())
if request["method"] == "definitions":
    said = {"result": {"definitions": [BOX]}}
else:
    said = quoted(request["params"]["input_data"])
print(json.dumps({"version": 1, "id": request["id"], **said}))
