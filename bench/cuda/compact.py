#!/usr/bin/env python3
"""compact.py IN OUT: h200.py's results with one row a line and five digits, as docs/results keeps them; and the table of
docs/cuda.md on standard output."""
import json
import sys


def rounded(x):
    if isinstance(x, float):
        return float(f"{x:.5g}")
    if isinstance(x, list):
        return [rounded(v) for v in x]
    return {k: rounded(v) for k, v in x.items()} if isinstance(x, dict) else x


def main():
    with open(sys.argv[1]) as f:
        r = json.load(f)
    with open(sys.argv[2], "w") as f:
        rows = ",\n".join("  " + json.dumps(rounded(x)) for x in r["rows"])
        f.write(f'{{"machine": {json.dumps(r["machine"])},\n "launch": {json.dumps(rounded(r["launch"]))},\n "rows": [\n{rows}\n]}}\n')
    for x in r["rows"]:
        compiled = f"{x['compiled_us']:.1f}" if x["compiled_us"] else "-"
        print(f"| {x['key']} | {x['eager_us']:.1f} | {compiled} | {x['best_library_us']:.2f} ({x['best_library_form']}) | "
              f"**{x['niche_us']:.2f}** | {x['copy_us']:.2f} | {x['ratio']:.2f} [{x['ci_low']:.2f}, {x['ci_high']:.2f}] | "
              f"{x['best_library_us_cold']:.1f} / {x['niche_us_cold']:.1f} / {x['copy_us_cold']:.1f} |")


if __name__ == "__main__":
    main()
