"""kazoo in the scenarios `free` and `contend`; README.md has the arguments."""

import pathlib
import sys

from kazoo.client import KazooClient

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import scenarios

SESSION = 30


def main():
    port, *scenario = sys.argv[1:]
    client = KazooClient(hosts=f"127.0.0.1:{port}", timeout=SESSION)
    client.start()
    scenarios.run(lambda name: client.Lock(f"/{name}"), *scenario)


main()
