// PythonReference: an operator's reference in Python, run by an interpreter with torch behind walls (PythonProcess).
//
// The interpreter starts at the first use and lives as long as this object, or until it fails: it then stays dead and
// every call says why. Tensors go through shared memory; frames carry where they are. Each process that uses the
// object gets an interpreter of its own: one that a parent started is left to the parent, so that the process in
// which references are computed shares no channel with those in which candidates run.
//
// What the interpreter answers is not trusted: names, number, shapes and kinds of its results are checked here, and
// results that it said it wrote but did not are NaN or -1.
//
// Thread-safety: members may be called from several threads; calls wait for each other. Cost: starting, an import of
// torch (some seconds); a call, its inputs and outputs copied twice and some 100 us.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "dispatch/op_spec.h"
#include "evolve/python/python_process.h"

namespace niche::evolve::python {

struct PythonOptions {
  std::string program;  // see find_python
  TimeLimits start{60, 600};
  TimeLimits call{50, 900};  // within what the evaluator grants a reference (evolve/judge/oracle.cc)
};

struct PythonSource {
  std::string definition;  // its name, for messages
  std::string text;        // has a function `run` that takes inputs and attributes by name
  std::shared_ptr<const dispatch::OpSchema> schema;
};

class PythonReference {
 public:
  PythonReference(PythonSource source, PythonOptions options);
  ~PythonReference();

  // Starts the interpreter, imports torch, loads the source, matches its parameters with the schema. kUnsupported: no
  // interpreter, none with torch, or a reference that does not load or takes other parameters; kIo, kCorrupt: see
  // PythonProcess. Called by run() where need be.
  dispatch::Status start();
  // Ends the interpreter, or forgets that it failed; a later use starts another.
  void stop();
  // "Python 3.11.2, torch 2.11.0"; empty before start().
  std::string version() const;

  // As OpSpec::reference; inputs may also be f64. kInternal: the reference raised something (its words, its line);
  // kUnsupported: results of another number, shape or kind than declared.
  dispatch::Status run(const dispatch::Problem& p, std::span<const DLTensor> args,
                       std::span<const DLTensor> out);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace niche::evolve::python
