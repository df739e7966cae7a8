#!/usr/bin/env python3
"""Nsight Compute's reports: what niche's reader says of tests/fixtures/ncu (two runs on an H200, the columns that are read of
some 2,200, commit 73ce743; its two CSV forms with its noise, units and thousands' commas; reports that are cut off), and what
the script says beyond that."""
import json
import os
import subprocess
import sys
import unittest

from ncu_digest import digest, read, text_of

STALL = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
RAW_HEAD = ["ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream", "Block Size", "Grid Size", "Device", "CC",
            "gpu__time_duration.sum", "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
            "lts__throughput.avg.pct_of_peak_sustained_elapsed", "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
            "sm__warps_active.avg.pct_of_peak_sustained_active", "smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.ratio",
            "smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.max_rate",
            "launch__occupancy_limit_registers", "launch__occupancy_limit_shared_mem", "launch__registers_per_thread",
            STALL.format("long_scoreboard"), STALL.format("barrier"), STALL.format("selected")]
UNITS = [""] * 11 + ["us", "%", "%", "%", "%", "", "", "block", "block", "register/thread", "inst", "inst", "inst"]


def line(values):
    return ",".join(f'"{v}"' for v in values)


def raw(*values):
    ids = ["0", "77", "python3.11", "127.0.0.1", "run(Args)", "1", "7", "(256, 1, 1)", "(528, 1, 1)", "0", "9.0"]
    return "\n".join(["==PROF== Connected to process 77 (/usr/bin/python3.11)", "kernel rms_norm.bf16.rows.vec8",
                      '==PROF== Profiling "run" - 0: 0%....50%....100% - 38 passes', "==PROF== Disconnected from process 77",
                      line(RAW_HEAD), line(UNITS), line(ids + list(values))]) + "\n"


RECORDED = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../tests/fixtures/ncu")


def recorded(name):
    with open(os.path.join(RECORDED, name + "_h200.csv")) as f:
        (kernel, metrics), = read(f.read())
    return digest(kernel, metrics)


SHARES = {"dram": "dram", "l2": "l2", "l1": "l1", "tensor": "tensor", "issue": "issue", "occupancy": "occupancy",
          "load_sectors": "load_sector_efficiency", "store_sectors": "store_sector_efficiency"}  # in percent here


class NcuDigest(unittest.TestCase):
    def test_it_says_what_niches_reader_says(self):
        with open(os.path.join(RECORDED, "expected.json")) as f:
            expected = json.load(f)
        self.assertEqual(sorted(expected), sorted(name for name in os.listdir(RECORDED) if name != "expected.json"))
        for name, wanted in expected.items():
            with self.subTest(name), open(os.path.join(RECORDED, name), newline="") as f:
                text = f.read()
                if "error" in wanted:
                    with self.assertRaises(ValueError) as caught:
                        read(text)
                    self.assertIn(wanted["error"], str(caught.exception))
                    continue
                found = [digest(kernel, metrics) for kernel, metrics in read(text)]
                self.assertEqual(len(found), len(wanted["launches"]))
                for d, w in zip(found, wanted["launches"]):
                    self.assertEqual((d["kernel"], d.get("occupancy_limiter"), list(d["stalls"])),
                                     (w["kernel"], w.get("occupancy_limiter"), list(w["stalls"])))
                    self.assertAlmostEqual(d["us"], w["us"])
                    for stall, share in w["stalls"].items():
                        self.assertAlmostEqual(d["stalls"][stall], share)
                    for theirs, ours in SHARES.items():
                        self.assertEqual(ours in d, theirs in w, theirs)
                        if theirs in w:
                            self.assertAlmostEqual(d[ours] / 100, w[theirs])

    def test_as_a_program_it_fails_where_it_cannot_read(self):
        def run(*args):
            script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "ncu_digest.py")
            return subprocess.run([sys.executable, "-B", script, *args], capture_output=True, text=True)

        good = run(os.path.join(RECORDED, "conv1d_h200.csv"))
        self.assertEqual((good.returncode, good.stderr), (0, ""))
        self.assertIn("bottleneck: latency", good.stdout)
        for args, says in (((os.path.join(RECORDED, "cut_in_a_line.csv"),), "cut off"), (("/no/such/report",), "/no/such/report"), ((), "usage")):
            bad = run(*args)
            self.assertEqual((bad.returncode, bad.stdout), (1, ""), args)
            self.assertIn(says, bad.stderr)
            self.assertNotIn("Traceback", bad.stderr)

    def test_a_memory_bound_kernel_of_a_real_run(self):
        d = recorded("rms_norm")
        self.assertAlmostEqual(d["us"], 17.152)
        self.assertEqual((round(d["dram"]), round(d["l2"]), round(d["tensor"]), d["load_sector_efficiency"]), (55, 81, 0, 100))
        self.assertEqual((d["bottleneck"], d["occupancy_limiter"]), ("l2", "registers"))
        self.assertEqual(next(iter(d["stalls"])), "long_scoreboard")

    def test_a_small_product_of_a_real_run_waits(self):
        d = recorded("conv1d")
        self.assertEqual(d["bottleneck"], "latency: wait")
        self.assertLess(d["occupancy"], 20)
        self.assertGreater(d["tensor"], 5)

    def test_the_raw_page(self):
        (kernel, metrics), = read(raw("1,018.02", "81.25", "55.5", "0", "93.0", "24", "32", "5", "8", "48", "6.0", "2.0", "1.0"))
        d = digest(kernel, metrics)
        self.assertEqual(d["kernel"], "run(Args)")
        self.assertAlmostEqual(d["us"], 1018.02)
        self.assertEqual((d["dram"], d["l2"], d["tensor"], d["load_sector_efficiency"]), (81.25, 55.5, 0, 75))
        self.assertEqual(d["occupancy_limiter"], "registers")
        self.assertEqual(d["stalls"], {"long_scoreboard": 0.75, "barrier": 0.25})
        self.assertEqual(d["bottleneck"], "dram")
        self.assertNotIn("l1", d, "what was not measured is not 0")
        self.assertIn("waits: long_scoreboard 75 %, barrier 25 %", text_of(d))

    def test_far_from_every_peak_it_is_what_warps_wait_for(self):
        (kernel, metrics), = read(raw("2.5", "20", "30", "11", "12", "8", "32", "5", "1", "168", "1.0", "9.0", "1.0"))
        d = digest(kernel, metrics)
        self.assertEqual(d["bottleneck"], "latency: barrier")
        self.assertEqual(d["occupancy_limiter"], "shared memory")


if __name__ == "__main__":
    unittest.main()
