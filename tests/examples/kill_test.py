#!/usr/bin/env python3
"""kill -9 of the ranking server and of its worker at random moments of evolution: nothing that was committed is lost.

usage: kill_test.py RANKER NICHE [ROUNDS] [SEED]

Each round: a server on an empty cache, load, evolution on. At random moments the worker is killed, later the server: in every
other round at any moment of the first 14 seconds, in the rest within 4 seconds after a kernel was committed. No request may fail
before that; what the server had announced as verified by then must be in the cache, every entry must pass its checksums, and a
server started on that cache must answer.
"""
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

RANKER, NICHE = sys.argv[1], sys.argv[2]
ROUNDS = int(sys.argv[3]) if len(sys.argv) > 3 else 5
SEED = int(sys.argv[4]) if len(sys.argv) > 4 else random.SystemRandom().randrange(1 << 30)
KERNEL = re.compile(r"\b[0-9a-f]{32}\b")
START_SECONDS = 60
COMMIT_SECONDS = 60


class Server:
    def __init__(self, directory):
        self.port_file = os.path.join(directory, "port")
        if os.path.exists(self.port_file):
            os.remove(self.port_file)
        self.process = subprocess.Popen(
            [RANKER, "serve", "--cache", os.path.join(directory, "cache"), "--worker", NICHE, "--port-file", self.port_file],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
        end = time.monotonic() + START_SECONDS
        while not os.path.exists(self.port_file):
            if self.process.poll() is not None or time.monotonic() > end:
                raise AssertionError("the server did not start")
            time.sleep(0.05)
        with open(self.port_file, encoding="ascii") as f:
            self.port = int(f.read())

    def url(self, path):
        return f"http://127.0.0.1:{self.port}{path}"

    def get(self, path):
        with urllib.request.urlopen(self.url(path), timeout=30) as answer:
            return answer.read().decode()

    def rank(self, number):
        body = json.dumps({"id": number, "batch": 1 + number % 8, "length": 24 + number * 37 % 376}).encode()
        with urllib.request.urlopen(urllib.request.Request(self.url("/rank"), data=body), timeout=30) as answer:
            return json.load(answer)

    def kill(self):
        self.process.kill()
        self.process.wait()


def workers_of(pid):
    """The server's children: its workers."""
    parents = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", encoding="ascii", errors="replace") as f:
                    parents[int(name)] = int(f.read().rpartition(")")[2].split()[1])
            except OSError:
                pass
    return [child for child, parent in parents.items() if parent == pid]


def verified(server):
    return {k for e in json.loads(server.get("/status"))["events"] if e["kind"] == "kernel verified" for k in KERNEL.findall(e["text"])}


def listed(directory):
    out = subprocess.run([NICHE, "cache", "list", "--cache", os.path.join(directory, "cache")], capture_output=True, text=True,
                         check=True, timeout=60).stdout
    return set(KERNEL.findall(out))


def one_round(rng, number):
    directory = tempfile.mkdtemp(prefix="niche-kill-")
    servers, failures = [], []
    stop = threading.Event()
    try:
        server = Server(directory)
        servers.append(server)

        def load(first):  # some 30 requests a second from both: sessions get what is left of the cores
            at = first
            while not stop.wait(0.06):
                try:
                    server.rank(at)
                except (urllib.error.URLError, OSError) as e:
                    if not stop.is_set():
                        failures.append(f"request {at}: {e}")
                        return
                at += 2

        threads = [threading.Thread(target=load, args=(i,)) for i in range(2)]
        for t in threads:
            t.start()
        begin, known, killed = time.monotonic(), set(), 0
        if number % 2 == 0:
            while not known and time.monotonic() - begin < COMMIT_SECONDS and not failures:
                known |= verified(server)
                time.sleep(0.02)
        first, spread = (1, 14) if number % 2 else (time.monotonic() - begin, 4)
        kill_worker_at, kill_server_at = sorted(first + rng.uniform(0, spread) for _ in range(2))
        # The clock decides when to kill: that is the test's input, not its synchronisation.
        while (now := time.monotonic() - begin) < kill_server_at:
            known |= verified(server)
            if not killed and now > kill_worker_at:
                for pid in workers_of(server.process.pid):
                    os.kill(pid, signal.SIGKILL)
                    killed += 1
            time.sleep(0.1)
        stop.set()
        server.kill()
        for t in threads:
            t.join()
        assert not failures, failures[0]
        missing = known - listed(directory)
        assert not missing, f"lost after kill -9: {missing}"
        subprocess.run([NICHE, "cache", "verify", "--cache", os.path.join(directory, "cache")], check=True, timeout=60,
                       stdout=subprocess.DEVNULL)
        again = Server(directory)
        servers.append(again)
        assert again.rank(number)["calls"] > 0
        print(f"round {number}: worker killed at {kill_worker_at:.1f} s ({killed} processes), server at {kill_server_at:.1f} s, "
              f"{len(known)} kernels committed, none lost")
        return len(known)
    finally:
        stop.set()
        for s in servers:
            s.kill()
        shutil.rmtree(directory, ignore_errors=True)


def main():
    print(f"seed {SEED}")
    rng = random.Random(SEED)
    total = sum(one_round(rng, i) for i in range(ROUNDS))
    if total == 0 and os.getloadavg()[0] > os.cpu_count() + 1:
        print(f"skipped: nothing was committed beside a load of {os.getloadavg()[0]:.1f}: sessions get no core")
        sys.exit(77)
    assert total > 0, f"no kernel was committed within {COMMIT_SECONDS} s in any round: nothing was shown"
    print(f"{ROUNDS} rounds, {total} kernels committed, none lost")


if __name__ == "__main__":
    main()
