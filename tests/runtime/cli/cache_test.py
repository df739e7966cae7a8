#!/usr/bin/env python3
"""`niche cache quarantine` and `forgive`: an operator takes one kernel out, by id or name, and lets it serve again.

usage: cache_test.py NICHE
"""
import json
import re
import shutil
import subprocess
import sys
import tempfile

NICHE = sys.argv[1]
OP = ["--op", "softmax", "--const", "N=512"]
ATTEMPTS = 4  # sessions on a loaded machine may end without evidence


def niche(*args, expect=0):
    done = subprocess.run([NICHE, *args], capture_output=True, text=True, timeout=200)
    assert expect is None or done.returncode == expect, (args, done.returncode, done.stdout, done.stderr)
    return done


def kernels(cache):
    """state, name and id of each entry."""
    rows = niche("cache", "list", "--cache", cache).stdout.splitlines()[1:]
    found = [re.match(r"(\S+) .*  (\S+)  \[.*\] ([0-9a-f]{32})$", row) for row in rows]
    return [m.groups() for m in found if m]


def filled(cache):
    for _ in range(ATTEMPTS):
        niche("evolve", *OP, "--problem", "M=64", "--seconds", "12", "--cache", cache, expect=None)
        if rows := kernels(cache):
            return rows
    raise AssertionError("no session found a kernel")


def explained(cache):
    return json.loads(niche("explain", *OP, "--cache", cache, "--json", "M=64").stdout)


def main():
    cache = tempfile.mkdtemp(prefix="niche-cache-")
    try:
        rows = filled(cache)
        _, name, kernel_id = rows[0]
        for command in (["quarantine", "--reason", "x"], ["forgive"]):
            done = niche("cache", *command, "no.such.kernel", "--cache", cache, expect=1)
            assert "no kernel 'no.such.kernel'" in done.stderr and cache in done.stderr, done.stderr
        done = niche("cache", "forgive", kernel_id, "--cache", cache, expect=2)
        assert "nothing stands against" in done.stderr, done.stderr
        niche("cache", "quarantine", name, "--cache", cache, expect=2)  # --reason is required
        assert [r for r in kernels(cache)] == rows

        for by in (kernel_id, name):
            niche("cache", "quarantine", by, "--reason", "answers late on Mondays", "--cache", cache)
            listed = niche("cache", "list", "--cache", cache).stdout
            assert re.search(rf"^quarantined .*{re.escape(name)} \[.*by hand: answers late on Mondays$", listed, re.M), listed
            why = explained(cache)
            assert why["kernel"] != name, why
            against = [k for k in why["kernels"] if k["name"] == name]
            assert against and against[0]["state"] == "quarantined" and "Mondays" in against[0]["reason"], why
            niche("cache", "forgive", by, "--cache", cache)
            assert kernels(cache)[0][0] != "quarantined", kernels(cache)
        print(f"{name}: out by id and by name, and back")
    finally:
        shutil.rmtree(cache, ignore_errors=True)


if __name__ == "__main__":
    main()
