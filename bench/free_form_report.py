#!/usr/bin/env python3
"""What came of sessions in which a model's programs ran beside templates: free_form_report.py [--json FILE] SESSION.jsonl...
(`niche export --format jsonl`): the best program and the best template point of each, and the ratio of their costs."""
import argparse
import json


def best(nodes, programs):
    ours = [n for n in nodes if (n["family"] == "model") == programs and n["cost"] > 0]
    return min(ours, key=lambda n: n["cost"], default=None)


def report(path):
    with open(path) as f:
        nodes = [json.loads(line) for line in f]
    template, program = best(nodes, False), best(nodes, True)
    row = {"definition": nodes[0]["definition"], "templates_tried": sum(n["family"] != "model" for n in nodes)}
    for name, n in (("template", template), ("program", program)):
        if n:
            row[name] = {"speedup": round(n["reward"], 3), "outcome": n["outcome"],
                         "what": n["family"] + " " + json.dumps(n["point"].get("name", n["point"]))}
    if template and program:
        row["program_over_template"] = round(template["cost"] / program["cost"], 3)
    return row


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--json", default="")
    p.add_argument("sessions", nargs="+")
    args = p.parse_args()
    rows = [report(path) for path in args.sessions]
    for r in rows:
        print(json.dumps(r, indent=1))
    if args.json:
        with open(args.json, "w") as f:
            json.dump(rows, f, indent=1)
