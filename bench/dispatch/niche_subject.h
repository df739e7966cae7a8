// niche itself: everything from raw axes to function and plan: packing, look-up, epoch in and out per call,
// counter, sampling decision.
#pragma once

#include "bench/dispatch/workload.h"
#include "dispatch/base/clock.h"

namespace niche::bench {

struct NicheOptions {
  bool asymmetric = true;
  bool canary = false;
};

class NicheSubject {
 public:
  NicheSubject(const Workload& w, NicheOptions o) : w_(w) {
    dispatch::DispatcherOptions options;
    options.clock = &clock_;
    options.routes_max = std::max<uint32_t>(2 * w.routes + 4096, 1 << 16);
    options.publisher.waiting_changes_max = 1 << 20;
    options.asymmetric_fence = o.asymmetric;
    d_ = *dispatch::Dispatcher::make(options);
    definition_ = *d_->define(w.op, w.definition);
    site_ = d_->call_site(definition_, {});
    for (uint32_t i = 0; i < w.routes; ++i) {
      dispatch::Route::Spec s{w.definition,
                              d_->fallback(definition_, 0),
                              w.kernel(i),
                              nullptr,
                              dispatch::RolloutState::kIncumbent,
                              0,
                              ""};
      if (o.canary) {
        s.challenger = w.kernel(i + 1);
        s.state = dispatch::RolloutState::kCanary;
        s.share = 0.1;
      }
      put(i, *d_->make_route(std::move(s)));
    }
    commit();
  }

  class Reader {
   public:
    explicit Reader(NicheSubject& s) : d_(*s.d_), site_(s.site_) {}
    [[gnu::noinline]] const Kernel* call(const Axes& a) {
      dispatch::Dispatcher::Call call(d_);
      return call.decide(site_, dispatch::LayoutClass::plain(6), a.v).kernel;
    }

   private:
    dispatch::Dispatcher& d_;
    const dispatch::CallSite& site_;
  };

  // One change: this problem's route is replaced by an equal one.
  void publish(uint32_t route) {
    const uint32_t i = route % w_.routes;
    put(i, *d_->make_route({w_.definition, d_->fallback(definition_, 0), w_.kernel(i), nullptr,
                            dispatch::RolloutState::kIncumbent, 0, ""}));
    commit();
  }
  dispatch::Dispatcher& dispatcher() { return *d_; }
  std::shared_ptr<dispatch::Route> make_route(uint32_t i) {
    return *d_->make_route({w_.definition, d_->fallback(definition_, 0), w_.kernel(i), nullptr,
                            dispatch::RolloutState::kIncumbent, 0, ""});
  }
  void put(uint32_t i, std::shared_ptr<dispatch::Route> r) {
    dispatch::WideProblem p{site_.prefix(), dispatch::LayoutClass::plain(6), {}};
    std::copy(w_.hits[i].v, w_.hits[i].v + kMaxVarAxes, p.axes);
    const dispatch::Status s = d_->publisher().put(p, std::move(r));
    if (!s.ok()) std::abort();
  }
  bool commit() { return d_->publisher().commit().ok(); }

 private:
  const Workload& w_;
  dispatch::SystemClock clock_;
  std::shared_ptr<dispatch::Dispatcher> d_;
  uint32_t definition_ = 0;
  dispatch::CallSite site_;
};

}  // namespace niche::bench
