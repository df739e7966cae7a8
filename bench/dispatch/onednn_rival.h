// oneDNN's real primitive cache: what a call pays to get from a shape to a primitive: descriptor, primitive
// descriptor (looked up in the cache), primitive.
#pragma once

#include <oneapi/dnnl/dnnl.hpp>

#include "bench/dispatch/workload.h"

namespace niche::bench {

class OneDnn {
 public:
  explicit OneDnn(const Workload& w) : engine_(dnnl::engine::kind::cpu, 0) {
    dnnl::set_primitive_cache_capacity(static_cast<int>(2 * w.routes));
    for (const Axes& a : w.hits) (void)create(engine_, a);
  }
  class Reader {
   public:
    explicit Reader(OneDnn& o) : engine_(o.engine_) {}
    [[gnu::noinline]] const Kernel* call(const Axes& a) {
      const dnnl::eltwise_forward p = create(engine_, a);
      asm volatile("" : : "r"(p.get()) : "memory");
      return &kernel_;
    }

   private:
    dnnl::engine engine_;
    Kernel kernel_;
  };

 private:
  static dnnl::eltwise_forward create(const dnnl::engine& e, const Axes& a) {
    const dnnl::memory::desc md({a.v[0], a.v[1], 64}, dnnl::memory::data_type::f32,
                                dnnl::memory::format_tag::abc);
#if DNNL_VERSION_MAJOR >= 3
    return dnnl::eltwise_forward(dnnl::eltwise_forward::primitive_desc(
        e, dnnl::prop_kind::forward_inference, dnnl::algorithm::eltwise_relu, md, md));
#else
    const dnnl::eltwise_forward::desc d(dnnl::prop_kind::forward_inference, dnnl::algorithm::eltwise_relu, md,
                                        0.f, 0.f);
    return dnnl::eltwise_forward(dnnl::eltwise_forward::primitive_desc(d, e));
#endif
  }
  dnnl::engine engine_;
};

}  // namespace niche::bench
