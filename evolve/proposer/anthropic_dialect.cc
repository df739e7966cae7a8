// POST {base}/v1/messages with stream: true. Content comes in typed blocks: only text blocks are the answer.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "evolve/proposer/dialect.h"

namespace niche::evolve::proposer {
namespace {

using json = nlohmann::ordered_json;

int64_t integer(const json& j, const char* name) {
  const auto at = j.find(name);
  return at != j.end() && at->is_number() ? std::max<int64_t>(0, at->get<int64_t>()) : 0;
}

std::string text_at(const json& j, const char* name) {
  const auto at = j.find(name);
  return at != j.end() && at->is_string() ? at->get<std::string>() : std::string();
}

const json& object_at(const json& j, const char* name) {
  static const json kEmpty = json::object();
  const auto at = j.find(name);
  return at != j.end() && at->is_object() ? *at : kEmpty;
}

class Reader final : public AnswerReader {
 public:
  void event(std::string_view, std::string_view data, ChatAnswer& a) override {
    const json j = json::parse(data, nullptr, false);
    if (!j.is_object()) {
      a.error = dispatch::corrupt("the service sent something else than JSON in its stream");
      return;
    }
    const std::string type = text_at(j, "type");
    if (type == "message_start") {
      a.model = text_at(object_at(j, "message"), "model");
      const json& u = object_at(object_at(j, "message"), "usage");
      a.usage.cached_tokens = integer(u, "cache_read_input_tokens");
      a.usage.input_tokens =
          integer(u, "input_tokens") + integer(u, "cache_creation_input_tokens") + a.usage.cached_tokens;
    } else if (type == "content_block_start") {
      // Thinking and tool blocks are not part of the answer.
      const json& block = object_at(j, "content_block");
      in_text_ = text_at(block, "type") == "text";
      if (in_text_) a.text += text_at(block, "text");
    } else if (type == "content_block_delta") {
      if (in_text_ && text_at(object_at(j, "delta"), "type") == "text_delta")
        a.text += text_at(object_at(j, "delta"), "text");
    } else if (type == "content_block_stop") {
      in_text_ = false;
    } else if (type == "message_delta") {
      a.usage.output_tokens =
          std::max(a.usage.output_tokens, integer(object_at(j, "usage"), "output_tokens"));
      const std::string reason = text_at(object_at(j, "delta"), "stop_reason");
      a.cut = reason == "max_tokens";
      if (reason == "refusal") a.refusal = "the model refused";
    } else if (type == "message_stop") {
      a.complete = true;
    } else if (type == "error") {
      const std::string kind = text_at(object_at(j, "error"), "type");
      a.error = dispatch::io_error("the service reported " + kind + ": " + error_message(data));
      a.error_passes = kind == "overloaded_error" || kind == "api_error" || kind == "rate_limit_error";
    }
  }

 private:
  bool in_text_ = false;
};

class Anthropic final : public Dialect {
 public:
  Anthropic(std::string base, std::string model) : base_(std::move(base)), model_(std::move(model)) {
    while (!base_.empty() && base_.back() == '/') base_.pop_back();
  }
  std::string url() const override { return base_ + "/v1/messages"; }
  std::vector<std::string> headers(const std::string& key) const override {
    std::vector<std::string> h{"Content-Type: application/json", "anthropic-version: 2023-06-01"};
    if (!key.empty()) h.push_back("x-api-key: " + key);
    return h;
  }
  std::string body(const ProposalRequest& r) const override {
    json system{{"type", "text"}, {"text", r.stable}};
    if (cache_control_) system["cache_control"] = {{"type", "ephemeral"}};
    const json j{{"model", model_},
                 {"max_tokens", r.tokens_max},
                 {"system", json::array({system})},
                 {"messages", json::array({{{"role", "user"}, {"content", r.prompt}}})},
                 {"stream", true}};
    return j.dump(-1, ' ', false, json::error_handler_t::replace);
  }
  std::unique_ptr<AnswerReader> reader() const override { return std::make_unique<Reader>(); }
  bool learn(int status, std::string_view error_body) override {
    if (status != 400 || !cache_control_ || error_body.find("cache_control") == std::string_view::npos)
      return false;
    cache_control_ = false;
    return true;
  }

 private:
  std::string base_, model_;
  bool cache_control_ = true;
};

}  // namespace

std::unique_ptr<Dialect> anthropic_dialect(const std::string& base, const std::string& model) {
  return std::make_unique<Anthropic>(base, model);
}

}  // namespace niche::evolve::proposer
