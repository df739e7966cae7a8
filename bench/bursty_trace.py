#!/usr/bin/env python3
"""Writes a trace of quite another shape than the Azure sample: bursts and long tails.

usage: bursty_trace.py OUT.csv [ROWS] [SEED]

Arrivals come in bursts of a geometric number of requests (mean 12) a millisecond apart, with Pareto pauses (alpha 1.5) between
them. Context lengths are lognormal around 400 tokens with a sigma of 1.2 (a tenth above 1,800, some below 60), generated lengths
Pareto. `./dev demo --trace OUT.csv` replays it.
"""
import datetime
import random
import sys


def main():
    out, rows, seed = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 4000, int(sys.argv[3]) if len(sys.argv) > 3 else 1
    rng = random.Random(seed)
    time = datetime.datetime(2026, 1, 1)
    left = 0
    with open(out, "w", encoding="ascii") as f:
        f.write("TIMESTAMP,ContextTokens,GeneratedTokens\n")
        for _ in range(rows):
            if left == 0:
                left = 1 + int(rng.expovariate(1 / 11))
                time += datetime.timedelta(seconds=min(30.0, 0.3 * rng.paretovariate(1.5)))
            left -= 1
            time += datetime.timedelta(milliseconds=1)
            context = max(1, min(16000, int(rng.lognormvariate(6.0, 1.2))))
            generated = max(1, min(2000, int(20 * rng.paretovariate(1.1))))
            f.write(f"{time:%Y-%m-%d %H:%M:%S.%f}0,{context},{generated}\n")


if __name__ == "__main__":
    main()
