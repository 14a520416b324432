// Client of recallflow's HTTP gateway. The types in schema.ts are generated from its OpenAPI document.
import createClient, { type Client } from "openapi-fetch";
import type { components, paths } from "./schema.js";

export type { components, paths };
type Schemas = components["schemas"];
export type MemoryEvent = Schemas["MemoryEvent"];
export type Query = Schemas["QueryEvent"];
/** The answer to a query: `Response` in the document. */
export type Answer = Schemas["Response"];
export type MemoryVersion = Schemas["MemoryVersion"];
export type Stored = Schemas["Accepted"];
export type BatchResult = Schemas["BatchResult"];
export type FieldError = Schemas["FieldError"];
export type Owner = Pick<Schemas["UserStats"], "tenant_id" | "user_id">;

/** An event or query that may omit its owner: the client's `owner` or the credentials complete it. */
export type Owned<Event> = Event extends unknown ? Omit<Event, keyof Owner> & Partial<Owner> : never;

export interface ClientOptions {
  /** Address of the gateway, such as `http://localhost:8080`. A browser also takes a path such as `/memory-gateway`. */
  baseUrl: string;
  /** API key (`rfk_…`). */
  apiKey?: string;
  /** JWT, or a function that returns a valid one for each request. */
  token?: string | (() => string | Promise<string>);
  /** Owner of events and queries that name none. */
  owner?: Partial<Owner>;
  /** Headers of every request, such as `x-end-user-id`. */
  headers?: Record<string, string>;
  /** Time limit of a request with its body (default: 30,000). */
  timeoutMs?: number;
  /** Replacement of the global `fetch`. */
  fetch?: typeof fetch;
}

export interface CallOptions {
  /** Ends the request; the call throws the signal's reason. */
  signal?: AbortSignal;
  timeoutMs?: number;
  headers?: Record<string, string>;
}

/** A refused or failed request. */
export class RecallflowError extends Error {
  override readonly name = "RecallflowError";
  /** Code of the gateway, or `timeout`, `unreachable` or `invalid_response` of this client. */
  readonly code: string;
  /** Every wrong field of the request. */
  readonly fields: readonly FieldError[];
  /** HTTP status, if the gateway answered. */
  readonly status: number | undefined;
  /** Time after which a repeated request may succeed, if the gateway names one. */
  readonly retryAfterMs: number | undefined;

  constructor(error: Schemas["ErrorBody"], response?: Response, options?: ErrorOptions) {
    super(`${error.code}: ${error.message}`, options);
    this.code = error.code;
    this.fields = error.fields ?? [];
    this.status = response?.status;
    const seconds = response?.headers.get("retry-after");
    this.retryAfterMs = seconds ? 1000 * Number(seconds) : undefined;
  }
}

const TIMEOUT_MS = 30_000;
const BATCH_LINES = 500;
const BATCH_CHARACTERS = 1024 * 1024;

export class RecallflowClient {
  /** Typed access to all routes: `client.api.GET("/memories", { params: { query } })`. Errors are thrown. */
  readonly api: Client<paths>;
  readonly #options: ClientOptions;

  constructor(options: ClientOptions) {
    const { baseUrl, headers = {} } = options;
    if (!/^(https?:\/\/|\/|$)/.test(baseUrl)) {
      throw new TypeError(`baseUrl ${JSON.stringify(baseUrl)} has no scheme: give http://HOST:PORT`);
    }
    this.#options = options;
    this.api = createClient<paths>({ baseUrl, headers, fetch: (request) => this.#send(request) });
  }

  /** Answer a query of any type. */
  async ask(query: Owned<Query>, call?: CallOptions): Promise<Answer> {
    const body = { ...this.#options.owner, ...query } as Query;
    return given(await this.api.POST("/memory/query", { body, ...this.#init(call) }));
  }

  /** Store an event of any type; with `wait: "applied"` the result contains its receipt. */
  async store(event: Owned<MemoryEvent>, call?: CallOptions & { wait?: "stored" | "applied" }): Promise<Stored> {
    const body = { ...this.#options.owner, ...event } as MemoryEvent;
    const params = { query: { wait: call?.wait ?? "stored" } };
    return given(await this.api.POST("/memory/events", { body, params, ...this.#init(call) }));
  }

  /** Yield a result for each event, which may be a refusal. Events are sent in order, in requests of at most 500, while
   * you iterate: `for await (const result of client.storeAll(events))`. */
  async *storeAll(
    events: Iterable<Owned<MemoryEvent>> | AsyncIterable<Owned<MemoryEvent>>,
    call?: CallOptions,
  ): AsyncGenerator<BatchResult> {
    let lines: string[] = [];
    let characters = 0;
    let before = 0;
    for await (const event of events) {
      const line = JSON.stringify({ ...this.#options.owner, ...event });
      lines.push(line);
      characters += line.length;
      if (lines.length === BATCH_LINES || characters >= BATCH_CHARACTERS) {
        yield* await this.#storeLines(lines, before, call);
        before += lines.length;
        [lines, characters] = [[], 0];
      }
    }
    if (lines.length > 0) {
      yield* await this.#storeLines(lines, before, call);
    }
  }

  async #storeLines(lines: string[], before: number, call?: CallOptions): Promise<BatchResult[]> {
    const headers = { "content-type": "application/x-ndjson", ...call?.headers };
    const found = await this.api.POST("/memory/events/batch", {
      ...this.#init({ ...call, headers }),
      body: lines.join("\n"),
      bodySerializer: (text) => text,
      parseAs: "text",
    });
    const results: BatchResult[] = given(found).trim().split("\n").map((text) => JSON.parse(text));
    return results.map((result) => ({ ...result, line: before + result.line }));
  }

  #init({ signal, timeoutMs, headers }: CallOptions = {}) {
    return {
      fetch: (request: Request) => this.#send(request, timeoutMs),
      ...(signal && { signal }),
      ...(headers && { headers }),
    };
  }

  /** Send a request with credentials, and read its response within the time limit. */
  async #send(request: Request, timeoutMs = this.#options.timeoutMs ?? TIMEOUT_MS): Promise<Response> {
    const { apiKey, token, fetch = globalThis.fetch } = this.#options;
    if (apiKey !== undefined) {
      request.headers.set("x-api-key", apiKey);
    }
    if (token !== undefined) {
      request.headers.set("authorization", `Bearer ${typeof token === "string" ? token : await token()}`);
    }
    const timeout = AbortSignal.timeout(timeoutMs);
    let response: Response;
    let text: string;
    try {
      response = await fetch(request, { signal: either(request.signal, timeout) });
      text = await response.text();
    } catch (cause) {
      request.signal.throwIfAborted();
      const problem = timeout.aborted
        ? { code: "timeout", message: `no response within ${timeoutMs} ms (timeoutMs): ${request.url}` }
        : { code: "unreachable", message: `${request.url}: ${reason(cause)}` };
      throw new RecallflowError(problem, undefined, { cause });
    }
    if (!response.ok || response.headers.get("content-type")?.startsWith("text/html")) {
      throw new RecallflowError(refusal(text, response), response);
    }
    return new Response(text, response);
  }
}

/** Return a signal that aborts with the first of two. AbortSignal.any needs Node 20. */
function either(...signals: AbortSignal[]): AbortSignal {
  const controller = new AbortController();
  for (const signal of signals) {
    const abort = () => controller.abort(signal.reason);
    signal.aborted ? abort() : signal.addEventListener("abort", abort, { once: true });
  }
  return controller.signal;
}

/** Return the innermost message: that of fetch itself is only "fetch failed". */
function reason(error: unknown): string {
  return error instanceof Error ? (error.cause ? reason(error.cause) : error.message || (error as { code?: string }).code || error.name) : String(error);
}

function refusal(text: string, response: Response): Schemas["ErrorBody"] {
  try {
    const { error } = JSON.parse(text) as Schemas["Error"];
    if (typeof error.code === "string") {
      return error;
    }
  } catch {
    // not of a gateway
  }
  const message = `status ${response.status} without an error of a gateway: is ${response.url} one?`;
  return { code: "invalid_response", message };
}

function given<T>({ data }: { data?: T | undefined }): T {
  return data as T;
}
