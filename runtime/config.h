// RuntimeConfig: everything a Runtime is told at its creation: by a struct, by a JSON file, by the
// environment.
//
// One table (config_fields) names each key, its range and its meaning; file, environment, validation and
// `niche config` all read it. Keys a file may hold are the field names below; the environment spells them
// NICHE_<UPPER> ("NICHE_CACHE_DIR"), lists separated by ':'. NICHE_CONFIG names a file that is read before
// the other variables. The environment is read by who calls apply_environment; NICHE_DISABLE alone by every
// Runtime::create.
//
// Errors: kInvalid for an unknown key, a wrong type or a value outside its range, naming key, value and
// range; kIo for a file that cannot be read. Thread-safety: a value.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "dispatch/base/log.h"
#include "dispatch/op_spec.h"

namespace niche {

class DevicePlane;

struct RuntimeConfig {
  // Operators. runtime/torch fills these with the built-in ones (niche::torch_config()).
  std::vector<std::shared_ptr<const dispatch::OpSpec>> ops;
  std::vector<std::string> op_libraries;  // shared objects and JSON Definitions; server and worker load them
  std::function<dispatch::Status(const std::string& path, dispatch::OpRegistry&)> op_loader;  // reads one
  // "torch 2.11.0": what library forms come from; part of the environment key.
  std::vector<std::string> libraries;

  // Switches.
  bool disable = false;  // every call goes to its fallback: no table, no threads, no disk
  std::string force;  // a kernel's name, or "fallback": serves wherever its Guard holds, whatever the rollout

  // Where verified kernels live. Empty: nothing survives the process, and sessions, which hand kernels over
  // through the directory, stay off.
  std::string cache_dir;
  bool cache_read_only = false;
  // Where quarantines and probation marks go when the cache is read-only. Empty: then only kernels that have
  // served their probation elsewhere may serve.
  std::string state_dir;
  int64_t cache_bytes_max = int64_t{4} << 30;

  // How calls run. `executor` empty: in the calling thread (runtime/torch injects at::parallel_for).
  dispatch::Executor executor;
  // Devices whose tensors calls may carry (DLPack's kDLCUDA, ids from 0). 0: host memory alone.
  int cuda_devices = 0;
  // Evolved kernels on those devices (runtime/cuda: enable_cuda). Null: library forms alone.
  std::shared_ptr<DevicePlane> devices;
  // Device memory for one call's workspace on one stream, reserved before: called on the call's path, so it
  // must not allocate; null: none, and the fallback answers. Empty: no kernel that wants any is served.
  std::function<void*(int device, void* stream, int64_t bytes)> device_workspace;
  // Runs first in each of niche's own threads that may call library forms (runtime/torch: one compute
  // thread).
  std::function<void()> thread_start;

  // Evolution.
  bool evolve = true;
  std::string worker_program;  // empty: beside libniche, then PATH
  std::vector<std::string> worker_args = {"worker"};
  std::string python_program;  // runs references in Python, in workers alone; empty: python3 on PATH
  int sessions_max = 1;
  double session_seconds_max = 20;
  int session_evaluations_max = 400;
  double session_target_speedup = 0;  // 0: none
  double session_cpu_share = 1.0;     // cores that all sessions together may use, averaged over a minute
  double session_gap_seconds = 1.0;   // rest between two sessions
  int session_nice = 19;
  // Where sessions for what is hot on a device run: "idle": on the device of its class that has least to do; "same": on it.
  std::string tuning_device = "idle";
  // A model that writes programs for sessions, beside template points, or instead of them for an operator that has
  // no template family: "exec:CMD", "mailbox:DIR", "openai:URL#MODEL", "anthropic:MODEL"; empty: none. Needs `niche`
  // as the worker program. Workers get none of the server's environment: the key comes from a file.
  std::string proposer;
  std::string proposer_key_file;         // mode 600
  std::string proposer_price;            // "IN,OUT": dollars a million tokens
  double proposer_usd_max = 0;           // dollars that all sessions of this Runtime may cost
  int64_t proposer_tokens_max = 0;       // a session; 0: no limit
  int proposer_questions_max = 20;       // a session
  double proposer_answer_seconds = 120;  // for one answer
  // Has a template family points for `definition` on this CPU? For explain and status; empty: not known here.
  std::function<bool(const dispatch::Definition&)> has_family;
  double p99_slack = 1.10;  // sessions pause while serving p99 is above this multiple of its quiet value
  double memory_share_max = 0.85;  // of the cgroup's limit, or the machine's memory
  double hot_seconds_min = 0.5;    // an operator becomes hot when it was seen for this long ...
  double hot_share_min = 0.005;    // ... and takes this share of one core

  // Bounds of what is resident.
  int64_t resident_bytes_max = int64_t{256} << 20;  // code of kernels that were loaded
  int64_t workspace_bytes_max = int64_t{64} << 20;  // a thread; kernels that want more are refused
  int64_t packed_bytes_max = int64_t{512} << 20;    // packed constants, all bindings
  int64_t shadow_arena_bytes = int64_t{64} << 20;   // copies of inputs waiting for comparison
  int64_t shadow_bytes_per_second = int64_t{256} << 20;

  // Observation of live calls.
  int time_one_in = 16;        // calls timed, on average
  int shadow_one_in = 256;     // calls of an incumbent compared with the fallback, on average
  double tick_seconds = 0.05;  // how often the aggregator looks

  // Rollout.
  double canary_seconds_min = 0.2;  // least time in canary before promotion
  int64_t probation_calls = 10000;
  double probation_seconds = 600;

  // A tensor-parallel group whose ranks choose kernels together: runtime/group.h. `group_board`: a file that all of
  // them open, in /dev/shm; 0 ranks: no group.
  std::string group_board;
  int group_rank = 0;
  int group_ranks = 0;
  std::vector<std::string> group_ops;  // whose kernels; empty: every operator's

  // "127.0.0.1:9464" serves /metrics, /status and /health; empty: off.
  std::string http_address;

  // Where messages go; null: silence. Written by control threads only, never on a call's path; must not call
  // back into the Runtime.
  std::shared_ptr<dispatch::LogSink> log;

  // kInvalid names the first field outside its range.
  dispatch::Status validate() const;
};

// One key: for messages and `niche config`.
struct ConfigField {
  std::string_view name;
  std::string_view type;  // "bool", "int", "number", "text", "list"
  double lo = 0, hi = 0;  // range of a number
  std::string_view meaning;
  std::string_view unit;      // "bytes", "s", ...; empty: none
  std::string environment;    // "NICHE_CACHE_DIR"
  std::string default_value;  // as the environment would spell it; runtime/torch and servers may set others
};
std::vector<ConfigField> config_fields();

// Applies a JSON object's members to `config`. `origin` names the text in messages ("niche.json").
dispatch::Status apply_json(std::string_view text, std::string_view origin, RuntimeConfig* config);
dispatch::Status apply_file(const std::string& path, RuntimeConfig* config);
// Applies NICHE_CONFIG's file, then every other NICHE_* entry of `environment` ("NAME=value",
// null-terminated). Names with the prefixes NICHE_TEST_, NICHE_BENCH_ and NICHE_DEMO_ belong to other
// programs and are left alone.
dispatch::Status apply_environment(const char* const* environment, RuntimeConfig* config);
// NICHE_DISABLE of this process, which Runtime::create obeys whatever config it gets: who runs a server must be able
// to switch niche off. It never switches on what the config disables.
dispatch::Status apply_disable_variable(RuntimeConfig* config);

}  // namespace niche
