// Loads operators that a user defines: a shared object (C++, user_op.h) or a JSON Definition
// (torchscript_op.h).
//
// Server and worker load the same paths in the same order, before the registry is shared; the environment key
// holds each file's SHA-256 (runtime/host_environment.h). A shared object runs its code in this process: load
// only what you trust. It stays loaded until the process ends.
//
// Thread-safety: call from one thread at a time. Cost: a dlopen, or a TorchScript compile and a small probe
// (some 10 ms).
#pragma once

#include <string>
#include <vector>

#include "dispatch/op_spec.h"
#include "runtime/ops/torchscript_op.h"

namespace niche::ops {

// `python`: may a reference in Python run here (torchscript_op.h); a server's may not. By the name's end: ".so" or
// ".json". All operators of the file are added, or none. kIo: not readable;
// kUnsupported: not a niche object, another ABI, or a reference that cannot run; kInvalid: a bad
// schema or field; kBusy: a name is taken. Every message starts with the path.
dispatch::Status load_user_ops(const std::string& path, dispatch::OpRegistry& registry,
                               const PythonHost& python = {});

// The Definition that a JSON file fixes, for callers that want a handle to it; its operator must be loaded.
dispatch::Result<std::shared_ptr<const dispatch::Definition>> load_definition(
    const std::string& path, const dispatch::OpRegistry& registry);

}  // namespace niche::ops
