#include "evolve/python/driver.h"

namespace niche::evolve::python {

const char* const kDriver = R"python(
import inspect, json, mmap, os, traceback

def take(n):
    parts = []
    while n:
        part = os.read(3, min(n, 1 << 20))
        if not part:
            os._exit(0)
        parts.append(part)
        n -= len(part)
    return b"".join(parts)

def ask():
    return json.loads(take(int.from_bytes(take(4), "little")))

def tell(answer):
    text = json.dumps(answer).encode()
    text = len(text).to_bytes(4, "little") + text
    while text:
        text = text[os.write(3, text):]

def describe(error):
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == "<reference>"]
    if not lines and isinstance(error, SyntaxError) and error.lineno:
        lines = [error.lineno]
    return (type(error).__name__ + ": " + str(error))[:600] + (", line %d" % lines[-1] if lines else "")

def load(source):
    scope = {"__name__": "reference"}
    exec(compile(source, "<reference>", "exec"), scope)
    run = scope.get("run")
    if not callable(run):
        raise NameError("the reference has no function 'run'")
    parameters = list(inspect.signature(run).parameters.values())
    for p in parameters:
        if p.kind not in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY):
            raise TypeError("run() takes '%s' in another way than by name" % p.name)
    return run, [[p.name, p.annotation in (int, "int")] for p in parameters]

def view(room, t):
    kind = KINDS[t["type"]]
    count = 1
    for extent in t["shape"]:
        count *= extent
    if count == 0:
        return torch.empty(t["shape"], dtype=kind)
    return torch.frombuffer(room, dtype=kind, count=count, offset=t["at"]).reshape(t["shape"])

def listed(result, names):
    if isinstance(result, torch.Tensor):
        return [result]
    if isinstance(result, dict):
        missing = [n for n in names if n not in result]
        if missing:
            raise KeyError("run() returned no '%s'" % missing[0])
        return [result[n] for n in names]
    return [] if result is None else list(result)

def answer(question):
    room = mmap.mmap(4, question["bytes"])
    given = dict(question["values"])
    for t in question["inputs"]:
        x = view(room, t).clone()
        given[t["name"]] = x.double() if x.is_floating_point() else x
    updated = [given[t["name"]] for t in question["updates"]]
    outputs = question["outputs"]
    results = listed(run(**given), [t["name"] for t in outputs])
    for r in results:
        if not isinstance(r, torch.Tensor):
            raise TypeError("run() returned a %s where a tensor belongs" % type(r).__name__)
    told = [{"floating": r.is_floating_point(), "shape": list(r.shape)} for r in results]
    fits = [r["shape"] == t["shape"] and r["floating"] == (t["type"] == "f64") for r, t in zip(told, outputs)]
    if len(results) == len(outputs) and all(fits):
        for t, r in zip(question["updates"] + outputs, updated + results):
            view(room, t).copy_(r)
    return {"number": question["number"], "outputs": told}

try:
    start = ask()
    try:
        import torch
    except Exception as error:
        tell({"no_torch": describe(error)})
        os._exit(0)
    KINDS = {"f64": torch.float64, "f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16,
             "i64": torch.int64, "i32": torch.int32, "u8": torch.uint8}
    torch.set_num_threads(1)
    try:
        run, parameters = load(start["source"])
    except BaseException as error:
        tell({"error": describe(error)})
        os._exit(0)
    tell({"python": "%d.%d.%d" % __import__("sys").version_info[:3], "torch": str(torch.__version__),
          "parameters": parameters})
    while True:
        question = ask()
        try:
            with torch.no_grad():
                told = answer(question)
        except BaseException as error:
            told = {"number": question["number"], "error": describe(error)}
        tell(told)
except BrokenPipeError:
    os._exit(0)
)python";

}  // namespace niche::evolve::python
