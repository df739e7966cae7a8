#!/usr/bin/env python3
"""What Nsight Compute says of a kernel, on one screen: shares of the peaks, sector efficiency, occupancy and what limits
it, stall reasons, and one bottleneck.

  ncu --csv --page raw --set full ... | ncu_digest.py -       or: ncu_digest.py FILE.csv

Reads both of its CSV forms: `--page raw` (a column a metric, a second line of units) and the long one (a line a metric).
What else the program or ncu printed is skipped. A metric that this device or set does not have is left out, never 0."""
import csv
import json
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
          "warps": "launch__occupancy_limit_warps", "blocks": "launch__occupancy_limit_blocks"}
STALL, STALL_END = "smsp__average_warps_issue_stalled_", "_per_issue_active.ratio"
TIMES = {"ns": 1e-3, "nsecond": 1e-3, "us": 1.0, "usecond": 1.0, "ms": 1e3, "msecond": 1e3, "s": 1e6, "second": 1e6}
NEAR_PEAK = 60.0  # percent of a peak from which that unit is what limits


def number(text):
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return None


def read(text):
    """[(kernel, {metric: (value, unit)})], one a launch."""
    lines = [line for line in text.splitlines() if line.startswith('"')]
    at = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    if at is None:
        raise ValueError("no line that begins with \"ID\": not ncu's CSV, or it failed: " + text[-200:].strip())
    head, *rows = list(csv.reader(lines[at:]))
    if "Metric Name" in head:
        launches = {}
        for row in (dict(zip(head, r)) for r in rows):
            value = number(row.get("Metric Value", ""))
            if row.get("Metric Name") and value is not None:
                launches.setdefault((row["ID"], row["Kernel Name"]), {})[row["Metric Name"]] = (value, row.get("Metric Unit", ""))
        return [(kernel, metrics) for (_, kernel), metrics in launches.items()]
    if not rows:
        return []
    units = dict(zip(head, rows[0])) if not rows[0][0] else {}
    found = []
    for row in (dict(zip(head, r)) for r in (rows[1:] if units else rows)):
        values = {name: (number(text), units.get(name, "")) for name, text in row.items() if "__" in name}
        found.append((row.get("Kernel Name", ""), {n: v for n, v in values.items() if v[0] is not None}))
    return found


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


if __name__ == "__main__":
    source = sys.stdin.read() if sys.argv[1] == "-" else open(sys.argv[1]).read()
    try:
        for kernel, metrics in read(source):
            found = digest(kernel, metrics)
            print(text_of(found))
            print(json.dumps(found))
    except ValueError as e:
        sys.exit(f"ncu_digest: {e}")
