// Reads recallflow's responses and prints a line for each, until a signal. A response on the topic has the type of an
// answer over HTTP.
import { Kafka, logLevel } from "kafkajs";
import type { Answer } from "recallflow-client";

const [server, topic, groupId] = process.argv.slice(2);
if (server === undefined || topic === undefined || groupId === undefined) {
  console.error("usage: consumer BOOTSTRAP_SERVER TOPIC GROUP");
  process.exit(2);
}

function line(value: Buffer | null): string {
  let response: Answer;
  try {
    response = JSON.parse(String(value));
  } catch {
    return "no response";
  }
  if (response.error) {
    return `${response.query_id} failed: ${response.error.code}: ${response.error.message}`;
  }
  const best = response.memories?.[0];
  if (best === undefined) {
    return `${response.query_id} ${response.status}: nothing`;
  }
  return `${response.query_id} ${response.status}: ${best.id}: ${best.content}`;
}

const kafka = new Kafka({ brokers: [server], clientId: groupId, logLevel: logLevel.ERROR });
// Responses are in no transaction: another program's that is open must not hold them back.
const consumer = kafka.consumer({ groupId, readUncommitted: true });
for (const signal of ["SIGINT", "SIGTERM"] as const) {
  process.once(signal, () => void consumer.disconnect());
}
await consumer.connect();
await consumer.subscribe({ topic, fromBeginning: true });
// Offsets are committed after a record is handled: what a kill interrupts is read again. A response is known by its
// query_id.
await consumer.run({
  eachMessage: async ({ message }) => {
    console.log(line(message.value));
  },
});
