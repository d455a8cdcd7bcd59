// Enqueue, stream and acknowledge with MariaDB's connector:
// node orders_mariadb.mjs HOST PORT USER PASSWORD DATABASE
import mariadb from "mariadb";

const [host, port, user, password, database] = process.argv.slice(2);
// socketTimeout and queryTimeout are off by default, and must stay off: an idle stream is silent.
// With caching_sha2_password, a client without TLS must allow the server to send its RSA key.
const connect = () =>
  mariadb.createConnection({ host, port: Number(port), user, password, database, allowPublicKeyRetrieval: true });

// query() sends text, execute() a prepared statement.
async function acknowledge(connection, send, order, how) {
  const done = await connection[send]("ACK FROM orders WHERE id = ?", [order]);
  console.log(`acknowledged ${order}, ${how}: ${done.affectedRows}`);
}

// A stream keeps its connection busy, so everything else uses another one.
const streaming = await connect();
const working = await connect();

// Enqueueing is an INSERT in a transaction of your own.
await working.beginTransaction();
await working.batch("INSERT INTO orders (item) VALUES (?)", [["tea"], ["bread"]]);
await working.commit();
console.log("enqueued tea, bread");

await working.beginTransaction();
await working.execute("INSERT INTO orders (item) VALUES (?)", ["milk"]);
await working.rollback();
console.log("rolled back milk");

// queryStream() returns each row as it comes; query() waits for the end of the result.
let first;
for await (const { id, item } of streaming.queryStream("STREAM id, item FROM orders LIMIT 3")) {
  console.log(`received ${id} ${item}`);
  if (item === "bread") {
    await acknowledge(working, "execute", id, "prepared");
    await working.execute("INSERT INTO orders (item) VALUES (?)", ["jam"]); // reaches the open stream at once
    console.log("enqueued jam");
  } else {
    await acknowledge(working, "query", id, "text");
  }
  first ??= id;
}
await streaming.end();

await acknowledge(working, "execute", first, "again");

try {
  await working.query("STREAM * FROM customers");
} catch (error) {
  console.log(`refused ${error.errno}: ${error.sqlMessage}`);
}

// A long poll is an ordinary result. The work and its acknowledgement are one transaction.
// Commit work only if its ACK, with AND epoch = n, affected the message: docs/recipes.md shows why.
await working.query("INSERT INTO orders (item) VALUES ('salt')");
console.log("enqueued salt");
await working.beginTransaction();
for (const { id, item } of await working.execute("STREAM id, item FROM orders LIMIT ? WAIT ?", [1, 20])) {
  console.log(`received ${id} ${item}`);
  await acknowledge(working, "execute", id, "in the transaction");
}
await working.commit();

const none = await working.execute("STREAM id, item FROM orders LIMIT ? WAIT ?", [1, 0.5]);
if (none.length === 0) console.log("nothing came");
await working.end();
