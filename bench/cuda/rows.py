"""What is measured: one tuple a row: operator, element type, constant axes, variable axes, one of the table that the aims are stated for, or not."""


def key_of(row):
    """A row's, or a problem's (its first four), name in results."""
    op, dtype, consts, var = row[:4]
    return f"{op} {dtype} " + " ".join(f"{k}={v}" for k, v in consts.items()) + " x " + ",".join(map(str, var))


def rows(which):
    memory = [
        ("rms_norm", "bf16", {"N": 4096}, (256,), True),
        ("rms_norm", "bf16", {"N": 4096}, (4096,), True),
        ("fused_add_rms_norm", "bf16", {"N": 4096}, (4096,), True),
        ("rms_norm_backward", "bf16", {"N": 1024}, (16384,), True),
        ("silu_mul", "bf16", {"N": 14336}, (4096,), True),
        ("map_id", "i64", {"T": 10000}, (50000,), True),
        ("map_id", "i64", {"T": 10000}, (1000000,), True),
        ("mbdt", "f32", {"F": 64, "K": 8}, (2048,), True),
        ("layer_norm", "bf16", {"N": 768}, (8192,), False),
        ("softmax", "bf16", {"N": 1000}, (8192,), False),
        ("fused_add_rms_norm", "bf16", {"N": 4096}, (16,), False),
        ("rms_norm", "f32", {"N": 4096}, (2048,), False),
        ("rms_norm", "f16", {"N": 2560}, (1037,), False),
        ("rms_norm", "bf16", {"N": 7168}, (1,), False),
        ("rms_norm", "bf16", {"N": 1021}, (777,), False),
        ("fused_add_rms_norm", "f32", {"N": 1024}, (8191,), False),
        ("fused_add_rms_norm", "f16", {"N": 8192}, (1000,), False),
        ("layer_norm", "f32", {"N": 1024}, (4097,), False),
        ("layer_norm", "f16", {"N": 4096}, (2048,), False),
        ("layer_norm", "bf16", {"N": 320}, (65536,), False),
        ("softmax", "f32", {"N": 4096}, (2049,), False),
        ("softmax", "f16", {"N": 512}, (65536,), False),
        ("softmax", "bf16", {"N": 32000}, (256,), False),
        ("silu_mul", "f16", {"N": 11008}, (333,), False),
        ("silu_mul", "f32", {"N": 4096}, (2048,), False),
        ("silu_mul", "bf16", {"N": 14336}, (8,), False),
        ("rms_norm_backward", "bf16", {"N": 4096}, (4096,), False),
        ("rms_norm_backward", "f32", {"N": 1024}, (8191,), False),
        ("rms_norm_backward", "f16", {"N": 2560}, (2048,), False),
        ("map_id", "i64", {"T": 1000003}, (200000,), False),
        ("map_id", "i64", {"T": 501}, (100001,), False),
        ("mbdt", "f32", {"F": 128, "K": 255}, (8192,), False),
        ("mbdt", "f32", {"F": 33, "K": 16}, (1001,), False),
    ]
    conv = {"Ci": 96, "Co": 96, "K": 3}
    matrix = [
        ("conv1d", "f16", conv, (2048, 200), True),
        ("conv1d", "f16", conv, (512, 200), True),
        ("conv1d", "f16", conv, (64, 200), True),
        ("optimized_fm", "f16", {"N": 24, "D": 224, "K": 2198}, (1024,), True),
        ("optimized_fm", "f16", {"N": 40, "D": 224, "K": 448}, (1024,), True),
        ("pffn", "f16", {"N": 200, "D": 256, "K": 160}, (1024,), True),
        ("pffn", "f16", {"N": 150, "D": 96, "K": 192}, (1024,), True),
        ("conv1d", "bf16", conv, (333, 200), False),
        ("conv1d", "bf16", {"Ci": 64, "Co": 128, "K": 5}, (256, 150), False),
        ("optimized_fm", "bf16", {"N": 32, "D": 128, "K": 512}, (777, ), False),
        ("optimized_fm", "bf16", {"N": 48, "D": 224, "K": 448}, (1024,), False),
        ("pffn", "bf16", {"N": 100, "D": 128, "K": 128}, (500,), False),
    ]
    ikbo = {"M": 433, "N": 256, "Kc": 866, "Ku": 1178}
    llama = {"Hq": 32, "Hk": 8, "D": 128}
    new = [
        ("sdpa_decode", "bf16", llama, (1, 4096), True),
        ("linear", "bf16", {"N": 4096, "K": 4096}, (1,), True),
        ("ikbo_linear_compression", "f16", ikbo, (1024, 15), True),
        ("gelu_mul", "bf16", {"N": 14336}, (4096,), False),
        ("gelu_mul", "f16", {"N": 11008}, (333,), False),
        ("gelu_mul", "f32", {"N": 4096}, (2048,), False),
        ("rope", "bf16", {"H": 32, "D": 128, "P": 8192}, (4096,), False),
        ("rope", "bf16", {"H": 32, "D": 128, "P": 8192}, (16,), False),
        ("rope", "f32", {"H": 6, "D": 96, "P": 1000}, (777,), False),
        ("linear", "bf16", {"N": 4096, "K": 14336}, (16,), False),
        ("linear", "bf16", {"N": 1024, "K": 4096}, (8,), False),
        ("linear", "f16", {"N": 1000, "K": 2048}, (5,), False),
        ("linear", "bf16", {"N": 28672, "K": 4096}, (33,), False),
        ("linear", "f32", {"N": 2048, "K": 1024}, (3,), False),
        ("sdpa_decode", "bf16", llama, (16, 2048), False),
        ("sdpa_decode", "f16", {"Hq": 28, "Hk": 4, "D": 128}, (3, 1037), False),
        ("sdpa_decode", "f16", {"Hq": 16, "Hk": 16, "D": 64}, (8, 777), False),
        ("sdpa_decode", "f32", {"Hq": 8, "Hk": 2, "D": 64}, (4, 500), False),
        ("embedding_bag", "f32", {"V": 1000000, "D": 64}, (200000, 4096), False),
        ("embedding_bag", "bf16", {"V": 100000, "D": 128}, (50000, 5000), False),
        ("embedding_bag", "f16", {"V": 5000, "D": 37}, (9999, 321), False),
        ("ikbo_linear_compression", "bf16", ikbo, (300, 5), False),
        ("conv1d", "f32", conv, (2048, 200), False),
        ("conv1d", "f32", conv, (128, 200), False),
        ("optimized_fm", "f32", {"N": 24, "D": 224, "K": 2198}, (1024,), False),
        ("optimized_fm", "f32", {"N": 40, "D": 224, "K": 448}, (333,), False),
        ("pffn", "f32", {"N": 150, "D": 96, "K": 192}, (1024,), False),
        ("pffn", "f32", {"N": 37, "D": 100, "K": 120}, (200,), False),
        ("ikbo_linear_compression", "f16", {"M": 433, "N": 256, "Kc": 872, "Ku": 1184}, (1024, 15), False),
    ]
    small = [  # as the ranker asks for (docs/ranker.md)
        ("conv1d", "f32", conv, (2, 181), False),
        ("conv1d", "f32", conv, (5, 200), False),
        ("conv1d", "f32", conv, (8, 397), False),
        ("optimized_fm", "f32", {"N": 40, "D": 224, "K": 448}, (5,), False),
        ("pffn", "f32", {"N": 150, "D": 96, "K": 192}, (5,), False),
    ]
    return {"memory": memory, "matrix": matrix, "table": [r for r in memory + matrix if r[4]], "new": new, "small": small, "none": [],
            "all": sorted(memory + matrix, key=lambda r: not r[4])}[which]
