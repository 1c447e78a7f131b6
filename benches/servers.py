"""The servers that benchmarks start, and what each of them was asked for."""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import time
import urllib.request

from peers import free_port


def until(what, process, is_up):
    for _ in range(300):
        if process.poll() is not None:
            break
        try:
            if is_up():
                return
        except (OSError, subprocess.CalledProcessError):
            pass
        time.sleep(0.1)
    process.kill()
    sys.exit(f"{what} did not start")


class Redis:
    name = "Redis"
    # Other commands are called by scripts.
    requests = ("evalsha", "eval", "client|setinfo", "hello", "subscribe", "ssubscribe", "unsubscribe")

    def __init__(self, folder):
        self.port = free_port()
        command = ["redis-server", "--bind", "127.0.0.1", "--port", self.port, "--save", "", "--dir", folder]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        until("redis-server", self.process, lambda: "PONG" in self.ask("PING"))
        self.urls = {"Redis": f"redis://127.0.0.1:{self.port}/?restart_guard=off"}

    def ask(self, *words):
        command = ["redis-cli", "-p", self.port, *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def counts(self):
        """Calls of each command, those inside of scripts included, without those of this program."""
        found = re.findall(r"cmdstat_([^:]+):calls=(\d+)", self.ask("INFO", "commandstats"))
        return {name: int(count) for name, count in found if name not in ("info", "ping", "command|docs")}


class Etcd:
    name = "etcd"
    requests = None

    def __init__(self, folder):
        self.port, peer = free_port(), free_port()
        here, there = f"http://127.0.0.1:{self.port}", f"http://127.0.0.1:{peer}"
        folder_of_program = os.environ.get("TENURE_ETCD_BIN")
        program = f"{folder_of_program}/etcd" if folder_of_program else "etcd"
        command = [program, "--name", "one", "--data-dir", f"{folder}/etcd", "--logger", "zap", "--log-level", "error"]
        command += ["--listen-client-urls", here, "--advertise-client-urls", here, "--listen-peer-urls", there]
        command += ["--initial-advertise-peer-urls", there, "--initial-cluster", f"one={there}"]
        with open(f"{folder}/etcd.log", "w") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        until("etcd", self.process, lambda: b"true" in self.get("health"))
        self.urls = {"etcd": f"etcd://127.0.0.1:{self.port}/"}

    def get(self, path):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/{path}", timeout=5) as answer:
            return answer.read()

    def counts(self):
        """Messages of clients for each method, those within a stream included."""
        lines = self.get("metrics").decode()
        pattern = r'grpc_server_msg_received_total\{grpc_method="(\w+)",[^}]*\} (\S+)'
        return {method: int(float(count)) for method, count in re.findall(pattern, lines)}


class Postgres:
    name = "PostgreSQL"
    requests = None

    def __init__(self, folder):
        programs = sorted(pathlib.Path("/usr/lib/postgresql").glob("*/bin"))[-1]
        data, self.port = f"{folder}/postgres", free_port()
        who = []
        if os.geteuid() == 0:
            # The server refuses to run as root.
            who = ["setpriv", "--reuid=postgres", "--regid=postgres", "--init-groups"]
            os.mkdir(data)
            shutil.chown(data, "postgres", "postgres")
            os.chmod(folder, 0o755)
        init = [*who, programs / "initdb", "-D", f"{data}/data", "-U", "locks", "-A", "trust"]
        subprocess.run(init, check=True, stdout=subprocess.DEVNULL, cwd="/")
        command = [*who, programs / "postgres", "-D", f"{data}/data", "-p", self.port]
        settings = ("listen_addresses=127.0.0.1", f"unix_socket_directories={data}", "max_connections=500")
        for setting in (*settings, "shared_preload_libraries=pg_stat_statements"):
            command += ["-c", setting]
        with open(f"{folder}/postgres.log", "w") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, cwd="/")
        until("PostgreSQL", self.process, lambda: self.ask("SELECT 1"))
        self.ask("CREATE EXTENSION pg_stat_statements")
        url = f"postgres://locks@127.0.0.1:{self.port}/postgres?"
        self.urls = {"PostgreSQL, sessions": url + "restart_guard=off", "PostgreSQL, tables": url + "mode=table"}

    def ask(self, statement):
        command = ["psql", "-h", "127.0.0.1", "-p", self.port, "-U", "locks", "-d", "postgres", "-AtF", "\t", "-c", statement]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def counts(self):
        """Calls of each statement, without those of this program."""
        sql = "SELECT calls, left(regexp_replace(query, '\\s+', ' ', 'g'), 60) FROM pg_stat_statements"
        counts = {}
        for line in self.ask(f"{sql} WHERE query NOT LIKE '%pg_stat_statements%'").splitlines():
            calls, query = line.split("\t", 1)
            counts[query] = counts.get(query, 0) + int(calls)
        return counts
