"""`kage.crypto` and `kage.http.post_stream`, each behind its power."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from requirements.marker import whole
from whole.harness.daemon import Daemon
from whole.harness.model import ModelServer
from whole.harness.scripts import Scripts

VECTORS = """
local c = kage.crypto
local function hex(bytes) return c.to_hex(bytes) end
local function fails(fn, ...)
  local ok, words = pcall(fn, ...)
  return not ok and words or 'passed'
end
local key = c.from_hex(('0b'):rep(20))
local pkcs8 = c.from_hex('302e020100300506032b657004220420'
  .. '9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60')
local aes, iv = ('\\0'):rep(32), ('\\0'):rep(12)
return {
  sha256 = hex(c.sha256('abc')), sha512 = hex(c.sha512('abc')):sub(1, 32),
  hmac = hex(c.hmac_sha256(key, 'Hi There')),
  hkdf = hex(c.hkdf_sha256(c.from_hex(('0b'):rep(22)), c.from_hex('000102030405060708090a0b0c'),
    c.from_hex('f0f1f2f3f4f5f6f7f8f9'), 42)),
  gcm = hex(c.aes256gcm_decrypt(aes, iv, '', c.from_hex('cea7403d4d606b6e074ec5d3baf39d18'),
    c.from_hex('d0d1c8a799996bf0265b98b5d48ab919'))),
  signed = #c.ed25519_sign(pkcs8, 'hello'),
  same = c.ed25519_sign(pkcs8, 'a') == c.ed25519_sign(pkcs8, 'a'),
  base64 = c.to_base64('\\0\\255'), back = c.from_base64('AP8=') == '\\0\\255',
  random = #c.random_bytes(33), twice = c.random_bytes(16) == c.random_bytes(16),
  problems = {
    fails(c.from_hex, 'xyz'), fails(c.from_base64, '?'), fails(c.random_bytes, 1048577),
    fails(c.hkdf_sha256, '', '', '', 8161), fails(c.sha256, 7),
    fails(c.aes256gcm_decrypt, aes, iv, '', 'x', ('x'):rep(16)),
    fails(c.aes256gcm_decrypt, 'short', iv, '', 'x', ('x'):rep(16)),
    fails(c.ed25519_sign, 'secret-key', 'x'),
  },
}
"""
FRAMES = (
    b"event: start\ndata: one\n\n: a comment\ndata: two\ndata: lines\n\n"
    b"data: \xff\xfe\r\n\r\nevent: end\ndata: last"
)


class _Stream(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        self.send_response(201)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        sent = b"data: " + b"x" * 3_000_000 + b"\n\n" if body == b"much" else FRAMES
        self.wfile.write(b"data: " + body + b"\n\n" + sent)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's own
        """Log no request."""


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """Yield the address of a server that streams events."""
    made = ThreadingHTTPServer(("127.0.0.1", 0), _Stream)
    thread = threading.Thread(target=made.serve_forever, args=(0.02,))
    thread.start()
    yield f"http://127.0.0.1:{made.server_port}/"
    made.shutdown()
    thread.join()
    made.server_close()


@pytest.fixture(scope="module")
def daemon(module_path: Path, model: ModelServer) -> Iterator[Daemon]:
    """Yield a daemon whose scripts may reach this machine."""
    made = Daemon(
        module_path / "h", config='[lua]\nnet = ["127.0.0.1:*"]\n', local=model.local_toml()
    )
    made.start()
    yield made
    made.close()


@whole("LC-AMB-19")
def test_digests_codes_keys_and_signatures_are_the_published_ones(scripts: Scripts) -> None:
    asks = "kage.request_capabilities({'crypto'})\n"
    assert scripts.eval(asks + "return type(kage.crypto.sha256)") == "nil"
    scripts.grant(probe=["crypto"])
    found = scripts.eval(asks + VECTORS)
    assert found["sha256"].startswith("ba7816bf8f01cfea414140de5dae2223")
    assert found["sha512"] == "ddaf35a193617abacc417349ae204131"
    assert found["hmac"].startswith("b0344c61d8db38535ca8afceaf0bf12b")
    assert found["hkdf"] == (
        "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865"
    )
    assert found["gcm"] == "00" * 16
    assert (found["signed"], found["same"]) == (64, True)
    assert (found["base64"], found["back"]) == ("AP8=", True)
    assert (found["random"], found["twice"]) == (33, False)
    problems = found["problems"]
    assert "passed" not in problems
    assert "secret-key" not in " ".join(problems), "no input is in the words"
    assert problems[5] == "kage.crypto.aes256gcm_decrypt: failed"


@whole("LC-AMB-19")
def test_a_stream_is_read_frame_by_frame(scripts: Scripts, server: str) -> None:
    code = f"""
      kage.request_capabilities({{'net'}})
      local frames = {{}}
      local got = kage.http.post_stream('{server}', {{ body = 'first' }}, function(frame)
        frames[#frames + 1] = frame.event .. '=' .. frame.data
      end)
      return {{ got, frames }}
    """
    assert scripts.eval("return type(kage.http.post_stream)") == "nil"
    scripts.grant(probe=["net"])
    got, frames = scripts.eval(code)
    assert got == {"status": 201, "content_type": "text/event-stream"}
    assert frames == [
        "message=first",
        "start=one",
        "message=two\nlines",
        "message=\ufffd\ufffd",
        "end=last",
    ]


def test_streams_are_bounded_and_end_with_the_handler(scripts: Scripts, server: str) -> None:
    scripts.grant(probe=["net"])
    body = f"kage.http.post_stream('{server}', {{ body = raw }}, function(frame)"
    scripts.load(
        probe="kage.request_capabilities({'net'})\n"
        "kage.register_command{name='eval', description='', handler=function(raw)\n"
        f"  return {{ structured = {{ value = {{ pcall(function() {body} error('enough', 0) end)\n"
        "  end) } } } end}\n"
        "kage.register_command{name='all', description='', handler=function(raw)\n"
        f"  return {{ structured = {{ value = {{ pcall(function() {body} end)\n"
        "  end) } } } end}\n"
    )
    assert scripts.value("all", "much")["value"] == [
        False,
        "kage.http.post_stream: the answer is too large",
    ]
    for _ in range(6):  # more than may be open at a time
        assert scripts.value("eval", "x")["value"] == [False, "enough"]
    refused = scripts.eval(
        "kage.request_capabilities({'net'})\n"
        "return { pcall(kage.http.post_stream, 'http://127.0.0.2:1/', {}, function() end) }"
    )
    assert refused[0] is False
    assert refused[1].startswith("kage.http.post_stream: ")
