"""The lock of redis-py, told what to do on stdin. The orders are in ../README.md."""

import sys
import threading
import time
import traceback

import redis
from redis.lock import Lock


class Driver:
    def __init__(self, host, port):
        self.redis = redis.Redis(host=host, port=port)
        self.held = {}

    def lock(self, name, ttl, wait=None):
        # Not bound to the thread: several names and several holds at once, as the orders say.
        return Lock(
            self.redis,
            name,
            timeout=int(ttl) / 1000 or None,
            sleep=0.02,
            blocking=wait != 0,
            blocking_timeout=wait,
            thread_local=False,
        )

    def acquire(self, name, ttl, wait):
        lock = self.lock(name, ttl, wait)
        if not lock.acquire():
            return "busy"
        self.held.setdefault(name, []).append(lock)
        return f"held\t{lock.local.token.hex()}"

    def do_try(self, name, ttl):
        return self.acquire(name, ttl, 0)

    def do_lock(self, name, wait, ttl):
        return self.acquire(name, ttl, int(wait) / 1000)

    def do_unlock(self, name):
        holds = self.held.get(name)
        if not holds:
            return "not-held"
        try:
            holds.pop().release()
        except redis.exceptions.LockError:
            return "not-held"
        return "released"

    def do_locked(self, name):
        return "yes" if self.lock(name, 1000).locked() else "no"

    def do_count(self, name, tasks, n, file, ttl):
        errors = []

        def work():
            try:
                for _ in range(int(n)):
                    lock = self.lock(name, ttl)
                    lock.acquire()
                    add_one(file)
                    lock.release()
                    time.sleep(0.005)
            except Exception as error:
                errors.append(error)

        threads = [threading.Thread(target=work) for _ in range(int(tasks))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
        return "counted"


def add_one(file):
    """Reads, lets others run, writes: loses counts unless it is alone."""
    with open(file, "r+") as counter:
        value = int(counter.read().split()[0])
        time.sleep(0.0002)
        counter.seek(0)
        counter.write(f"{value + 1:020} python\n")
        counter.truncate()


def main():
    sys.stdin.reconfigure(encoding="utf-8")
    sys.stdout.reconfigure(encoding="utf-8", line_buffering=True)
    driver = Driver(sys.argv[1], int(sys.argv[2]))
    driver.redis.ping()
    print(f"ready\tredis-py {redis.__version__}")
    for line in sys.stdin:
        order, *fields = line.rstrip("\n").split("\t")
        if order == "quit":
            return
        action = getattr(driver, f"do_{order}", None)
        try:
            print(action(*fields) if action else f"error\tunknown order {order}")
        except Exception as error:
            traceback.print_exc()
            print(f"error\t{type(error).__name__}: {error}".replace("\n", " "))


main()
