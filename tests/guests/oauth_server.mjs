// An authorization server that other people wrote (npm: oidc-provider), set up for tests.
//   node oauth_server.mjs JOURNAL CLIENT_ID CLIENT_SECRET REDIRECT_URI
// Prints its address as one line. Whoever types a name into its login page is that person. Each secret
// that it hands out or is shown becomes a line of JSON in the journal: {kind, value, user}.
import { appendFileSync } from "node:fs";
import { createServer } from "node:http";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

// Modules are looked for beside the tools, not beside this file.
const require = createRequire(process.env.NODE_TOOLS + "/");
const { Provider } = await import(pathToFileURL(require.resolve("oidc-provider")).href);
const [journal, client_id, client_secret, redirect_uri] = process.argv.slice(2);

const device_code = "urn:ietf:params:oauth:grant-type:device_code";
const client = {
  client_id,
  client_secret,
  redirect_uris: [redirect_uri],
  application_type: "native",
  grant_types: ["authorization_code", "refresh_token", device_code],
  response_types: ["code"],
  token_endpoint_auth_method: "client_secret_post",
};
const server = createServer();
server.listen(0, "127.0.0.1", () => {
  const url = `http://127.0.0.1:${server.address().port}`;
  const provider = new Provider(url, {
    clients: [client],
    scopes: ["openid", "email", "issues"],
    claims: { openid: ["sub"], email: ["email", "name"] },
    cookies: { keys: ["tests"] },
    features: {
      deviceFlow: { enabled: true },
      introspection: { enabled: true },
      registration: { enabled: true },
      revocation: { enabled: true },
    },
    pkce: { required: () => true },
    issueRefreshToken: () => true,
    rotateRefreshToken: true,
    findAccount: (_, id) => ({
      accountId: id,
      claims: () => ({ sub: id, email: `${id}@example.org`, name: id.toUpperCase() }),
    }),
    ttl: { AccessToken: 3600, DeviceCode: 600, Grant: 86400, RefreshToken: 86400, Session: 86400 },
  });
  const note = (kind, value, user) => appendFileSync(journal, JSON.stringify({ kind, value, user }) + "\n");
  for (const kind of ["access_token", "refresh_token", "authorization_code", "device_code"]) {
    provider.on(`${kind}.saved`, (token) => note(kind, token.jti, token.accountId));
  }
  provider.on("grant.success", (ctx) => {
    const verifier = ctx.oidc.params.code_verifier;
    if (verifier) note("code_verifier", verifier, ctx.oidc.account?.accountId);
  });
  server.on("request", provider.callback());
  process.stdout.write(url + "\n");
});
