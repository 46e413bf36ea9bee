"""The runtimes that plugins are written for do their everyday work in a plugin's cage."""

from __future__ import annotations

from pathlib import Path

import pytest

from fakes import runtimes
from kaged.cage import CageKind, CageRequest, Spawner
from kaged.cage.collect import collect
from kaged.kernel.policy import CagePolicy, FsGrant, FsMode, SeccompProfile

BUN = """
import { Database } from "bun:sqlite";
const typed: { sum: number } = new Database(":memory:").query("select 40 + 2 as sum").get();
console.log("sqlite", typed.sum);
const out = await new Response(Bun.spawn(["sh", "-c", "echo out"]).stdout).text();
console.log("spawn", out.trim());
const server = Bun.serve({ port: 0, fetch: () => new Response("served") });
console.log("fetch", await (await fetch(`http://127.0.0.1:${server.port}/`)).text());
server.stop(true);
await Bun.write("/tmp/file", "kept");
console.log("file", await Bun.file("/tmp/file").text());
const worker = new Worker("data:text/javascript,postMessage(7)");
worker.onmessage = (event) => { console.log("worker", event.data); process.exit(0); };
"""
NODE = """
const { execFileSync } = require('child_process');
const { Worker } = require('worker_threads');
const http = require('http'), fs = require('fs');
console.log('spawn', execFileSync('sh', ['-c', 'echo out']).toString().trim());
fs.writeFileSync('/tmp/file', 'kept');
console.log('file', fs.readFileSync('/tmp/file', 'utf8'));
const server = http.createServer((_, answer) => answer.end('served')).listen(0, '127.0.0.1', () =>
  fetch(`http://127.0.0.1:${server.address().port}/`).then((got) => got.text()).then((text) => {
    console.log('fetch', text);
    new Worker('require("worker_threads").parentPort.postMessage(7)', { eval: true })
      .on('message', (said) => { console.log('worker', said); process.exit(0); });
  }));
"""
PYTHON = """
import asyncio, multiprocessing, sqlite3, ssl, subprocess, threading, urllib.request
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

class Served(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(b"served")
    def log_message(self, *words):
        pass

def main():
    print("sqlite", sqlite3.connect(":memory:").execute("select 40 + 2").fetchone()[0])
    print("spawn", subprocess.check_output(["sh", "-c", "echo out"], text=True).strip())
    server = HTTPServer(("127.0.0.1", 0), Served)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    answer = urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/").read()
    print("fetch", answer.decode())
    Path("/tmp/file").write_text("kept"); print("file", Path("/tmp/file").read_text())
    with multiprocessing.Pool(2) as pool:
        print("worker", pool.map(abs, [-7])[0])
    asyncio.run(asyncio.sleep(0))

if __name__ == "__main__":
    main()
"""
BASH = """
echo "spawn $(sh -c 'echo out')"
echo kept > /tmp/file; echo "file $(cat /tmp/file)"
coproc worker { read x; echo $((x + 1)); }
echo 6 >&${worker[1]}; read said <&${worker[0]}; echo "worker $said"
echo '{"a": [1, 2]}' | jq -r '"jq \\(.a | length)"'
"""


@pytest.mark.parametrize("seccomp", SeccompProfile)
@pytest.mark.parametrize(
    ("runtime", "kind", "text", "said"),
    [
        ("bun", CageKind.PLUGIN, BUN, "sqlite 42, spawn out, fetch served, file kept, worker 7"),
        ("node", CageKind.PLUGIN, NODE, "spawn out, file kept, fetch served, worker 7"),
        (
            "python3",
            CageKind.PLUGIN,
            PYTHON,
            "sqlite 42, spawn out, fetch served, file kept, worker 7",
        ),
        ("bash", CageKind.AGENT, BASH, "spawn out, file kept, worker 7, jq 2"),
    ],
)
async def test_a_runtime_does_its_everyday_work_inside(
    spawner: Spawner,
    place: Path,
    runtime: str,
    kind: CageKind,
    text: str,
    said: str,
    seccomp: SeccompProfile,
) -> None:
    main = place / ("main.ts" if runtime == "bun" else "main")
    main.write_text(text, encoding="utf-8")
    request = CageRequest(
        "runtime",
        CagePolicy(fs=(FsGrant(str(place), FsMode.RO),), seccomp=seccomp),
        ("/usr/bin/env", runtime, str(main)),
        kind=kind,
        home=str(place),
        runtimes=(("bun", str(runtimes.bun())),),
    )
    done = await collect(await spawner.spawn(request))
    assert done.report.exit_code == 0, (done.report.detail, done.stderr)
    assert ", ".join(done.stdout.decode().splitlines()) == said
