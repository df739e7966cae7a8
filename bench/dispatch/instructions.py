#!/usr/bin/env python3
"""Instructions a call, by callgrind: unlike times, they do not depend on what else the machine does.

    bench/dispatch/instructions.py [build/release/bench/bin/dispatch]

One run a subject and case (every call is a function of its own: Reader::call), packing included, the benchmark's loop not.
"""
import os
import re
import subprocess
import sys
import tempfile

CASES = [("niche", c) for c in ("hit", "hit_repeat", "hit_in_scope", "miss", "canary", "request_scope")] + \
        [("bare", c) for c in ("hit", "hit_repeat", "miss")]


def instructions(program, subject, case):
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "callgrind")
        subprocess.run(["valgrind", "--tool=callgrind", "--callgrind-out-file=" + out, program, "--quick", "--rounds", "1",
                        "--only", f"^{subject} {case} 1 1024$"], check=True, capture_output=True)
        calls = cost = 0
        names = {}
        callee = ""
        pending = 0
        for line in open(out):
            if m := re.match(r"c?fn=\((\d+)\)(?: (.*))?", line):
                name = names.setdefault(m[1], m[2] or "")
                if line.startswith("cfn="):
                    callee = name
            elif m := re.match(r"calls=(\d+)", line):
                pending = int(m[1])
            elif pending:
                if "Reader::call" in callee and "NicheSubject" not in callee.replace("NicheSubject::Reader::call", ""):
                    calls += pending
                    cost += int(line.split()[-1])
                pending = 0
        return cost / max(calls, 1)


def main():
    program = sys.argv[1] if len(sys.argv) > 1 else "build/release/bench/bin/dispatch"
    for subject, case in CASES:
        print(f"{subject:6} {case:14} {instructions(program, subject, case):6.0f}")


main()
