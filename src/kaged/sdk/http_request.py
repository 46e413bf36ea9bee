"""`http_request`: one HTTP request to a service, for plugins that mostly wait.

Libraries for HTTP and TLS take as much memory as a whole plugin. So they are loaded by a child that
makes one request and ends; it can also be given up at any time. The cage decides where it may
connect.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from typing import Any, NamedTuple

LIMIT_BYTES = 2 * 1024 * 1024
PATIENCE_S = 20


class HttpUnreachable(Exception):
    """There was no answer: nobody listens, the cage does not allow it, or it took too long."""


class HttpAnswer(NamedTuple):
    """What the service said; `headers` have lower-case names."""

    status: int
    headers: dict[str, str]
    text: str

    def json(self) -> Any:
        """Return the text read as JSON; None when it is none."""
        try:
            return json.loads(self.text)
        except ValueError:
            return None


def http_request(
    method: str,
    url: str,
    headers: dict[str, str] | None = None,
    body: Any = None,
    patience_s: int = PATIENCE_S,
) -> HttpAnswer:
    """Make a request; `body` is sent as JSON. Redirects are not followed: they are an answer.

    Raises HttpUnreachable when there is none.
    """
    asked = {"method": method, "url": url, "headers": headers or {}, "body": body}
    job = json.dumps({**asked, "patience_s": patience_s}).encode()
    job_out, job_in = os.pipe()
    answer_out, answer_in = os.pipe()
    command = [sys.executable, "-I", "-S", __file__]
    try:
        child = os.posix_spawn(  # noqa: TID251 - inside the cage already, which the child cannot leave
            sys.executable,
            command,
            dict(os.environ),
            file_actions=[
                (os.POSIX_SPAWN_DUP2, job_out, 0),
                (os.POSIX_SPAWN_DUP2, answer_in, 1),
            ],
        )
    finally:
        os.close(job_out)
        os.close(answer_in)
    try:
        with contextlib.suppress(BrokenPipeError), os.fdopen(job_in, "wb") as pipe:
            pipe.write(job)
        with os.fdopen(answer_out, "rb") as pipe:
            said = pipe.read()
    finally:
        os.waitpid(child, 0)
    try:
        found = json.loads(said)
    except ValueError:
        raise HttpUnreachable(f"no answer within {patience_s} s") from None
    if "error" in found:
        raise HttpUnreachable(found["error"])
    return HttpAnswer(found["status"], found["headers"], found["text"])


def _make() -> dict[str, Any]:
    import http.client  # noqa: PLC0415 - for the child alone
    import signal  # noqa: PLC0415 - see above
    from urllib.parse import urlsplit  # noqa: PLC0415 - see above

    job = json.loads(sys.stdin.buffer.read())
    signal.alarm(job["patience_s"])  # ends the process, whatever it waits for
    address = urlsplit(job["url"])
    if address.scheme not in ("http", "https") or not address.hostname:
        return {"error": "the address must begin with http:// or https://"}
    kind = http.client.HTTPSConnection if address.scheme == "https" else http.client.HTTPConnection
    headers = {"User-Agent": "kaged-plugin", "Accept": "application/json", **job["headers"]}
    body = None
    if job["body"] is not None:
        body = json.dumps(job["body"]).encode()
        headers["Content-Type"] = "application/json"
    path = (address.path or "/") + (f"?{address.query}" if address.query else "")
    try:
        connection = kind(address.hostname, address.port, timeout=job["patience_s"])
        connection.request(job["method"], path, body, headers)
        response = connection.getresponse()
        data = response.read(LIMIT_BYTES + 1)
    except (OSError, http.client.HTTPException) as error:
        return {"error": f"{address.hostname}: {error or type(error).__name__}"}
    if len(data) > LIMIT_BYTES:
        return {"error": f"the answer has more than {LIMIT_BYTES} bytes"}
    return {
        "status": response.status,
        "headers": {name.lower(): value for name, value in response.getheaders()},
        "text": data.decode("utf-8", "replace"),
    }


if __name__ == "__main__":
    json.dump(_make(), sys.stdout)
