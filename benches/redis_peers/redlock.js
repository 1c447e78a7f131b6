// redlock in the scenarios `free` and `contend`; README.md has the arguments.
'use strict';

const fs = require('node:fs');
const Redis = require('ioredis');
const Redlock = require('redlock');

const [port, scenario, ...rest] = process.argv.slice(2);
const redlock = new Redlock([new Redis({ port: Number(port) })], { retryCount: -1 });
redlock.on('clientError', () => {});

const TTL = 30000;
const now = () => process.hrtime.bigint();
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const seconds = (text) => BigInt(Math.round(Number(text) * 1e9));

async function free(workers, time) {
  const begin = now() + 200_000_000n;
  const end = begin + seconds(time);
  const times = [];
  const work = async (name) => {
    for (let began; (began = now()) < end; ) {
      await (await redlock.lock(name, TTL)).unlock();
      if (began >= begin) times.push(Number(now() - began) / 1000);
    }
  };
  const all = Promise.all(Array.from({ length: Number(workers) }, (_, i) => work(`free-${i}`)));
  await sleep(200);
  const before = process.cpuUsage();
  await all;
  const { user, system } = process.cpuUsage(before);
  times.sort((a, b) => a - b);
  const at = (share) => times[Math.floor((times.length - 1) * share)];
  return { pairs: times.length, p50_us: at(0.5), p99_us: at(0.99), cpu_us: (user + system) / times.length };
}

async function contend(workers, start, time, workUs, file) {
  const end = BigInt(start) + seconds(time);
  await sleep(Math.max(0, Number(BigInt(start) - now()) / 1e6));
  const lines = [];
  const work = async (worker) => {
    while (now() < end) {
      const lock = await redlock.lock('contended', TTL);
      const acquired = now();
      if (Number(workUs)) await sleep(Number(workUs) / 1000);
      const released = now();
      if (released <= end) lines.push(`${worker} ${acquired} ${released}\n`);
      await lock.unlock();
    }
  };
  for (let i = 0; i < Number(workers); i++) work(i);
  await sleep(Number(end - now()) / 1e6);
  fs.writeFileSync(file, lines.join(''));
  return {};
}

const run = { free, contend }[scenario];
run(...rest).then((result) => {
  console.log(JSON.stringify(result));
  process.exit(0);
});
