#!/usr/bin/env python3
"""What Nsight Compute says of a kernel, on one screen: shares of the peaks, sector efficiency, occupancy and what limits
it, stall reasons, and one bottleneck.

  ncu --csv --page raw --set full ... | ncu_digest.py -       or: ncu_digest.py FILE.csv

Reads both of its CSV forms: `--page raw` (a column a metric, a second line of units) and the long one (a line a metric).
What else the program or ncu printed is skipped. A metric that this device or set does not have is left out, never 0; a
report that is cut off is an error. niche's own reader, evolve/judge_device/ncu_report.cc, is the one that counts: this one
says the same where there is no niche, and both are held to tests/fixtures/ncu/expected.json."""
import csv
import json
import math
import re
import sys

# Name here: what ncu calls it, the first that is there. Shares are of the peak, in percent.
METRICS = {
    "us": ["gpu__time_duration.sum"],
    "dram": ["gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed", "dram__throughput.avg.pct_of_peak_sustained_elapsed"],
    "l2": ["lts__throughput.avg.pct_of_peak_sustained_elapsed", "lts__t_sectors.avg.pct_of_peak_sustained_elapsed"],
    "l1": ["l1tex__throughput.avg.pct_of_peak_sustained_active"],
    "tensor": ["sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed",
               "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
               "sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_active"],
    "issue": ["smsp__issue_active.avg.pct_of_peak_sustained_active", "sm__inst_issued.avg.pct_of_peak_sustained_active"],
    "occupancy": ["sm__warps_active.avg.pct_of_peak_sustained_active"],
    "registers": ["launch__registers_per_thread"],
}
# Bytes used of each sector of 32, and the most there can be.
SECTORS = {f"{name}_sector_efficiency": f"smsp__sass_average_data_bytes_per_sector_mem_global_op_{op}"
           for name, op in (("load", "ld"), ("store", "st"))}
LIMITS = {"registers": "launch__occupancy_limit_registers", "shared memory": "launch__occupancy_limit_shared_mem",
          "threads": "launch__occupancy_limit_warps", "blocks": "launch__occupancy_limit_blocks"}
STALL, STALL_END = "smsp__average_warps_issue_stalled_", "_per_issue_active.ratio"
TIMES = {"ns": 1e-3, "nsecond": 1e-3, "us": 1.0, "usecond": 1.0, "ms": 1e3, "msecond": 1e3, "s": 1e6, "second": 1e6}
NEAR_PEAK = 60.0  # percent of a peak from which that unit is what limits


def number(text):
    text = text.replace(",", "")
    value = float(text) if re.fullmatch(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?", text) else math.inf
    return value if math.isfinite(value) else None


def cut_off(where):
    return ValueError("ncu's report is cut off: " + where)


def rows_of(text):
    """The report's lines as lists of values, its head first."""
    rows = []
    for line in text.split("\n"):
        if not (line.startswith('"ID"') or (rows and line.startswith('"'))):
            continue
        if line.count('"') % 2:
            raise cut_off(f"its line {len(rows) + 1} ends within a value")
        rows.append(next(csv.reader([line.rstrip("\r")])))
        if len(rows[-1]) != len(rows[0]):
            raise cut_off(f"its line {len(rows)} has {len(rows[-1])} of {len(rows[0])} values")
    if not rows:
        raise ValueError("no line that begins with \"ID\": not ncu's CSV, or it failed: " + text[-300:].strip())
    return rows


def read(text):
    """[(kernel, {metric: (value, unit)})], one a launch, at least one."""
    head, *rows = rows_of(text)
    if "Kernel Name" not in head:
        raise cut_off("its head names no kernel")
    launches = []
    if "Metric Name" in head:
        if "Metric Value" not in head:
            raise cut_off("its head has no values")
        last = None
        for row in (dict(zip(head, r)) for r in rows):
            if not launches or row["ID"] != last:
                launches.append((row["Kernel Name"], {}))
                last = row["ID"]
            value = number(row["Metric Value"])
            if value is not None:
                launches[-1][1][row["Metric Name"]] = (value, row.get("Metric Unit", ""))
    else:
        units = dict(zip(head, rows[0])) if rows and not rows[0][0] else {}
        for row in (dict(zip(head, r)) for r in (rows[1:] if units else rows)):
            values = {name: (number(value), units.get(name, "")) for name, value in row.items() if "__" in name}
            launches.append((row["Kernel Name"], {n: v for n, v in values.items() if v[0] is not None}))
    if not launches:
        raise cut_off("no launch follows its head")
    return launches


def digest(kernel, metrics):
    d = {"kernel": kernel}
    for name, candidates in METRICS.items():
        there = next((metrics[c] for c in candidates if c in metrics), None)
        if there is not None:
            d[name] = there[0] * TIMES.get(there[1], 1e-3) if name == "us" else there[0]
    for name, metric in SECTORS.items():
        used, most = (metrics.get(metric + end, (0, ""))[0] for end in (".ratio", ".max_rate"))
        if used and most:
            d[name] = 100 * used / most
    limits = {name: metrics[m][0] for name, m in LIMITS.items() if m in metrics}
    if limits:
        d["occupancy_limiter"] = min(limits, key=limits.get)
    stalls = {n[len(STALL):-len(STALL_END)]: v[0] for n, v in metrics.items() if n.startswith(STALL) and n.endswith(STALL_END)}
    # Warps that were selected, or could have been, did not wait.
    waits = {n: v for n, v in stalls.items() if n not in ("selected", "not_selected") and v > 0}
    total = sum(waits.values())
    d["stalls"] = {n: v / total for n, v in sorted(waits.items(), key=lambda x: -x[1])[:5]} if total else {}
    d["bottleneck"] = bottleneck(d)
    return d


def bottleneck(d):
    """One: the unit nearest to its peak where one is near it, else latency, with what warps wait for most."""
    shares = {n: d[n] for n in ("dram", "l2", "l1", "tensor", "issue") if n in d}
    if not shares:
        return "unknown"
    top = max(shares, key=shares.get)
    if shares[top] >= NEAR_PEAK:
        return top
    return "latency: " + next(iter(d["stalls"]), "no stalls sampled")


def text_of(d):
    share = [f"{n} {d[n]:.0f} %" for n in ("dram", "l2", "l1", "tensor", "issue", "occupancy") if n in d]
    sectors = [f"{n.split('_')[0]}s {d[n]:.0f} %" for n in ("load_sector_efficiency", "store_sector_efficiency") if n in d]
    stalls = [f"{n} {v * 100:.0f} %" for n, v in d["stalls"].items()]
    return (f"{d['kernel'][:60]}: " + (f"{d['us']:.2f} us; " if "us" in d else "") + "of the peak: " + ", ".join(share) +
            (f" (limited by {d['occupancy_limiter']})" if "occupancy_limiter" in d else "") +
            ("; sectors used: " + ", ".join(sectors) if sectors else "") +
            ("; waits: " + ", ".join(stalls) if stalls else "") + f"; bottleneck: {d['bottleneck']}")


def main(args):
    if len(args) != 1:
        sys.exit("usage: ncu_digest.py FILE.csv, or - for standard input")
    try:
        if args[0] == "-":
            text = sys.stdin.read()
        else:
            with open(args[0], encoding="utf-8", errors="replace") as f:
                text = f.read()
        found = [digest(kernel, metrics) for kernel, metrics in read(text)]
    except (OSError, ValueError) as e:
        sys.exit(f"ncu_digest: {e}")
    for d in found:
        print(text_of(d))
        print(json.dumps(d))


if __name__ == "__main__":
    main(sys.argv[1:])
