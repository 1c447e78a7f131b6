"""redis-py in the scenarios `free` and `contend`; README.md has the arguments."""

import pathlib
import sys

import redis
from redis.lock import Lock

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import scenarios

TTL = 30


def main():
    port, *scenario = sys.argv[1:]
    client = redis.Redis(port=int(port), max_connections=1000)
    scenarios.run(lambda name: Lock(client, name, timeout=TTL, thread_local=False), *scenario)


main()
