// Any bytes as a spec, an override and a mesh, separated by 0xff, which no
// UTF-8 text holds: there is a result or a message, never a crash.
//
//   clang++-14 -std=c++20 -g -O1 -fsanitize=fuzzer,address,undefined -Isrc
//     tests/fuzz/fuzz_spec.cc src/{base/{diagnostics,error,file,suggest,text},
//     expr/{eval,functions,parse},spec/{include,names,override,parse,yaml,
//     yaml_text}}.cc -lyaml-cpp -lfmt -o fuzz_spec
//   ./fuzz_spec -max_len=4096 tests/fuzz/corpus/spec
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "base/text.h"
#include "expr/expr.h"
#include "spec/include.h"
#include "spec/override.h"
#include "spec/parse.h"

namespace shardinit {
namespace {

// Every name is 7.
class AnyName : public Scope {
 public:
  std::optional<Value> Find(const std::string&, Diagnostics&) const override {
    return int64_t{7};
  }
  std::vector<std::string> Names() const override { return {}; }
};

void LoadAll(const std::string& text, const std::string& set,
             const std::string& mesh, Diagnostics& diagnostics) {
  NodeStore store;
  const Source* source = diagnostics.Add({"spec", text});
  const Node* root = ParseText(*source, 0, store, diagnostics);
  if (root == nullptr && !diagnostics.HasErrors()) abort();
  if (root == nullptr || !root->IsMap()) return;
  if (!set.empty()) root = ApplySets(root, {set}, store, diagnostics);
  root = ApplyMesh(root, mesh, store, diagnostics);
  const ModelSpec model = ParseSpec(*root, diagnostics);
  for (const auto* values : {&model.vars, &model.mesh}) {
    for (const Named<ExprPtr>& value : *values) {
      if (value.value == nullptr) continue;
      EvaluateInteger(*value.value, AnyName(), 0, 1000, "it", diagnostics);
    }
  }
}

}  // namespace
}  // namespace shardinit

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace shardinit;
  const std::string input(reinterpret_cast<const char*>(data), size);
  const size_t first = std::min(input.find('\xff'), size);
  const size_t second = std::min(input.find('\xff', first + 1), size);
  const std::string set =
      first < size ? input.substr(first + 1, second - first - 1) : "";
  const std::string mesh = second < size ? input.substr(second + 1) : "";
  Diagnostics diagnostics;
  try {
    LoadAll(input.substr(0, first), set, mesh, diagnostics);
  } catch (const InvalidSpec&) {
    // Too many errors.
  }
  // What is shown is clean text, whatever the input was.
  const std::string shown = Render(diagnostics.all());
  if (FindBadText(shown)) abort();
  return 0;
}
