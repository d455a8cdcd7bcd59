// Enqueue, stream and acknowledge with mysql2:
// node orders_mysql2.mjs HOST PORT USER PASSWORD DATABASE
import mysql from "mysql2/promise";

const [host, port, user, password, database] = process.argv.slice(2);
// No read timeout is set, and none may be: an idle stream is silent.
const connect = () => mysql.createConnection({ host, port, user, password, database });

// query() sends text, execute() a prepared statement.
async function acknowledge(connection, send, order, how) {
  const [done] = await connection[send]("ACK FROM orders WHERE id = ?", [order]);
  console.log(`acknowledged ${order}, ${how}: ${done.affectedRows}`);
}

// A stream keeps its connection busy, so everything else uses another one.
const streaming = await connect();
const working = await connect();

// Enqueueing is an INSERT in a transaction of your own.
await working.beginTransaction();
await working.query("INSERT INTO orders (item) VALUES ?", [[["tea"], ["bread"]]]);
await working.commit();
console.log("enqueued tea, bread");

await working.beginTransaction();
await working.execute("INSERT INTO orders (item) VALUES (?)", ["milk"]);
await working.rollback();
console.log("rolled back milk");

// stream() returns each row as it comes; a plain query() waits for the end of the result.
let first;
const orders = streaming.connection.query("STREAM id, item FROM orders LIMIT 3").stream();
for await (const { id, item } of orders) {
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
const [found] = await working.execute("STREAM id, item FROM orders LIMIT ? WAIT ?", [1, 20]);
for (const { id, item } of found) {
  console.log(`received ${id} ${item}`);
  await acknowledge(working, "execute", id, "in the transaction");
}
await working.commit();

const [none] = await working.execute("STREAM id, item FROM orders LIMIT ? WAIT ?", [1, 0.5]);
if (none.length === 0) console.log("nothing came");
await working.end();
