"""Another user of the machine reaches for the Unix socket."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from fakes.running_daemon import InProcess, daemon_in_process, require_error_shape

STRANGER = 65534
_ASK = """
import os, socket, sys
os.setgroups([]); os.setgid(int(sys.argv[2])); os.setuid(int(sys.argv[2]))
s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1])
s.sendall(b"GET /api/v1/status HTTP/1.1\\r\\nhost: kaged\\r\\nconnection: close\\r\\n" +
          sys.argv[3].encode() + b"\\r\\n")
answer = b""
while piece := s.recv(65536):
    answer += piece
sys.stdout.write(answer.decode())
"""


async def _ask_as(uid: int, socket: str, header: str = "") -> tuple[int, bytes]:
    def ask() -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [sys.executable, "-I", "-c", _ASK, socket, str(uid), header],
            capture_output=True, timeout=30, check=False,
        )  # fmt: skip

    done = await asyncio.to_thread(ask)
    return done.returncode, done.stdout or done.stderr


def test_the_socket_is_made_for_its_owner_only_from_its_first_moment(tmp_path: Path) -> None:
    """No umask, however wide, and no later chmod: the mode is there when the name appears."""
    from kaged.serve.http.listener import bind_unix

    before = os.umask(0)
    try:
        sock = bind_unix(tmp_path / "s")
    finally:
        os.umask(before)
    try:
        assert stat.S_IMODE((tmp_path / "s").stat().st_mode) == 0o600
    finally:
        sock.close()


async def test_the_socket_lies_in_a_folder_that_nobody_else_can_enter(served: InProcess) -> None:
    path = Path(served.socket)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.parent.stat().st_mode & 0o077 == 0


@pytest.mark.needs_root
async def test_another_uid_cannot_even_connect() -> None:
    with tempfile.TemporaryDirectory(prefix="kgd-") as folder:
        Path(folder).chmod(0o755)
        async with daemon_in_process(Path(folder) / "h", serve=True) as daemon:
            code, said = await _ask_as(STRANGER, daemon.socket)
    assert code != 0
    assert b"PermissionError" in said


@pytest.mark.needs_root
@pytest.mark.parametrize(
    "header", ["", "x-kaged-user-id: operator\r\n", "authorization: Bearer {token}\r\n"]
)
async def test_another_uid_that_gets_past_the_file_modes_is_still_turned_away(header: str) -> None:
    """The second wall: even with every file mode wide open the kernel's word decides."""
    with tempfile.TemporaryDirectory(prefix="kgd-") as folder:
        Path(folder).chmod(0o755)
        async with daemon_in_process(Path(folder) / "h", serve=True) as daemon:
            token = (Path(folder) / "h" / "http-token").read_text(encoding="ascii").strip()
            Path(daemon.socket).chmod(0o666)
            Path(daemon.socket).parent.chmod(0o755)
            daemon.places.home.chmod(0o755)
            code, said = await _ask_as(STRANGER, daemon.socket, header.format(token=token))
            own, answer = await _ask_as(0, daemon.socket)
    assert code == 0
    head, _, body = said.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 403")
    error = require_error_shape(json.loads(body), "access_denied")
    assert str(STRANGER) in error["message"]
    assert own == 0
    assert answer.startswith(b"HTTP/1.1 200")


@pytest.mark.needs_root
async def test_root_is_not_the_operator_of_somebody_elses_daemon(
    served: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kaged.serve.http.access.os.getuid", lambda: 1000)
    code, said = await _ask_as(0, served.socket)
    assert code == 0
    assert said.startswith(b"HTTP/1.1 403")
