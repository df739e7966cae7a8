"""Attributes of the operators where a row names none. Apart from ops.py, so that candidates can be proposed and compiled
before torch is loaded (the compile workers are forked first)."""

DEFAULT_ATTRS = {"rms_norm": {"eps": 1e-6}, "fused_add_rms_norm": {"eps": 1e-6}, "layer_norm": {"eps": 1e-5},
                 "pffn": {"eps": 1e-6}, "conv1d": {"padding": 1, "has_bias": 1}, "gelu_mul": {"tanh": 0}, "rope": {"interleaved": 0},
                 "linear": {"has_bias": 1, "activation": 0}, "sdpa_decode": {"scale": 0}, "embedding_bag": {"mean": 0}}
