#!/usr/bin/env python3
"""Kernels that the `niche` program judges by time: by hand, from a proposer, with a reference in Python.

usage: judged_test.py NICHE SOURCE_DIR

A judge on a loaded machine may find too little evidence for a good kernel; what is to be committed is tried a few times.
"""
import array
import ast
import http.server
import json
import os
import re
import shutil
import subprocess
import tempfile
import threading

from niche_program import SECONDS, SOURCE, niche

TRIES = 5

SQUARED = """// niche: preamble
// niche: phase run tasks=M
extern "C" void run(const NicheKernelArgs* k, long begin, long end) {
  const float* x = (const float*)k->p[0];
  float* y = (float*)k->p[1];
  for (long i = begin * 1024; i < end * 1024; i += 8) {
    const nv::f32x8 v = nv::load<8>(x + i), positive = v > 0 ? v : nv::f32x8{};
    nv::store(y + i, positive * positive);
  }
}
"""
OWN = ["--definition", SOURCE + "/examples/user_ops/squared_relu.json"]

SWIGLU = """// niche: preamble
// niche: phase run tasks=M
extern "C" void run(const NicheKernelArgs* k, long begin, long end) {{
  const float* x = (const float*)k->p[0];
  const float* gate = (const float*)k->p[1];
  float* y = (float*)k->p[2];
  const float limit = (float)k->a[0];
  for (long i = begin * 1024; i < end * 1024; i += 8) {{
    const nv::f32x8 v = nv::load<8>(x + i), silu = v * nv::sigmoid(v);
    nv::store(y + i, (silu > limit ? nv::f32x8{{}} + limit : silu) * nv::load<8>(gate + i){wrong});
  }}
}}
"""
CAPPED = ["--definition", SOURCE + "/examples/user_ops/capped_swiglu.json"]


def written(directory, name, text):
    path = os.path.join(directory, name)
    with open(path, "w", encoding="ascii") as f:
        f.write(text)
    return path


def answered(directory, name, program):
    """A proposer that answers every question with this program."""
    text = f"<NAME>one pass</NAME><DESCRIPTION>no temporary</DESCRIPTION><CODE>\n{program}</CODE>"
    return ["--proposer", "exec:cat " + written(directory, name, text), "--questions", "1"]


def committed(cache, attempt):
    """attempt(cache) until the judge finds the kernel faster, each time in a cache of its own; any other refusal ends it."""
    tries = []
    for n in range(TRIES):
        of_try = f"{cache}{n}"
        done = attempt(of_try)
        tries.append(f"try {n + 1}: exit {done.returncode}\n{done.stdout}{done.stderr}")
        if done.returncode == 0 and "0 kernels committed" not in done.stdout:
            return of_try, done
        if not re.search(r'(rejected at |at gate \'|"failed_gate": ?")(timing|confirm)', done.stdout):
            break
    raise AssertionError("not committed\n" + "\n".join(tries))


def a_kernel_by_hand_reaches_a_cache(directory):
    shared = os.path.join(directory, "shared")
    os.mkdir(shared)
    os.chmod(shared, 0o777)
    judge = ["evaluate", written(directory, "squared.cc", SQUARED), *OWN, "--problem", "M=64", "--commit"]
    done = niche(*judge, shared, expect=1)
    assert shared in done.stderr and done.stdout == "", (done.stdout, done.stderr)
    assert os.listdir(shared) == []
    cache, done = committed(os.path.join(directory, "hand"), lambda of_try: niche(*judge, of_try))
    assert json.loads(done.stdout)["status"] == "FASTER", done.stdout
    assert "committed squared_relu.f32.file." in done.stderr, done.stderr
    shown = json.loads(niche("explain", *OWN, "--cache", cache, "M=64", "--json", expect=0).stdout)
    assert [k["name"].startswith("squared_relu.f32.file.") for k in shown["kernels"]] == [True], shown
    assert shown["kernels"][0]["guard"] and shown["kernels"][0]["verified_unix_ns"] > 0, shown
    done = niche("cache", "verify", "--cache", cache, "--op-library", OWN[1], expect=0)
    assert "1 good, 0 bad" in done.stdout, done.stdout
    # Without the library it is another environment: the refusal says so, and nothing is made.
    made = os.listdir(cache)
    for command in (["list"], ["verify"], ["verify", "--remove"], ["export", os.path.join(directory, "none")],
                    ["quarantine", "x", "--reason", "y"], ["forgive", "x"]):
        done = niche("cache", *command, "--cache", cache, expect=1)
        assert "nothing of this environment" in done.stderr and "op_libraries: 'squared_relu.json " in done.stderr, done.stderr
        assert os.listdir(cache) == made, command


WRONG = SQUARED.replace("positive * positive", "positive * positive * 1.01f")


def elements(npy):
    """(type, shape, values) of a file in NumPy's format."""
    with open(npy, "rb") as f:
        data = f.read()
    assert data[:8] == b"\x93NUMPY\x01\x00", data[:8]
    begin = 10 + int.from_bytes(data[8:10], "little")
    head = ast.literal_eval(data[10:begin].decode())
    return head["descr"], head["shape"], array.array({"<f4": "f", "<f8": "d"}[head["descr"]], data[begin:])


def a_wrong_kernel_is_named_with_inputs_that_show_it(directory):
    case = os.path.join(directory, "case")
    judge = ["evaluate", written(directory, "wrong.cc", WRONG), *OWN, "--problem", "M=8", "--seed", "5"]
    done = niche(*judge, "--inputs", case, expect=3)
    verdict = json.loads(done.stdout)
    assert verdict["status"] == "REJECTED" and verdict["failed_gate"] == "smoke", verdict
    for words in (": REJECTED, at gate 'smoke'", "passed    parse, duplicate, compile, binary\n", "reason    output 'y'", "inputs    M=", case):
        assert words in done.stderr, (words, done.stderr)
    assert sorted(os.listdir(case)) == ["x.npy", "y.expected.npy"], os.listdir(case)
    kind, shape, x = elements(os.path.join(case, "x.npy"))
    assert (kind, shape) == ("<f4", (verdict["failed_case"]["var_axes"][0], 1024)), (kind, shape, verdict)
    kind, wide, y = elements(os.path.join(case, "y.expected.npy"))
    assert (kind, wide, len(y)) == ("<f8", shape, len(x)), (kind, wide)
    assert all(abs(b - max(a, 0) ** 2) <= 1e-9 * abs(b) for a, b in zip(x, y))
    again = json.loads(niche(*judge, expect=3).stdout)
    assert again["failed_case"] == verdict["failed_case"], (again, verdict)


def a_program_for_a_device_says_where_it_is_judged(directory):
    program = written(directory, "program.cu", """// niche: preamble
// niche: phase run grid=M threads=256
extern "C" __global__ void run(const Args k) {}
""")
    judge = ["evaluate", program, "--op", "rms_norm", "--const", "N=1024", "--problem", "M=16"]
    done = niche(*judge, expect=2)
    for words in (program + " line 3: __global__", "--device cuda:0", "./dev build cuda"):
        assert words in done.stderr and done.stdout == "", (words, done.stderr)
    done = niche(*judge, "--device", "cuda:9", expect=1)
    assert done.stdout == "" and ("this build has no CUDA" in done.stderr or "CUDA" in done.stderr), done.stderr


def a_proposer_evolves_an_operator_without_a_family(directory):
    evolve = ["evolve", *OWN, "--problem", "M=64", "--seconds", "60", *answered(directory, "squared", SQUARED)]
    cache, done = committed(os.path.join(directory, "own"), lambda of_try: niche(*evolve, "--cache", of_try))
    assert "1 kernels committed" in done.stdout, (done.stdout, done.stderr)
    # Not a terminal: a line for each event.
    assert "\r" not in done.stderr and "\033" not in done.stderr, done.stderr
    assert "best screened" in done.stderr and "confirmed" in done.stderr, done.stderr
    rows = niche("sessions", "--cache", cache, expect=0).stdout
    assert "confirmed" in rows and "screened" in rows, rows
    # One program with one result makes no pair for DPO.
    done = niche("export", "--cache", cache, "--format", "dpo", expect=3)
    assert "nothing to export" in done.stderr and done.stdout == "", (done.stdout, done.stderr)
    niche("export", "--cache", cache, "--format", "jsonl", expect=0)
    what_a_session_tried_can_be_looked_at(directory, cache)


def a_refused_program_is_counted_by_its_gate(directory):
    evolve = ["evolve", *OWN, "--problem", "M=64", "--seconds", "60", *answered(directory, "wrong", WRONG)]
    done = niche(*evolve, "--cache", os.path.join(directory, "refused"), expect=0)
    # While it goes on: time left, tried, the best so far, and which gates refused how many.
    assert re.search(r"\d+ s left  1 of 2000 tried  best screened 0\.000x  confirmed 0\.000x \(0\)  refused: smoke 1", done.stderr), done.stderr
    assert re.search(r"rejected at smoke +1\n", done.stdout), done.stdout


class EchoingService:
    """An OpenAI-compatible service that puts the key that it was asked with into what it says."""

    def __init__(self, program):
        keys = self.keys = []

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                self.rfile.read(int(self.headers["Content-Length"]))
                keys.append(self.headers["Authorization"])
                text = f"<NAME>{keys[-1]}</NAME><DESCRIPTION>{keys[-1]}</DESCRIPTION><CODE>\n// {keys[-1]}\n{program}</CODE>"
                body = json.dumps({"choices": [{"message": {"content": text}, "finish_reason": "stop"}],
                                   "usage": {"prompt_tokens": 10, "completion_tokens": 10}}).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *words):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()

    def end(self):
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


def a_key_reaches_its_service_and_nothing_else(directory):
    key = "sk-niche-0123456789abcdefghijklmnop"
    service = EchoingService(SQUARED)
    cache = os.path.join(directory, "keyed")
    os.environ["OPENAI_API_KEY"] = key
    try:
        done = niche("evolve", *OWN, "--problem", "M=64", "--seconds", "60", "--questions", "1", "--cache", cache, "--proposer",
                     f"openai:http://127.0.0.1:{service.server.server_address[1]}/v1#m", expect=0)
    finally:
        del os.environ["OPENAI_API_KEY"]
        service.end()
    assert service.keys == ["Bearer " + key], service.keys
    assert "1 questions, 1 programs" in done.stdout, (done.stdout, done.stderr)
    told = {"stdout": done.stdout.encode(), "stderr": done.stderr.encode()}
    for command in (["tree", "--all"], ["export"], ["export", "--format", "sft"], ["kb", "skills"]):
        shown = niche(*command, "--cache", cache)
        told[" ".join(command)] = (shown.stdout + shown.stderr).encode()
    for folder, _, names in os.walk(cache):
        for name in names:
            with open(os.path.join(folder, name), "rb") as f:
                told[os.path.join(folder, name)] = f.read()
    assert any("trajectories" in name for name in told), told.keys()
    for where, text in told.items():
        assert key.encode() not in text, where


def what_a_session_tried_can_be_looked_at(directory, cache):
    """`cache` holds a session whose only program is committed."""
    lines = niche("export", "--cache", cache, "--format", "sft", expect=0).stdout.splitlines()
    example = json.loads(lines[0])
    assert len(lines) == 1 and example["reward"] > 1 and example["verified"], lines
    assert [m["role"] for m in example["messages"]] == ["system", "user", "assistant"], example
    assert "positive * positive" in example["messages"][2]["content"], example
    page = os.path.join(directory, "tree.html")
    id = example["session"]
    done = niche("tree", id[:12], "--html", page, "--cache", cache, expect=0)
    assert f"{page}: 1 candidates of {id}" in done.stdout, done.stdout
    with open(page, encoding="utf-8") as f:
        html = f.read()
    assert "<polyline" in html and "positive * positive" in html and "http" not in html, html[:1000]
    text = niche("tree", "last", "--cache", cache, expect=0).stdout
    assert "best confirmed" in text and "model one pass" in text, text


def python_with_torch():
    names = [os.environ.get("NICHE_TEST_PYTHON", ""), SOURCE + "/.venv-bench/bin/python3", SOURCE + "/.venv/bin/python3", "python3"]
    for name in filter(None, names):
        try:
            if subprocess.run([name, "-I", "-c", "import torch"], capture_output=True, timeout=SECONDS).returncode == 0:
                return name
        except OSError:
            pass
    return None


def a_reference_in_python_judges_kernels(directory):
    def judge(wrong, *more):
        kernel = written(directory, "swiglu.cc", SWIGLU.format(wrong=wrong))
        return niche("evaluate", kernel, *CAPPED, "--problem", "M=4", *more)

    done = judge("", "--python", "/no/such/python")
    assert done.returncode != 0 and "the reference is Python" in done.stderr and "/no/such/python" in done.stderr, done.stderr
    python = python_with_torch()
    if python is None:
        print("SKIPPED: no Python with torch (NICHE_TEST_PYTHON names one)")
        return
    done = judge(" * 1.001f", "--python", python)
    verdict = json.loads(done.stdout)
    assert done.returncode == 3 and verdict["failed_gate"] in ("smoke", "correctness"), (done.returncode, verdict)
    assert "'y'" in verdict["reason"], verdict
    done = judge("", "--python", python)
    verdict = json.loads(done.stdout)
    assert done.returncode in (0, 3) and verdict["failed_gate"] not in ("smoke", "correctness"), (done.returncode, verdict)
    assert verdict["correctness_points"] > 0 and 0 < verdict["max_error"] <= 1, verdict
    # A whole session: its kernels come from a proposer, its answers from Python.
    evolve = ["evolve", *CAPPED, "--problem", "M=64", "--seconds", "90", "--python", python,
              *answered(directory, "swiglu", SWIGLU.format(wrong=""))]
    _, done = committed(os.path.join(directory, "python-cache"), lambda of_try: niche(*evolve, "--cache", of_try))
    assert "1 tried" in done.stdout and "1 kernels committed" in done.stdout, (done.stdout, done.stderr)


def main():
    directory = tempfile.mkdtemp(prefix="niche-judged-")
    try:
        a_kernel_by_hand_reaches_a_cache(directory)
        a_wrong_kernel_is_named_with_inputs_that_show_it(directory)
        a_program_for_a_device_says_where_it_is_judged(directory)
        a_proposer_evolves_an_operator_without_a_family(directory)
        a_refused_program_is_counted_by_its_gate(directory)
        a_key_reaches_its_service_and_nothing_else(directory)
        a_reference_in_python_judges_kernels(directory)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    print("all held")


if __name__ == "__main__":
    main()
