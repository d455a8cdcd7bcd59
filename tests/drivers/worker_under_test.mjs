// The worker of examples/node with a `handle` whose work the test controls, as in worker_under_test.py.
import { Worker } from "../../examples/node/worker_mysql2.mjs";

const [port, database, ackWaitS, graceS] = process.argv.slice(2);
const failed = new Set();

async function handle(connection, task) {
  await connection.query("INSERT INTO done (task) VALUES (?)", [task]);
  if (task === "broken" || (task === "fail" && !failed.has(task))) {
    failed.add(task);
    throw new Error("no water");
  }
  if (task.startsWith("gate")) {
    await connection.query("SELECT GET_LOCK(?, 40)", [task]);
    await connection.query("DO RELEASE_LOCK(?)", [task]);
  }
}

const options = { host: "127.0.0.1", port, user: "root", database };
await new Worker(options, handle, Number(ackWaitS), Number(graceS)).run();
