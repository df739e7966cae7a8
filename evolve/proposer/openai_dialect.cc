// POST {base}/chat/completions with stream: true; also spoken by vLLM, SGLang, llama.cpp and Ollama.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "evolve/proposer/dialect.h"

namespace niche::evolve::proposer {
namespace {

using json = nlohmann::ordered_json;

// Optional parameters, and what replaces one that a service refuses.
constexpr std::string_view kMaxTokens = "max_tokens", kNewMaxTokens = "max_completion_tokens",
                           kStreamOptions = "stream_options";

int64_t integer(const json& j, const char* name) {
  const auto at = j.find(name);
  return at != j.end() && at->is_number() ? std::max<int64_t>(0, at->get<int64_t>()) : 0;
}

class Reader final : public AnswerReader {
 public:
  void event(std::string_view, std::string_view data, ChatAnswer& a) override {
    if (data == "[DONE]") {
      a.complete = true;
      return;
    }
    const json j = json::parse(data, nullptr, false);
    if (!j.is_object()) {
      a.error = dispatch::corrupt("the service sent something else than JSON in its stream");
      return;
    }
    if (j.contains("error")) {
      a.error = dispatch::io_error("the service reported: " + error_message(data));
      return;
    }
    if (j.contains("model") && j["model"].is_string()) a.model = j["model"].get<std::string>();
    if (j.contains("usage") && j["usage"].is_object()) usage(j["usage"], a.usage);
    const auto choices = j.find("choices");
    if (choices == j.end() || !choices->is_array() || choices->empty() || !choices->front().is_object())
      return;
    const json& choice = choices->front();
    for (const char* where : {"delta", "message"}) {
      if (!choice.contains(where) || !choice[where].is_object()) continue;
      const json& part = choice[where];
      // reasoning_content is the model's thinking: not a part of the answer.
      if (part.contains("content") && part["content"].is_string())
        a.text += part["content"].get<std::string>();
      if (part.contains("refusal") && part["refusal"].is_string())
        a.refusal += part["refusal"].get<std::string>();
    }
    if (!choice.contains("finish_reason") || !choice["finish_reason"].is_string()) return;
    const auto reason = choice["finish_reason"].get<std::string>();
    a.complete = true;
    a.cut = reason == "length";
    if (reason == "content_filter") a.refusal += "content filter";
  }

 private:
  static void usage(const json& u, Usage& out) {
    out.input_tokens = integer(u, "prompt_tokens");
    out.output_tokens = integer(u, "completion_tokens");
    if (u.contains("prompt_tokens_details") && u["prompt_tokens_details"].is_object())
      out.cached_tokens = integer(u["prompt_tokens_details"], "cached_tokens");
    if (u.contains("cost") && u["cost"].is_number()) out.usd = std::max(0.0, u["cost"].get<double>());
  }
};

class OpenAi final : public Dialect {
 public:
  OpenAi(std::string base, std::string model) : base_(std::move(base)), model_(std::move(model)) {
    while (!base_.empty() && base_.back() == '/') base_.pop_back();
  }
  std::string url() const override { return base_ + "/chat/completions"; }
  std::vector<std::string> headers(const std::string& key) const override {
    std::vector<std::string> h{"Content-Type: application/json", "Accept: text/event-stream"};
    if (!key.empty()) h.push_back("Authorization: Bearer " + key);
    return h;
  }
  std::string body(const ProposalRequest& r) const override {
    json j{{"model", model_},
           {"messages",
            {{{"role", "system"}, {"content", r.stable}}, {{"role", "user"}, {"content", r.prompt}}}},
           {"stream", true}};
    if (!dropped_.contains(std::string(kStreamOptions))) j["stream_options"] = {{"include_usage", true}};
    for (std::string_view name : {kMaxTokens, kNewMaxTokens}) {
      if (dropped_.contains(std::string(name))) continue;
      j[std::string(name)] = r.tokens_max;
      break;
    }
    return j.dump(-1, ' ', false, json::error_handler_t::replace);
  }
  std::unique_ptr<AnswerReader> reader() const override { return std::make_unique<Reader>(); }
  bool learn(int status, std::string_view error_body) override {
    if (status != 400 && status != 422) return false;
    // The refused one stands first: "'max_tokens' is not supported, use 'max_completion_tokens'".
    std::string_view refused;
    size_t first = std::string_view::npos;
    for (std::string_view name : {kStreamOptions, kNewMaxTokens, kMaxTokens}) {
      const size_t at = error_body.find(name);
      if (at < first) first = at, refused = name;
    }
    return !refused.empty() && dropped_.insert(std::string(refused)).second;
  }

 private:
  std::string base_, model_;
  std::set<std::string> dropped_;
};

}  // namespace

std::unique_ptr<Dialect> openai_dialect(const std::string& base, const std::string& model) {
  return std::make_unique<OpenAi>(base, model);
}

std::string error_message(std::string_view error_body) {
  const json j = json::parse(error_body, nullptr, false);
  std::string text;
  if (j.is_object() && j.contains("error")) {
    const json& e = j["error"];
    if (e.is_string()) text = e.get<std::string>();
    if (e.is_object() && e.contains("message") && e["message"].is_string())
      text = e["message"].get<std::string>();
  }
  if (text.empty()) text = error_body;
  text = text.substr(0, std::min<size_t>(valid_utf8(text), 300));
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

}  // namespace niche::evolve::proposer
