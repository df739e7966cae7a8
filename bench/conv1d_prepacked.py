#!/usr/bin/env python3
"""What oneDNN's blocked weights, reordered once, would give conv1d's library form: times against the forms that are there.

usage: python3 bench/conv1d_prepacked.py [CHANNELS]      (a Python with torch; one thread; medians of nine interleaved rounds)
"""
import sys
import time

import torch

PROBLEMS = ((1, 24), (1, 100), (2, 400), (4, 200), (8, 200), (8, 400))  # batch, length: the example ranker's range
ROUNDS, CALLS = 9, 21


def median(values):
    return sorted(values)[len(values) // 2]


def microseconds(call):
    call()
    times = []
    for _ in range(CALLS):
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return median(times) * 1e6


def main():
    torch.set_num_threads(1)
    channels = int(sys.argv[1]) if len(sys.argv) > 1 else 96
    print(f"torch {torch.__version__}, {channels} channels, 3 taps")
    for batch, length in PROBLEMS:
        x, w, b = torch.randn(batch, channels, length), torch.randn(channels, channels, 3) * 0.05, torch.randn(channels)
        x4, w4 = x.unsqueeze(2), w.unsqueeze(2)
        blocked = torch._C._nn.mkldnn_reorder_conv2d_weight(w4.to_mkldnn(), [0, 1], [1, 1], [1, 1], 1, list(x4.shape))
        forms = (lambda: torch.conv1d(x, w, b, padding=1),
                 lambda: torch.mkldnn_convolution(x4, w4, b, [0, 1], [1, 1], [1, 1], 1),
                 lambda: torch.mkldnn_convolution(x4, blocked, b, [0, 1], [1, 1], [1, 1], 1))
        assert torch.equal(forms[1](), forms[2]())
        conv1d, plain, prepacked = (median(t) for t in zip(*([microseconds(f) for f in forms] for _ in range(ROUNDS))))
        best = min(conv1d, plain)
        print(f"B={batch} L={length}: conv1d {conv1d:.0f} us, mkldnn_convolution {plain:.0f}, prepacked {prepacked:.0f}: "
              f"{best / prepacked:.2f}x of the better", flush=True)


if __name__ == "__main__":
    with torch.inference_mode():
        main()
