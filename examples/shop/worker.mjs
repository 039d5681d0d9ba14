// The worker of the shop in JavaScript, on any machine. One commit removes the order and puts the parcel into "shipped".
import { setTimeout } from "node:timers/promises";

const { origin, pathname } = new URL(process.env.SHOP ?? "http://127.0.0.1:8815/shop");
const headers = { Accept: "application/x-ndjson" }; // a line of JSON for each order, which has the decoded value
if (process.env.XASPOOL_TOKEN) headers.Authorization = `Bearer ${process.env.XASPOOL_TOKEN}`;

// A call may be repeated: the server remembers how a lease has ended.
async function call(path, body) {
  for (;;) {
    try {
      const options = { method: "POST", headers, body: JSON.stringify(body) };
      const answer = await fetch(`${origin}/v1${pathname}/${path}`, options);
      const text = await answer.text();
      if (answer.status < 400 || answer.status === 410) return text; // 410: another worker gets the order
      console.error(text);
    } catch (error) {
      console.error(`no answer: ${error.cause ?? error}`);
    }
    await setTimeout(500);
  }
}

for (;;) {
  const text = await call("queues/orders/claims?wait=20&lease=60");
  if (!text) continue; // no order has come in time
  const order = JSON.parse(text);
  const parcel = { order: order.id, item: order.value.item };
  await call(`claims/${order.receipt}/commit`, { put: [{ queue: "shipped", body: parcel }] });
}
