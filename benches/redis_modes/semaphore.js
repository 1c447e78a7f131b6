// redis-semaphore's Semaphore with 8 permits in the scenario `contend`; ../redis_peers/README.md has the arguments.
'use strict';

const fs = require('node:fs');
const Redis = require('ioredis');
const { Semaphore } = require('redis-semaphore');

const [port, scenario, ...rest] = process.argv.slice(2);
const redis = new Redis({ port: Number(port) });

const PERMITS = 8;
const OPTIONS = { lockTimeout: 30_000, acquireTimeout: Infinity };
const now = () => process.hrtime.bigint();
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const seconds = (text) => BigInt(Math.round(Number(text) * 1e9));

async function contend(workers, start, time, workUs, file) {
  const end = BigInt(start) + seconds(time);
  await sleep(Math.max(0, Number(BigInt(start) - now()) / 1e6));
  const lines = [];
  const work = async (worker) => {
    while (now() < end) {
      const semaphore = new Semaphore(redis, 'contended', PERMITS, OPTIONS);
      await semaphore.acquire();
      const acquired = now();
      if (Number(workUs)) await sleep(Number(workUs) / 1000);
      const released = now();
      if (released <= end) lines.push(`${worker} ${acquired} ${released}\n`);
      await semaphore.release();
    }
  };
  for (let i = 0; i < Number(workers); i++) work(i);
  await sleep(Number(end - now()) / 1e6);
  fs.writeFileSync(file, lines.join(''));
  return {};
}

({ contend })[scenario](...rest).then((result) => {
  console.log(JSON.stringify(result));
  process.exit(0);
});
