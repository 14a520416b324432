// Times in words for people, in the reader's own zone.
const LONG = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "short" });

/** A time of the engine (RFC 3339, or ms), in words; null for none. */
export const when = (time) => (time === null || time === undefined ? null : LONG.format(new Date(time)));

/** A span of time, in words; what both ends share is said once. */
export const span = (from, to) => LONG.formatRange(new Date(from), new Date(to));
