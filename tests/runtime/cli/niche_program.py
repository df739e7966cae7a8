"""What the tests of the `niche` program share: how it is run, and the sources' directory."""
import subprocess
import sys

NICHE, SOURCE = sys.argv[1], sys.argv[2]
SECONDS = 120


def niche(*args, expect=None):
    done = subprocess.run([NICHE, *args], capture_output=True, text=True, timeout=SECONDS)
    if expect is not None:
        assert done.returncode == expect, (args, done.returncode, done.stdout, done.stderr)
    return done
