#include <cstdlib>

#include "evolve/proposer/chat_proposer.h"
#include "evolve/proposer/local_proposers.h"
#include "evolve/proposer/secrets.h"

namespace niche::evolve::proposer {
namespace {

using dispatch::invalid;
using dispatch::Result;

bool local(const std::string& url) {
  // Nothing may stand between the scheme and the host, nor an '@' after it: that would make it a user's name.
  for (const std::string_view host : {"http://127.0.0.1", "http://localhost", "http://[::1]"}) {
    if (!url.starts_with(host)) continue;
    const std::string_view authority = std::string_view(url).substr(0, url.find('/', host.size()));
    return authority.find('@') == std::string_view::npos &&
           (authority == host || authority[host.size()] == ':');
  }
  return false;
}

Result<std::unique_ptr<Proposer>> chat(const std::string& spec, const std::string& url, const char* variable,
                                       std::unique_ptr<Dialect> dialect, ProposerOptions options) {
  if (!url.starts_with("https://") && !local(url))
    return invalid("proposer " + spec + ": " + url +
                   " is neither https nor on this machine; a key would be readable");
  if (!options.price.known()) {
    if (!local(url))
      return invalid("proposer " + spec +
                     ": its price is not known, so a budget cannot hold; give --model-price IN,OUT "
                     "(dollars a million tokens)");
    options.price = {0, 0};
  }
  if (options.price.input + options.price.output > 0 && options.budget.usd_max <= 0)
    return invalid("proposer " + spec + ": it costs money; give --model-budget USD");
  auto key = read_key(options.key_file, variable);
  if (!key.ok()) return key.status();
  if (key->empty() && !local(url))
    return invalid("proposer " + spec + ": no key; set " + variable + " or give --model-key-file FILE");
  if (key->find_first_of("\r\n") != std::string::npos)
    return invalid("proposer " + spec + ": its key holds a line end");
  return std::unique_ptr<Proposer>(
      std::make_unique<ChatProposer>(std::move(dialect), std::move(*key), options));
}

}  // namespace

Result<std::unique_ptr<Proposer>> make_proposer(const std::string& spec, const ProposerOptions& options) {
  const size_t colon = spec.find(':');
  const std::string kind = spec.substr(0, colon);
  const std::string rest = colon == std::string::npos ? "" : spec.substr(colon + 1);
  if (rest.empty())
    return invalid("proposer '" + spec +
                   "': expected exec:CMD, mailbox:DIR, openai:URL#MODEL or anthropic:MODEL");
  if (kind == "exec") return std::unique_ptr<Proposer>(std::make_unique<ExecProposer>(rest, options));
  if (kind == "mailbox") return std::unique_ptr<Proposer>(std::make_unique<MailboxProposer>(rest, options));
  if (kind == "openai") {
    const size_t hash = rest.rfind('#');
    if (hash == std::string::npos || hash + 1 == rest.size())
      return invalid("proposer " + spec +
                     ": no model; write openai:URL#MODEL, URL up to what stands before "
                     "/chat/completions");
    const std::string url = rest.substr(0, hash);
    return chat(spec, url, "OPENAI_API_KEY", openai_dialect(url, rest.substr(hash + 1)), options);
  }
  if (kind == "anthropic") {
    const char* base = std::getenv("ANTHROPIC_BASE_URL");
    const std::string url = !options.base_url.empty() ? options.base_url
                            : base != nullptr         ? base
                                                      : "https://api.anthropic.com";
    return chat(spec, url, "ANTHROPIC_API_KEY", anthropic_dialect(url, rest), options);
  }
  return invalid("proposer '" + spec + "': no kind '" + kind +
                 "'; there are exec, mailbox, openai and anthropic");
}

}  // namespace niche::evolve::proposer
