// The package, as built, against a gateway with an engine. `recallflow` must be on the PATH.
import assert from "node:assert/strict";
import { execFileSync, spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, rmSync } from "node:fs";
import { createServer } from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { after, before, test } from "node:test";
import { RecallflowClient, RecallflowError } from "recallflow-client";

const folder = mkdtempSync(join(tmpdir(), "recallflow-"));
const control = join(folder, "control.jsonl");
const owner = { tenant_id: "acme", user_id: "ann" };
/** @type {import("node:child_process").ChildProcess} */
let gateway;
/** @type {import("recallflow-client").ClientOptions} */
let options;
/** @type {RecallflowClient} */
let client;
// Answers as a test says: with nothing, or with a page of something else.
const stranger = createServer();
let strangerUrl = "";

before(async () => {
  const printed = execFileSync("recallflow", ["keys", "create", "acme", "--control", control], { encoding: "utf8" });
  const apiKey = /rfk_\S+/.exec(printed)?.[0] ?? "";
  const words = ["serve", "--port", "0", "--state-dir", join(folder, "state"), "--create", "--control", control];
  gateway = spawn("recallflow", words, { stdio: ["ignore", "ignore", "pipe"] });
  for await (const line of createInterface({ input: /** @type {import("node:stream").Readable} */ (gateway.stderr) })) {
    const baseUrl = /serving at (http:\S+)/.exec(line)?.[1];
    if (baseUrl !== undefined) {
      options = { baseUrl, apiKey, owner };
      break;
    }
  }
  client = new RecallflowClient(options);
  const early = (/** @type {RecallflowError} */ error) => error.code === "unauthenticated";
  while (await client.ask({ type: "user.stats" }).then(() => false, early)); // a key is valid after a second
  await once(stranger.listen(0, "127.0.0.1"), "listening");
  strangerUrl = `http://127.0.0.1:${/** @type {import("node:net").AddressInfo} */ (stranger.address()).port}`;
});

after(async () => {
  stranger.closeAllConnections();
  stranger.close();
  gateway.kill();
  await once(gateway, "exit");
  rmSync(folder, { recursive: true });
});

/** @param {object} expected */
const refusal = (expected) => (/** @type {unknown} */ error) => {
  assert(error instanceof RecallflowError);
  assert.deepEqual({ ...error, ...expected }, { ...error });
  return true;
};

test("a stored memory is applied and recalled", async () => {
  const event = /** @type {const} */ ({ type: "memory", id: "m-1", content: "Ann is allergic to peanuts." });
  const stored = await client.store(event, { wait: "applied" });
  assert.equal(stored.receipt?.outcome, "created");
  const answer = await client.ask({ type: "recall", query: "What can Ann not eat?" });
  assert.deepEqual(answer.memories?.map((one) => one.id), ["m-1"]);
});

test("api reaches the other routes with their parameters", async () => {
  const one = await client.ask({ type: "memory.get", memory_id: "m-1" });
  assert.match(one.versions?.[0]?.content ?? "", /peanuts/);
  await client.store({ type: "memory", id: "a/b", content: "Ann likes tea.", kind: "preference" }, { wait: "applied" });
  const query = { ...owner, "filters.kinds": ["preference"] };
  const { data } = await client.api.GET("/memories", { params: { query } });
  assert.deepEqual(data?.memory_page?.memories.map((one) => one.id), ["a/b"]);
  const params = { path: { memory_id: "a/b" }, query: { ...owner, wait: /** @type {const} */ ("applied") } };
  await client.api.DELETE("/memories/{memory_id}", { params });
  await assert.rejects(client.ask({ type: "memory.get", memory_id: "a/b" }), refusal({ code: "not_found", status: 404 }));
});

test("a batch of several requests has a result for each line", async () => {
  function* events() {
    for (let line = 1; line <= 1001; line++) {
      const content = line === 600 ? "" : `Note ${line}\nof two lines`;
      yield { ...owner, user_id: "bob", type: /** @type {const} */ ("memory"), content };
    }
  }
  const results = [];
  for await (const result of client.storeAll(events())) {
    results.push(result);
  }
  assert.deepEqual(results.map((one) => one.line), Array.from({ length: 1001 }, (_, at) => at + 1));
  assert.deepEqual(results.filter((one) => one.error).map((one) => [one.line, one.error?.fields?.[0]?.field]), [[600, "content"]]);
  assert(results.every((one) => one.error || one.position));
  const { stats } = await client.ask({ type: "user.stats", user_id: "bob" });
  assert.equal(stats?.memories, 1000);
});

test("a refusal names every wrong field", async () => {
  const wrong = /** @type {any} */ ({ type: "recall", query: " ", k: "many" });
  await assert.rejects(client.ask(wrong), (/** @type {any} */ error) => {
    assert.deepEqual([error.code, error.status], ["invalid_event", 400]);
    assert.deepEqual(error.fields.map((/** @type {any} */ one) => one.field).sort(), ["k", "query"]);
    return true;
  });
});

test("credentials are a key or the token of a function", async () => {
  const { apiKey = "", ...rest } = options;
  const ask = (/** @type {object} */ credentials) =>
    new RecallflowClient({ ...rest, ...credentials }).ask({ type: "user.stats" });
  await assert.rejects(ask({}), refusal({ code: "unauthenticated", status: 401 }));
  await assert.rejects(ask({ apiKey, owner: { ...owner, tenant_id: "other" } }), refusal({ code: "unauthenticated" }));
  await assert.rejects(ask({ apiKey, headers: { "x-end-user-id": "bob" } }), refusal({ code: "forbidden", status: 403 }));
  assert.equal((await ask({ token: async () => apiKey })).status, "ok");
  assert.equal((await ask({ apiKey, owner: { user_id: "ann" } })).status, "ok"); // the key completes the tenant
});

test("a gateway that is away or silent, and another server, are errors", async () => {
  /** @param {import("node:http").RequestListener} answer */
  const ask = (answer, call = {}) => {
    stranger.removeAllListeners("request").on("request", answer);
    return new RecallflowClient({ ...options, baseUrl: strangerUrl, timeoutMs: 200 }).ask({ type: "user.stats" }, call);
  };
  await assert.rejects(ask(() => {}), refusal({ code: "timeout", status: undefined }));
  await assert.rejects(ask((_, response) => void response.writeHead(200).write("{")), refusal({ code: "timeout" }));
  await assert.rejects(ask((request) => void request.socket.destroy()), refusal({ code: "unreachable" }));
  const page = { "content-type": "text/html", "retry-after": "3" };
  const known = { code: "invalid_response", retryAfterMs: 3000 };
  await assert.rejects(ask((_, response) => void response.writeHead(502, page).end("<p>")), refusal(known));
  await assert.rejects(ask((_, response) => void response.writeHead(200, page).end("<p>")), refusal(known));
  const stop = new AbortController();
  const stopped = ask(() => stop.abort(new Error("left")), { signal: stop.signal, timeoutMs: 60_000 });
  await assert.rejects(stopped, /^Error: left$/);
  assert.throws(() => new RecallflowClient({ baseUrl: "localhost:8080" }), TypeError);
});

// Compiled by `npm run check`, never called.
export async function mistakesThatTheTypesShow() {
  // @ts-expect-error a misspelt type
  await client.ask({ type: "recal", query: "q" });
  // @ts-expect-error a query without its text
  await client.ask({ type: "recall" });
  // @ts-expect-error an event is not a query
  await client.ask({ type: "memory", content: "c" });
  // @ts-expect-error a field of another type
  await client.store({ type: "memory", content: 7 });
  // @ts-expect-error a misspelt field of the answer
  return (await client.ask({ type: "recall", query: "q" })).memory;
}
