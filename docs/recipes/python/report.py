"""Writes a report, unless another instance is at it."""

from tenure_lock import Busy, hold

try:
    with hold("nightly-report", "--try") as lock:
        print("writing under token", lock.token, flush=True)
        try:
            with hold("nightly-report", "--try"):
                raise SystemExit("two at once")
        except Busy:
            print("a second one is told that the lock is busy")
except Busy:
    print("another instance writes the report")
