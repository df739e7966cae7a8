"""A candidate that hangs or faults ends this process, and the next one leaves it out: one process has one CUDA context."""
import contextlib
import os
import threading

from niche_device import NicheError

HUNG_STATUS = 9


class Guard:
    """`path`: where the name of the candidate that runs stands; empty: nothing is remembered and nothing is watched."""

    def __init__(self, path, seconds=20.0):
        self.path, self.seconds = path, seconds
        self.bad = []
        if path and os.path.exists(path):
            with open(path) as f:
                self.bad = sorted(set(f.read().split()))

    def known_bad(self, name):
        return name in self.bad

    @contextlib.contextmanager
    def watch(self, name):
        if not self.path:
            yield
            return
        with open(self.path, "w") as f:
            f.write("\n".join(self.bad + [name]))

        def end(what):
            print(f"{what}: {name}; this process ends", flush=True)
            os._exit(HUNG_STATUS)
        timer = threading.Timer(self.seconds, end, [f"HUNG, nothing for {self.seconds} s"])
        timer.daemon = True
        timer.start()
        try:
            yield
        except NicheError:  # refused: nothing ran
            raise
        except Exception as e:  # the context is lost, and with it every later candidate
            end(f"FAULT, {type(e).__name__} {str(e)[:200]}")
        finally:
            timer.cancel()
            with open(self.path, "w") as f:
                f.write("\n".join(self.bad))
