#!/usr/bin/env python3
"""The ranking server's start and end: a signal at any moment of the start ends it, and a port is served by one server alone.

usage: start_test.py RANKER NICHE
"""
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

RANKER, NICHE = sys.argv[1], sys.argv[2]
END_SECONDS = 30


def start(directory, *options):
    return subprocess.Popen([RANKER, "serve", "--cache", os.path.join(directory, "cache"), "--worker", NICHE, *options],
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def ends_on_a_signal_at_any_moment(directory):
    rng = random.Random(7)
    cut = 0
    for i in range(20):
        server = start(directory, "--port", "0")
        # The clock decides when the signal comes: that is the test's input, not its synchronisation.
        time.sleep(rng.uniform(0, 1.0))
        server.send_signal(rng.choice((signal.SIGTERM, signal.SIGINT)))
        try:
            text, _ = server.communicate(timeout=END_SECONDS)
        except subprocess.TimeoutExpired:
            server.kill()
            raise AssertionError(f"round {i}: still there {END_SECONDS} s after the signal") from None
        cut += "listening" not in text
    print(f"20 signals, {cut} of them before it listened: ended each time")


def a_port_has_one_server(directory):
    port_file = os.path.join(directory, "port")
    first = start(directory, "--port", "0", "--port-file", port_file)
    try:
        end = time.monotonic() + 60
        while not os.path.exists(port_file):
            assert first.poll() is None and time.monotonic() < end, "the server did not start"
            time.sleep(0.05)
        with open(port_file, encoding="ascii") as f:
            port = f.read().strip()
        second = start(tempfile.mkdtemp(dir=directory), "--port", port)
        try:
            text, _ = second.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            second.kill()
            raise AssertionError(f"two servers listen on port {port}") from None
        assert second.returncode == 1 and f"cannot listen on 127.0.0.1:{port}" in text, (second.returncode, text)
        print("a second server on the same port is refused")
    finally:
        first.kill()
        first.wait()


def main():
    directory = tempfile.mkdtemp(prefix="niche-start-")
    try:
        ends_on_a_signal_at_any_moment(directory)
        a_port_has_one_server(directory)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()
