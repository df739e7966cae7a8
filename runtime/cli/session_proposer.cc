#include "runtime/cli/session_proposer.h"

#include <cstdio>

#include "evolve/proposer/proposer_process.h"

namespace niche::cli {
namespace {

// "3,15": dollars a million tokens of input and of output.
dispatch::Result<evolve::proposer::ModelPrice> parse_price(const std::string& text) {
  evolve::proposer::ModelPrice p;
  if (text.empty()) return p;
  char rest = 0;
  if (std::sscanf(text.c_str(), "%lf,%lf%c", &p.input, &p.output, &rest) != 2 || !p.known())
    return dispatch::invalid("price of the model '" + text +
                             "': expected IN,OUT in dollars a million tokens");
  return p;
}

}  // namespace

dispatch::Result<std::unique_ptr<evolve::proposer::ProposalSource>> start_session_proposer(
    const evolve::ModelRequest& model, double hello_seconds_max) {
  auto price = parse_price(model.price);
  if (!price.ok()) return price.status();
  evolve::proposer::ProposerProcessOptions p;
  p.program = "/proc/self/exe";
  p.args = {"proposer"};
  p.spec = model.proposer;
  p.budget = {model.usd_max, model.tokens_max};
  p.price = *price;
  p.key_file = model.key_file;
  p.hello_seconds_max = hello_seconds_max;
  return evolve::proposer::start_proposer_process(p);
}

}  // namespace niche::cli
