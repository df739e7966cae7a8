#!/usr/bin/env python3
"""Checks that each folder includes only the folders that stand above it ("Where things are" in the README).

Reads the #include lines of every .h/.cc, prints each forbidden edge with file and line, exits 1 if there is one.
"""
import pathlib
import re
import sys

# Folder -> folders it may include (itself always).
ALLOWED = {
    "dispatch/base": set(),
    "dispatch": {"dispatch/base", "dispatch/devices/cpu"},
    "dispatch/devices/cpu": {"dispatch/base", "dispatch"},
    "dispatch/devices/cuda": {"dispatch/base", "dispatch"},
    "kernels_cache": {"dispatch"},
    "kb": {"dispatch/base"},
    "evolve": {"dispatch", "kernels_cache", "kb"},
    "runtime/ops/cpu": {"dispatch", "evolve"},
    "runtime/ops/cuda": {"dispatch", "evolve"},
    "runtime/ops": {"dispatch", "evolve", "runtime/ops/cpu"},
    "runtime/telemetry": {"dispatch"},
    "runtime/rollout": {"dispatch", "evolve"},
    "runtime/torch": {"dispatch", "kernels_cache", "kb", "evolve", "runtime"},
    "runtime/cli": {"dispatch", "kernels_cache", "kb", "evolve", "runtime"},
    "runtime": {"dispatch", "kernels_cache", "kb", "evolve", "runtime/telemetry", "runtime/rollout", "runtime/ops",
                "runtime/ops/cpu"},
}
# libtorch's headers stay in these folders.
TORCH_FOLDERS = ("runtime/torch", "runtime/ops", "examples", "bench", "tests/examples", "tests/runtime", "tests/install")
TORCH = re.compile(r'#include\s+[<"](ATen|torch|c10)/')
INCLUDE = re.compile(r'#include\s+"([^"]+)"')


def folder_of(path: str) -> str:
    best = ""
    for folder in ALLOWED:
        if path.startswith(folder + "/") and len(folder) > len(best):
            best = folder
    return best


def allowed(src: str, dst: str) -> bool:
    if src == dst:
        return True
    grants = ALLOWED[src]
    return any(dst == g or dst.startswith(g + "/") for g in grants)


def main() -> int:
    root = pathlib.Path(__file__).resolve().parent.parent
    bad = []
    files = [p for top in ("dispatch", "kernels_cache", "kb", "evolve", "runtime", "tests", "bench", "examples")
             for p in sorted((root / top).rglob("*")) if p.suffix in (".h", ".cc")]
    for path in files:
        rel = path.relative_to(root).as_posix()
        src = folder_of(rel)
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
            if TORCH.search(line) and not rel.startswith(TORCH_FOLDERS):
                bad.append(f"{rel}:{number}: libtorch outside {', '.join(TORCH_FOLDERS)}: {line.strip()}")
            match = INCLUDE.search(line)
            if not src or not match:
                continue
            dst = folder_of(match.group(1))
            if dst and not allowed(src, dst):
                bad.append(f"{rel}:{number}: {src} must not include {dst} ({match.group(1)})")
    for line in bad:
        print(line)
    print(f"checked {len(files)} files: {len(bad)} forbidden includes")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
