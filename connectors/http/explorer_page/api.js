// Questions to the gateway that this page came from.
import { credentials, owner } from "./session.js";

const QUERY = new URL("../memory/query", import.meta.url);
const EVENTS = new URL("../memory/events?wait=applied", import.meta.url);
const OWNERS = new URL("owners", import.meta.url);
const ADVICE = {
  unauthenticated: "Give an API key or a token: open the button with the name at the top.",
  forbidden: "These credentials are for other tenants, users or projects. Choose whose memories, or other credentials.",
  not_found: "It may have been forgotten, or was not there yet at the time that is shown.",
  catching_up: "The engine has started, and has not read all memories yet. Try again in a moment.",
  over_quota: "The tenant asks more than its quota allows. Wait a moment, then try again.",
  too_many_requests: "The gateway is busy. Wait a moment, then try again.",
  deadline: "No answer came in time: the engine is away, or has much to do. Start it if it does not run, then try again.",
  unavailable: "The engine is not ready: it starts, or Kafka is away. Try again in a moment.",
  unreachable: "Is recallflow serve running, and the network there?",
};

/** Why a question was not answered. `advice`: what to do. */
export class Refusal extends Error {
  constructor({ code, message, fields = [] }) {
    super(message);
    this.code = code;
    this.fields = fields;
    this.advice = ADVICE[code] ?? "Correct what is named, then try again.";
  }
}

/** The response to a query; raises Refusal. A signal that is given ends it early, with an AbortError. */
export function ask(query, signal) {
  return send(QUERY, { ...owner(), ...query }, signal);
}

/** Stores an event, and waits until it is applied; raises Refusal. An erasure is about the whole user. */
export function store(event) {
  const { project_id: project, ...whole } = owner();
  return send(EVENTS, { ...whole, ...(project && event.type !== "user.erase" && { project_id: project }), ...event });
}

/** The owners whose memories these credentials may see, as far as the gateway knows; none where it does not answer. */
export async function owners() {
  try {
    const response = await fetch(OWNERS, { headers: credentials(), credentials: "omit", referrerPolicy: "no-referrer" });
    return response.ok ? (await response.json()).owners : [];
  } catch {
    return [];
  }
}

async function send(address, content, signal) {
  let response, body;
  try {
    response = await fetch(address, {
      method: "POST",
      headers: { "content-type": "application/json", ...credentials() },
      body: JSON.stringify(content),
      credentials: "omit",
      referrerPolicy: "no-referrer",
      signal,
    });
    body = await response.json();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refusal({ code: "unreachable", message: "The gateway does not answer." });
  }
  if (body.error) throw new Refusal(body.error);
  return body;
}
