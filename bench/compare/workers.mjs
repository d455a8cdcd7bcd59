// Workers of graphile-worker and pg-boss, as their documentation configures them.
//
//   node workers.mjs LIBRARY CONNECTION drain MODE MESSAGES
//   node workers.mjs LIBRARY CONNECTION fill MESSAGES
//   node workers.mjs LIBRARY CONNECTION latency SAMPLES
//
// drain prints a line, begins when it reads one, and prints the seconds until all messages are
// finished and the CPU seconds of this process. latency prints two numbers for each message: ms from
// before it was enqueued to the worker, and ms of the enqueueing.
import { createInterface } from "node:readline";

const PAYLOAD = { payload: "x".repeat(120) };
const AT_ONCE = 1000;
const [library, connectionString, order, ...words] = process.argv.slice(2);

async function begin() {
  console.log("ready");
  const lines = createInterface({ input: process.stdin });
  await new Promise((resolve) => lines.once("line", resolve));
  lines.close();
}

/** Runs `work` until it has called its argument for each message; then awaits what `work` returned: its end. */
async function measured(messages, work) {
  await begin();
  const before = process.cpuUsage();
  const began = performance.now();
  let left = messages;
  let all;
  const finished = new Promise((resolve) => (all = resolve));
  const end = await work((count) => (left -= count) <= 0 && all());
  await finished;
  await end();
  const used = process.cpuUsage(before);
  console.log((performance.now() - began) / 1000, (used.user + used.system) / 1e6);
}

async function graphile() {
  const { Logger, makeWorkerUtils, run } = await import("graphile-worker");
  const logger = new Logger(() => () => {});
  const batched = { localQueue: { size: 500 }, completeJobBatchDelay: 0, failJobBatchDelay: 0 };
  const settings = {
    single: { concurrentJobs: 8, maxPoolSize: 10 },
    batched: { concurrentJobs: 24, maxPoolSize: 10, ...batched },
  };
  const start = (mode, task) =>
    run({ connectionString, logger, noHandleSignals: true, taskList: { task }, preset: { worker: settings[mode] } });
  if (order === "drain") {
    const [mode, messages] = words;
    await measured(Number(messages), async (done) => {
      const runner = await start(mode, async () => done(1));
      return () => runner.stop();
    });
    return;
  }
  const utils = await makeWorkerUtils({ connectionString, logger });
  await utils.migrate();
  if (order === "fill") {
    for (let left = Number(words[0]); left > 0; left -= AT_ONCE) {
      const specs = Array.from({ length: Math.min(AT_ONCE, left) }, () => ({ identifier: "task", payload: PAYLOAD }));
      await utils.addJobs(specs);
    }
  } else {
    let arrived;
    const runner = await start("single", async () => arrived(performance.now()));
    for (let sample = 0; sample < Number(words[0]); sample++) {
      const arrival = new Promise((resolve) => (arrived = resolve));
      const began = performance.now();
      await utils.addJob("task", PAYLOAD);
      const enqueued = performance.now();
      console.log((await arrival) - began, enqueued - began);
      await new Promise((resolve) => setTimeout(resolve, 3));
    }
    await runner.stop();
  }
  await utils.release();
}

async function pgBoss() {
  const { PgBoss } = await import("pg-boss");
  const boss = new PgBoss(connectionString);
  boss.on("error", (error) => { throw error; });
  await boss.start();
  await boss.createQueue("queue");
  if (order === "fill") {
    for (let left = Number(words[0]); left > 0; left -= AT_ONCE)
      await boss.insert("queue", Array.from({ length: Math.min(AT_ONCE, left) }, () => ({ data: PAYLOAD })));
  } else {
    const options = { batchSize: 100, localConcurrency: 4, pollingIntervalSeconds: 0.5, burstWhenBatchFull: true };
    await measured(Number(words[1]), async (done) => {
      await boss.work("queue", options, async (jobs) => done(jobs.length));
      return () => boss.offWork("queue", { wait: true });
    });
  }
  await boss.stop();
}

await { graphile, pgBoss }[library]();
process.exit(0);
