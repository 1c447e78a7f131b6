"""The common part of the `run` of each folder here: starts clients and computes figures from their output."""

import contextlib
import json
import math
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
TARGET = ROOT / "target"


def build_rust(folder):
    """Builds the clients in Rust; returns the path of the program."""
    target = TARGET / folder.name
    manifest = folder / "rust/Cargo.toml"
    cargo = ["cargo", "build", "--release", "--quiet", "--manifest-path", manifest]
    subprocess.run([*cargo, "--target-dir", target], check=True)
    return str(target / "release/peer")


def build_foreign(*languages):
    """Builds clients by interop/build; returns the languages that could be built."""
    command = [ROOT / "interop/build", *languages]
    subprocess.run(command, check=True, stdout=sys.stderr)
    return {one for one in languages if (TARGET / "interop" / one / "run").exists()}


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def start(command, port, *scenario):
    command = [*command, port, *map(str, scenario)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


@contextlib.contextmanager
def awake():
    """Keeps each processor awake by a program that runs only while nothing else does.

    A processor that sleeps needs time to wake up, which hides what a client costs."""

    def run_when_idle():
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))

    command = [sys.executable, "-c", "while True: pass"]
    running = [subprocess.Popen(command, preexec_fn=run_when_idle) for _ in range(os.cpu_count())]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


def finish(process):
    out, _ = process.communicate()
    if process.returncode:
        sys.exit(f"{process.args} ended with {process.returncode}")
    return json.loads(out)


def contend(
    port, command, processes, workers, seconds, work_us, folder, name="contended", lead=1, permits=1
):
    """Figures of one lock for which `processes` with `workers` each compete, after `lead` seconds of preparation.

    With several permits the times of hand-overs are unknown, because any of the holders may have made room.
    """
    begin = time.monotonic_ns() + lead * 1_000_000_000
    files = [f"{folder}/held-{i}" for i in range(processes)]
    scenario = ("contend", workers, begin, seconds, work_us)
    running = [start(command, port, *scenario, file, name) for file in files]
    for process in running:
        finish(process)
    held = []
    shares = {(i, j): 0 for i in range(processes) for j in range(workers)}
    for i, file in enumerate(files):
        with open(file) as lines:
            for line in lines:
                worker, acquired, released = map(int, line.split())
                held.append((acquired, released, (i, worker)))
                shares[(i, worker)] += 1
    held.sort()
    hand_overs, overlaps, free_ns = [], 0, 0
    for (_, released, last), (acquired, _, worker) in zip(held, held[1:]):
        free_ns += max(0, acquired - released)
        # The next holder got the lock before the release was sent: `released` is read before the request.
        overlaps += acquired < released
        if worker != last:
            hand_overs.append((acquired - released) / 1000)
    hand_overs.sort()

    def at(share):
        return hand_overs[int((len(hand_overs) - 1) * share)] if hand_overs else float("nan")

    least = min(shares.values())
    return {
        "acquisitions": len(held),
        "hand_overs_per_s": (len(hand_overs) if permits == 1 else permit_hand_overs(held, permits)) / seconds,
        "acquisitions_per_s": len(held) / seconds,
        "p50_us": at(0.5),
        "p99_us": at(0.99),
        # Between two holders, also where the next one is the same worker.
        "free_us": free_ns / 1000 / max(1, len(held) - 1),
        "starved": sum(count == 0 for count in shares.values()),
        "most_to_least": max(shares.values()) / least if least else float("inf"),
        "overlaps": overlaps if permits == 1 else 0,
        "at_once": most_at_once(held),
    }


def permit_hand_overs(held, permits):
    """How often a permit went from one worker to another. A worker whose own last permit is still free takes that one, and
    otherwise the permit that has been free for longest."""
    ends = [(time, step, worker) for acquired, released, worker in held for time, step in ((acquired, 1), (released, -1))]
    free, count = [None] * permits, 0
    for _, step, worker in sorted(ends):
        if step < 0:
            free.append(worker)
        elif worker in free:
            free.remove(worker)
        elif free and free.pop(0) is not None:
            count += 1
    return count


def most_at_once(held):
    """The greatest number of holders at one time. A release is sent after it was noted, so at the same instant the end of a
    hold comes first."""
    ends = [(time, step) for acquired, released, _ in held for time, step in ((acquired, 1), (released, -1))]
    most = now = 0
    for _, step in sorted(ends):
        now += step
        most = max(most, now)
    return most


def rotated(clients, turn):
    """Begins with another client in each turn, so that other load of the machine affects all clients."""
    names = list(clients)
    return names[turn % len(names) :] + names[: turn % len(names)]


def medians(samples):
    return {
        key: {field: statistics.median(sample[field] for sample in found) for field in found[0]}
        for key, found in samples.items()
    }


def print_json(found):
    nested = {}
    for (name, scenario), row in found.items():
        # JSON has no infinity, which is the ratio when a worker never got the lock.
        finite = {field: value if math.isfinite(value) else None for field, value in row.items()}
        nested.setdefault(name, {})[scenario] = finite
    print(json.dumps(nested, indent=2))


def print_free(found):
    names = [name for name, scenario in found if scenario == "one"]
    print(
        "| free lock | pair p50, 1 worker, µs | with processors kept awake "
        "| pairs/s, 64 workers | client CPU µs/pair at 64 |"
    )
    print("|---|---|---|---|---|")
    for name in names:
        one, many = found[name, "one"], found[name, "many"]
        kept_awake = found[name, "one awake"]["p50_us"]
        print(
            f"| {name} | {one['p50_us']:.1f} | {kept_awake:.1f} "
            f"| {many['pairs']:,.0f} | {many['cpu_us']:.1f} |"
        )


def print_contended(found, scenario, heading, requests):
    """`requests` is the heading of the number of requests for each acquisition."""
    rows = [(name, row) for (name, kind), row in found.items() if kind == scenario]
    print()
    print(
        f"| one lock, {heading} | hand-overs/s | p50 µs | p99 µs "
        f"| {requests} | starved | most / least | held by two |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for name, row in rows:
        print(
            f"| {name} | {row['hand_overs_per_s']:,.0f} | {row['p50_us']:,.0f} "
            f"| {row['p99_us']:,.0f} | {row['requests']:.1f} | {row['starved']:.0f} "
            f"| {row['most_to_least']:.2f} | {row['overlaps']:.0f} |"
        )


def print_goals(goals):
    """A row for each goal: its name, the measured ratio, and the wanted ratio."""
    print()
    print("| goal | found | wanted |")
    print("|---|---|---|")
    for goal, ratio, wanted in goals:
        print(f"| {goal} | {ratio:.2f} | {wanted} |")


def main(doc, measure, print_all):
    """The command line of a `run`."""
    import argparse

    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="[5]")
    parser.add_argument("--only", metavar="CLIENT,..", help="these beside raw and tenure [all]")
    parser.add_argument("--json", action="store_true", help="the medians as JSON instead")
    arguments = parser.parse_args()
    wanted = arguments.only and {"raw", "tenure", *arguments.only.split(",")}
    found = measure(arguments.rounds, lambda name: not wanted or name in wanted)
    if arguments.json:
        print_json(found)
    else:
        print_all(found)
