// Feeds any bytes to the program as a spec, an override, a mesh and the name of a layout, separated
// by 0xff, which never occurs in UTF-8. The result must be a message, or a plan that survives a
// round trip through plan.json and has the same values whether computed alone or together.
//
//   cmake --preset fuzz -DBUILD_TESTING=ON && cmake --build --preset fuzz
//   grep -ohE '[[:alpha:]_][[:alnum:]_.]+' schemas/spec.schema.json | sort -u |
//     sed 's/.*/"&"/' > words
//   mkdir corpus && cp tests/leaves/*.yaml corpus
//   build/fuzz/tests/fuzz_spec -max_len=4096 -dict=words corpus tests/fuzz/corpus/spec
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/error.h"
#include "fuzz/clean_text.h"
#include "fuzz/split.h"
#include "generate/fill.h"
#include "plan/load.h"

namespace shardinit {
namespace {

// Computes elements around the middle of a tensor.
void MakeValues(const Tensor& tensor) {
  const Box whole = WholeOf(tensor.shape());
  if (!PreparationsOf(tensor, whole).empty()) return;  // Whole matrices are slow.
  const BoxFiller filler(tensor, whole);
  const int64_t count = std::min<int64_t>(37, filler.elements());
  const int64_t first = (filler.elements() - count) / 2;
  const auto size = static_cast<size_t>(filler.element_bytes());
  // The buffer is aligned like blocks are.
  std::vector<uint64_t> together(static_cast<size_t>(count)), alone(1);
  filler.Fill(first, count, together.data());
  for (int64_t i = 0; i < count; i += 5) {
    filler.Fill(first + i, 1, alone.data());
    const auto* bytes =
        reinterpret_cast<const uint8_t*>(together.data()) + static_cast<size_t>(i) * size;
    if (!std::equal(bytes, bytes + size, reinterpret_cast<const uint8_t*>(alone.data()))) abort();
  }
}

void TryPlan(const PlanRequest& request, Diagnostics& diagnostics) {
  const Plan plan = LoadPlan(request, diagnostics);
  if (plan.graph.tensors.size() > 2000) return;
  const std::string text = WritePlan(plan);
  if (WritePlan(ReadPlan(text, "plan.json")) != text) abort();
  for (const Tensor& tensor : plan.graph.tensors) MakeValues(tensor);
}

}  // namespace
}  // namespace shardinit

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace shardinit;
  const std::vector<std::string> parts = SplitInput(data, size, 5);  // The last one is unused.
  PlanRequest request;
  request.spec = {.path = "spec", .sets = {}, .mesh = parts[2], .text = parts[0]};
  if (!parts[1].empty()) request.spec.sets = {parts[1]};
  request.layout = parts[3];
  request.all_layouts = true;
  Diagnostics diagnostics;
  std::string shown;
  try {
    TryPlan(request, diagnostics);
    shown = Render(diagnostics.all());
  } catch (const InvalidSpec& e) {
    shown = Render(e.diagnostics());
    if (shown.empty()) abort();
  } catch (const Error& e) {
    // The plan.json of an accepted spec must never be refused.
    if (e.code() == ExitCode::kRefused) throw;
    shown = RenderError(e.what(), e.hint());
  }
  NeedCleanText(shown);
  return 0;
}
