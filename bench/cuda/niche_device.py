"""The benchmark library (device_api.cc) as Python sees it: candidates, their kernels, and launches on torch's memory."""
import ctypes
import glob
import json

MAX = 12


def find_nvrtc():
    """The library of the packages that torch brought along, else what the loader finds."""
    import sysconfig
    for pattern in ("/nvidia/cu13/lib/libnvrtc.so.1?", "/nvidia/cuda_nvrtc/lib/libnvrtc.so.1?"):
        found = glob.glob(sysconfig.get_paths()["purelib"] + pattern)
        if found:
            return found[0]
    found = glob.glob("/usr/local/cuda/lib64/libnvrtc.so.1?")
    return found[0] if found else ""


class NicheError(RuntimeError):
    pass


class Niche:
    def __init__(self, library, cache_dir, nvrtc="", arch="sm_90a"):
        self.lib = ctypes.CDLL(library)
        for name in ("nb_init", "nb_open_device", "nb_propose", "nb_program", "nb_compile", "nb_load", "nb_health", "nb_regions"):
            getattr(self.lib, name).restype = ctypes.c_char_p
        self.lib.nb_launch.argtypes = [ctypes.c_int] + [ctypes.c_void_p] * 4
        self.lib.nb_launch_ns.argtypes = [ctypes.c_int] * 3 + [ctypes.c_void_p] * 3
        self.lib.nb_launch_ns.restype = ctypes.c_double
        self.lib.nb_holds.argtypes = [ctypes.c_int, ctypes.c_void_p]
        self.about = self._ask("nb_init", cache_dir.encode(), nvrtc.encode(), arch.encode())

    def _ask(self, name, *args):
        answer = json.loads(getattr(self.lib, name)(*args))
        if isinstance(answer, dict) and "error" in answer and not answer.get("ok", False):
            raise NicheError(answer["error"])
        return answer

    def open_device(self, ordinal=0):
        self.device = self._ask("nb_open_device", ordinal)
        return self.device

    def propose(self, op, dtype, consts, attrs, count, seed=1):
        request = {"op": op, "dtype": dtype, "consts": consts, "attrs": attrs, "count": count, "seed": seed}
        return self._ask("nb_propose", json.dumps(request).encode())

    def program(self, op, dtype, consts, attrs, name, text):
        request = {"op": op, "dtype": dtype, "consts": consts, "attrs": attrs, "name": name, "text": text}
        return self._ask("nb_program", json.dumps(request).encode())

    def compile(self, ident):
        return self._ask("nb_compile", ident)

    def holds(self, ident, var_axes):
        return bool(self.lib.nb_holds(ident, (ctypes.c_int64 * len(var_axes))(*var_axes)))

    def regions(self, axes, candidates, points, shapes):
        """Who serves each of `shapes` by `points` [(shape, [library us, us a candidate; 0: does not run])]: a candidate's
        id, -1 for the library, -2 where nothing was measured near enough; and NichePolicy's far_margin."""
        request = {"axes": axes, "candidates": candidates, "points": [{"at": at, "us": us} for at, us in points], "shapes": shapes}
        answer = self._ask("nb_regions", json.dumps(request).encode())
        return answer["who"], answer["far_margin"]

    def load(self, ident, torch):
        loaded = self._ask("nb_load", ident)
        return Kernel(self, loaded["kernel"], loaded["workspace"], torch)

    def health(self):
        answer = json.loads(self.lib.nb_health())
        return answer["ok"], answer["error"]


class Call:
    """Pointers and extents of one call, packed once."""

    def __init__(self, tensors, axes):
        self.tensors = tensors  # kept alive
        self.p = (ctypes.c_void_p * MAX)(*[None if t is None else t.data_ptr() for t in tensors])
        self.n = (ctypes.c_long * MAX)(*axes)


class Kernel:
    def __init__(self, niche, handle, workspace_bytes, torch):
        self.niche, self.handle, self.torch = niche, handle, torch
        self.workspace = torch.empty(max(1, workspace_bytes), dtype=torch.uint8, device="cuda") if workspace_bytes else None

    def __call__(self, call):
        stream = self.torch.cuda.current_stream().cuda_stream
        workspace = self.workspace.data_ptr() if self.workspace is not None else None
        if not self.niche.lib.nb_launch(self.handle, call.p, call.n, workspace, stream):
            raise NicheError("launch refused: " + self.niche.health()[1])

    def launch_ns(self, bare, count, call):
        stream = self.torch.cuda.current_stream().cuda_stream
        return self.niche.lib.nb_launch_ns(self.handle, bare, count, call.p, call.n, stream)
