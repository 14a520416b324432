// Whose memories are shown, and with which credentials. Nothing of it is ever in an address. Credentials are kept in
// memory; in the tab's own store, until it is closed, only where its reader asks for that.
const STORE = "recallflow.explorer";

const EMPTY = { tenant: "", user: "", environment: "", project: "", kind: "none", secret: "", keep: false };

let session = kept();

/** What this tab's store has; nothing of an entry that is damaged: whose memories is asked again then. */
function kept() {
  try {
    const stored = JSON.parse(sessionStorage.getItem(STORE)) ?? {};
    const isWhole = Object.entries(EMPTY).every(([field, value]) => typeof (stored[field] ?? value) === typeof value);
    return isWhole ? { ...EMPTY, ...stored } : EMPTY;
  } catch {
    return EMPTY;
  }
}

/** What was given last. */
export function current() {
  return session;
}

/** Whether anybody's memories can be asked for. */
export function isComplete() {
  return session.tenant !== "" && session.user !== "";
}

/** Takes what was given in place of what was. */
export function become(given) {
  session = given;
  const stored = given.keep ? given : { ...given, secret: "" };
  sessionStorage.setItem(STORE, JSON.stringify(stored));
}

/** The fields by which every query says whose memories it asks for. */
export function owner() {
  const { tenant, user, environment, project } = session;
  return {
    tenant_id: tenant,
    user_id: user,
    ...(environment && { environment }),
    ...(project && { project_id: project }),
  };
}

/** The HTTP headers that prove who asks. */
export function credentials() {
  if (!session.secret || session.kind === "none") return {};
  return session.kind === "token" ? { authorization: `Bearer ${session.secret}` } : { "x-api-key": session.secret };
}
