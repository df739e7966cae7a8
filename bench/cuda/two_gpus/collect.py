#!/usr/bin/env python3
"""Puts what the checks wrote into one file: collect.py OUT.json COMMIT RESULTS...

RESULTS holds machine.txt and those of devices.json, ranks.json, host.json and elsewhere/elsewhere.json that there are. Of several
runs the last one's count, but for tuning elsewhere, whose quads are compared together. Prints the rows of a table for
docs/tensor_parallel.md."""
import array
import json
import math
import pathlib
import statistics
import sys


def read(path):
    return json.loads(path.read_text()) if path.exists() else None


def elsewhere_of(results):
    """With each window's p99.9, from its latencies in turn."""
    run, path = read(results / "elsewhere/elsewhere.json"), results / "elsewhere/latency.u16"
    if run is not None and path.exists():
        latency, at = array.array("H", path.read_bytes()), 0
        for w in run["windows"]:
            us = sorted(latency[at:at + w["requests"]])
            w["p999_us"] = us[int(0.999 * (len(us) - 1))] / 10
            at += w["requests"]
    return run


def over_none(runs, mode, quantile):
    """Mean of the quads' logarithms with 95 % by Student's t, as niche_elsewhere_check does it."""
    logs = []
    for run in runs:
        quads = {}
        for w in run["windows"]:
            quads.setdefault(w["quad"], []).append(w)
        for q in quads.values():
            if len(q) == 4 and q[1]["mode"] == mode:
                none, tuned = (sum(math.log(q[i][quantile]) for i in pair) for pair in ((0, 3), (1, 2)))
                logs.append((tuned - none) / 2)
    middle, v, z = statistics.mean(logs), len(logs) - 1, 1.959964
    t = z + (z**3 + z) / (4 * v) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * v * v)
    half = t * statistics.stdev(logs) / math.sqrt(len(logs))
    return {"ratio": math.exp(middle), "lo": math.exp(middle - half), "hi": math.exp(middle + half), "quads": len(logs)}


def main():
    out, commit, results = sys.argv[1], sys.argv[2], [pathlib.Path(r) for r in sys.argv[3:]]

    def last(name):
        found = [part for part in (read(r / name) for r in results) if part is not None]
        return found[-1] if found else None

    elsewhere = [run for run in map(elsewhere_of, results) if run is not None]
    parts = {"one_runtime_two_devices": last("devices.json"), "two_ranks": last("ranks.json"), "two_ranks_on_the_host": last("host.json")}
    if elsewhere:
        parts["tuning_elsewhere"] = {
            "all_runs": {f"{q}_over_none": {m: over_none(elsewhere, m, f"{q}_us") for m in ("idle", "same")} for q in ("p50", "p90", "p99", "p999")},
            "runs": elsewhere}
    parts = {name: part for name, part in parts.items() if part is not None}
    told = ("GPU ", "CPU(s)", "Model name", "cpus ", "driver ")
    machines = [[line.split(" (UUID")[0] for line in (r / "machine.txt").read_text().splitlines() if line.startswith(told)]
                for r in results if (r / "machine.txt").exists()]
    with open(out, "w") as f:
        json.dump({"commit": commit, "machines": machines, "commands": [
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
            print(f"| {name} | {json.dumps(s)} |")
    for quantile, modes in parts.get("tuning_elsewhere", {}).get("all_runs", {}).items():
        for mode, s in modes.items():
            print(f"| {quantile}, tuning {mode} | {s['ratio']:.3f} [{s['lo']:.3f}, {s['hi']:.3f}] of {s['quads']} quads |")
    for run in elsewhere:
        print("|", {k: run[k] for k in ("p99_over_none", "pooled_p99_over_none", "sessions", "calls", "calls_by_kernels") if k in run}, "|")


main()
