#!/usr/bin/env python3
"""Exports the example ranker as an AOTInductor package, dynamic in batch and length, for this CPU.

usage: export_ranker.py WEIGHTS.pt OUT.pt2

WEIGHTS.pt holds the tensors that `served --dump-weights` wrote (torch.jit.save of one module with them as buffers).
The model is the same chain as examples/ranker/model.cc, in the forms that its author would write first where Inductor
chooses the kernels itself, and in the better association where it does not (the Gram order of the factorisation
machine, one searchsorted for all dense features).
"""
import sys

import torch
import torch.nn.functional as F

CHANNELS, TOKENS, EVENTS, IDS, TABLE = 96, 150, 102, 200, 10_000
ID_BAGS, DENSE_BAGS, DENSE, BORDERS = 40, 8, 64, 8
EPS = 1e-6


def rms(x):
    return F.rms_norm(x, (x.shape[-1],), eps=EPS)


class Ranker(torch.nn.Module):
    def __init__(self, w):
        super().__init__()
        for name, value in w.items():
            self.register_buffer(name, value.clone())
        per_candidate = [0]
        for size, count in ((IDS // ID_BAGS, ID_BAGS), (DENSE // DENSE_BAGS, DENSE_BAGS)):
            per_candidate += [per_candidate[-1] + size * (i + 1) for i in range(count)]
        self.register_buffer("bag_starts", torch.tensor(per_candidate[:-1]))
        self.register_buffer("feature_offsets", torch.arange(DENSE) * (BORDERS + 1) + TABLE + 1)

    def forward(self, ids, dense, user_history, item, cluster, positions):
        b = item.shape[0]
        i = torch.bucketize(ids, self.id_table).clamp_max(TABLE - 1)
        rows = torch.where(self.id_table[i] == ids, i + 1, torch.zeros_like(i)).view(b, IDS)
        bins = torch.searchsorted(self.borders, dense).t() + self.feature_offsets
        indices = torch.cat([rows, bins], 1)
        offsets = (torch.arange(b).unsqueeze(1) * (IDS + DENSE) + self.bag_starts).view(-1)
        bags = F.embedding_bag(indices.reshape(-1), self.embedding, offsets, mode="sum")

        x = user_history + self.items[item].unsqueeze(2)
        gated = None
        for block in range(2):
            if block:
                x = x + gated
            up = F.conv1d(x, getattr(self, f"conv_w{2 * block}"), getattr(self, f"conv_b{2 * block}"), padding=1)
            gate = F.conv1d(x, getattr(self, f"conv_w{2 * block + 1}"), getattr(self, f"conv_b{2 * block + 1}"), padding=1)
            gated = F.silu(gate) * up
        at = lambda t: t.transpose(1, 2).index_select(1, positions)
        events = rms(at(gated) + at(x)) * self.event_norm

        residual = F.layer_norm(torch.cat([bags.view(b, ID_BAGS + DENSE_BAGS, CHANNELS), events], 1), (CHANNELS,),
                                self.ln_w, self.ln_b, 1e-5)
        normed = residual
        for layer in range(2):
            w1 = getattr(self, f"pffn_w1{layer}")[cluster]
            w2 = getattr(self, f"pffn_w2{layer}")[cluster]
            h = rms(F.gelu(torch.baddbmm(getattr(self, f"pffn_b1{layer}").expand(b, 1, -1), normed, w1)))
            y = rms(torch.baddbmm(getattr(self, f"pffn_b2{layer}").expand(b, 1, -1), h, w2))
            residual = y + residual
            normed = rms(residual) * getattr(self, f"token_norm{layer}")
        pooled = normed.mean(1)

        fx, fy = self.fm_x[item], self.fm_y[item]
        fm = torch.bmm(torch.bmm(fx, fx.transpose(1, 2)), fy)
        attended = (torch.softmax(rms(fm) * self.fm_norm, -1) * fm).sum(-1)
        features = torch.cat([pooled, attended], 1)
        return F.linear(features, self.head_w, self.head_b).view(b), features


def main():
    weights = dict(torch.jit.load(sys.argv[1]).named_buffers())
    model = Ranker(weights).eval()
    torch.set_num_threads(1)
    b, length = 3, 180
    args = (torch.randint(0, 2 * TABLE, (b * IDS,)), torch.randn(DENSE, b), torch.randn(CHANNELS, length),
            torch.arange(b), torch.arange(b), torch.arange(EVENTS))
    batch = torch.export.Dim("batch", min=2, max=8)
    events = torch.export.Dim("events", min=24, max=512)
    shapes = ({0: IDS * batch}, {1: batch}, {1: events}, {0: batch}, {0: batch}, None)
    with torch.no_grad():
        program = torch.export.export(model, args, dynamic_shapes=shapes)
        torch._inductor.aoti_compile_and_package(program, package_path=sys.argv[2])
        print("exported", sys.argv[2])


if __name__ == "__main__":
    main()
