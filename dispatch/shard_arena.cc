#include "dispatch/shard_arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <new>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(p, n) ((void)(p), (void)(n))
#define ASAN_UNPOISON_MEMORY_REGION(p, n) ((void)(p), (void)(n))
#endif

namespace niche::dispatch {

ShardArena::~ShardArena() {
  for (Chunk& c : chunks_) {
    ASAN_UNPOISON_MEMORY_REGION(c.memory, kChunkBytes);
    std::free(c.memory);
  }
}

TableShard* ShardArena::take() {
  auto c = std::find_if(chunks_.begin(), chunks_.end(),
                        [](const Chunk& k) { return !k.spare.empty() || k.used < kChunkShards; });
  if (c == chunks_.end()) {
    void* p = std::aligned_alloc(kChunkBytes, kChunkBytes);
    if (p == nullptr) throw std::bad_alloc();
    (void)::madvise(p, kChunkBytes, MADV_HUGEPAGE);  // a wish: without huge pages all works, slower
    chunks_.push_back({static_cast<char*>(p), 0, {}});
    c = chunks_.end() - 1;
    c->spare.reserve(kChunkShards);
  }
  TableShard* shard;
  if (!c->spare.empty()) {
    shard = c->spare.back();
    c->spare.pop_back();
  } else {
    shard = reinterpret_cast<TableShard*>(c->memory + size_t{c->used++} * sizeof(TableShard));
  }
  ASAN_UNPOISON_MEMORY_REGION(shard, sizeof(TableShard));
  return shard;
}

void ShardArena::give(TableShard* shard) {
  const char* p = reinterpret_cast<const char*>(shard);
  const auto c = std::find_if(chunks_.begin(), chunks_.end(),
                              [&](const Chunk& k) { return p >= k.memory && p < k.memory + kChunkBytes; });
  ASAN_POISON_MEMORY_REGION(shard, sizeof(TableShard));
  c->spare.push_back(shard);
  if (c->live() != 0) return;
  const bool another = std::any_of(chunks_.begin(), chunks_.end(),
                                   [&](const Chunk& k) { return &k != &*c && k.live() < kChunkShards / 2; });
  if (!another) return;
  ASAN_UNPOISON_MEMORY_REGION(c->memory, kChunkBytes);
  std::free(c->memory);
  chunks_.erase(c);
}

}  // namespace niche::dispatch
