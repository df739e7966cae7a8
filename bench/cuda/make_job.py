#!/usr/bin/env python3
"""Makes the directory of a GPU job from any tree, in one command (docs/cuda.md, "The next GPU job").

  make_job.py BUILD OUT [--no-build] [--no-check]

BUILD: a build directory of the `cuda` preset of the tree that is meant. OUT gets everything that a machine with a GPU, a
driver, g++ and Python with torch needs, and `go.sh` (job.sh here). What is checked before it says so: that every file to be
compiled finds all its headers in the job, in torch, in the CUDA toolkit or in the C and C++ libraries' own packages; that
scripts parse; that the whole is below 15 MiB."""
import argparse
import concurrent.futures
import json
import os
import shutil
import subprocess
import sys
import tarfile

import build_there

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCE = os.path.dirname(os.path.dirname(HERE))
# Programs, and tests with the programs that they start.
TARGETS = ["ranker", "niche", "niche_live_check", "evolve_judge_case_lanes_test", "examples_ranker_model_test",
           "ops_cuda_families_test", "ops_cuda_emulated_test", "evolve_test_probe", "evolve_device_probe_fault_test",
           "evolve_permit_simulation_test", "runtime_cuda_loop_program", "runtime_cuda_permits_test", "runtime_cuda_loop_test"]
SCRIPTS = ["bench_device.py", "build_there.py", "check.py", "compact.py", "compile_ahead.py", "h200.py", "hang_guard.py", "niche_device.py",
           "ncu_digest.py", "one_kernel.py", "ops.py", "ops_defaults.py", "options.py", "program_variants.py", "programs.py", "regret.py", "regret_rule.py", "results_file.py",
           "rows.py"]
TRACE = "examples/ranker/data/azure_llm_2023_conv_sample.csv"
MADE_HERE = "go.sh"  # is in every job
BYTES_MAX = 15 << 20  # of a job, compressed or not: what goes to such a machine in one call beside others'
# Packages whose headers and libraries every machine with g++ has.
BASE_HEADERS = {"libc6-dev", "linux-libc-dev", "libstdc++-12-dev", "libgcc-12-dev", "libcrypt-dev"}
BASE_LIBRARIES = ("libc", "libm", "libdl", "librt", "libutil", "libpthread", "libgcc_s", "libstdc++", "libresolv")


def run(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def make_headers(build):
    """Generated headers, and the benchmark library, which runs there as it is."""
    targets = (line.split(": ")[0] for line in run("ninja", "-C", build, "-t", "targets", "all").splitlines())
    generated = sorted(t for t in targets if "generated/" in t and t.endswith((".h", ".cc")))
    subprocess.run(["ninja", "-C", build, "-j2", "niche_cuda_bench", *generated], check=True)


def libraries(build):
    """What the targets link beside torch and the base system, with what those need."""
    found = set()
    for t in TARGETS:
        link = run("ninja", "-C", build, "-t", "commands", t).splitlines()[-1]
        found |= {w for w in link.split() if w.startswith("/usr/lib") and ".so" in w}
    closure = {}
    for path in found:
        for line in [path] + [w.split()[2] for w in run("ldd", path).splitlines() if "=> /" in w]:
            name = os.path.basename(os.path.realpath(line))
            soname = next((w.split("[")[1].rstrip("]") for w in run("readelf", "-d", line).splitlines() if "SONAME" in w), name)
            if not soname.startswith(tuple(b + ".so" for b in BASE_LIBRARIES)) and "ld-linux" not in soname:
                closure[soname] = os.path.realpath(line)
    return closure


def headers_of(job, tree):
    """Headers that a file needs and that are neither carried nor the base's."""
    torch = build_there.torch_directory()
    put = lambda w: w.replace("@SOURCE@", os.path.join(tree, "source")).replace("@TORCH@", torch)
    flags = [put(w) for w in job["flags"] if not w.startswith("-W")]
    r = subprocess.run(["g++", *flags, "-I", os.path.join(tree, "include"), *build_there.ALWAYS, "-w", "-M", put(job["file"])],
                       capture_output=True, text=True)
    if r.returncode != 0:
        return {r.stderr[:600]}
    words = r.stdout.replace("\\\n", " ").split()[1:]
    known = (os.path.realpath(tree), os.path.realpath(torch), "/usr/local/cuda", "/usr/lib/gcc", "/usr/include/c++", "/usr/include/x86_64-linux-gnu/c++")
    return {w for w in map(os.path.realpath, words) if w.startswith("/") and not w.startswith(known)}


def angle_includes(tree, jobs):
    """What any carried source includes by <...> and what is nowhere."""
    torch = build_there.torch_directory()
    places = [os.path.join(tree, "include"), os.path.join(torch, "include"), os.path.join(torch, "include/torch/csrc/api/include"),
              "/usr/local/cuda/include", "/usr/include/c++/12", "/usr/include/x86_64-linux-gnu", "/usr/lib/gcc/x86_64-linux-gnu/12/include"]
    found = {}
    for job in jobs:
        with open(job["file"].replace("@SOURCE@", os.path.join(tree, "source")), errors="replace") as f:
            for line in f:
                words = line.split()
                if len(words) > 1 and words[0] == "#include" and words[1].startswith("<"):
                    found.setdefault(words[1].strip("<>"), job["file"])
    return {h if not os.path.exists("/usr/include/" + h) else "/usr/include/" + h: user for h, user in found.items()
            if not any(os.path.exists(os.path.join(p, h)) for p in places)}


def check_headers(tree):
    """Those of all files by name; with all that they need in turn for files without torch and every eighth with it, which
    takes seconds each."""
    with open(os.path.join(tree, "commands.json")) as f:
        jobs = json.load(f)
    lost = angle_includes(tree, jobs)
    whole = [j for j in jobs if not j["torch"]] + [j for j in jobs if j["torch"]][::8]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for job, strange in zip(whole, pool.map(lambda j: headers_of(j, tree), whole)):
            for header in strange:
                lost.setdefault(header, job["file"])
    owners = {}
    if lost:
        lines = subprocess.run(["dpkg", "-S", *lost], capture_output=True, text=True).stdout.splitlines()
        owners = {path: packages.split(":")[0] for packages, path in (line.rsplit(": ", 1) for line in lines)}
    missing = [f"{h} ({owners.get(h, 'no package')}), for {user}" for h, user in sorted(lost.items())
               if owners.get(h) not in BASE_HEADERS]
    return missing, len(jobs)


def is_job(folder):
    """Did this script make it?"""
    try:
        with open(os.path.join(folder, MADE_HERE)) as f:
            return "Made by make_job.py" in f.read(2000) and os.path.exists(os.path.join(folder, "COMMIT"))
    except OSError:
        return False


def main():
    p = argparse.ArgumentParser()
    p.add_argument("build")
    p.add_argument("out")
    p.add_argument("--no-build", action="store_true", help="generated headers and the benchmark library are there")
    p.add_argument("--no-check", action="store_true")
    args = p.parse_args()
    build, out = os.path.abspath(args.build), os.path.abspath(args.out)
    if not os.path.exists(os.path.join(build, "build.ninja")):
        p.error(f"{build}: no build.ninja there; ./dev build cuda makes one")
    if not args.no_build:
        make_headers(build)
    os.makedirs(out, exist_ok=True)
    there = set(os.listdir(out)) - {"result"}
    if there and not is_job(out):
        p.error(f"{out} is not empty, and no job is in it (no {MADE_HERE}): name a directory of its own")
    for name in there:
        path = os.path.join(out, name)
        shutil.rmtree(path) if os.path.isdir(path) else os.remove(path)
    tree = os.path.join(out, "tree")
    build_there.collect(build, tree, *TARGETS)
    os.makedirs(os.path.join(tree, "lib"))
    for archive in ("libgtest_main.a", "libgtest.a", "libgmock.a"):
        shutil.copy("/usr/lib/x86_64-linux-gnu/" + archive, os.path.join(tree, "lib"))
    for soname, path in libraries(build).items():
        shutil.copy(path, os.path.join(tree, "lib", soname))
    missing, files = ([], 0) if args.no_check else check_headers(tree)
    if missing:
        print("headers that the job lacks:", *missing, sep="\n  ")
        return 1
    with tarfile.open(os.path.join(out, "tree.tar.xz"), "w:xz", preset=9) as tar:
        tar.add(tree, "tree")
    shutil.rmtree(tree)
    for script in SCRIPTS:
        shutil.copy(os.path.join(HERE, script), out)
        compile(open(os.path.join(HERE, script)).read(), script, "exec")
    fixtures = os.path.join(SOURCE, "tests/fixtures")
    shutil.copytree(os.path.join(fixtures, "free_form_cuda"), os.path.join(out, "free_form_cuda"))
    shutil.copy(os.path.join(fixtures, "free_form/replay.sh"), os.path.join(out, "free_form_cuda"))
    for script in ("free_form.sh", "../free_form_report.py"):
        shutil.copy(os.path.join(HERE, script), out)
    shutil.copy(os.path.join(SOURCE, "docs/results/h200.json"), out)
    shutil.copy(os.path.join(HERE, "job.sh"), os.path.join(out, "go.sh"))
    subprocess.run(["bash", "-n", os.path.join(out, "go.sh")], check=True)
    shutil.copy(os.path.join(SOURCE, TRACE), out)
    bench = shutil.copy(os.path.join(build, "bench/cuda/libniche_cuda_bench.so"), out)
    subprocess.run(["strip", bench], check=True)
    for soname, path in ((s, q) for s, q in
                         ((w.split()[0], w.split()[2]) for w in run("ldd", bench).splitlines() if "=> /" in w)
                         if not s.startswith(tuple(b + ".so" for b in BASE_LIBRARIES))):
        shutil.copy(os.path.realpath(path), os.path.join(out, soname))
    dirty = "+" if run("git", "-C", SOURCE, "status", "--porcelain", "--untracked-files=no").strip() else ""
    with open(os.path.join(out, "COMMIT"), "w") as f:
        f.write(run("git", "-C", SOURCE, "rev-parse", "--short", "HEAD").strip() + dirty)
    size = sum(os.path.getsize(os.path.join(place, f)) for place, _, files in os.walk(out) for f in files
               if not os.path.relpath(place, out).startswith("result"))
    if size > BYTES_MAX:
        print(f"{size} bytes: more than {BYTES_MAX}")
        return 1
    print(f"{out}: {size / 2**20:.1f} MiB, " + ("headers not checked" if args.no_check else f"headers of {files} files checked")
          + f"; there: bash {os.path.basename(out)}/go.sh OUTDIR")
    return 0


if __name__ == "__main__":
    sys.exit(main())
