// mysql2's pool: it closes connections that were idle for 0.3 s, all but those that it keeps.
import { createInterface } from "node:readline";
import mysql from "../../../examples/node/node_modules/mysql2/promise.js";

const [port, database, kept] = process.argv.slice(2);
const options = { host: "127.0.0.1", port, user: "root", database, connectionLimit: 3 };
const pool = mysql.createPool({ ...options, idleTimeout: 300, maxIdle: Number(kept) });
const next = "STREAM id FROM jobs LIMIT 1 WAIT 10";
let held;

const commands = {
  async hold() {
    held = await pool.getConnection();
    return (await held.query(next))[0][0].id;
  },
  async query() {
    return (await pool.query(next))[0][0].id;
  },
  async idle() {
    return (await pool.query("SELECT CONNECTION_ID() AS id"))[0][0].id;
  },
  async return() {
    held.release();
    return 0;
  },
  async ack() {
    return (await pool.query("ACK jobs WHERE id = 1 AND epoch = 1"))[0].affectedRows;
  },
};

for await (const command of createInterface({ input: process.stdin })) console.log(await commands[command]());
await pool.end();
