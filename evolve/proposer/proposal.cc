#include "evolve/proposer/proposal.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

namespace niche::evolve::proposer {
namespace {

using dispatch::invalid;
using dispatch::Result;
using json = nlohmann::ordered_json;

constexpr size_t kRequestBytesMax = size_t{1} << 20;

std::string dump(const json& j) { return j.dump(-1, ' ', false, json::error_handler_t::replace); }

bool plain_name(std::string_view id) {
  return !id.empty() && id.size() <= 128 && id.front() != '.' &&
         std::all_of(id.begin(), id.end(), [](unsigned char c) {
           return std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.';
         });
}

}  // namespace

size_t valid_utf8(std::string_view s) {
  size_t i = 0;
  while (i < s.size()) {
    const auto c = static_cast<unsigned char>(s[i]);
    if (c == 0) return i;
    const size_t n = c < 0x80                ? 1
                     : c >= 0xc2 && c < 0xe0 ? 2
                     : (c >> 4) == 0xe       ? 3
                     : c >= 0xf0 && c < 0xf5 ? 4
                                             : 0;
    if (n == 0 || i + n > s.size()) return i;
    uint32_t code = n == 1 ? c : c & (0x7fU >> n);
    for (size_t k = 1; k < n; ++k) {
      const auto next = static_cast<unsigned char>(s[i + k]);
      if ((next & 0xc0) != 0x80) return i;
      code = code << 6 | (next & 0x3fU);
    }
    const bool overlong = (n == 3 && code < 0x800) || (n == 4 && code < 0x10000);
    if (overlong || code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) return i;
    i += n;
  }
  return i;
}

std::string request_to_json(const ProposalRequest& r) {
  return dump({{"niche_proposal", 1},
               {"id", r.id},
               {"task", r.task},
               {"stable", r.stable},
               {"prompt", r.prompt},
               {"parent", r.parent},
               {"seconds_max", r.seconds_max},
               {"tokens_max", r.tokens_max}});
}

Result<ProposalRequest> request_from_json(std::string_view text) {
  if (text.size() > kRequestBytesMax) return invalid("proposal request: longer than 1 MiB");
  const json j = json::parse(text, nullptr, false);
  if (!j.is_object()) return invalid("proposal request: not a JSON object");
  try {
    if (j.at("niche_proposal") != 1) return invalid("proposal request: not of version 1");
    ProposalRequest r;
    j.at("id").get_to(r.id);
    j.at("task").get_to(r.task);
    j.at("stable").get_to(r.stable);
    j.at("prompt").get_to(r.prompt);
    j.at("parent").get_to(r.parent);
    j.at("seconds_max").get_to(r.seconds_max);
    j.at("tokens_max").get_to(r.tokens_max);
    if (!plain_name(r.id))
      return invalid("proposal request: id '" + r.id.substr(0, 40) + "' is no plain name");
    if (!(r.seconds_max > 0) || !std::isfinite(r.seconds_max) || r.tokens_max < 1)
      return invalid("proposal request " + r.id + ": seconds_max and tokens_max must be positive");
    return r;
  } catch (const json::exception& e) {
    return invalid(std::string("proposal request: ") + e.what());
  }
}

std::string reply_to_json(const ProposalReply& r) {
  return dump({{"id", r.id},
               {"text", r.text},
               {"model", r.model},
               {"usage",
                {{"input_tokens", r.usage.input_tokens},
                 {"output_tokens", r.usage.output_tokens},
                 {"cached_tokens", r.usage.cached_tokens},
                 {"usd", r.usage.usd},
                 {"estimated", r.usage.estimated}}}});
}

Result<ProposalReply> reply_from_text(std::string_view text, const ProposalRequest& request) {
  const std::string who = "reply to " + request.id + ": ";
  if (text.size() > kReplyTextBytesMax)
    return invalid(who + std::to_string(text.size()) + " bytes, 1 MiB is the limit");
  if (const size_t good = valid_utf8(text); good != text.size())
    return invalid(who + "byte " + std::to_string(good) + " is not UTF-8 text");
  ProposalReply r;
  r.id = request.id;
  const json j = json::parse(text, nullptr, false);
  if (j.is_object() && j.contains("text") && j["text"].is_string()) {
    try {
      j["text"].get_to(r.text);
      r.model = j.value("model", "");
      const json usage = j.value("usage", json::object());
      if (usage.is_object()) {
        r.usage.input_tokens = std::max<int64_t>(0, usage.value("input_tokens", int64_t{0}));
        r.usage.output_tokens = std::max<int64_t>(0, usage.value("output_tokens", int64_t{0}));
        r.usage.cached_tokens = std::max<int64_t>(0, usage.value("cached_tokens", int64_t{0}));
        r.usage.usd = std::max(0.0, usage.value("usd", 0.0));
        r.usage.estimated = usage.value("estimated", false);
      }
    } catch (const json::exception& e) {
      return invalid(who + e.what());
    }
  } else {
    r.text = text;
  }
  if (std::all_of(r.text.begin(), r.text.end(), [](unsigned char c) { return std::isspace(c) != 0; }))
    return invalid(who + "empty");
  return r;
}

}  // namespace niche::evolve::proposer
