#!/usr/bin/env python3
"""Puts what the checks wrote into one file: collect.py RESULTS OUT.json COMMIT

RESULTS holds machine.txt and those of devices.json, ranks.json, host.json and elsewhere/elsewhere.json that there are. Prints the
rows of a table for docs/tensor_parallel.md."""
import json
import pathlib
import sys


def read(path):
    return json.loads(path.read_text()) if path.exists() else None


def main():
    results, out, commit = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    parts = {"one_runtime_two_devices": read(results / "devices.json"), "two_ranks": read(results / "ranks.json"),
             "two_ranks_on_the_host": read(results / "host.json"), "tuning_elsewhere": read(results / "elsewhere/elsewhere.json")}
    parts = {name: part for name, part in parts.items() if part is not None}
    machine = (results / "machine.txt").read_text().splitlines() if (results / "machine.txt").exists() else []
    with open(out, "w") as f:
        json.dump({"commit": commit, "machine": machine, "commands": [
            "niche_two_devices_check devices.json", "niche_tensor_parallel_check ranks.json --versions N",
            "niche_tensor_parallel_check host.json --cpu --versions N", "niche_elsewhere_check elsewhere SECONDS"], **parts}, f, indent=1)
        f.write("\n")
    for where in ("two_ranks", "two_ranks_on_the_host"):
        for name, s in parts.get(where, {}).get("sections", {}).items():
            checked, wrong = (sum(r[k] for r in s["ranks"]) for k in ("answers_checked", "wrong"))
            captures = sum(r["graph_captures"] for r in s["ranks"])
            kills = "; ".join(f"killed at step {k['killed_at_step']}, on at {k.get('resumed_at_step')} after {k.get('restart_ms', 0):.0f} ms "
                              f"(given up in {k.get('abort_ms', 0):.0f})" for k in s["kills"] or [])
            print(f"| {name} ({where}) | {s['end']} after {s['seconds']:.1f} s: {s['swaps']} swaps in {s['steps_compared']} steps, {s['steps_that_differ']} differ; "
                  f"{checked} answers compared, {wrong} wrong; {s['graph_replays']} replays, {captures} captures; {kills} |")
    for name, s in parts.get("one_runtime_two_devices", {}).items():
        if name != "devices":
            print(f"| {name} | {json.dumps({k: v for k, v in s.items() if k != 'good'})} |")
    for name, s in parts.get("tuning_elsewhere", {}).get("p99_over_none", {}).items():
        print(f"| p99, tuning {name} / none | {s['ratio']:.3f} [{s['lo']:.3f}, {s['hi']:.3f}] of {s['groups']} groups |")


main()
