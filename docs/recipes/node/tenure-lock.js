// A lock of tenure for Node, through `tenure hold --json`.
//
//     await hold("orders/42", ["--wait", "5s"], async (lock) => write(lock.token));
//
// The store is that of TENURE_URL.

const { spawn } = require("node:child_process");
const { once } = require("node:events");
const readline = require("node:readline");

// Somebody else holds the lock.
class Busy extends Error {}
// The lock ended before the body did: its work may have overlapped with that of the next holder.
class Lost extends Error {}

// Runs `body` with { token, signal }; the signal (an AbortSignal) is aborted as soon as the lock ends too early.
async function hold(name, options, body) {
  // The end of its input is the word to release. If this process dies, its input ends as well.
  const child = spawn("tenure", ["hold", "--json", ...options, name], {
    stdio: ["pipe", "pipe", "inherit"],
  });
  // It may be gone when its input is closed.
  child.stdin.on("error", () => {});
  const ended = once(child, "close");
  const lost = new AbortController();
  const acquired = new Promise((resolve) => {
    const lines = readline.createInterface({ input: child.stdout });
    lines.on("line", (line) => {
      const event = JSON.parse(line);
      if (event.event === "acquired") resolve(event);
      if (event.event === "lost") lost.abort(new Lost(event.reason));
    });
    lines.on("close", () => resolve(null));
  });
  const end = async () => {
    child.stdin.end();
    const [code] = await ended;
    if (code === 75) throw new Busy(name);
    if (code === 76) throw new Lost(name);
    if (code !== 0) throw new Error(`tenure hold ended with ${code}; its standard error says why`);
  };

  const event = await acquired;
  if (event === null) {
    await end();
    throw new Error("tenure hold ended without a word");
  }
  let result;
  try {
    result = await body({ token: event.tokens[0], signal: lost.signal });
  } catch (error) {
    // The body's own error says more than what comes of it.
    await end().catch(() => {});
    throw error;
  }
  await end();
  return result;
}

module.exports = { hold, Busy, Lost };
