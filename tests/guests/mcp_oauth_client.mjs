// A client made with the official TypeScript SDK that finds its authorization server by itself:
//   node mcp_oauth_client.mjs URL CLIENT_ID REDIRECT_URI
// Prints the address that a person has to open, reads the code from a line of stdin, connects, and
// prints the names of the server's tools as one JSON array.
import { createRequire } from "node:module";
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

// Modules are looked for beside the tools, not beside this file.
const require = createRequire(process.env.MCP_TOOLS + "/");
const load = (name) => import(pathToFileURL(require.resolve("@modelcontextprotocol/sdk/" + name)).href);
const { Client } = await load("client/index.js");
const { StreamableHTTPClientTransport } = await load("client/streamableHttp.js");
const { UnauthorizedError } = await load("client/auth.js");
const [url, client_id, redirect] = process.argv.slice(2);

const kept = {};
const authProvider = {
  redirectUrl: redirect,
  clientMetadata: { redirect_uris: [redirect], token_endpoint_auth_method: "none", client_name: "test" },
  clientInformation: () => kept.client ?? { client_id },
  saveClientInformation: (client) => { kept.client = client; },
  tokens: () => kept.tokens,
  saveTokens: (tokens) => { kept.tokens = tokens; },
  redirectToAuthorization: (target) => process.stdout.write(target.href + "\n"),
  saveCodeVerifier: (verifier) => { kept.verifier = verifier; },
  codeVerifier: () => kept.verifier,
};
const transport = () => new StreamableHTTPClientTransport(new URL(url), { authProvider });
const first = transport();
try {
  await new Client({ name: "foreign", version: "1.0.0" }).connect(first);
  throw new Error("was let in without a token");
} catch (error) {
  if (!(error instanceof UnauthorizedError)) throw error;
}
const lines = createInterface({ input: process.stdin });
const { value: code } = await lines[Symbol.asyncIterator]().next();
await first.finishAuth(code);
const client = new Client({ name: "foreign", version: "1.0.0" });
await client.connect(transport());
const { tools } = await client.listTools();
process.stdout.write(JSON.stringify(tools.map((tool) => tool.name)) + "\n");
await client.close();
lines.close();
