// Definitions as JSON, with the fields of the FlashInfer Trace schema (arXiv 2601.00227): name, op_type, axes
// {const value | var}, inputs and outputs {shape, dtype}, reference, constraints; what that schema lacks
// (attributes, the element type, derived axes, arguments updated in place) stands under the key "niche".
//
// Used in session requests and cache records, and to read operators that a user describes in a file.
// Thread-safety: pure functions. Bounds: a document is at most 1 MiB.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dispatch/definition.h"
#include "dispatch/op_spec.h"

namespace niche::evolve {

// A document as it stands, checked for form but not against any operator.
struct DefinitionDocument {
  struct Axis {
    std::string name;
    std::optional<int64_t> value;  // a constant axis has one
    bool derived = false;          // niche: computed from the others
  };
  struct Arg {
    std::string name;
    std::vector<std::string> shape;  // axis names, outermost first; empty: a scalar (null in the document)
    DLDataType dtype{};
    bool optional = false;  // niche: may be absent
    bool updated = false;   // niche: an input that is updated in place
  };
  std::string name;
  std::string op_type;
  std::vector<Axis> axes;
  std::vector<Arg> inputs, outputs;
  std::string reference;  // source text with a function `run`; may be empty
  std::vector<std::string> constraints;
  std::optional<DLDataType> dtype;  // the element type "T"; else taken from the first floating argument
  std::vector<std::pair<std::string, double>> attrs;
};

// kInvalid names the first field that is missing, unknown in kind or contradictory: "definition 'x': axes.M:
// type 'foo' is neither 'const' nor 'var'".
dispatch::Result<DefinitionDocument> parse_definition_document(std::string_view text);

// The Definition that a document describes of an operator that is registered. Axes, argument shapes and
// element types that the document gives must be those of the operator's schema. kNotFound: no operator
// `op_type`; kInvalid: the first contradiction.
dispatch::Result<std::shared_ptr<const dispatch::Definition>> definition_from_json(
    std::string_view text, const dispatch::OpRegistry& ops);

// The schema of an operator that exists only as a document (a user's JSON Definition): floating arguments of
// the document's element type become "T", all others keep their own.
dispatch::Result<dispatch::OpSchema> schema_from_document(const DefinitionDocument& document);

// One line of JSON; definition_from_json gives an equal Definition back.
std::string definition_to_json(const dispatch::Definition& definition, std::string_view reference = {},
                               const std::vector<std::string>& constraints = {});

}  // namespace niche::evolve
