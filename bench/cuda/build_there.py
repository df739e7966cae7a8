#!/usr/bin/env python3
"""Builds programs elsewhere from the compile commands that this build tree has: no cmake, no ccache there.

  build_there.py collect BUILD OUT TARGET...   here: OUT gets sources, generated headers, foreign headers, commands.json
  build_there.py build DIR OBJECTS [JOBS]      there: compiles all, keeps going past errors, links DIR/TARGET each

Foreign headers: what the compile commands' files include from /usr/include and a bare machine may lack."""
import concurrent.futures
import hashlib
import importlib.util
import json
import os
import shlex
import shutil
import subprocess
import sys
import time

FOREIGN = ["brotli", "gtest", "gmock", "nlohmann", "flatbuffers", "dlpack", "CLI", "httplib.h", "sqlite3.h", "nettle", "spdlog", "fmt", "x86_64-linux-gnu/curl", "curl", "openssl", "x86_64-linux-gnu/openssl", "zlib.h", "zconf.h"]
ALWAYS = ["-include", "cstdint", "-include", "algorithm", "-include", "string", "-include", "atomic", "-include", "mutex"]


def torch_directory():
    return os.path.dirname(importlib.util.find_spec("torch").origin)


def collect(build, out, *targets):
    build = os.path.abspath(build)
    source = os.path.dirname(os.path.dirname(build))
    by_line = {}
    for target in targets:
        lines = subprocess.run(["ninja", "-C", build, "-t", "commands", target], check=True, capture_output=True, text=True).stdout
        for line in lines.splitlines():
            # A test is built after the programs that it starts, whose objects are not its own.
            owner = line.split("CMakeFiles/", 1)[-1].split(".dir/", 1)[0]
            if " -c " in line and (owner == target or owner not in targets):
                by_line.setdefault(line, []).append(target)
    jobs = []
    for line, users in by_line.items():
        words = shlex.split(line)
        words = words[next(i for i, w in enumerate(words) if w.endswith("c++")) + 1:]
        file, flags, skip = words[words.index("-c") + 1], [], False
        for i, w in enumerate(words):
            if skip:
                skip = False
            elif w in ("-MT", "-MF", "-o", "-c"):
                skip = True
            elif w not in ("-MD", "-g", "-Wall", "-Wextra"):
                flags.append(w)
        torch = next((w for w in flags if "site-packages/torch/include" in w), None)
        flags = [w.replace(source, "@SOURCE@") for w in flags]
        flags = ["@TORCH@" + w.split("site-packages/torch", 1)[1] if "site-packages/torch" in w else w for w in flags]
        jobs.append({"file": file.replace(source, "@SOURCE@"), "flags": flags, "torch": torch is not None, "targets": users})
    os.makedirs(out, exist_ok=True)
    files = subprocess.run(["git", "-C", source, "ls-files", "-co", "--exclude-standard", "dispatch", "kernels_cache", "kb", "evolve",
                            "runtime", "bench/cuda", "examples", "tests"], check=True, capture_output=True, text=True).stdout.split()
    for f in files:
        if os.path.exists(os.path.join(source, f)):
            os.makedirs(os.path.join(out, "source", os.path.dirname(f)), exist_ok=True)
            shutil.copy(os.path.join(source, f), os.path.join(out, "source", f))
    shutil.copytree(os.path.join(build, "generated"), os.path.join(out, "source", os.path.relpath(build, source), "generated"),
                    dirs_exist_ok=True)
    for f in FOREIGN:
        path = "/usr/include/" + f
        to = os.path.join(out, "include", os.path.basename(f))
        if os.path.isdir(path):
            shutil.copytree(path, to, dirs_exist_ok=True)
        elif os.path.exists(path):
            os.makedirs(os.path.dirname(to), exist_ok=True)
            shutil.copy(path, to)
    with open(os.path.join(out, "commands.json"), "w") as f:
        json.dump(jobs, f)
    print(len(jobs), "files to compile")


def compile_one(job, root, torch, objects):
    source = os.path.join(root, "source")
    put = lambda w: w.replace("@SOURCE@", source).replace("@TORCH@", torch)
    file = put(job["file"])
    # A file that two targets compile with flags of their own has an object for each.
    name = os.path.relpath(file, source).replace("/", "_") + "." + hashlib.sha256(repr(job["flags"]).encode()).hexdigest()[:12] + ".o"
    target = os.path.join(objects, name)
    if os.path.exists(target) and os.path.getmtime(target) > os.path.getmtime(file):
        return name, 0, "", 0
    flags = [put(w) for w in job["flags"]]
    start = time.time()
    r = subprocess.run(["g++", *flags, "-I", os.path.join(root, "include"), *ALWAYS, "-w", "-c", file, "-o", target + ".part"],
                       capture_output=True, text=True)
    if r.returncode == 0:
        os.replace(target + ".part", target)
    return name, r.returncode, r.stderr, time.time() - start


def build(root, objects, count):
    root = os.path.abspath(root)
    torch = torch_directory()
    os.makedirs(objects, exist_ok=True)
    with open(os.path.join(root, "commands.json")) as f:
        jobs = json.load(f)
    jobs.sort(key=lambda j: not j["torch"])  # the slow ones first
    start, failed, names = time.time(), [], {}
    with concurrent.futures.ThreadPoolExecutor(count) as pool:
        for job, (name, rc, text, seconds) in zip(jobs, pool.map(lambda j: compile_one(j, root, torch, objects), jobs)):
            for target in job["targets"]:
                if os.path.join(objects, name) not in names.setdefault(target, []):
                    names[target].append(os.path.join(objects, name))
            if rc != 0:
                failed.append(name)
                print(f"FAILED {name}\n{text[:3000]}", flush=True)
            elif seconds > 60:
                print(f"{name}: {seconds:.0f} s", flush=True)
    print(f"{len(jobs) - len(failed)} of {len(jobs)} compiled in {time.time() - start:.0f} s", flush=True)
    if failed:
        return 1
    nvidia = os.path.join(os.path.dirname(torch), "nvidia")
    lib = os.path.join(root, "lib")
    gomp = [os.path.join(torch, "lib", f) for f in os.listdir(os.path.join(torch, "lib")) if f.startswith("libgomp")]
    archives = [os.path.join(lib, f) for f in ("libgtest_main.a", "libgmock.a", "libgtest.a") if os.path.exists(os.path.join(lib, f))]
    foreign = [os.path.join(lib, f) for f in sorted(os.listdir(lib)) if ".so" in f]
    rc = 0
    for target, list_ in names.items():
        r = subprocess.run(["g++", "-o", os.path.join(root, target), *list_, "-rdynamic", "-Wl,--allow-shlib-undefined",
                            f"-Wl,-rpath,{torch}/lib", f"-Wl,-rpath,{lib}", f"-L{torch}/lib", "-Wl,--as-needed", "-ltorch_cpu",
                            "-lc10", *foreign, *gomp, *archives, "-ldl", "-lpthread", f"-Wl,-rpath-link,{nvidia}/cu13/lib"],
                           capture_output=True, text=True)
        print(f"link of {target}:", r.returncode, r.stderr[-3000:], flush=True)
        # Tests know the programs that they start by where the build tree here has them.
        for path in {w.split('"')[1].replace("@SOURCE@", os.path.join(root, "source")) for j in jobs for w in j["flags"]
                     if w.startswith("-D") and w.count('"') == 2 and w.endswith(target + '"')}:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            if not os.path.lexists(path):
                os.symlink(os.path.join(root, target), path)
        rc = rc or r.returncode
    return rc


if __name__ == "__main__":
    if sys.argv[1] == "collect":
        collect(*sys.argv[2:])
    else:
        sys.exit(build(sys.argv[2], sys.argv[3], int(sys.argv[4]) if len(sys.argv) > 4 else os.cpu_count()))
