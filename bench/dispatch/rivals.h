// The rivals: how others find the kernel for a shape. Those named *_like re-create the look-up of the named
// library from its source (the copies, the locks and the key building; not the kernels); onednn is the real
// library.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <list>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "bench/dispatch/workload.h"

namespace niche::bench {

using dispatch::LayoutClass;
using dispatch::ProblemKey;
using dispatch::ProblemKeyHash;

// Not const: a call site's prefix is known when the program runs, not when it is compiled.
inline dispatch::KeyPrefix kRivalPrefix{1, 0, 0, 1, {}};
inline dispatch::PackedPrefix kRivalPacked{kRivalPrefix};
NICHE_HOT_INLINE ProblemKey rival_key(const Axes& a) {
  return dispatch::pack_key(kRivalPacked, kRivalPrefix, LayoutClass::plain(6), a.v);
}
inline const Kernel kLibrary{};
inline const Kernel* library() { return &kLibrary; }

// The floor: an open-addressing probe of the same packed key, same hash, same load factor; no reclamation, no
// counters.
class Bare {
 public:
  explicit Bare(const Workload& w) {
    size_t slots = 128;
    while (slots < 2 * w.routes) slots *= 2;
    mask_ = slots - 1;
    table_.resize(slots);
    for (uint32_t i = 0; i < w.routes; ++i) {
      const ProblemKey k = rival_key(w.hits[i]);
      size_t at = k.hash() & mask_;
      while (table_[at].key.w0 != 0) at = (at + 1) & mask_;
      table_[at] = {k, w.kernel(i).get()};
    }
  }
  class Reader {
   public:
    explicit Reader(Bare& b) : table_(b.table_.data()), mask_(b.mask_) {}
    [[gnu::noinline]] const Kernel* call(const Axes& a) {
      const ProblemKey k = rival_key(a);
      for (size_t at = k.hash() & mask_;; at = (at + 1) & mask_) {
        const Slot& s = table_[at];
        if (s.key.equals(k.w0, k.w1, k.w2, k.w3)) return s.kernel;
        if (s.key.w0 == 0) return library();
      }
    }

   private:
    friend class Bare;
    struct alignas(64) Slot {
      ProblemKey key;
      const Kernel* kernel = nullptr;
    };
    const Slot* table_;
    size_t mask_;
  };

 private:
  std::vector<Reader::Slot> table_;
  size_t mask_;
};

using Map = std::unordered_map<ProblemKey, const Kernel*, ProblemKeyHash>;
inline Map make_map(const Workload& w) {
  Map m;
  for (uint32_t i = 0; i < w.routes; ++i) m[rival_key(w.hits[i])] = w.kernel(i).get();
  return m;
}
inline const Kernel* find(const Map& m, const Axes& a) {
  const auto it = m.find(rival_key(a));
  return it == m.end() ? library() : it->second;
}

class SharedMutexMap {
 public:
  explicit SharedMutexMap(const Workload& w) : w_(w), map_(make_map(w)) {}
  class Reader {
   public:
    explicit Reader(SharedMutexMap& m) : m_(m) {}
    [[gnu::noinline]] const Kernel* call(const Axes& a) {
      std::shared_lock lock(m_.mutex_);
      return find(m_.map_, a);
    }

   private:
    SharedMutexMap& m_;
  };
  void publish(uint32_t i) {
    std::unique_lock lock(mutex_);
    map_[rival_key(w_.hits[i % w_.routes])] = w_.kernel(i).get();
  }

 private:
  const Workload& w_;
  std::shared_mutex mutex_;
  Map map_;
};

class AtomicSharedPtrMap {
 public:
  explicit AtomicSharedPtrMap(const Workload& w) : w_(w), map_(std::make_shared<const Map>(make_map(w))) {}
  class Reader {
   public:
    explicit Reader(AtomicSharedPtrMap& m) : m_(m) {}
    [[gnu::noinline]] const Kernel* call(const Axes& a) {
      return find(*m_.map_.load(std::memory_order_acquire), a);
    }

   private:
    AtomicSharedPtrMap& m_;
  };
  void publish(uint32_t i) {
    auto next = std::make_shared<Map>(*map_.load());
    (*next)[rival_key(w_.hits[i % w_.routes])] = w_.kernel(i).get();
    map_.store(std::move(next));
  }

 private:
  const Workload& w_;
  std::atomic<std::shared_ptr<const Map>> map_;
};

// Left-right (Ramalhete and Correia 2013): two maps; readers mark themselves in a line of their own, the
// writer waits for them.
class LeftRightMap {
 public:
  explicit LeftRightMap(const Workload& w) : w_(w), maps_{make_map(w), make_map(w)} {}
  class Reader {
   public:
    explicit Reader(LeftRightMap& m) : m_(m), mark_(m.marks_[m.next_.fetch_add(1) % kReaders]) {}
    [[gnu::noinline]] const Kernel* call(const Axes& a) {
      const int v = m_.version_.load();
      mark_.in[v].store(1);  // seq_cst: against the writer's scan
      const Kernel* k = find(m_.maps_[m_.side_.load()], a);
      mark_.in[v].store(0, std::memory_order_release);
      return k;
    }

   private:
    friend class LeftRightMap;
    LeftRightMap& m_;
    struct alignas(64) Mark {
      std::atomic<int> in[2] = {};
    };
    Mark& mark_;
  };
  void publish(uint32_t i) {
    const ProblemKey k = rival_key(w_.hits[i % w_.routes]);
    const int side = side_.load();
    maps_[1 - side][k] = w_.kernel(i).get();
    side_.store(1 - side);
    const int v = version_.load();
    wait(1 - v);
    version_.store(1 - v);
    wait(v);
    maps_[side][k] = w_.kernel(i).get();
  }

 private:
  static constexpr uint32_t kReaders = 64;
  void wait(int v) {
    for (auto& m : marks_)
      while (m.in[v].load() != 0) std::this_thread::yield();
  }
  const Workload& w_;
  Map maps_[2];
  std::atomic<int> side_{0}, version_{0};
  std::atomic<uint32_t> next_{0};
  Reader::Mark marks_[kReaders];
};

// PyTorch's TunableOp: both signatures built as strings on each call (hits included), two maps of strings
// behind one mutex, the result copied out, the callable found by its name.
class TunableOpLike {
 public:
  explicit TunableOpLike(const Workload& w) : w_(w) {
    for (uint32_t i = 0; i < w.routes; ++i) {
      const std::string name = "Gemm_Rocblas_" + std::to_string(i % w.kernels.size());
      results_[op_signature()][params(w.hits[i])] = {name, 1.0};
      ops_[name] = std::make_unique<const Kernel*>(w.kernel(i).get());
    }
  }
  class Reader {
   public:
    explicit Reader(TunableOpLike& t) : t_(t) {}
    [[gnu::noinline]] const Kernel* call(const Axes& a) {
      const std::string op = op_signature();
      const std::string p = params(a), blas = blas_signature(a);
      const Entry e = t_.lookup(op, p);
      asm volatile("" : : "r"(blas.data()) : "memory");
      const auto it = t_.ops_.find(e.name);
      return it == t_.ops_.end() ? library() : *it->second;
    }

   private:
    TunableOpLike& t_;
  };
  // As its Add(): a result under the same mutex.
  void publish(uint32_t i) {
    const std::string name = "Gemm_Rocblas_" + std::to_string(i % w_.kernels.size());
    std::scoped_lock lock(mutex_);
    results_[op_signature()][params(w_.hits[i % w_.routes])] = {name, 1.0};
  }

 private:
  struct Entry {
    std::string name;
    double time = 0;
  };
  static std::string op_signature() { return "GemmTunableOp_float_NT"; }
  static std::string params(const Axes& a) {
    char b[128];
    std::snprintf(b, sizeof b, "%c%c_%ld_%ld_%ld_ld_%ld_%ld_%ld", 'n', 't', long{a.v[0]}, long{a.v[1]}, 4096L,
                  long{a.v[0]}, 4096L, long{a.v[0]});
    return b;
  }
  static std::string blas_signature(const Axes& a) {
    char b[400];
    std::snprintf(
        b, sizeof b,
        "- { function: matmul, M: %ld, N: %ld, K: %ld, lda: %ld, ldb: %ld, ldc: %ld, ldd: %ld, stride_a: 0, "
        "stride_b: 0, stride_c: 0, stride_d: 0, alpha: 1.0, beta: 0.0, transA: N, transB: T, batch_count: 1, "
        "a_type: f32_r, b_type: f32_r, c_type: f32_r, d_type: f32_r, scale_type: f32_r, compute_type: "
        "c_f32_r }",
        long{a.v[0]}, long{a.v[1]}, 4096L, long{a.v[0]}, 4096L, long{a.v[0]}, long{a.v[0]});
    return b;
  }
  const Workload& w_;
  Entry lookup(const std::string& op, const std::string& p) {
    std::scoped_lock lock(mutex_);
    const auto o = results_.find(op);
    if (o == results_.end()) return {};
    const auto r = o->second.find(p);
    return r == o->second.end() ? Entry{} : r->second;
  }
  std::mutex mutex_;
  std::unordered_map<std::string, std::unordered_map<std::string, Entry>> results_;
  std::unordered_map<std::string, std::unique_ptr<const Kernel*>> ops_;
};

// PyTorch's cuDNN v8 cache: a thread-local LRU over a plain struct of all convolution parameters, hashed byte
// by byte (FNV).
class CudnnLike {
 public:
  explicit CudnnLike(const Workload& w) : w_(w) {}
  class Reader {
   public:
    explicit Reader(CudnnLike& c) {
      for (uint32_t i = 0; i < c.w_.routes; ++i) {
        order_.push_front(params(c.w_.hits[i]));
        plans_.emplace(order_.front(), std::make_pair(c.w_.kernel(i).get(), order_.begin()));
      }
    }
    [[gnu::noinline]] const Kernel* call(const Axes& a) {
      const Params p = params(a);
      const auto it = plans_.find(p);
      if (it == plans_.end()) return library();
      order_.splice(order_.begin(), order_, it->second.second);
      return it->second.first;
    }

   private:
    struct Params {
      int32_t device, dtype;
      int64_t input[5], input_stride[5], weight[5], padding[3], stride[3], dilation[3];
      int64_t groups;
      int32_t deterministic, allow_tf32;
      bool operator==(const Params& o) const { return std::memcmp(this, &o, sizeof o) == 0; }
    };
    struct Hash {
      size_t operator()(const Params& p) const {
        uint32_t h = 0x811C9DC5;
        const auto* b = reinterpret_cast<const uint8_t*>(&p);
        for (size_t i = 0; i < sizeof p; ++i) {
          h ^= b[i];
          h *= 0x01000193;
        }
        return h;
      }
    };
    static Params params(const Axes& a) {
      Params p;
      std::memset(&p, 0, sizeof p);
      p.input[0] = a.v[0];
      p.input[1] = 4096;
      p.input[2] = a.v[1];
      p.input_stride[0] = 4096 * a.v[1];
      p.input_stride[1] = a.v[1];
      p.groups = 1;
      return p;
    }
    std::list<Params> order_;
    std::unordered_map<Params, std::pair<const Kernel*, std::list<Params>::iterator>, Hash> plans_;
  };

 private:
  const Workload& w_;
};

// Apollo's region: a context allocated, a clock read at each end, the features into a vector, a decision tree
// to a policy.
class ApolloLike {
 public:
  explicit ApolloLike(const Workload& w) : w_(w) {}
  class Reader {
   public:
    explicit Reader(ApolloLike& a) : w_(a.w_) {}
    [[gnu::noinline]] const Kernel* call(const Axes& a) {
      auto context = std::make_unique<Context>();
      context->begin = std::chrono::steady_clock::now();
      context->features.push_back(static_cast<float>(a.v[0]));
      context->features.push_back(static_cast<float>(a.v[1]));
      context->policy = tree(context->features);
      const Kernel* k = w_.kernel(static_cast<uint32_t>(context->policy)).get();
      total_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - context->begin).count();
      return k;
    }

   private:
    struct Context {
      std::chrono::steady_clock::time_point begin;
      std::vector<float> features;
      int policy = 0;
    };
    static int tree(const std::vector<float>& f) {
      int p = 0;
      float mid = 32, step = 16;
      for (int depth = 0; depth < 4; ++depth, step /= 2) {
        const bool right = f[static_cast<size_t>(depth % 2)] > mid;
        p = 2 * p + (right ? 1 : 0);
        mid += right ? step : -step;
      }
      return p;
    }
    const Workload& w_;
    double total_ = 0;
  };

 private:
  const Workload& w_;
};

}  // namespace niche::bench
