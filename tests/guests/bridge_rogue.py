"""A bridge that misbehaves on request: what its operation is called says how."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

NAMES = (
    "fine noise two_values other_id no_id numeric_id both neither result_list result_string"
    " result_number result_true result_null error_string error_no_code error_empty_code"
    " error_no_message error_empty_message error_numeric_code version_2 version_text version_float"
    " version_null version_absent version_true extra_key not_json array bad_utf8 nan duplicate_key"
    " deep exit_3 exit_3_valid sleep flood flood_stderr crash grandchild grandchild_done deserter"
    " deserter_done leak_key leak_token quota denied long_error secret_error secret_stderr"
    " closed_pipe env fds stubborn nothing"
).split()

request = json.loads(sys.stdin.read())
ID = request["id"]


def say(value):
    print(json.dumps(value) if not isinstance(value, str) else value, flush=True)


def reply(**members):
    return {"version": 1, "id": ID, **members}


if request["method"] == "definitions":
    listed = [
        {"name": n, "description": "Something.", "requires_auth": False, "mutating": n == "crash"}
        for n in NAMES
    ]
    definition = {"id": f"{request['namespace']}.do", "description": "Do.", "operations": listed}
    say(reply(result={"definitions": [definition]}))
    sys.exit(0)

params = request["params"]
name = params["operation"]
given = params["input_data"]
fine = reply(result={"output": {"fine": True}})
marker = "MARKER-" + "x" * 8
simple = {
    "fine": fine,
    "two_values": json.dumps(fine) + json.dumps(fine),
    "other_id": {**fine, "id": "cap_bridge_0000000000000000", "m": marker},
    "no_id": {"version": 1, "result": {"m": marker}},
    "numeric_id": {**fine, "id": 7},
    "both": reply(result={"m": marker}, error={"code": "capability_x", "message": marker}),
    "neither": reply(m=marker),
    "result_list": reply(result=[marker]),
    "result_string": reply(result=marker),
    "result_number": reply(result=1),
    "result_true": reply(result=True),
    "result_null": reply(result=None),
    "error_string": reply(error=marker),
    "error_no_code": reply(error={"message": marker}),
    "error_empty_code": reply(error={"code": "", "message": marker}),
    "error_no_message": reply(error={"code": "capability_x"}),
    "error_empty_message": reply(error={"code": "capability_x", "message": " "}),
    "error_numeric_code": reply(error={"code": 7, "message": marker}),
    "version_2": {**fine, "version": 2},
    "version_text": {**fine, "version": "1"},
    "version_float": {**fine, "version": 1.5},
    "version_null": {**fine, "version": None},
    "version_absent": {"id": ID, "result": {"m": marker}},
    "version_true": {**fine, "version": True},
    "extra_key": {**fine, "features": ["x"]},
    "not_json": f"hello {marker}",
    "array": [fine],
    "nan": '{"version":1,"id":"' + ID + '","result":{"x":NaN}}',
    "duplicate_key": '{"version":1,"version":1,"id":"' + ID + '","result":{}}',
    "deep": '{"version":1,"id":"' + ID + '","result":{"x":' + "[" * 80 + "]" * 80 + "}}",
    "quota": reply(error={"code": "quota", "message": "too much"}),
    "denied": reply(error={"code": "capability_auth_flow_denied", "message": "no"}),
    "long_error": reply(error={"code": "capability_backend_unavailable", "message": "l\n" * 900}),
    "secret_error": reply(
        error={
            "code": "capability_backend_unavailable",
            "message": "Bearer abcdef0123456789abcdef " + os.environ["ASH_CONTEXT_TOKEN_SECRET"],
        }
    ),
    "leak_key": reply(result={"note": os.environ["ASH_CONTEXT_TOKEN_SECRET"]}),
    "leak_token": reply(result={"note": params["context_token"]}),
    "env": reply(
        result={
            "output": {
                "names": sorted(os.environ),
                "values": [v for k, v in os.environ.items() if k != "ASH_CONTEXT_TOKEN_SECRET"],
                "cwd": os.listdir("."),
            }
        }
    ),
    "fds": reply(result={"output": {"fds": sorted(int(n) for n in os.listdir("/proc/self/fd"))}}),
}
if name in simple:
    say(simple[name])
elif name == "noise":
    print("noise " * 1000, file=sys.stderr)
    say(fine)
elif name == "bad_utf8":
    sys.stdout.buffer.write(b'{"version":1,"id":"' + ID.encode() + b'","result":{"x":"\xff"}}')
elif name == "exit_3":
    sys.exit(3)
elif name == "exit_3_valid":
    say(fine)
    sys.exit(3)
elif name in {"sleep", "stubborn"}:
    if name == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    Path(given["pid_file"]).write_text(str(os.getpid()))
    time.sleep(600)
elif name == "flood":
    block = b"x" * 65536
    for _ in range(200 * 16):
        sys.stdout.buffer.write(block)
elif name == "flood_stderr":
    block = "y" * 65536
    for _ in range(32):
        sys.stderr.write(block)
    say(fine)
elif name == "crash":
    os.kill(os.getpid(), signal.SIGKILL)
elif name in {"grandchild", "grandchild_done"}:
    child = subprocess.Popen(["sleep", "600"])  # keeps our standard output open
    Path(given["pid_file"]).write_text(str(child.pid))
    if name == "grandchild_done":
        say(fine)
    else:
        time.sleep(600)
elif name in {"deserter", "deserter_done"}:
    # Leaves our group, our session and our pipes, and is no child of ours any more.
    leave = f"setsid sleep 600 >/dev/null 2>&1 </dev/null & echo $! > {given['pid_file']}"
    subprocess.run(["sh", "-c", leave], check=True)
    if name == "deserter_done":
        say(fine)
    else:
        time.sleep(600)
elif name == "secret_stderr":
    print("the key is", os.environ["ASH_CONTEXT_TOKEN_SECRET"], file=sys.stderr)
    say(fine)
elif name == "closed_pipe":
    os.close(1)
    time.sleep(0.05)
    os._exit(0)
