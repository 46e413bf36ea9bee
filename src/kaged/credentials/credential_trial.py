"""`TrialRun`: asks a credential's host from a cage, in the way that a program of an agent would."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import sys
from typing import TYPE_CHECKING, Final, cast
from urllib.parse import quote

from kaged.base import JsonObject
from kaged.base.lazy_dataclass import dataclass
from kaged.cage import CageKind, CageRequest, Pipes, Spawner
from kaged.cage.collect import collect
from kaged.kernel.bindings import Place, PlaceKind
from kaged.kernel.policy import CagePolicy

if TYPE_CHECKING:
    from kaged.config.credentials_section import CredentialSection
    from kaged.credentials.cage_kit import CageKits

TRIAL_S: Final = 30.0
SAID_LIMIT_BYTES: Final = 64 * 1024
_PYTHON: Final = os.path.realpath(sys.executable)
_QUESTION: Final = "KAGED_CREDENTIAL_TEST"

_PROGRAM: Final = """
import json, os, urllib.error, urllib.request
url, headers = json.loads(os.environ["KAGED_CREDENTIAL_TEST"])
class Stay(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_):
        return None
opener = urllib.request.build_opener(Stay, urllib.request.ProxyHandler({}))
try:
    answer = opener.open(urllib.request.Request(url, headers=headers), timeout=20)
except urllib.error.HTTPError as error:
    answer = error
except OSError as error:
    print(json.dumps({"failed": str(error)}))
    raise SystemExit
refused = answer.headers.get("kaged-refused")
said = answer.read(4096).decode("utf-8", "replace") if refused else ""
print(json.dumps({"status": answer.status, "refused": refused, "said": said}))
"""


@dataclass(frozen=True, slots=True)
class TrialOutcome:
    """How a test went: what the host answered, or why nothing was sent."""

    host: str
    path: str
    status: int | None
    refused: str | None
    detail: str

    @property
    def ok(self) -> bool:
        """Whether the host took the credential, as far as its status tells."""
        refusals = (401, 403)
        return self.status is not None and self.refused is None and self.status not in refusals

    def as_json(self) -> JsonObject:
        """Return it for programs."""
        return {
            "host": self.host,
            "path": self.path,
            "ok": self.ok,
            "status": self.status,
            "refused": self.refused,
            "detail": self.detail,
        }


class TrialRun:
    """Runs such tests, each in a cage of its own that reaches the credential's hosts alone."""

    def __init__(self, spawner: Spawner, kits: CageKits) -> None:
        self._spawner = spawner
        self._kits = kits

    async def ask(self, name: str, section: CredentialSection, path: str) -> TrialOutcome:
        """Send a GET for `path` to the first host, with the placeholder in the first place."""
        kit = self._kits.trial(name, section)
        held = kit.held.by_name(name)
        assert held is not None
        first, place = section.hosts[0], section.place[0]
        url = f"{'https' if first.tls else 'http'}://{first.text}{path}"
        headers: dict[str, str] = {}
        if place.kind is PlaceKind.QUERY:
            url += f"{'&' if '?' in path else '?'}{quote(place.name)}={held.placeholder}"
        else:
            headers[place.header] = _header(place, section.user, held.placeholder)
        request = CageRequest(
            f"test of {name}",
            CagePolicy(net=kit.targets, credentials=kit.names),
            (_PYTHON, "-I", "-c", _PROGRAM),
            kind=CageKind.SERVER,
            fixed_env=(*kit.env, (_QUESTION, json.dumps([url, headers]))),
            files=kit.files,
            bound=kit.bound,
            stdio=Pipes(),
        )
        try:
            async with asyncio.timeout(TRIAL_S):
                process = await self._spawner.spawn(request)
                done = await collect(process, limit_bytes=SAID_LIMIT_BYTES)
            said = json.loads(done.stdout)
        except TimeoutError:
            return TrialOutcome(first.text, path, None, None, "The host did not answer in time.")
        except ValueError:
            return TrialOutcome(first.text, path, None, None, "The test did not run to its end.")
        if "failed" in said:
            return TrialOutcome(first.text, path, None, None, str(said["failed"]))
        refused = said["refused"]
        return TrialOutcome(first.text, path, said["status"], refused, _words(said["said"]))


def _header(place: Place, user: str, placeholder: str) -> str:
    match place.kind:
        case PlaceKind.BEARER:
            return f"Bearer {placeholder}"
        case PlaceKind.BASIC:
            pair = f"{place.name or user}:{placeholder}"
        case PlaceKind.BASIC_USER:
            pair = f"{placeholder}:"
        case _:
            return f"{place.prefix}{placeholder}"
    return f"Basic {base64.b64encode(pair.encode()).decode()}"


def _words(body: str) -> str:
    """Return the sentence of the gate's refusal."""
    try:
        error = cast("JsonObject", json.loads(body))["error"]
    except (ValueError, KeyError, TypeError):
        return ""
    return str(error.get("message", "")) if isinstance(error, dict) else ""
