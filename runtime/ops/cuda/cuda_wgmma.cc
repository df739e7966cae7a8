#include "runtime/ops/cuda/cuda_wgmma.h"

namespace niche::ops_cuda {

std::string wgmma_text(const WgmmaShape& shape) {
  const int accumulators = shape.n / 2, a_words = shape.a_registers ? 4 : 1;
  const auto operand = [](int i) { return "%" + std::to_string(i); };
  const std::string type = shape.bf16 ? "bf16" : "f16";
  std::string text = "#if __CUDA_ARCH_FEAT_SM90_ALL\nNI void " + shape.name + "(float (&d)[" +
                     std::to_string(accumulators) + "], " + (shape.a_registers ? "const u32* a" : "u64 a") +
                     ", u64 b, int add) {\n  asm volatile(\"{\\n.reg .pred p;\\nsetp.ne.b32 p, " +
                     operand(accumulators + a_words + 1) + ", 0;\\nwgmma.mma_async.sync.aligned.m64n" +
                     std::to_string(shape.n) + "k16.f32." + type + "." + type + " {";
  for (int i = 0; i < accumulators; ++i) text += (i ? ", " : "") + operand(i);
  text += "}, ";
  if (shape.a_registers) {
    text += "{";
    for (int i = 0; i < 4; ++i) text += (i ? ", " : "") + operand(accumulators + i);
    text += "}";
  } else {
    text += operand(accumulators);
  }
  text += ", " + operand(accumulators + a_words) + ", p, 1, 1" +
          (shape.a_registers    ? ""
           : shape.a_transposed ? ", 1"
                                : ", 0") +
          (shape.b_transposed ? ", 1" : ", 0") + ";\\n}\"\n      : ";
  for (int i = 0; i < accumulators; ++i) text += (i ? ", \"+f\"(d[" : "\"+f\"(d[") + std::to_string(i) + "])";
  text += "\n      : ";
  text += shape.a_registers ? "\"r\"(a[0]), \"r\"(a[1]), \"r\"(a[2]), \"r\"(a[3])" : "\"l\"(a)";
  text += ", \"l\"(b), \"r\"(add));\n}\n#endif\n";
  return text;
}

}  // namespace niche::ops_cuda
