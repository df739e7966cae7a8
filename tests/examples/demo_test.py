#!/usr/bin/env python3
"""The demo's beginning and its end by Ctrl-C: which directory it empties, and that nothing keeps running.

usage: demo_test.py RANKER
"""
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

RANKER = sys.argv[1]
MARKER = ".niche-demo"
END_SECONDS = 120


def write(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="ascii") as f:
        f.write(text)


def refused(out, *expected):
    done = subprocess.run([RANKER, "demo", "--out", out], capture_output=True, text=True, timeout=END_SECONDS)
    assert done.returncode == 1, (done.returncode, done.stdout, done.stderr)
    for text in (out, *expected):
        assert text in done.stderr, (text, done.stderr)
    assert "starting the server" not in done.stdout, done.stdout


def numbers_that_cannot_be_are_refused(out):
    for flag, value in (("--tuning-duty", "nan"), ("--tuning-duty", "2"), ("--tuning-seconds", "nan"), ("--tuning-seconds", "inf"),
                        ("--tuning-seconds", "6x"), ("--batch-max", "nan"), ("--threads", "-1")):
        done = subprocess.run([RANKER, "demo", "--out", out, flag, value], capture_output=True, text=True, timeout=END_SECONDS)
        assert done.returncode not in (0, 1) and flag in done.stderr and value in done.stderr, (flag, value, done)
        assert done.stdout == "" and not os.path.exists(out), (flag, value, done.stdout)


def processes_of_group(group):
    alive = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", encoding="ascii", errors="replace") as f:
                    fields = f.read().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[2]) == group and fields[0] != "Z":
                alive.append(int(name))
    return alive


def interrupted_when_it_says(out, phrase):
    """Ctrl-C as a terminal sends it, to the whole group, once the demo printed `phrase`."""
    demo = subprocess.Popen([RANKER, "demo", "--out", out], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                            start_new_session=True)
    text = ""
    try:
        for line in demo.stdout:
            text += line
            if phrase in line:
                break
        assert phrase in text, text
        os.killpg(demo.pid, signal.SIGINT)
        rest, _ = demo.communicate(timeout=END_SECONDS)
        text += rest
        assert demo.returncode == 130, (demo.returncode, text)
        assert "stopping" in text and "nothing keeps running" in text, text
        assert not re.search("FAILED|WRONG|demo: ", text), text
        end = time.monotonic() + END_SECONDS
        while left := processes_of_group(demo.pid):
            assert time.monotonic() < end, f"still there: {left}"
            time.sleep(0.05)
    finally:
        if demo.poll() is None:
            os.killpg(demo.pid, signal.SIGKILL)
            demo.wait()
    return text


def main():
    work = tempfile.mkdtemp(prefix="niche-demo-")
    try:
        foreign = os.path.join(work, "foreign")
        write(os.path.join(foreign, "cache", "precious"), "mine")
        refused(foreign, MARKER, "name a new or an empty one")
        with open(os.path.join(foreign, "cache", "precious"), encoding="ascii") as f:
            assert f.read() == "mine"
        assert os.listdir(foreign) == ["cache"], os.listdir(foreign)
        refused(os.path.join(foreign, "cache", "precious"), "not a directory")
        print("a directory that no demo made is refused and left as it was")
        numbers_that_cannot_be_are_refused(os.path.join(work, "numbers"))

        own = os.path.join(work, "a", "new", "one")
        interrupted_when_it_says(own, "starting the server")
        assert os.path.exists(os.path.join(own, MARKER))
        write(os.path.join(own, "cache", "old"), "of an earlier demo")
        write(os.path.join(own, "report.json"), "{}")
        write(os.path.join(own, "notes.txt"), "mine")
        interrupted_when_it_says(own, "warming up")
        left = sorted(os.listdir(own))
        assert "notes.txt" in left and MARKER in left and "report.json" not in left, left
        assert not os.path.exists(os.path.join(own, "cache", "old"))
        print("an earlier demo's results go, other files stay; Ctrl-C ends it with all that it started")
    finally:
        shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    main()
