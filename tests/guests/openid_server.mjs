// A provider of OpenID Connect that other people wrote (npm: oidc-provider), set up for tests.
//   node openid_server.mjs SETTINGS
// Prints its issuer as one line. Whoever types a name into its login page is that person. SETTINGS is
// a file of JSON: {keys, clients, people: {name: {groups, …}}, lie}. `POST /test/reload` reads it again:
// new keys are used from then on, what was granted before stays. `lie` changes the next ID tokens:
// {claims, without, header, key}.
import { readFileSync } from "node:fs";
import { createServer } from "node:http";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

// Modules are looked for beside the tools, not beside this file.
const require = createRequire(process.env.NODE_TOOLS + "/");
const { Provider } = await import(pathToFileURL(require.resolve("oidc-provider")).href);
const jose = await import(pathToFileURL(require.resolve("jose")).href);
const [path] = process.argv.slice(2);

let settings;
let answer;
let fetches = 0;
let asked = 0;
let exchanges = 0;
const EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange";
const ACCESS_TOKEN = "urn:ietf:params:oauth:token-type:access_token";

const text = (value) => Buffer.from(JSON.stringify(value)).toString("base64url");

async function lied(token) {
  const { claims = {}, without = [], header = {}, key = settings.keys[0] } = settings.lie;
  const said = { ...jose.decodeJwt(token), ...claims };
  for (const name of without) delete said[name];
  const head = { alg: "RS256", kid: settings.keys[0].kid, ...header };
  if (head.alg === "none") return `${text(head)}.${text(said)}.`;
  return new jose.SignJWT(said).setProtectedHeader(head).sign(await jose.importJWK(key, head.alg));
}

function load(url) {
  settings = JSON.parse(readFileSync(path, "utf8"));
  const provider = new Provider(url, {
    clients: settings.clients,
    jwks: { keys: settings.keys },
    scopes: ["openid", "profile", "offline_access"],
    claims: { openid: ["sub", "groups", "email", "email_verified", "realm"], profile: ["name"] },
    conformIdTokenClaims: false,
    cookies: { keys: ["tests"] },
    // Its own fetch refuses loopback, where the daemon of a test is.
    fetch: (url, { dispatcher, ...options }) => globalThis.fetch(url, options),
    pkce: { required: () => true },
    issueRefreshToken: (_, client) => client.grantTypeAllowed("refresh_token"),
    rotateRefreshToken: true,
    findAccount: (_, id) => ({
      accountId: id,
      claims: () => ({ sub: id, name: id.toUpperCase(), ...settings.people[id] }),
    }),
    extraTokenClaims: (_, token) => ({ groups: settings.people[token.accountId]?.groups }),
    features: {
      backchannelLogout: { enabled: true },
      clientCredentials: { enabled: true },
      deviceFlow: { enabled: true },
      introspection: { enabled: true },
      revocation: { enabled: true },
      rpInitiatedLogout: { enabled: true },
      resourceIndicators: {
        enabled: true,
        defaultResource: () => undefined,
        useGrantedResource: () => true,
        getResourceServerInfo: (_, resource) => ({
          scope: "openid profile use",
          audience: resource.replace(/\/$/, ""),
          accessTokenTTL: settings.access_ttl ?? 3600,
          accessTokenFormat: settings.opaque ? "opaque" : "jwt",
          jwt: { sign: { alg: "RS256" } },
        }),
      },
    },
    ttl: { AccessToken: 3600, DeviceCode: 600, Grant: 86400, RefreshToken: 86400, Session: 86400, IdToken: 3600 },
  });
  // Tokens of people for tokens that one other server accepts (RFC 8693). `act` says who asked.
  provider.registerGrantType(
    EXCHANGE,
    async (ctx) => {
      const { subject_token, subject_token_type, audience } = ctx.oidc.params;
      const known = jose.createLocalJWKSet({ keys: settings.keys.map(({ kty, n, e, kid, alg }) => ({ kty, n, e, kid, alg })) });
      let person;
      try {
        person = (await jose.jwtVerify(subject_token, known, { issuer: url })).payload;
      } catch {
        person = undefined;
      }
      if (person === undefined || subject_token_type !== ACCESS_TOKEN || !audience || person.sub === settings.no_exchange) {
        ctx.status = 400;
        ctx.body = { error: "invalid_request" };
        return;
      }
      exchanges += 1;
      const said = { sub: person.sub, act: { sub: ctx.oidc.client.clientId }, jti: `x-${exchanges}` };
      const access_token = await new jose.SignJWT(said)
        .setProtectedHeader({ alg: "RS256", kid: settings.keys[0].kid })
        .setIssuer(url).setAudience(audience).setIssuedAt().setExpirationTime("5m")
        .sign(await jose.importJWK(settings.keys[0], "RS256"));
      ctx.body = { access_token, issued_token_type: ACCESS_TOKEN, token_type: "Bearer", expires_in: 300 };
    },
    ["audience", "subject_token", "subject_token_type", "requested_token_type", "scope"],
  );
  provider.on("server_error", (_, error) => console.error(error));
  provider.on("backchannel.error", (_, error) => console.error(error));
  provider.use(async (ctx, next) => {
    if (ctx.path === "/jwks") fetches += 1;
    if (ctx.path === "/token/introspection") asked += 1;
    await next();
    if (ctx.path === "/token" && settings.lie && ctx.body?.id_token) {
      ctx.body.id_token = await lied(ctx.body.id_token);
    }
  });
  answer = provider.callback();
}

const server = createServer((request, response) => {
  if (request.url === "/test/reload") {
    load(`http://127.0.0.1:${server.address().port}`);
    response.end("{}");
  } else if (request.url === "/test/fetches") {
    response.end(JSON.stringify({ jwks: fetches, introspection: asked }));
  } else {
    answer(request, response);
  }
});
server.listen(Number(process.env.PORT ?? 0), "127.0.0.1", () => {
  const url = `http://127.0.0.1:${server.address().port}`;
  load(url);
  process.stdout.write(url + "\n");
});
