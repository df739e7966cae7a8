#!/usr/bin/env python3
"""The README's twenty lines as a newcomer runs them: from the build tree, with nothing set, on an empty cache.

usage: quickstart_test.py QUICKSTART NICHE

They must find a worker and open a session; where the machine leaves that session a core, the evolved kernel serves within the
program's minute, and a second run starts on it.
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile

QUICKSTART, NICHE = sys.argv[1], sys.argv[2]


def run(directory):
    done = subprocess.run([QUICKSTART, os.path.join(directory, "cache")], cwd=directory, capture_output=True, text=True, timeout=300,
                          env={"PATH": "/usr/bin:/bin"})
    assert done.returncode == 0, (done.returncode, done.stdout, done.stderr)
    fields = dict(re.findall(r"^  (\w+): +(.*)$", done.stdout, re.M))
    assert fields.get("evolution") == "on", done.stdout
    return fields, done.stdout


def main():
    directory = tempfile.mkdtemp(prefix="niche-quickstart-")
    try:
        fields, text = run(directory)
        sessions = subprocess.run([NICHE, "sessions", "--cache", os.path.join(directory, "cache")], capture_output=True, text=True,
                                  timeout=60, check=True).stdout
        assert "rms_norm" in sessions, (sessions, text)
        if fields["rollout"] != "incumbent":
            print(f"a session started; nothing served yet beside a load of {os.getloadavg()[0]:.1f}:\n{text}")
            return
        assert "served by: rms_norm.f32." in text, text
        _, text = run(directory)
        assert "served by: rms_norm.f32." in text, text
        print(f"an evolved kernel serves, and from the start in a second run:\n{text}")
    finally:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()
