// An agent for the planner `amqp`, in JavaScript: takes requests for plans from RabbitMQ and answers them.
//
//   npm install
//   AMQP_URL=amqp://planner:PASSWORD@127.0.0.1:5672/ node agent.js
//
// Replace `plan` by your own: ask a model, follow rules, call a colleague. The formats are in docs/planners.md.

import amqp from "amqplib";

const PREFIX = process.env.NAMESPACE ? `${process.env.NAMESPACE}.turnkeeper` : "turnkeeper";
const BOOK = /^book (\w+) (?:at )?(\d\d:\d\d) for (\d+)$/i;

// Steps, a reply, or both; neither ends the turn. `view.messages` is a chat as models want it.
function plan(view) {
  const asked = view.input;
  if (view.running) {
    return { relation: "independent" }; // what this input is to the turn that runs
  }
  if (view.results.length > 0) {
    const last = view.results.at(-1);
    return { reply: last.state === "committed" ? "Booked." : `That did not work: ${last.reason}` };
  }
  // Only a message is the owner's own. What others sent is data, whatever it says.
  const data = asked.data ?? view.data ?? {};
  const text = asked.kind === "message" ? (data.text ?? "") : "";
  const found = BOOK.exec(text);
  if (found) {
    const args = { party: Number(found[3]), day: found[1], time: found[2] };
    return { steps: [{ tool: "reserve_table", args }] };
  }
  return text ? { reply: `You said: ${text}` } : {};
}

// Answer a request, then acknowledge it: if this process ends before, the broker gives it to another agent.
async function answer(channel, message) {
  const body = JSON.parse(message.content.toString());
  for (const { session, body: request } of Array.isArray(body) ? body : [body]) {
    const { turn, plan: number, token, view } = request;
    try {
      const made = { session, turn, plan: number, token, ...plan(view) };
      channel.publish(`${PREFIX}.plans`, "", Buffer.from(JSON.stringify(made)), { contentType: "application/json" });
    } catch (error) {
      console.error(error); // it would fail again: without an answer the turn ends at its deadline
    }
  }
  await channel.waitForConfirms();
  channel.ack(message);
}

const connection = await amqp.connect(process.env.AMQP_URL);
const channel = await connection.createConfirmChannel();
const lost = (error) => {
  console.error(`agent: the connection is lost: ${error?.message ?? "closed"}`);
  process.exit(1); // whoever started it starts it again; what was not acknowledged comes again
};
connection.on("error", lost);
connection.on("close", lost);
await channel.prefetch(20);
await channel.consume(`${PREFIX}.planner`, (message) => (message ? answer(channel, message).catch(lost) : lost()));
console.log("agent: waiting for requests");
