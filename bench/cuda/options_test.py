#!/usr/bin/env python3
"""The scripts' command lines, and that a job has every module that its scripts import."""
import os
import re
import subprocess
import sys
import unittest

import make_job

HERE = os.path.dirname(os.path.abspath(__file__))
USERS = ("check", "h200", "one_kernel", "programs", "regret")


def run(script, *args):
    return subprocess.run([sys.executable, "-B", os.path.join(HERE, script + ".py"), *args], capture_output=True, text=True)


class Options(unittest.TestCase):
    def test_each_script_tells_its_options(self):
        for script in USERS:
            done = run(script, "--help")
            self.assertEqual((done.returncode, done.stderr), (0, ""), script)
            for option in ("--library", "--points", "--cache"):
                self.assertIn(option, done.stdout, script)

    def test_numbers_that_cannot_be_are_refused(self):
        for script, option, value in (("h200", "--seconds", "nan"), ("h200", "--seconds", "inf"), ("h200", "--rounds", "0"),
                                      ("h200", "--check", "-1"), ("regret", "--hang", "-1"), ("programs", "--points", "4x"),
                                      ("check", "--points", "0"), ("one_kernel", "--launches", "1e3"), ("programs", "--jobs", "0")):
            done = run(script, option, value)
            self.assertEqual(done.returncode, 2, (script, option, value))
            self.assertIn(f"argument {option}: '{value}' is not a", done.stderr)

    def test_a_job_has_all_that_its_scripts_import(self):
        for script in make_job.SCRIPTS:
            with open(os.path.join(HERE, script)) as f:
                names = re.findall(r"^\s*(?:from|import) (\w+)", f.read(), re.M)
            for name in names:
                if os.path.exists(os.path.join(HERE, name + ".py")):
                    self.assertIn(name + ".py", make_job.SCRIPTS, f"{script} imports it")


if __name__ == "__main__":
    unittest.main()
