// Feeds any bytes to the finder of quantized tensors: a config.json, the quant_state of
// bitsandbytes, a list of tensors, and their numbers, separated by 0xff. A model must be refused,
// or widened such that no element outside of a stored tensor is read.
//
// A tensor is a line `NAME TYPE EXTENT…`; a name that begins with `-` is dropped. A line `to TYPE`
// is the requested type.
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/parse_number.h"
#include "base/text.h"
#include "fuzz/split.h"
#include "plan/relayout.h"
#include "quantized/config.h"
#include "quantized/find.h"
#include "support/random_plan.h"

namespace shardinit {
namespace {

const DTypeInfo* FindTypeNamed(const std::string& name) {
  const std::optional<DType> dtype = FindDType(name);
  return dtype ? &InfoOf(*dtype) : nullptr;
}

struct Model {
  InitGraph graph;
  DType dtype = DType::bf16;
  std::string state;            // the text of each quant_state
  std::vector<double> numbers;  // of all other tensors, from the first on again and again
};

Model ModelIn(const std::vector<std::string>& parts) {
  constexpr int64_t kMostElements = 1 << 16;
  Model model;
  model.graph.name = "x";
  model.graph.engine = "philox4x32";
  model.graph.config = parts[0];
  model.state = parts[1];
  std::istringstream lines(parts[2]), numbers(parts[3]);
  std::set<std::string> names;
  for (std::string line; std::getline(lines, line) && names.size() < 40;) {
    std::istringstream words(line);
    std::string name, type;
    words >> name >> type;
    const DTypeInfo* const dtype = FindTypeNamed(type);
    if (name == "to" && dtype != nullptr && dtype->is_float() && dtype->bytes > 1) {
      model.dtype = dtype->dtype;
      continue;
    }
    Shape shape;
    int64_t count = 1;
    for (std::string word; words >> word && count <= kMostElements && shape.size() < kMaxRank;) {
      shape.push_back(
          std::clamp<int64_t>(ParseNumber<int64_t>(word).value_or(1), 1, kMostElements));
      count *= shape.back();
    }
    if (dtype == nullptr || count > kMostElements || !names.insert(name).second) continue;
    model.graph.tensors.push_back(MakeTensor(name, dtype->dtype, shape, ValuesOfSource()));
  }
  for (double number; numbers >> number;) model.numbers.push_back(number);
  return model;
}

// Returns elements of a part whose bytes depend on their places. Floats are finite.
BoxElements ElementsOf(const Tensor& part, bool has_all_codes) {
  const int64_t elements = part.elements(), bytes = InfoOf(part.dtype()).bytes;
  return [=](int64_t first, int64_t count, void* out) {
    if (first < 0 || count < 0 || first > elements - count) abort();
    for (int64_t i = 0; i < count * bytes; ++i) {
      const auto byte = static_cast<uint8_t>((first * bytes + i) * 0x9E3779B1 >> 13);
      static_cast<uint8_t*>(out)[i] = has_all_codes ? byte : byte & 0x3f;
    }
  };
}

// Computes elements in parts and together.
void TryWidening(const Widening& widening) {
  std::array<BoxElements, Widening::kParts> stored;
  for (size_t part = 0; part < Widening::kParts; ++part) {
    const Tensor& tensor = widening.parts[part];
    const bool has_all_codes = !InfoOf(tensor.dtype()).has_fractions();
    if (!tensor.path().empty()) stored[part] = ElementsOf(tensor, has_all_codes);
  }
  const BoxElements elements = Widen(widening, stored);
  const int64_t all = widening.made.elements(), bytes = InfoOf(widening.made.dtype()).bytes;
  if (all > 32 << 16) abort();
  std::vector<uint8_t> together(static_cast<size_t>(all * bytes)),
      alone(static_cast<size_t>(bytes));
  elements(0, all, together.data());
  for (int64_t i = 0; i < all; i += 1 + all / 37) {
    elements(i, 1, alone.data());
    if (memcmp(alone.data(), &together[static_cast<size_t>(i * bytes)], alone.size()) != 0) abort();
  }
}

// Returns the number of widened tensors.
int TryModel(const std::string& text) {
  const std::vector<std::string> parts =
      SplitInput(reinterpret_cast<const uint8_t*>(text.data()), text.size(), 4);
  Model model = ModelIn(parts);
  const Plan plan = MakePlan(model.graph);
  const auto is_dropped = [](const std::string& path) { return path.starts_with('-'); };
  const auto read = [&](const Tensor& tensor) {
    std::vector<double> found;
    if (tensor.path().find("quant_state") != std::string_view::npos) {
      for (const char c : model.state) found.push_back(static_cast<uint8_t>(c));
      return found;
    }
    for (int64_t i = 0; i < tensor.elements(); ++i) {
      const size_t size = model.numbers.size();
      found.push_back(size == 0 ? 0 : model.numbers[static_cast<size_t>(i) % size]);
    }
    return found;
  };
  try {
    RequireReadable(plan, is_dropped);
  } catch (const Unreadable&) {
  }
  const std::deque<Widening> found = FindWidenings(plan, model.dtype, is_dropped, read);
  for (const Widening& widening : found) TryWidening(widening);
  return static_cast<int>(found.size());
}

}  // namespace
}  // namespace shardinit

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace shardinit;
  try {
    TryModel({reinterpret_cast<const char*>(data), size});
  } catch (const Error& e) {
    if (e.code() != ExitCode::kUsage || FindBadText(RenderError(e.what(), e.hint()))) abort();
  }
  return 0;
}
