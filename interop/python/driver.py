"""The locks of redis-py and kazoo, told what to do on stdin. The orders are in ../README.md."""

import logging
import sys
import threading
import time
import traceback

import kazoo
import redis
from kazoo.client import KazooClient
from kazoo.exceptions import LockTimeout
from kazoo.recipe.election import Election
from kazoo.recipe.lock import Lock as KazooLock
from redis.lock import Lock as RedisLock


class Driver:
    """What is the same for all clients. A lock here is whatever `lock` makes."""

    def __init__(self):
        self.held = {}

    def acquire(self, name, ttl, wait):
        lock = self.lock(name, ttl)
        if not self.take(lock, wait):
            return "busy"
        self.held.setdefault(name, []).append(lock)
        return f"held\t{self.value(lock).hex()}"

    def do_try(self, name, ttl):
        return self.acquire(name, int(ttl), 0)

    def do_lock(self, name, wait, ttl):
        return self.acquire(name, int(ttl), int(wait) / 1000)

    def do_unlock(self, name):
        holds = self.held.get(name)
        return "released" if holds and self.give(holds.pop()) else "not-held"

    def do_locked(self, name):
        return "yes" if self.locked(name) else "no"

    def do_count(self, name, tasks, n, file, ttl):
        errors = []

        def work():
            try:
                for _ in range(int(n)):
                    lock = self.lock(name, int(ttl))
                    self.take(lock, None)
                    add_one(file)
                    self.give(lock)
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


class RedisPy(Driver):
    def __init__(self, host, port):
        super().__init__()
        self.redis = redis.Redis(host=host, port=port)
        self.redis.ping()
        self.version = f"redis-py {redis.__version__}"

    def lock(self, name, ttl):
        # Not bound to the thread: several names and several holds at once, as the orders say.
        return RedisLock(self.redis, name, timeout=ttl / 1000 or None, sleep=0.02, thread_local=False)

    def take(self, lock, wait):
        return lock.acquire(blocking=wait != 0, blocking_timeout=wait)

    def give(self, lock):
        try:
            lock.release()
        except redis.exceptions.LockError:
            return False
        return True

    def value(self, lock):
        return lock.local.token

    def locked(self, name):
        return self.lock(name, 1000).locked()


class CuratorNames(KazooLock):
    """Nodes that Curator takes for contenders, and its for ours."""

    _NODE_NAME = "-lock-"
    _EXCLUDE_NAMES = ["-lock-"]


class Kazoo(Driver):
    """One session for all locks: to kazoo each object is a contender."""

    def __init__(self, host, port, kind, session="10000"):
        super().__init__()
        # It tells of a lost connection, where there is nobody who could do something about it.
        logging.getLogger("kazoo").setLevel(logging.CRITICAL)
        self.zookeeper = KazooClient(hosts=f"{host}:{port}", timeout=int(session) / 1000)
        self.zookeeper.start()
        self.kind = kind
        self.version = f"{kind} {kazoo.__version__}"

    def lock(self, name, _ttl):
        if self.kind == "kazoo-curator":
            return CuratorNames(self.zookeeper, f"/{name}")
        patterns = ["-lock-"] if self.kind == "kazoo-patterns" else []
        return KazooLock(self.zookeeper, f"/{name}", extra_lock_patterns=patterns)

    def take(self, lock, wait):
        try:
            return lock.acquire(blocking=wait != 0, timeout=wait or None)
        except LockTimeout:
            return False

    def give(self, lock):
        # It does not tell whether it deleted anything.
        mine = self.zookeeper.exists(f"{lock.path}/{lock.node}")
        lock.release()
        return bool(mine)

    def value(self, lock):
        return lock.node.encode()

    def locked(self, name):
        directory = f"/{name}"
        return bool(self.zookeeper.exists(directory) and self.zookeeper.get_children(directory))


class KazooElection(Kazoo):
    """To hold is to lead. Its nodes have Curator's names."""

    IDENTIFIER = "kazoo-7"

    class Candidate:
        def __init__(self, lock):
            self.lock = lock
            self.election = Election(lock.client, lock.path, KazooElection.IDENTIFIER)
            self.election.lock = lock
            self.began = threading.Event()
            self.ends = threading.Event()
            self.thread = threading.Thread(target=self.election.run, args=(self.lead,), daemon=True)
            self.thread.start()

        def lead(self):
            self.began.set()
            self.ends.wait()

    def lock(self, name, _ttl):
        return CuratorNames(self.zookeeper, f"/{name}", self.IDENTIFIER)

    def acquire(self, name, ttl, wait):
        candidate = self.Candidate(self.lock(name, ttl))
        if not candidate.began.wait(wait):
            candidate.election.cancel()
            candidate.thread.join()
            return "busy"
        self.held.setdefault(name, []).append(candidate)
        return f"held\t{self.value(candidate.lock).hex()}"

    def give(self, candidate):
        candidate.ends.set()
        candidate.thread.join()
        return True


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
    host, port, *client = sys.argv[1:]
    if not client:
        driver = RedisPy(host, int(port))
    elif client[0] == "kazoo-election":
        driver = KazooElection(host, port, *client)
    else:
        driver = Kazoo(host, port, *client)
    print(f"ready\t{driver.version}")
    for line in sys.stdin:
        order, *fields = line.rstrip("\n").split("\t")
        if order == "quit":
            break
        action = getattr(driver, f"do_{order}", None)
        try:
            print(action(*fields) if action else f"error\tunknown order {order}")
        except Exception as error:
            traceback.print_exc()
            print(f"error\t{type(error).__name__}: {error}".replace("\n", " "))


main()
