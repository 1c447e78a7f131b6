"""A lock of tenure for Python, through `tenure hold --json`.

    with hold("orders/42", "--wait", "5s") as lock:
        write(token=lock.token)

The store is that of TENURE_URL.
"""

import contextlib
import json
import subprocess
import threading


class Busy(Exception):
    """Somebody else holds the lock."""


class Lost(Exception):
    """The lock ended before the block did: its work may have overlapped with that of the next holder."""


class Held:
    """A lock that is held. `lost` is set as soon as it ends too early: look at it in long work."""

    def __init__(self, acquired):
        self.token = acquired["tokens"][0]
        self.lost = threading.Event()

    def listen(self, lines):
        for line in lines:
            if json.loads(line)["event"] == "lost":
                self.lost.set()


@contextlib.contextmanager
def hold(name, *options):
    # The end of its input is the word to release. If this process dies, its input ends as well.
    process = subprocess.Popen(
        ["tenure", "hold", "--json", *options, name],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    first = process.stdout.readline()
    if not first:
        code = process.wait()
        if code == 75:
            raise Busy(name)
        raise RuntimeError(f"tenure hold ended with {code}; its standard error says why")
    held = Held(json.loads(first))
    listener = threading.Thread(target=held.listen, args=(process.stdout,))
    listener.start()
    try:
        yield held
    finally:
        process.stdin.close()
        code = process.wait()
        listener.join()
        process.stdout.close()
    if code == 76:
        raise Lost(name)
    if code != 0:
        raise RuntimeError(f"tenure hold ended with {code}; its standard error says why")
