#!/usr/bin/env python3
"""The ranking server's start and end: a signal at any moment of the start ends it, and a port is served by one server alone.

usage: start_test.py RANKER NICHE
"""
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

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


def started(directory, *options):
    """A server that listens, and its port."""
    port_file = os.path.join(directory, "port")
    if os.path.exists(port_file):
        os.remove(port_file)
    server = start(directory, "--port", "0", "--port-file", port_file, *options)
    end = time.monotonic() + 60
    while not os.path.exists(port_file):
        assert server.poll() is None and time.monotonic() < end, "the server did not start"
        time.sleep(0.05)
    with open(port_file, encoding="ascii") as f:
        return server, int(f.read())


def a_second_signal_ends_it_at_once(directory):
    server, port = started(directory)
    # A request that never ends holds the orderly end up for some seconds.
    with socket.create_connection(("127.0.0.1", port)) as held:
        held.sendall(b"POST /rank HTTP/1.1\r\nContent-Length: 100\r\n\r\n{")
        # Two different ones: of one number, a second that comes before the first was taken is no second.
        server.send_signal(signal.SIGTERM)
        server.send_signal(signal.SIGINT)
        text, _ = server.communicate(timeout=END_SECONDS)
    assert server.returncode in (128 + signal.SIGTERM, 128 + signal.SIGINT), (server.returncode, text)
    assert "again: leaving at once" in text, text
    print("a second signal ends it at once")


def it_ends_with_the_process_that_started_it(directory):
    port_file = os.path.join(directory, "port")
    if os.path.exists(port_file):
        os.remove(port_file)
    starter = subprocess.Popen(
        [sys.executable, "-c", "import os, subprocess, sys, time; "
         "p = subprocess.Popen(sys.argv[1:] + ['--parent', str(os.getpid())], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL); "
         "print(p.pid, flush=True); time.sleep(1000)",
         RANKER, "serve", "--cache", os.path.join(directory, "cache"), "--worker", NICHE, "--port", "0", "--port-file", port_file],
        stdout=subprocess.PIPE, text=True)
    server = int(starter.stdout.readline())
    end = time.monotonic() + 60
    while not os.path.exists(port_file):
        assert time.monotonic() < end, "the server did not start"
        time.sleep(0.05)
    starter.kill()
    starter.communicate()
    end = time.monotonic() + END_SECONDS
    while os.path.exists(f"/proc/{server}"):
        with open(f"/proc/{server}/stat", encoding="ascii") as f:
            if f.read().rsplit(")", 1)[1].split()[0] == "Z":
                break  # its new parent reaps nobody
        assert time.monotonic() < end, "the server outlives the process that started it"
        time.sleep(0.05)
    print("it ends with the process that started it")


def evolution_takes_0_and_1_alone(directory):
    server, port = started(directory)
    try:
        for value, code in (("abc", 400), ("", 400), ("2", 400), ("1", 200), ("0", 200)):
            request = urllib.request.Request(f"http://127.0.0.1:{port}/evolution?paused={value}", data=b"")
            try:
                with urllib.request.urlopen(request, timeout=30) as answer:
                    got, text = answer.status, answer.read().decode()
            except urllib.error.HTTPError as e:
                got, text = e.code, e.read().decode()
            assert got == code, (value, got, text)
            assert code == 200 or f"must be 0 or 1, not '{value}'" in text, text
        print("/evolution refuses what is neither 0 nor 1")
    finally:
        server.kill()
        server.wait()


def main():
    directory = tempfile.mkdtemp(prefix="niche-start-")
    try:
        ends_on_a_signal_at_any_moment(directory)
        a_port_has_one_server(directory)
        a_second_signal_ends_it_at_once(directory)
        it_ends_with_the_process_that_started_it(directory)
        evolution_takes_0_and_1_alone(directory)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()
