// A client made with the official TypeScript SDK: reads one JSON array of requests from stdin, sends
// them to the server that its arguments name, one by one, and prints the answers as one JSON array.
//   node mcp_client.mjs stdio COMMAND ARGUMENT…
//   node mcp_client.mjs http URL TOKEN
// A request is [method of the SDK's Client, its first argument]; an answer is {result} or {error}.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

// Modules are looked for beside the tools, not beside this file.
const require = createRequire(process.env.MCP_TOOLS + "/");
const load = (name) => import(pathToFileURL(require.resolve("@modelcontextprotocol/sdk/" + name)).href);
const { Client } = await load("client/index.js");
const [kind, target, ...rest] = process.argv.slice(2);

async function transport() {
  if (kind === "http") {
    const { StreamableHTTPClientTransport } = await load("client/streamableHttp.js");
    const headers = { Authorization: `Bearer ${rest[0]}` };
    return new StreamableHTTPClientTransport(new URL(target), { requestInit: { headers } });
  }
  const { StdioClientTransport } = await load("client/stdio.js");
  return new StdioClientTransport({ command: target, args: rest, env: process.env });
}

const client = new Client({ name: "foreign", version: "1.0.0" });
await client.connect(await transport());
const answers = [{ result: client.getServerVersion() }];
for (const [method, argument] of JSON.parse(readFileSync(0, "utf8"))) {
  try {
    answers.push({ result: await client[method](argument) });
  } catch (error) {
    answers.push({ error: { code: error.code, message: error.message } });
  }
}
await client.close();
process.stdout.write(JSON.stringify(answers));
