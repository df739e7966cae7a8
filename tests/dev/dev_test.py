#!/usr/bin/env python3
"""./dev as somebody types it who has never seen it, with the programs behind it replaced by recorders.

usage: dev_test.py SOURCE_DIR
"""
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile

SOURCE = pathlib.Path(sys.argv[1])
SECONDS = 60

RECORDER = """#!/bin/sh
echo "$(basename "$0") $*" >>"$RECORD"
case "$(basename "$0") $*" in
  dpkg-query*) echo installed ;;
  *--build*core*) exec sleep 60 ;;
esac
"""


class Clone:
    """A copy of ./dev and what it reads, in a directory of its own."""

    def __init__(self, directory):
        self.root = pathlib.Path(directory) / "niche"
        (self.root / "bench").mkdir(parents=True)
        for name in ("dev", "bench/run", "bench/benchmarks.txt"):
            shutil.copy(SOURCE / name, self.root / name)
        self.elsewhere = pathlib.Path(directory) / "elsewhere"
        self.elsewhere.mkdir()
        self.record = pathlib.Path(directory) / "record"
        programs = pathlib.Path(directory) / "programs"
        programs.mkdir()
        for name in ("cmake", "ctest", "dpkg-query", "apt-get", "sudo", "python3"):
            self.program(programs / name)
        self.program(self.root / "build/release/bin/ranker")
        self.program(self.root / "build/release/bench/bin/calls")
        torch = pathlib.Path(directory) / "torch/include/ATen/ATen.h"
        torch.parent.mkdir(parents=True)
        torch.write_text("")
        self.environment = {"PATH": f"{programs}:/usr/bin:/bin", "RECORD": str(self.record), "NICHE_TORCH_ROOT": "../torch"}

    def program(self, path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(RECORDER)
        path.chmod(0o755)

    def run(self, *args, expect=0, **environment):
        self.record.write_text("")
        done = subprocess.run([str(self.root / "dev"), *args], cwd=self.elsewhere, env={**self.environment, **environment},
                              capture_output=True, text=True, timeout=SECONDS)
        assert done.returncode == expect, (args, done.returncode, done.stdout, done.stderr)
        return done.stdout + done.stderr, self.record.read_text()


def what_is_mistyped_is_said_before_anything_is_done(clone):
    for args, code, says in (((), 2, "usage: ./dev COMMAND"), (("frobnicate",), 1, "unknown command 'frobnicate'"),
                             (("build", "nonsense"), 1, "no preset 'nonsense'"), (("bench", "nonsense"), 2, "no benchmark 'nonsense'"),
                             (("bench", ".*"), 2, "no benchmark '.*'"), (("help",), 0, "usage: ./dev COMMAND"),
                             (("bench",), 0, "op_forms"), (("bench", "--help"), 0, "op_forms")):
        text, did = clone.run(*args, expect=code)
        assert says in text and did == "", (args, text, did)
    text, did = clone.run("build", expect=1, NICHE_TORCH_ROOT="/no/such/torch")
    assert "NICHE_TORCH_ROOT=/no/such/torch" in text and did == "", (text, did)


def paths_are_the_callers(clone):
    here = clone.elsewhere
    _, did = clone.run("demo", "--trace", "a b.csv", "--threads", "2", "--out=here", "--out", "/abs")
    assert f"ranker demo --trace {here}/a b.csv --threads 2 --out {here}/here --out /abs\n" in did, did
    assert f"-DNICHE_TORCH_ROOT={here}/../torch" in did and "--target ranker niche" in did, did
    _, did = clone.run("bench", "calls", "--json", "r.json")
    assert f"calls --json {here}/r.json\n" in did and "--target bench_calls --" in did, did
    _, did = clone.run("bench", "calls", "--json=r.json")
    assert f"calls --json {here}/r.json\n" in did, did
    _, did = clone.run("test", "Planner")
    assert "ctest" in did and "-R Planner" in did, did
    _, did = clone.run("build", "release", "niche_shared", "niche")
    assert "--target niche_shared niche --" in did, did


def ctrl_c_ends_it_and_says_what_stays(clone):
    clone.record.write_text("")
    dev = subprocess.Popen([str(clone.root / "dev"), "build", "core"], env=clone.environment, cwd=clone.elsewhere, text=True,
                           stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
                           preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
    try:
        while "--build" not in clone.record.read_text():
            assert dev.poll() is None, dev.stdout.read()
        os.killpg(dev.pid, signal.SIGINT)
        text, _ = dev.communicate(timeout=SECONDS)
    finally:
        if dev.poll() is None:
            os.killpg(dev.pid, signal.SIGKILL)
            dev.wait()
    assert dev.returncode == 130 and "stopped" in text and "goes on from there" in text and "failed" not in text, (dev.returncode, text)


def main():
    directory = tempfile.mkdtemp(prefix="niche-dev-")
    try:
        clone = Clone(directory)
        for check in (what_is_mistyped_is_said_before_anything_is_done, paths_are_the_callers, ctrl_c_ends_it_and_says_what_stays):
            check(clone)
            print(f"{check.__name__}: ok")
    finally:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()
