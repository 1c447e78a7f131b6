"""redis-py in the scenarios `free` and `contend`; README.md has the arguments."""

import json
import os
import sys
import threading
import time

import redis
from redis.lock import Lock

TTL = 30


def free(client, workers, seconds):
    begin = time.monotonic() + 0.2
    end = begin + float(seconds)
    times = []

    def work(name):
        lock = Lock(client, name, timeout=TTL, thread_local=False)
        while (began := time.monotonic()) < end:
            lock.acquire()
            lock.release()
            if began >= begin:
                times.append((time.monotonic() - began) * 1e6)

    threads = [threading.Thread(target=work, args=(f"free-{i}",)) for i in range(int(workers))]
    for thread in threads:
        thread.start()
    time.sleep(0.2)
    before = time.process_time()
    for thread in threads:
        thread.join()
    cpu = (time.process_time() - before) * 1e6
    times.sort()

    def at(share):
        return times[int((len(times) - 1) * share)]

    return {"pairs": len(times), "p50_us": at(0.5), "p99_us": at(0.99), "cpu_us": cpu / len(times)}


def contend(client, workers, start, seconds, work_us, file):
    end = int(start) + int(float(seconds) * 1e9)
    lines = []

    def work(worker):
        lock = Lock(client, "contended", timeout=TTL, thread_local=False)
        while time.monotonic_ns() < end:
            lock.acquire()
            acquired = time.monotonic_ns()
            if int(work_us):
                time.sleep(int(work_us) / 1e6)
            released = time.monotonic_ns()
            if released <= end:
                lines.append(f"{worker} {acquired} {released}\n")
            lock.release()

    time.sleep(max(0, (int(start) - time.monotonic_ns()) / 1e9))
    for i in range(int(workers)):
        threading.Thread(target=work, args=(i,), daemon=True).start()
    time.sleep(max(0, (end - time.monotonic_ns()) / 1e9))
    with open(file, "w") as out:
        out.writelines(list(lines))
    return {}


def main():
    port, scenario, *rest = sys.argv[1:]
    client = redis.Redis(port=int(port), max_connections=1000)
    print(json.dumps({"free": free, "contend": contend}[scenario](client, *rest)), flush=True)
    os._exit(0)  # threads may wait for ever


main()
