"""Files of tools with a placeholder in them: `.netrc`, `.npmrc`, `pip.conf`, Git's configuration.

Pure. They lie in a folder that is the cage's own, never in the project or in anybody's home, and
tools find them by variables; only `.netrc` lies in the cage's scratch home as well, because some
tools look nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from kaged.base.lazy_dataclass import dataclass
from kaged.cage import ShownFile
from kaged.cage.layout import SCRATCH
from kaged.config.credentials_section import CredentialFile, CredentialSection
from kaged.kernel.bindings import HTTPS_PORT, Destination

INSIDE: Final = "/run/kaged-credentials"
"""The folder of a cage with everything that stands for its credentials."""

_HTTP_PORT: Final = 80


@dataclass(frozen=True, slots=True)
class ShownCredential:
    """One credential as a cage sees it."""

    section: CredentialSection
    placeholder: str


def tool_files(
    shown: Iterable[ShownCredential], *, scratch_home: bool
) -> tuple[tuple[ShownFile, ...], tuple[tuple[str, str], ...]]:
    """Return the files of a cage's credentials, and the variables by which tools find them.

    With `scratch_home` the cage's home is a folder that is made anew for each process.
    """
    having: dict[CredentialFile, list[ShownCredential]] = {}
    for one in shown:
        for kind in one.section.shown.files:
            having.setdefault(kind, []).append(one)
    files: list[ShownFile] = []
    env: list[tuple[str, str]] = []
    for kind, held in having.items():
        name, variables = _NAMES[kind]
        path = f"{INSIDE}/{name}"
        content = _TEXTS[kind](held).encode("ascii")
        files.append(ShownFile(path, content))
        env += [(variable, path if value is None else value) for variable, value in variables]
        if kind is CredentialFile.NETRC and scratch_home:
            files.append(ShownFile(f"{SCRATCH}/.netrc", content))
    return tuple(files), tuple(env)


def _netrc(held: list[ShownCredential]) -> str:
    return "".join(
        f"machine {host} login {one.section.user} password {one.placeholder}\n"
        for one in held
        for host in dict.fromkeys(place.host for place in one.section.hosts)
    )


def _npmrc(held: list[ShownCredential]) -> str:
    # npm looks the host up as the URL has it: a port that is the scheme's own is left out.
    return "".join(
        f"//{_authority(place)}/:_authToken={one.placeholder}\n"
        for one in held
        for place in one.section.hosts
    )


def _pip(held: list[ShownCredential]) -> str:
    first, *others = map(_index, held)
    more = "".join(f"    {url}\n" for url in others)
    return f"[global]\nindex-url = {first}\n" + (f"extra-index-url =\n{more}" if more else "")


def _index(one: ShownCredential) -> str:
    place = one.section.hosts[0]
    path = (one.section.paths or ("/simple/",))[0].partition("*")[0].rstrip("/")
    return f"{_scheme(place)}://{one.section.user}:{one.placeholder}@{_authority(place)}{path}/"


def _git(held: list[ShownCredential]) -> str:
    # A helper of one's own: Git's `store` would want to write its file after every use.
    return "".join(
        f'[credential "{_scheme(place)}://{_authority(place)}"]\n'
        f"\tusername = {one.section.user}\n"
        "\thelper =\n"
        '\thelper = "!f() { test \\"$1\\" = get && '
        f'echo username={one.section.user} && echo password={one.placeholder}; }}; f"\n'
        for one in held
        for place in one.section.hosts
    )


def _scheme(place: Destination) -> str:
    return "https" if place.tls else "http"


def _authority(place: Destination) -> str:
    host = f"[{place.host}]" if ":" in place.host else place.host
    usual = HTTPS_PORT if place.tls else _HTTP_PORT
    return host if place.port == usual else f"{host}:{place.port}"


_TEXTS: Final = {
    CredentialFile.NETRC: _netrc,
    CredentialFile.NPMRC: _npmrc,
    CredentialFile.PIP: _pip,
    CredentialFile.GIT: _git,
}
_NAMES: Final[dict[CredentialFile, tuple[str, tuple[tuple[str, str | None], ...]]]] = {
    CredentialFile.NETRC: ("netrc", (("NETRC", None),)),
    CredentialFile.NPMRC: ("npmrc", (("NPM_CONFIG_USERCONFIG", None),)),
    CredentialFile.PIP: ("pip.conf", (("PIP_CONFIG_FILE", None),)),
    CredentialFile.GIT: (
        "gitconfig",
        (
            ("GIT_CONFIG_COUNT", "1"),
            ("GIT_CONFIG_KEY_0", "include.path"),
            ("GIT_CONFIG_VALUE_0", None),
        ),
    ),
}
