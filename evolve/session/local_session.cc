#include "evolve/session/local_session.h"

#include <sys/random.h>

#include <ctime>

#include "evolve/definition_json.h"
#include "kernels_cache/lease.h"

namespace niche::evolve {
namespace {

constexpr int kSessionsKept = 1000;
constexpr int64_t kStoreBytesMax = int64_t{256} << 20;

}  // namespace

std::string new_session_id(int64_t unix_ns) {
  const std::time_t seconds = unix_ns / 1'000'000'000;
  std::tm utc{};
  gmtime_r(&seconds, &utc);
  char text[40];
  const size_t n = std::strftime(text, sizeof text, "%Y%m%dT%H%M%S", &utc);
  uint32_t salt = 0;
  if (getrandom(&salt, sizeof salt, 0) != sizeof salt) salt = static_cast<uint32_t>(unix_ns);
  std::snprintf(text + n, sizeof text - n, "-%08x", salt);
  return text;
}

dispatch::Result<SessionEvent> run_local_session(SessionRequest request, LocalSessionOptions options) {
  const dispatch::SystemClock system_clock;
  const dispatch::Clock* clock = options.clock != nullptr ? options.clock : &system_clock;
  if (request.session_id.empty()) request.session_id = new_session_id(clock->unix_time_ns());
  auto definition = definition_from_json(request.definition_json, *options.ops);
  if (!definition.ok()) return definition.status();

  kernels_cache::CacheOptions cache_options;
  cache_options.root = request.cache_dir;
  cache_options.environment = options.environment;
  cache_options.bytes_max = request.cache_bytes_max;
  cache_options.log = options.log;
  auto cache = kernels_cache::KernelCache::open(cache_options);
  if (!cache.ok()) return cache.status();
  if (!(*cache)->leases())
    return dispatch::unsupported("cache " + request.cache_dir +
                                 ": read-only, a session could not hand over kernels");
  auto lease = kernels_cache::Lease::try_acquire(*(*cache)->leases(), (*definition)->name());
  if (!lease.ok()) return lease.status();

  std::unique_ptr<store::Store> store;
  if (!request.store_path.empty()) {
    auto opened = store::Store::open_or_fresh(request.store_path);
    if (!opened.ok() && options.log) options.log("no search history: " + opened.status().to_string());
    if (opened.ok()) {
      if (!opened->damage.ok() && options.log)
        options.log(opened->damage.to_string() + "; using " + opened->store->path());
      store = std::move(opened->store);
      if (auto s = store->prune(kSessionsKept, kStoreBytesMax); !s.ok() && options.log)
        options.log("prune: " + s.to_string());
      if (request.resume && options.log && !store->unfinished((*definition)->name()).ok())
        if (auto last = store->newest((*definition)->name()); last.ok())
          options.log("session " + last->id + " has ended (" + last->reason +
                      "): nothing is left to resume, a new session begins");
    }
  }

  CacheSink sink(**cache);
  SessionParts parts;
  parts.ops = options.ops;
  parts.families = options.families;
  parts.target = detect_target(request.threads);
  parts.target.device = options.device;
  parts.target.cuda = options.cuda;
  parts.make_evaluator = std::move(options.make_evaluator);
  parts.evaluator_options = std::move(options.evaluator_options);
  parts.sink = &sink;
  parts.store = store.get();
  parts.clock = clock;
  parts.on_event = std::move(options.on_event);
  parts.stop = std::move(options.stop);
  parts.model = options.model;
  parts.profile = options.profile;
  std::unique_ptr<kb::SkillBook> skills;
  if (parts.model.skills == nullptr) {
    auto book = kb::SkillBook::open(request.cache_dir + "/skills.sqlite");
    if (!book.ok() && options.log) options.log("no skills: " + book.status().to_string());
    if (book.ok()) skills = std::move(*book);
    parts.model.skills = skills.get();
  }
  auto session = Session::create(request, std::move(parts));
  if (!session.ok()) return session.status();
  return (*session)->run();
}

}  // namespace niche::evolve
