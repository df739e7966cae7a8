// ranker serve | demo: an example inference server on niche, and the demo that drives it.
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <CLI/CLI.hpp>
#include <filesystem>

#include "examples/ranker/demo.h"
#include "examples/ranker/server.h"
#include "runtime/cli/number_flags.h"
#include "runtime/torch/torch.h"

extern char** environ;

namespace {

std::atomic<bool> stop_requested{false};

// The first signal ends the demo in order, the second at once; the server ends with it.
void request_stop(int signal) {
  if (stop_requested.exchange(true)) {
    constexpr char kText[] = "\nranker: interrupted again: leaving at once\n";
    (void)!::write(STDERR_FILENO, kText, sizeof kText - 1);
    ::_exit(128 + signal);
  }
  constexpr char kText[] = "\nranker: stopping (once more leaves at once)\n";
  (void)!::write(STDERR_FILENO, kText, sizeof kText - 1);
}

std::filesystem::path beside_this_program(const char* name) {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path() / name;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"an example ranking server on niche"};
  app.require_subcommand(1);

  niche::RuntimeConfig config = niche::torch_config();
  ranker::ServerOptions server;
  std::string worker = beside_this_program("niche");
  CLI::App* serve = app.add_subcommand("serve", "serve the ranker over HTTP");
  serve->add_option("--port", server.port, "port on 127.0.0.1, 0 for any")->check(CLI::Range(0, 65535));
  serve->add_option("--port-file", server.port_file, "written with the port once the server listens");
  serve->add_option("--threads", server.threads, "inference threads")->check(CLI::Range(1, 256));
  serve->add_option("--device", server.device, "cpu, or cuda:N");
  serve
      ->add_option("--tuning-duty", server.tuning_duty,
                   "share of a device's time for sessions, between requests")
      ->check(niche::cli::number_in(0.0001, 1));
  serve->add_option("--cache", config.cache_dir, "directory of verified kernels");
  serve->add_option("--worker", worker, "the niche program");
  serve->add_option("--parent", server.parent, "end when this process, which started the server, ends");
  serve->add_flag("--paused", server.paused, "start with evolution paused");

  ranker::DemoOptions demo;
  CLI::App* show = app.add_subcommand("demo", "watch the server get faster while it serves");
  show->add_option("--trace", demo.trace, "trace in the Azure LLM format (default: the shipped sample)");
  show->add_option(
      "--out", demo.out,
      "directory of the report and the cache: a new or an empty one, or an earlier demo's, whose results go");
  show->add_option("--device", demo.device, "where it is served: cpu, or cuda:N");
  show->add_option("--tuning-duty", demo.tuning_duty,
                   "share of a device's time for sessions, between requests")
      ->check(niche::cli::number_in(0.0001, 1));
  show->add_option("--batch-max", demo.batch_max,
                   "most candidates of a request; the sizes of all scale with it")
      ->check(CLI::Range(1, 64));
  show->add_option("--threads", demo.threads, "inference threads")->check(CLI::Range(1, 256));
  show->add_option("--tuning-seconds", demo.tuning_seconds_max, "longest tuning phase")
      ->check(niche::cli::number_in(5, 3600));
  show->add_flag("--tuning-cost", demo.tuning_cost,
                 "pause sessions for half of the tuning phase and compare the requests' p99");
  CLI11_PARSE(app, argc, argv);

  if (*serve) {
    config.worker_program = worker;
    // Request sizes are heavy-tailed here (1 to 8 candidates, 24 to 400 events): a second's p99 moves by half
    // on its own, and a session should know more than the first few shapes.
    config.p99_slack = 2.0;
    config.hot_seconds_min = 3;
    if (server.device != "cpu") {
      // The host beside a GPU has cores to spare, and a judge waits for permits most of its time.
      config.session_cpu_share = 8;
      config.session_seconds_max = 60;
      config.session_evaluations_max = 120;
      config.p99_slack = 3;
    }
    if (const auto s = niche::apply_environment(environ, &config); !s.ok()) {
      std::fprintf(stderr, "ranker: %s\n", s.to_string().c_str());
      return 2;
    }
    return ranker::serve(std::move(config), server);
  }
  struct sigaction action {};
  action.sa_handler = request_stop;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  demo.server_program = std::filesystem::read_symlink("/proc/self/exe");
  demo.worker_program = worker;
  if (demo.trace.empty()) demo.trace = RANKER_DATA_DIR "/azure_llm_2023_conv_sample.csv";
  return ranker::run_demo(demo, stop_requested);
}
