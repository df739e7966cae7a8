#!/usr/bin/env python3
"""The `niche` program's refusals and ends: typing errors that must change nothing, signals, a session that was killed.

usage: cli_test.py NICHE SOURCE_DIR
"""
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile

NICHE, SOURCE = sys.argv[1], sys.argv[2]
SECONDS = 120

KERNEL = """// niche: phase run tasks=M{words}
extern "C" void run(const void* raw, long begin, long end) { (void)raw, (void)begin, (void)end; }
"""


def niche(*args, expect=None):
    done = subprocess.run([NICHE, *args], capture_output=True, text=True, timeout=SECONDS)
    if expect is not None:
        assert done.returncode == expect, (args, done.returncode, done.stderr)
    return done


def tending_a_cache_that_is_not_there_makes_none(directory):
    typo = os.path.join(directory, "cahce")
    for command in (["prune"], ["verify", "--remove"]):
        done = niche("cache", *command, "--cache", typo, expect=1)
        assert "no cache of kernels is there" in done.stderr and typo in done.stderr, done.stderr
        assert not os.path.exists(typo), f"{command} made {typo}"


def a_problem_names_each_variable_axis_once(directory):
    kernel = os.path.join(directory, "kernel.cc")
    with open(kernel, "w", encoding="ascii") as f:
        f.write(KERNEL.replace("{words}", ""))
    op = ["--op", "rms_norm", "--const", "N=1024"]
    for problem, says in (("M=16,Q=3", "no variable axis 'Q'"), ("M=16,N=8", "no variable axis 'N'"),
                          ("M=16,M=17", "axis 'M' is given twice"), ("Q=16", "axis 'M' is missing")):
        for command in (["evaluate", kernel], ["evolve", "--cache", os.path.join(directory, "none")]):
            done = niche(*command, *op, "--problem", problem, expect=2)
            assert says in done.stderr, (command, problem, done.stderr)
    done = niche("evolve", "--cache", os.path.join(directory, "none"), *op, "--problem", "M=16:x", expect=2)
    assert "weight" in done.stderr, done.stderr
    for value in ("-9", "0", "x"):
        with open(kernel, "w", encoding="ascii") as f:
            f.write(KERNEL.replace("{words}", f" parallel_min={value}"))
        done = niche("evaluate", kernel, *op, "--problem", "M=16", expect=2)
        assert f"'parallel_min={value}'" in done.stderr, done.stderr


class Evolving:
    """`niche evolve` that has begun to try candidates."""

    def __init__(self, cache):
        self.process = subprocess.Popen(
            [NICHE, "evolve", "--op", "rms_norm", "--const", "N=1024", "--problem", "M=64", "--seconds", "100", "--cache", cache],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1)
        text = ""
        while " tried" not in text:
            piece = self.process.stderr.read(1)
            assert piece, f"it ended: {text}"
            text += piece

    def end(self):
        out, err = self.process.communicate(timeout=SECONDS)
        return self.process.returncode, out + err


def the_first_signal_ends_a_session_and_the_second_the_program(cache):
    session = Evolving(cache)
    session.process.send_signal(signal.SIGINT)
    code, text = session.end()
    assert code == 0 and "stopped after" in text, (code, text)
    session = Evolving(cache)
    # Two different ones: of one number, a second that comes before the first was taken is no second.
    session.process.send_signal(signal.SIGINT)
    session.process.send_signal(signal.SIGTERM)
    code, text = session.end()
    assert code in (128 + signal.SIGINT, 128 + signal.SIGTERM) and "leaving at once" in text, (code, text)


def a_killed_session_is_shown_as_killed(cache):
    session = Evolving(cache)
    rows = niche("sessions", "--cache", cache, expect=0).stdout.splitlines()
    assert " running " in rows[1], rows
    session.process.send_signal(signal.SIGKILL)
    session.end()
    rows = niche("sessions", "--cache", cache, expect=0).stdout.splitlines()
    assert " killed " in rows[1], rows


def python_with_torch():
    names = [os.environ.get("NICHE_TEST_PYTHON", ""), SOURCE + "/.venv-bench/bin/python3", SOURCE + "/.venv/bin/python3", "python3"]
    for name in filter(None, names):
        try:
            if subprocess.run([name, "-I", "-c", "import torch"], capture_output=True, timeout=SECONDS).returncode == 0:
                return name
        except OSError:
            pass
    return None


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


def a_reference_in_python_judges_kernels(directory):
    op = SOURCE + "/examples/user_ops/capped_swiglu.json"
    kernel = os.path.join(directory, "swiglu.cc")

    def judge(wrong, *more):
        with open(kernel, "w", encoding="ascii") as f:
            f.write(SWIGLU.format(wrong=wrong))
        return niche("evaluate", kernel, "--definition", op, "--problem", "M=4", *more)

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
    answer, cache = os.path.join(directory, "swiglu"), os.path.join(directory, "python-cache")
    with open(answer, "w", encoding="ascii") as f:
        f.write("<NAME>one pass</NAME><DESCRIPTION>no temporary</DESCRIPTION><CODE>\n" + SWIGLU.format(wrong="") + "</CODE>")
    done = niche("evolve", "--definition", op, "--problem", "M=64", "--cache", cache, "--seconds", "90", "--python", python,
                 "--proposer", f"exec:cat {answer}", "--questions", "1", expect=0)
    assert "1 tried" in done.stdout and "1 kernels committed" in done.stdout, (done.stdout, done.stderr)


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


def a_missing_cache_is_an_error_and_is_not_made(directory):
    typo = os.path.join(directory, "no", "cahce")
    explain = ["explain", "--op", "rms_norm", "--const", "N=1024", "M=4"]
    archive = os.path.join(directory, "archive")
    for command in (explain, ["cache", "list"], ["cache", "verify"], ["cache", "export", archive], ["sessions"], ["tree"],
                    ["export"], ["kb", "skills"]):
        done = niche(*command, "--cache", typo, expect=1)
        assert typo in done.stderr and done.stdout == "", (command, done.stdout, done.stderr)
        assert not os.path.exists(os.path.dirname(typo)) and not os.path.exists(archive), command
    empty = os.path.join(directory, "empty")
    os.mkdir(empty, 0o700)
    niche(*explain, "--cache", empty, expect=0)
    assert os.listdir(empty) == [], os.listdir(empty)


def a_kernel_by_hand_reaches_a_cache(directory):
    kernel, cache, shared = (os.path.join(directory, name) for name in ("squared.cc", "hand", "shared"))
    with open(kernel, "w", encoding="ascii") as f:
        f.write(SQUARED)
    os.mkdir(shared)
    os.chmod(shared, 0o777)
    judge = ["evaluate", kernel, *OWN, "--problem", "M=64", "--commit"]
    done = niche(*judge, shared, expect=1)
    assert shared in done.stderr and done.stdout == "", (done.stdout, done.stderr)
    assert os.listdir(shared) == []
    done = niche(*judge, cache, expect=0)
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


def an_operator_without_a_family_needs_a_proposer(directory):
    answer, cache = os.path.join(directory, "answer"), os.path.join(directory, "own")
    with open(answer, "w", encoding="ascii") as f:
        f.write(f"<NAME>one pass</NAME><DESCRIPTION>no temporary</DESCRIPTION><CODE>\n{SQUARED}</CODE>")
    evolve = ["evolve", *OWN, "--problem", "M=64", "--cache", cache, "--seconds", "60"]
    done = niche(*evolve, expect=1)
    assert "no template family of 'squared_relu'" in done.stderr and "no proposer" in done.stderr, done.stderr
    shown = niche("explain", *OWN, "--cache", cache, "M=64", expect=0).stdout
    assert "no family and no proposer" in shown, shown
    done = niche(*evolve, "--proposer", f"exec:cat {answer}", "--questions", "1", expect=0)
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


def typing_errors_name_what_is_near():
    for words, near in ((["evolv"], "'evolve'"), (["cache", "lst"], "'list'"),
                        (["evolve", "--optoin-that-is-far"], None), (["evolve", "--proposr", "exec:x"], "'--proposer'"),
                        (["explain", "--op-libary=x", "M=1"], "'--op-library'")):
        done = niche(*words, expect=2)
        said = "did you mean " + (near or "")
        assert (said in done.stderr) == (near is not None), (words, done.stderr)


def values_that_cannot_be_are_told_before_anything_starts(directory):
    cache = os.path.join(directory, "never")
    evolve = ["evolve", "--problem", "M=4", "--cache", cache]
    norm = ["--op", "rms_norm", "--const", "N=64"]
    for words, code, says in (
            ([*evolve, "--op", "rms_nrom"], 1, ("'rms_nrom'", "did you mean 'rms_norm'?")),
            ([*evolve, "--op", "entirely_else"], 1, ("there are:", " softmax", "--op-library")),
            ([*evolve, *norm, "--dtype", "f16"], 1, ("f16", "lists: f32 bf16")),
            ([*evolve, *norm, "--threads", "9999"], 2, ("--threads", "9999", "not in range")),
            ([*evolve, *norm, "--threads", "0"], 2, ("--threads",)),
            ([*evolve, *norm, "--seconds", "-3"], 2, ("--seconds", "'-3' is not a number above 0")),
            ([*evolve, *norm, "--seconds", "nan"], 2, ("'nan' is not a number above 0",)),
            ([*evolve, *norm, "--model-budget", "-1"], 2, ("'-1' is not 0 or a number above it",)),
            (["cache", "prune", "--unserved-days", "-3", "--cache", cache], 2, ("--unserved-days",)),
            (["explain", *norm, "M=4"], 2, ("which cache?", "NICHE_CACHE_DIR")), (["evolve"], 2, ("--cache",))):
        done = niche(*words, expect=code)
        assert all(text in done.stderr for text in says), (words, done.stderr)
        assert len(done.stderr) < 500 and done.stdout == "", (words, done.stdout, done.stderr)
    assert not os.path.exists(cache)


def every_key_is_told():
    text = niche("config", expect=0).stdout
    for key in ("cache_dir", "proposer_usd_max", "http_address"):
        assert f"\n{key}\n" in text and f"NICHE_{key.upper()}" in text, key
    assert "int 1048576..1000000000000000 bytes; default: 4294967296; NICHE_CACHE_BYTES_MAX" in text, text


def main():
    directory = tempfile.mkdtemp(prefix="niche-cli-")
    cache = os.path.join(directory, "cache")
    try:
        tending_a_cache_that_is_not_there_makes_none(directory)
        a_problem_names_each_variable_axis_once(directory)
        the_first_signal_ends_a_session_and_the_second_the_program(cache)
        a_killed_session_is_shown_as_killed(cache)
        a_reference_in_python_judges_kernels(directory)
        a_missing_cache_is_an_error_and_is_not_made(directory)
        a_kernel_by_hand_reaches_a_cache(directory)
        an_operator_without_a_family_needs_a_proposer(directory)
        typing_errors_name_what_is_near()
        values_that_cannot_be_are_told_before_anything_starts(directory)
        every_key_is_told()
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    print("all held")


if __name__ == "__main__":
    main()
