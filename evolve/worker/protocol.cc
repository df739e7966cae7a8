#include "evolve/worker/protocol.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "dispatch/kernel_abi.h"
#include "evolve/session/session_json.h"

namespace niche::evolve::worker {
namespace {

using dispatch::corrupt;
using dispatch::Result;
using nlohmann::json;

std::string dump(const json& j) { return j.dump(-1, ' ', false, json::error_handler_t::replace); }

Hello read_hello(const json& j) {
  Hello h;
  j.at("protocol").get_to(h.protocol);
  j.at("abi").get_to(h.abi);
  j.at("version").get_to(h.version);
  h.nice = j.value("nice", 0);
  h.idle = j.value("idle", false);
  h.memory_bytes_max = j.value("memory_bytes_max", int64_t{0});
  return h;
}

}  // namespace

std::string Hello::to_string() const {
  return "niche " + version + ", protocol " + std::to_string(protocol) + ", kernel ABI " +
         std::to_string(abi);
}

Hello own_hello() {
  Hello h;
  h.abi = NICHE_KERNEL_ABI_VERSION;
  h.version = NICHE_VERSION;
  return h;
}

dispatch::Status check_versions(const Hello& mine, const Hello& theirs) {
  if (mine.protocol == theirs.protocol && mine.abi == theirs.abi && mine.version == theirs.version) return {};
  return dispatch::unsupported("versions differ: here " + mine.to_string() + "; there " + theirs.to_string());
}

std::string encode_hello(const Hello& h) {
  return dump({{"type", "hello"},
               {"protocol", h.protocol},
               {"abi", h.abi},
               {"version", h.version},
               {"nice", h.nice},
               {"idle", h.idle},
               {"memory_bytes_max", h.memory_bytes_max}});
}
std::string encode_start(const SessionRequest& r) {
  return dump({{"type", "start"}, {"request", json::parse(request_to_json(r))}});
}
std::string encode_stop() { return R"({"type":"stop"})"; }
std::string encode_paused(double seconds) { return dump({{"type", "paused"}, {"seconds", seconds}}); }
std::string encode_event(const SessionEvent& e) {
  return dump({{"type", "event"}, {"event", json::parse(event_to_json(e))}});
}

std::string encode_ask(int64_t wanted_ns) { return dump({{"type", "ask"}, {"wanted_ns", wanted_ns}}); }
std::string encode_permit(const Permit& p) {
  return dump(
      {{"type", "permit"}, {"id", p.id}, {"burst_ns", p.burst_ns}, {"retry_after_ns", p.retry_after_ns}});
}
std::string encode_return(const Permit& p, bool revoked) {
  return dump({{"type", "return"},
               {"id", p.id},
               {"burst_ns", p.burst_ns},
               {"used_ns", p.used_ns},
               {"revoked", revoked}});
}

Result<Message> decode(std::string_view text) {
  const auto shown = [&] { return std::string(text.substr(0, 80)); };
  try {
    const json j = json::parse(text);
    const auto type = j.at("type").get<std::string>();
    Message m;
    if (type == "hello") {
      m.type = Message::Type::kHello;
      m.hello = read_hello(j);
    } else if (type == "start") {
      m.type = Message::Type::kStart;
      auto r = request_from_json(j.at("request").dump());
      if (!r.ok()) return corrupt("worker message: " + r.status().message());
      m.request = std::move(*r);
    } else if (type == "stop") {
      m.type = Message::Type::kStop;
    } else if (type == "paused") {
      m.type = Message::Type::kPaused;
      j.at("seconds").get_to(m.paused_seconds);
      if (!std::isfinite(m.paused_seconds) || m.paused_seconds < 0)
        return corrupt("worker message: a pause of " + std::to_string(m.paused_seconds) + " seconds");
    } else if (type == "event") {
      m.type = Message::Type::kEvent;
      auto e = event_from_json(j.at("event").dump());
      if (!e.ok()) return corrupt("worker message: " + e.status().message());
      m.event = std::move(*e);
    } else if (type == "ask") {
      m.type = Message::Type::kAsk;
      j.at("wanted_ns").get_to(m.wanted_ns);
    } else if (type == "permit" || type == "return") {
      m.type = type == "permit" ? Message::Type::kPermit : Message::Type::kReturn;
      j.at("id").get_to(m.permit.id);
      j.at("burst_ns").get_to(m.permit.burst_ns);
      m.permit.retry_after_ns = j.value("retry_after_ns", int64_t{0});
      m.permit.used_ns = j.value("used_ns", int64_t{0});
      m.revoked = j.value("revoked", false);
    } else {
      return corrupt("worker message: unknown type '" + type + "'");
    }
    return m;
  } catch (const json::exception& e) {
    return corrupt("worker message: " + std::string(e.what()) + ", in: " + shown());
  }
}

}  // namespace niche::evolve::worker
