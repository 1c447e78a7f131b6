"""The scenarios for the clients in Python; the READMEs have the arguments.

`lock_of` makes the lock of a name for one worker. A lock has the methods `acquire` and `release`.
"""

import json
import os
import threading
import time


def free(lock_of, workers, seconds):
    begin = time.monotonic() + 0.2
    end = begin + float(seconds)
    times = []

    def work(name):
        lock = lock_of(name)
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


def contend(lock_of, workers, start, seconds, work_us, file, name="contended"):
    end = int(start) + int(float(seconds) * 1e9)
    lines = []

    def work(worker):
        lock = lock_of(name)
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


def run(lock_of, scenario, *rest):
    print(json.dumps({"free": free, "contend": contend}[scenario](lock_of, *rest)), flush=True)
    os._exit(0)  # threads may wait for ever
