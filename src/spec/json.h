// Parses JSON text into the same tree as YAML's, whatever its size and the length of its lines.
#pragma once

#include "base/diagnostics.h"
#include "base/source.h"
#include "spec/yaml.h"

namespace shardinit {

// Parses source.text: RFC 8259 and NaN, Infinity and -Infinity, which Python writes. Returns null
// if the text is not JSON; the first mistake is reported. A key that is given twice is a mistake.
const Node* ParseJsonTree(const Source& source, NodeStore& store, Diagnostics& diagnostics);

}  // namespace shardinit
