// A worker to copy: node worker_mysql2.mjs HOST PORT USER PASSWORD DATABASE
//
// It takes messages of the queue `jobs` (examples/jobs.sql) one by one. The effect of a message and its
// acknowledgement are one transaction, which is committed only if the ACK affected the message.
// SIGTERM and SIGINT end it within graceS.
import { setTimeout as sleep } from "node:timers/promises";
import { pathToFileURL } from "node:url";
import mysql from "mysql2/promise";

const POLL_S = 20; // How long a STREAM waits for a message.
const RECONNECT_S = 1;
const DELAY_MAX_S = 3600; // The longest delay after an error.

// The work. What it does on `connection` is committed together with the ACK.
async function handle(connection, task) {
  await connection.query("INSERT INTO done (task) VALUES (?)", [task]);
}

export class Worker {
  // ackWaitS: ACK_WAIT of the queue; a message that takes longer is kept by EXTEND.
  // graceS: for the message under way when a signal comes; after it the message goes to another worker.
  constructor(options, work = handle, ackWaitS = 30, graceS = 5) {
    Object.assign(this, { options, handle: work, ackWaitS, graceS, busy: false, stopping: false });
    this.stopped = new Promise((resolve) => (this.end = resolve));
  }

  // Work until a signal comes. Each lost connection is replaced.
  async run() {
    for (const signal of ["SIGTERM", "SIGINT"]) process.on(signal, () => this.stop());
    while (!this.stopping) {
      try {
        this.connection = await mysql.createConnection(this.options);
        this.connection.on("error", () => {}); // The statement under way is rejected, too.
        while (!this.stopping) await this.work(this.connection);
      } catch (error) {
        if (this.stopping) break;
        console.error(`connecting again in ${RECONNECT_S} s: ${error}`);
        await sleep(RECONNECT_S * 1000);
      } finally {
        this.connection?.destroy();
      }
    }
    clearTimeout(this.grace);
  }

  // A signal. While the worker waits, its connection is closed; destroy() does not settle the query's promise. Else
  // the message has its grace. Closing the connection rolls the effect back and frees the message at once.
  stop() {
    this.stopping = true;
    if (!this.busy) this.end([[]]);
    else this.grace ??= setTimeout(() => process.exit(0), this.graceS * 1000);
  }

  // Wait for one message and handle it.
  async work(connection) {
    const messages = connection.query("STREAM id, epoch, task FROM jobs LIMIT 1 WAIT ?", [POLL_S]);
    const [found] = await Promise.race([messages, this.stopped]);
    for (const { id, epoch, task } of found) {
      this.busy = true;
      const finished = new AbortController();
      this.keep(id, epoch, finished.signal).catch((error) => {
        if (error.name !== "AbortError") console.error(`message ${id} is not kept: ${error}`);
      });
      try {
        await connection.beginTransaction();
        await this.handle(connection, task);
        const [done] = await connection.query("ACK jobs WHERE id = ? AND epoch = ?", [id, epoch]);
        // 0: it took longer than its wait, and was delivered to another worker.
        await (done.affectedRows ? connection.commit() : connection.rollback());
      } catch (error) {
        console.error(`${task}, delivery ${epoch}: ${error}`);
        await connection.rollback();
        const back = "NACK jobs WHERE id = ? AND epoch = ? DELAY ? REASON ?";
        const delayS = Math.min(2 ** epoch, DELAY_MAX_S) * (1 + Math.random() / 4);
        await connection.query(back, [id, epoch, delayS, String(error)]);
      } finally {
        finished.abort();
        this.busy = false;
      }
    }
  }

  // Extend the wait of a message until it is finished, on a second connection.
  async keep(id, epoch, signal) {
    await sleep((this.ackWaitS * 1000) / 3, undefined, { signal });
    const connection = await mysql.createConnection(this.options); // Only for messages that take long.
    try {
      for (;;) {
        const extend = "EXTEND jobs WHERE id = ? AND epoch = ? BY ?";
        const [kept] = await connection.query(extend, [id, epoch, this.ackWaitS]);
        if (!kept.affectedRows) return;
        await sleep((this.ackWaitS * 1000) / 3, undefined, { signal });
      }
    } finally {
      connection.destroy();
    }
  }
}

if (import.meta.url === pathToFileURL(process.argv[1]).href) {
  const [host, port, user, password, database] = process.argv.slice(2);
  await new Worker({ host, port, user, password, database }).run();
}
