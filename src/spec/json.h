// JSON text → the same tree as YAML's, of any size and in one line or many.
#pragma once

#include "base/diagnostics.h"
#include "base/source.h"
#include "spec/yaml.h"

namespace shardinit {

// Parses source.text. What is read besides RFC 8259: NaN, Infinity and -Infinity, which Python
// writes. Null if it is no JSON; the one mistake is reported. A key that is given twice is one.
const Node* ParseJsonTree(const Source& source, NodeStore& store, Diagnostics& diagnostics);

}  // namespace shardinit
