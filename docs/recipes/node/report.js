// Writes a report, unless another instance is at it.

const { hold, Busy } = require("./tenure-lock.js");

async function main() {
  await hold("nightly-report", ["--try"], async (lock) => {
    console.log("writing under token", lock.token);
    try {
      await hold("nightly-report", ["--try"], async () => {
        throw new Error("two at once");
      });
    } catch (error) {
      if (!(error instanceof Busy)) throw error;
      console.log("a second one is told that the lock is busy");
    }
  });
}

main().catch((error) => {
  if (error instanceof Busy) {
    console.log("another instance writes the report");
  } else {
    console.error(error);
    process.exitCode = 1;
  }
});
