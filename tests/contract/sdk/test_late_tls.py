"""A plugin's event loop comes without TLS; whoever uses TLS in it gets the real one."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from fakes.tls_mail import make_certificate

SOURCES = Path(__file__).resolve().parents[3] / "src"
WITHOUT = """
import sys
from kaged.sdk.late_tls import import_asyncio
import_asyncio()
assert "_ssl" not in sys.modules
import asyncio
async def wait():
    await asyncio.sleep(0)
    return "waited"
assert asyncio.run(wait()) == "waited"
assert "_ssl" not in sys.modules
"""
TALK = (
    WITHOUT
    + """
async def echo(reader, writer):
    writer.write(await reader.readline())
    writer.close()
async def talk():
    import ssl
    theirs = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    theirs.load_cert_chain(sys.argv[1])
    ours = ssl.create_default_context(cafile=sys.argv[1])
    server = await asyncio.start_server(echo, "127.0.0.1", 0, ssl=theirs)
    port = server.sockets[0].getsockname()[1]
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", port, ssl=ours, server_hostname="127.0.0.1")
    writer.write(b"veiled\\n")
    assert await reader.readline() == b"veiled\\n"
    writer.close()
    try:
        await asyncio.open_connection(
            "127.0.0.1", port, ssl=ssl.create_default_context(), server_hostname="127.0.0.1")
    except ssl.SSLCertVerificationError:
        return "checked"
assert asyncio.run(talk()) == "checked"
from asyncio import base_events, sslproto
import ssl
assert base_events.ssl.SSLContext is ssl.SSLContext
assert base_events.sslproto.SSLProtocol is sslproto.SSLProtocol
assert not hasattr(base_events.ssl, "no_such_thing")
"""
)
BEFORE = """
import ssl
from kaged.sdk.late_tls import import_asyncio
import_asyncio()
import sys, asyncio
from asyncio import base_events
assert base_events.ssl is ssl is sys.modules["ssl"]
import_asyncio()
assert sys.modules["asyncio"] is asyncio
"""


@pytest.mark.parametrize("program", [WITHOUT, TALK, BEFORE], ids=["without", "talk", "before"])
def test_tls_is_loaded_when_it_is_used(program: str, tmp_path: Path) -> None:
    pem = make_certificate(None, "127.0.0.1").save(tmp_path, "server")
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), str(pem)],
        env={"PYTHONPATH": str(SOURCES)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
