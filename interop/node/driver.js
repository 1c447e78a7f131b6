// The lock of redlock, told what to do on stdin. The orders are in ../README.md.
'use strict';

const fs = require('node:fs');
const readline = require('node:readline');
const Redis = require('ioredis');
const Redlock = require('redlock');

const [host, port] = process.argv.slice(2);
const redis = new Redis({ host, port: Number(port) });
const held = new Map();
const delay = 20;

// One attempt at once, then one each `delay` milliseconds.
function client(waitMs) {
  const retryCount = waitMs === Infinity ? -1 : Math.ceil(waitMs / delay);
  const redlock = new Redlock([redis], { retryCount, retryDelay: delay, retryJitter: 5 });
  redlock.on('clientError', () => {}); // told by the promise, too
  return redlock;
}

async function acquire(name, ttl, wait) {
  let lock;
  try {
    lock = await client(Number(wait)).lock(name, Number(ttl));
  } catch (error) {
    if (error.name === 'LockError') return 'busy';
    throw error;
  }
  held.set(name, [...(held.get(name) ?? []), lock]);
  return `held\t${Buffer.from(lock.value).toString('hex')}`;
}

const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

// Reads, lets others run, writes: loses counts unless it is alone.
async function addOne(file) {
  const value = parseInt(fs.readFileSync(file, 'utf8'), 10);
  await sleep(0);
  fs.writeFileSync(file, `${String(value + 1).padStart(20, '0')} node\n`);
}

const orders = {
  try: (name, ttl) => acquire(name, ttl, 0),
  lock: (name, wait, ttl) => acquire(name, ttl, wait),

  async unlock(name) {
    const lock = held.get(name)?.pop();
    if (!lock) return 'not-held';
    try {
      await lock.unlock();
    } catch (error) {
      if (error.name === 'LockError') return 'not-held';
      throw error;
    }
    return 'released';
  },

  locked: async (name) => ((await redis.exists(name)) ? 'yes' : 'no'),

  async count(name, tasks, n, file, ttl) {
    const redlock = client(Infinity);
    const work = async () => {
      for (let i = 0; i < Number(n); i++) {
        const lock = await redlock.lock(name, Number(ttl));
        await addOne(file);
        await lock.unlock();
        await sleep(5);
      }
    };
    await Promise.all(Array.from({ length: Number(tasks) }, work));
    return 'counted';
  },
};

async function main() {
  await redis.ping();
  const version = (name) => require(`${name}/package.json`).version;
  console.log(`ready\tredlock ${version('redlock')}, ioredis ${version('ioredis')}`);
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const [order, ...fields] = line.split('\t');
    if (order === 'quit') break;
    try {
      console.log(orders[order] ? await orders[order](...fields) : `error\tunknown order ${order}`);
    } catch (error) {
      console.error(error);
      console.log(`error\t${error.name}: ${error.message}`.replaceAll('\n', ' '));
    }
  }
  process.exit(0);
}

main();
