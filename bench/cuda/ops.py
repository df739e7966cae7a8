"""The operators as the benchmark needs them: arguments in the schema's order, the fp64 reference, the library forms that
a kernel has to beat (the first is what a user writes), and the bytes that must move."""
import math

import torch
import torch.nn.functional as F

DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32, "i64": torch.int64}


def normal(shape, dtype, gen, mean=0.0, std=1.0):
    return (torch.randn(shape, device="cuda", generator=gen, dtype=torch.float32) * std + mean).to(dtype)


class Op:
    exact = False
    factor = 2.0  # of the best library form's error
    floor_f32 = 2.0 ** -16
    axes = ("M", "N")
    var = ("M",)

    def extents(self, consts, var):
        return [{**consts, **dict(zip(self.var, var))}[a] for a in self.axes]

    def bytes(self, args):
        return sum(t.numel() * t.element_size() for t in args if t is not None)

    # Arguments that live calls share (weights): not rotated.
    constant = ()
    outputs = ()
    rivals_alone = ()  # forms that no server can fall back to


class RmsNorm(Op):
    constant, outputs = (1,), (2,)

    def make(self, e, dt, attrs, gen):
        m, n = e
        return [normal((m, n), dt, gen), normal((n,), dt, gen, 1, 0.1), torch.empty((m, n), dtype=dt, device="cuda")]

    def reference(self, a, attrs):
        x, w = a[0].double(), a[1].double()
        return [x * torch.rsqrt(x.square().mean(-1, keepdim=True) + attrs["eps"]) * w]

    def forms(self, attrs):
        eps = attrs["eps"]

        def library(x, w, y):
            return F.rms_norm(x, (x.shape[-1],), w, eps)

        def formula(x, w, y):
            f = x.float()
            return (f * torch.rsqrt(f.square().mean(-1, keepdim=True) + eps) * w.float()).to(x.dtype)
        return {"F.rms_norm": library}, {"compiled formula": formula, "compiled F.rms_norm": library}


class AddRmsNorm(Op):
    constant, outputs = (2,), (3, 4)

    def make(self, e, dt, attrs, gen):
        m, n = e
        return [normal((m, n), dt, gen), normal((m, n), dt, gen), normal((n,), dt, gen, 1, 0.1),
                torch.empty((m, n), dtype=dt, device="cuda"), torch.empty((m, n), dtype=dt, device="cuda")]

    def reference(self, a, attrs):
        s = (a[0].double() + a[1].double()).to(a[0].dtype).double()
        return [s * torch.rsqrt(s.square().mean(-1, keepdim=True) + attrs["eps"]) * a[2].double(), s]

    def forms(self, attrs):
        eps = attrs["eps"]

        def library(x, r, w, y, s):
            s = x + r
            return F.rms_norm(s, (x.shape[-1],), w, eps), s

        def formula(x, r, w, y, s):
            s = x + r
            f = s.float()
            return (f * torch.rsqrt(f.square().mean(-1, keepdim=True) + eps) * w.float()).to(x.dtype), s
        return {"add;F.rms_norm": library}, {"compiled formula": formula}


class LayerNorm(Op):
    constant, outputs, floor_f32 = (1, 2), (3,), 2.0 ** -13

    def make(self, e, dt, attrs, gen):
        m, n = e
        return [normal((m, n), dt, gen), normal((n,), dt, gen, 1, 0.1), normal((n,), dt, gen, 0, 0.1),
                torch.empty((m, n), dtype=dt, device="cuda")]

    def reference(self, a, attrs):
        return [F.layer_norm(a[0].double(), (a[0].shape[-1],), a[1].double(), a[2].double(), attrs["eps"])]

    def forms(self, attrs):
        def library(x, w, b, y):
            return F.layer_norm(x, (x.shape[-1],), w, b, attrs["eps"])
        return {"F.layer_norm": library}, {"compiled F.layer_norm": library}


class Softmax(Op):
    outputs, floor_f32 = (1,), 0.0

    def make(self, e, dt, attrs, gen):
        m, n = e
        return [normal((m, n), dt, gen), torch.empty((m, n), dtype=dt, device="cuda")]

    def reference(self, a, attrs):
        return [torch.softmax(a[0].double(), -1)]

    def forms(self, attrs):
        def library(x, y):
            return torch.softmax(x, -1)
        return {"softmax": library}, {"compiled softmax": library}


class SiluMul(Op):
    outputs, floor_f32 = (2,), 0.0

    def make(self, e, dt, attrs, gen):
        m, n = e
        return [normal((m, n), dt, gen), normal((m, n), dt, gen), torch.empty((m, n), dtype=dt, device="cuda")]

    def reference(self, a, attrs):
        g = a[0].double()
        return [g * torch.sigmoid(g) * a[1].double()]

    def forms(self, attrs):
        def library(g, u, y):
            return F.silu(g) * u
        return {"silu*up": library}, {"compiled silu*up": library}


class RmsNormBackward(Op):
    constant, outputs, factor = (2,), (4, 5), 2.0

    def make(self, e, dt, attrs, gen):
        m, n = e
        x = normal((m, n), dt, gen)
        return [normal((m, n), dt, gen), x, normal((n,), dt, gen, 1, 0.1),
                torch.rsqrt(x.float().square().mean(-1) + 1e-6), torch.empty((m, n), dtype=dt, device="cuda"),
                torch.empty((n,), dtype=dt, device="cuda")]

    def reference(self, a, attrs):
        dy, x, w, r = a[0].double(), a[1].double(), a[2].double(), a[3].double().unsqueeze(-1)
        xn, g = x * r, dy * w
        return [(g - xn * (g * xn).mean(-1, keepdim=True)) * r, (dy * xn).sum(0)]

    def forms(self, attrs):
        def fused(dy, x, w, r, dx, dw):
            return torch.ops.aten._fused_rms_norm_backward(dy, x, [x.shape[-1]], r.unsqueeze(-1), w, [True, True])

        def formula(dy, x, w, r, dx, dw):
            f, g, r = x.float(), dy.float() * w.float(), r.unsqueeze(-1)
            xn = f * r
            d = (g - xn * (g * xn).mean(-1, keepdim=True)) * r
            return d.to(x.dtype), (dy.float() * xn).sum(0).to(x.dtype)
        return {"_fused_rms_norm_backward": fused, "formula": formula}, {"compiled formula": formula}


class MapId(Op):
    exact, axes, var, constant, outputs = True, ("V", "T"), ("V",), (1,), (2,)

    def make(self, e, dt, attrs, gen):
        v, t = e
        table = torch.cumsum(torch.randint(1, 1000, (t,), device="cuda", generator=gen), 0)
        values = table[torch.randint(0, t, (v,), device="cuda", generator=gen)]
        values = values + (torch.randint(0, 10, (v,), device="cuda", generator=gen) == 0).long()
        return [values, table, torch.empty_like(values)]

    def reference(self, a, attrs):
        pos = torch.searchsorted(a[1], a[0]).clamp_max(a[1].numel() - 1)
        return [torch.where(a[1][pos] == a[0], pos + 1, 0)]

    def forms(self, attrs):
        def library(v, t, i):
            pos = torch.bucketize(v, t).clamp_max(t.numel() - 1)
            return torch.where(t[pos] == v, pos + 1, 0)

        def mul(v, t, i):
            pos = torch.searchsorted(t, v).clamp_max_(t.numel() - 1)
            hit = t[pos] == v
            return pos.add_(1).mul_(hit)
        return {"bucketize,clamp,where": library, "searchsorted,mul_": mul}, {"compiled": library}


class Mbdt(Op):
    exact, axes, var, constant, outputs = True, ("F", "K", "B"), ("B",), (1,), (2,)

    def make(self, e, dt, attrs, gen):
        f, k, b = e
        borders = normal((f, k), torch.float32, gen).sort(-1).values
        x = normal((f, b), torch.float32, gen)
        x[:, ::97] = borders[:, :1]
        x[0, 0] = math.nan
        return [x, borders, torch.empty((f, b), dtype=torch.int64, device="cuda")]

    def reference(self, a, attrs):
        f, k = a[1].shape
        count = torch.zeros(a[0].shape, dtype=torch.int64, device="cuda")
        for i in range(k):
            count += ~(a[0] <= a[1][:, i:i + 1])
        return [count + torch.arange(f, device="cuda").unsqueeze(1) * (k + 1)]

    def forms(self, attrs):
        def stack(x, b, y):
            step = b.shape[1] + 1
            return torch.stack([torch.bucketize(x[i], b[i]) + i * step for i in range(x.shape[0])])

        def search(x, b, y):
            step = b.shape[1] + 1
            return torch.searchsorted(b, x) + torch.arange(0, b.shape[0] * step, step, device=x.device).unsqueeze(1)
        return {"stack of bucketize": stack, "searchsorted+offset": search}, {"compiled searchsorted+offset": search}


class Conv1d(Op):
    axes, var, constant, outputs, factor, floor_f32 = ("B", "L", "Ci", "Co", "K", "Lo"), ("B", "L"), (1, 2), (3,), 2.0, 0.0

    def extents(self, consts, var):
        b, l = var
        return [b, l, consts["Ci"], consts["Co"], consts["K"], l + 2 * self.padding - consts["K"] + 1]

    padding = 1

    def make(self, e, dt, attrs, gen):
        b, l, ci, co, k, lo = e
        return [normal((b, ci, l), dt, gen, 0.006413, 0.041105), normal((co, ci, k), dt, gen, -0.000024, 0.047870),
                normal((co,), dt, gen, -0.003198, 0.033662), torch.empty((b, co, lo), dtype=dt, device="cuda")]

    def reference(self, a, attrs):
        p, w, lo = int(attrs["padding"]), a[1].double(), a[3].shape[2]
        out = a[2].double().view(1, -1, 1)
        x = F.pad(a[0], (p, p))
        for k in range(w.shape[2]):
            out = out + torch.matmul(w[:, :, k], x[:, :, k:k + lo].double())
        return [out]

    def forms(self, attrs):
        p = int(attrs["padding"])

        def conv1d(x, w, b, y):
            return F.conv1d(x, w, b, padding=p)

        def conv2d(x, w, b, y):
            return F.conv2d(x.unsqueeze(2), w.unsqueeze(2), b, padding=(0, p)).squeeze(2)

        def last(x, w, b, y):
            cl = torch.channels_last
            out = F.conv2d(x.unsqueeze(2).contiguous(memory_format=cl), w.unsqueeze(2).contiguous(memory_format=cl), b,
                           padding=(0, p))
            return out.squeeze(2).contiguous()
        return {"conv1d": conv1d, "conv2d": conv2d, "conv2d channels-last": last}, {"compiled conv2d": conv2d}


class OptimizedFm(Op):
    axes, var, outputs, factor, floor_f32 = ("B", "N", "D", "K"), ("B",), (2,), 4.0, 0.0

    def make(self, e, dt, attrs, gen):
        b, n, d, k = e
        return [normal((b, n, d), dt, gen), normal((b, n, k), dt, gen), torch.empty((b, n, k), dtype=dt, device="cuda")]

    def reference(self, a, attrs):
        out = torch.empty(a[2].shape, dtype=torch.float64, device="cuda")
        for i in range(0, a[0].shape[0], 128):
            x = a[0][i:i + 128].double()
            out[i:i + 128] = torch.bmm(torch.bmm(x, x.transpose(1, 2)), a[1][i:i + 128].double())
        return [out]

    def forms(self, attrs):
        def written(x, y, o):
            return torch.bmm(x, torch.bmm(x.transpose(1, 2), y))

        def gram(x, y, o):
            return torch.bmm(torch.bmm(x, x.transpose(1, 2)), y)
        return {"X(X'Y)": written, "(XX')Y": gram}, {"compiled (XX')Y": gram}


class Pffn(Op):
    axes, var, constant, outputs, factor, floor_f32 = ("B", "N", "D", "K"), ("B",), (2, 4), (5,), 2.0, 2.0 ** -18

    def make(self, e, dt, attrs, gen):
        b, n, d, k = e
        return [normal((b, n, d), dt, gen), normal((b, d, k), dt, gen, 0, d ** -0.5), normal((k,), dt, gen, 0, 0.1),
                normal((b, k, d), dt, gen, 0, k ** -0.5), normal((d,), dt, gen, 0, 0.1),
                torch.empty((b, n, d), dtype=dt, device="cuda")]

    def reference(self, a, attrs):
        eps, out = attrs["eps"], torch.empty(a[5].shape, dtype=torch.float64, device="cuda")

        def norm(v):
            return v * torch.rsqrt(v.square().mean(-1, keepdim=True) + eps)
        for i in range(0, a[0].shape[0], 64):
            s = slice(i, i + 64)
            h = norm(F.gelu(torch.bmm(a[0][s].double(), a[1][s].double()) + a[2].double()))
            out[s] = norm(torch.bmm(h, a[3][s].double()) + a[4].double())
        return [out]

    def forms(self, attrs):
        eps = attrs["eps"]

        def written(x, w1, b1, w2, b2, y):
            h = F.gelu(torch.bmm(x, w1) + b1)
            h = F.rms_norm(h, (h.shape[-1],), None, eps)
            o = torch.bmm(h, w2) + b2
            return F.rms_norm(o, (o.shape[-1],), None, eps)

        def fused_bias(x, w1, b1, w2, b2, y):
            h = F.gelu(torch.baddbmm(b1, x, w1))
            h = F.rms_norm(h, (h.shape[-1],), None, eps)
            o = torch.baddbmm(b2, h, w2)
            return F.rms_norm(o, (o.shape[-1],), None, eps)
        return {"bmm,add;gelu;rms_norm": written, "baddbmm;gelu;rms_norm": fused_bias}, {"compiled": written}


class GeluMul(Op):
    outputs, floor_f32 = (2,), 0.0

    def make(self, e, dt, attrs, gen):
        m, n = e
        return [normal((m, n), dt, gen), normal((m, n), dt, gen), torch.empty((m, n), dtype=dt, device="cuda")]

    def reference(self, a, attrs):
        return [F.gelu(a[0].double(), approximate="tanh" if attrs["tanh"] else "none") * a[1].double()]

    def forms(self, attrs):
        how = "tanh" if attrs["tanh"] else "none"

        def library(g, u, y):
            return F.gelu(g, approximate=how) * u
        return {"gelu*up": library}, {"compiled gelu*up": library}


class Rope(Op):
    axes, var, constant, outputs, floor_f32 = ("T", "H", "D", "P"), ("T",), (1,), (3,), 2.0 ** -22

    def make(self, e, dt, attrs, gen):
        t, h, d, p = e
        inverse = 10000.0 ** (-torch.arange(0, d, 2, device="cuda", dtype=torch.float64) / d)
        angle = torch.arange(p, device="cuda", dtype=torch.float64).unsqueeze(1) * inverse
        table = torch.cat([angle.cos(), angle.sin()], 1).to(dt)
        positions = torch.randint(0, p, (t,), device="cuda", generator=gen)
        return [normal((t, h, d), dt, gen), table, positions, torch.empty((t, h, d), dtype=dt, device="cuda")]

    @staticmethod
    def turned(x, table, positions, pairs):
        half = x.shape[2] // 2
        rows = table[positions].unsqueeze(1)
        c, s = rows[..., :half], rows[..., half:]
        if pairs:
            a, b = x[..., 0::2], x[..., 1::2]
            return torch.stack([a * c - b * s, b * c + a * s], 3).flatten(2)
        a, b = x[..., :half], x[..., half:]
        return torch.cat([a * c - b * s, b * c + a * s], 2)

    def reference(self, a, attrs):
        return [self.turned(a[0].double(), a[1].double(), a[2], attrs["interleaved"])]

    def forms(self, attrs):
        pairs = attrs["interleaved"]

        def halves(x, t, p, y):
            return self.turned(x, t, p, pairs)

        def rotated(x, t, p, y):
            half = x.shape[2] // 2
            rows = t[p].unsqueeze(1)
            c, s = rows[..., :half], rows[..., half:]
            other = torch.cat([-x[..., half:], x[..., :half]], 2)
            return x * torch.cat([c, c], 2) + other * torch.cat([s, s], 2)
        return ({"halves": halves} if pairs else {"x*cos+rotated*sin": rotated, "halves": halves}), {"compiled": halves}


class Linear(Op):
    # The weight is rotated like an activation: between two calls of a layer a model reads its other layers' weights.
    axes, var, constant, outputs, factor, floor_f32 = ("M", "N", "K"), ("M",), (2,), (3,), 4.0, 2.0 ** -18

    def make(self, e, dt, attrs, gen):
        m, n, k = e
        bias = normal((n,), dt, gen, 0, 0.1) if attrs["has_bias"] else None
        return [normal((m, k), dt, gen), normal((n, k), dt, gen, 0, k ** -0.5), bias, torch.empty((m, n), dtype=dt, device="cuda")]

    def activate(self, y, attrs):
        return [lambda v: v, F.relu, F.gelu, F.silu][int(attrs["activation"])](y)

    def reference(self, a, attrs):
        y = a[0].double() @ a[1].double().t()
        return [self.activate(y if a[2] is None else y + a[2].double(), attrs)]

    def forms(self, attrs):
        def library(x, w, b, y):
            return self.activate(F.linear(x, w, b), attrs)

        def turned(x, w, b, y):
            out = torch.mm(w, x.t()) if b is None else torch.addmm(b.unsqueeze(1), w, x.t())
            return self.activate(out.t().contiguous(), attrs)
        return {"linear": library, "weight*x', turned": turned}, {"compiled linear": library}


class SdpaDecode(Op):
    axes, var, outputs, factor, floor_f32 = ("B", "S", "Hq", "Hk", "D"), ("B", "S"), (3,), 4.0, 2.0 ** -20

    def make(self, e, dt, attrs, gen):
        b, s, hq, hk, d = e
        return [normal((b, hq, d), dt, gen), normal((b, hk, s, d), dt, gen), normal((b, hk, s, d), dt, gen),
                torch.empty((b, hq, d), dtype=dt, device="cuda")]

    def scale(self, q, attrs):
        return attrs["scale"] or q.shape[-1] ** -0.5

    def reference(self, a, attrs):
        q, k, v = a[0].double(), a[1].double(), a[2].double()
        b, hq, d = q.shape
        q = q.view(b, k.shape[1], hq // k.shape[1], d)
        w = torch.softmax(torch.matmul(q, k.transpose(2, 3)) * self.scale(q, attrs), -1)
        return [torch.matmul(w, v).reshape(b, hq, d)]

    def forms(self, attrs):
        def sdpa(q, k, v, y):
            return F.scaled_dot_product_attention(q.unsqueeze(2), k, v, scale=self.scale(q, attrs),
                                                  enable_gqa=q.shape[1] != k.shape[1]).squeeze(2)

        def rows(q, k, v, y):
            # The query heads of a key head as rows of one attention: no repeated keys.
            b, hq, d = q.shape
            out = F.scaled_dot_product_attention(q.view(b, k.shape[1], -1, d), k, v, scale=self.scale(q, attrs))
            return out.reshape(b, hq, d)

        def products(q, k, v, y):
            b, hq, d = q.shape
            w = torch.softmax(torch.matmul(q.view(b, k.shape[1], -1, d), k.transpose(2, 3)) * self.scale(q, attrs), -1)
            return torch.matmul(w, v).reshape(b, hq, d)
        return {"sdpa": sdpa, "sdpa of grouped rows": rows, "matmul;softmax;matmul": products}, {"compiled": products}


class EmbeddingBag(Op):
    axes, var, constant, outputs, floor_f32 = ("V", "D", "I", "B"), ("I", "B"), (0,), (3,), 2.0 ** -20

    def make(self, e, dt, attrs, gen):
        v, d, i, b = e
        offsets = torch.randint(0, i + 1, (b,), device="cuda", generator=gen).sort().values
        offsets[0] = 0
        return [normal((v, d), dt, gen, 0, 0.05), torch.randint(0, v, (i,), device="cuda", generator=gen), offsets,
                torch.empty((b, d), dtype=dt, device="cuda")]

    def bytes(self, a):
        row = a[0].shape[1] * a[0].element_size()
        return row * (min(a[1].numel(), a[0].shape[0]) + a[3].shape[0]) + 8 * (a[1].numel() + a[2].numel())

    def reference(self, a, attrs):
        ends = torch.cat([a[2][1:], torch.tensor([a[1].numel()], device="cuda")])
        bag = torch.repeat_interleave(torch.arange(a[2].numel(), device="cuda"), ends - a[2])
        out = torch.zeros((a[2].numel(), a[0].shape[1]), dtype=torch.float64, device="cuda")
        out.index_add_(0, bag, a[0].double()[a[1]])
        return [out / (ends - a[2]).clamp_min(1).unsqueeze(1) if attrs["mean"] else out]

    def forms(self, attrs):
        mode = "mean" if attrs["mean"] else "sum"

        def library(w, i, o, y):
            return F.embedding_bag(i, w, o, mode=mode)
        return {"embedding_bag": library}, {}


class Ikbo(Op):
    rivals_alone = ("padded weights, overlapping view",)  # reads rows past the last candidate
    axes, var, constant, outputs, factor = ("M", "N", "Kc", "Ku", "B", "U"), ("B", "U"), (0, 1), (5,), 4.0

    def make(self, e, dt, attrs, gen):
        m, n, kc, ku, b, u = e
        scale = (kc + ku) ** -0.5
        user = torch.arange(b, device="cuda") * u // b
        # Six rows beyond the last candidate, so that the overlapping view of the library form stays inside.
        flat = normal((b * kc + 16, n), dt, gen)
        return [normal((m, kc), dt, gen, 0, scale), normal((m, ku), dt, gen, 0, scale), flat[:b * kc].view(b, kc, n),
                normal((u, ku, n), dt, gen), user, torch.empty((b, m, n), dtype=dt, device="cuda")]

    def reference(self, a, attrs):
        users = torch.matmul(a[1].double(), a[3].double())
        out = torch.empty(a[5].shape, dtype=torch.float64, device="cuda")
        for i in range(0, out.shape[0], 64):
            s = slice(i, i + 64)
            out[s] = torch.matmul(a[0].double(), a[2][s].double()) + users[a[4][s]]
        return [out]

    def forms(self, attrs):
        weights = {}  # padded once, as an owner of constant weights would

        def pad_once(w):
            if w.data_ptr() not in weights:
                weights[w.data_ptr()] = F.pad(w, (0, -w.shape[1] % 8))
            return weights[w.data_ptr()]

        def padded(wc, wu, ec, eu, user, out):
            # The weight's reduction padded with zeros to a multiple of 8, over a view whose samples overlap.
            wide = pad_once(wc)
            b, kc, n = ec.shape
            view = ec.as_strided((b, wide.shape[1], n), (kc * n, n, 1))
            users = torch.matmul(pad_once(wu), F.pad(eu, (0, 0, 0, -wu.shape[1] % 8)))
            return users[user].baddbmm_(wide.expand(b, *wide.shape), view)

        def copied(wc, wu, ec, eu, user, out):
            # As niche's form: both operands padded on every call.
            pad = -wc.shape[1] % 16
            wide = F.pad(wc, (0, pad))
            start = torch.matmul(wu, eu)[user]
            return start.baddbmm_(wide.expand(ec.shape[0], *wide.shape), F.pad(ec, (0, 0, 0, pad)))

        def decomposed(wc, wu, ec, eu, user, out):
            start = torch.matmul(wu, eu)[user]
            return start.baddbmm_(wc.expand(ec.shape[0], *wc.shape), ec)
        return {"bmm;index;baddbmm_": decomposed, "padded bmm;index;baddbmm_": copied,
                "padded weights, overlapping view": padded}, {}


OPS = {"rms_norm": RmsNorm(), "fused_add_rms_norm": AddRmsNorm(), "layer_norm": LayerNorm(), "softmax": Softmax(),
       "silu_mul": SiluMul(), "rms_norm_backward": RmsNormBackward(), "map_id": MapId(), "mbdt": Mbdt(),
       "conv1d": Conv1d(), "optimized_fm": OptimizedFm(), "pffn": Pffn(), "gelu_mul": GeluMul(), "rope": Rope(),
       "linear": Linear(), "sdpa_decode": SdpaDecode(), "embedding_bag": EmbeddingBag(), "ikbo_linear_compression": Ikbo()}
