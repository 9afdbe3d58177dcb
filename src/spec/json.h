// Parses JSON text of any size and line length into the same tree as YAML.
#pragma once

#include "base/diagnostics.h"
#include "base/source.h"
#include "spec/yaml.h"

namespace shardinit {

// Parses source.text: RFC 8259 and NaN, Infinity and -Infinity, which Python writes. Reports the
// first error and returns null if the text is not JSON. A duplicate key is an error.
const Node* ParseJsonTree(const Source& source, NodeStore& store, Diagnostics& diagnostics);

}  // namespace shardinit
