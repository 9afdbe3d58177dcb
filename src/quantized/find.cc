#include "quantized/find.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string_view>

#include "quantized/search.h"
#include "tensor/numbers.h"

namespace shardinit {
namespace {

bool IsByte(const Tensor& tensor) {  // at most 8 bits
  return NumberBytes(tensor.dtype()) == 1 && tensor.dtype() != DType::boolean;
}
bool IsU8(const Tensor& tensor) { return tensor.dtype() == DType::u8; }
bool IsI8(const Tensor& tensor) { return tensor.dtype() == DType::i8; }
bool IsI32(const Tensor& tensor) { return tensor.dtype() == DType::i32; }
bool IsAny(const Tensor&) { return true; }

// The kinds of quantized tensors, by the end of the path of their numbers.
constexpr struct {
  std::string_view ending;
  bool (*takes)(const Tensor& numbers);
  bool (*find)(Search& search, const Tensor& numbers, const std::string& around);
} kKinds[] = {
    {"_blocks", &IsU8, &FindMxfp4Blocks},
    {".weight_packed", &IsAny, &FindPacked},
    {".qweight", &IsI32, &FindTransposed},
    {"", &IsAny, &FindBitsAndBytes},
    {".weight", &IsI8, &FindInt8},
    {".weight", &IsU8, &FindModelOpt},
    {".weight", &IsByte, &FindBlocks},
    {".weight", &IsByte, &FindBytes},
    {"", &IsByte, &FindBlocks},
};

std::string ModuleOf(const std::string& path) { return path.substr(0, path.rfind('.') + 1); }

// Returns whether parts of packed numbers have this name within their module.
bool IsPackedName(std::string_view name) {
  constexpr std::string_view kPacked[] = {
      "weight_packed",    "qweight",          "qzeros",
      "scale_packed",     "weight_g_idx",     "g_idx",
      "weight_shape",     "bitmask",          "weight_zero_point",
      "pre_quant_scale",  "weight_bitmask",   "quant_map",
      "nested_absmax",    "nested_quant_map", "bitsandbytes__nf4",
      "bitsandbytes__fp4"};
  return std::ranges::find(kPacked, name) != std::end(kPacked);
}

// Throws if a part of widened numbers is dropped: they would become other numbers.
void RequireUndropped(const Search& search, const std::deque<Widening>& found) {
  std::set<std::string> modules;
  for (const Widening& widening : found) {
    modules.insert(ModuleOf(std::string(widening.numbers().path())));
  }
  for (const std::string& path : search.dropped()) {
    const std::string module = ModuleOf(path);
    if (!modules.contains(module) || !IsPackedName(path.substr(module.size()))) continue;
    ThrowUnreadable(path, "it is dropped, but other parts of the same numbers are not");
  }
}

// Throws if the tensor is a part of packed numbers by its name, or an integer tensor with scales
// next to it.
void RequireUnpacked(const Search& search, const Tensor& tensor) {
  constexpr std::string_view kScales[] = {"scale",   "scales", "weight_scale",     "weight_scales",
                                          "qscales", "absmax", "weight_scale_inv", "SCB"};
  const std::string path(tensor.path()), module = ModuleOf(path);
  if (IsPackedName(path.substr(module.size()))) {
    ThrowUnreadable(tensor, "it is a part of packed numbers, which shardinit does not read");
  }
  const DTypeInfo& info = InfoOf(tensor.dtype());
  if (info.is_float() || info.kind == DTypeKind::kBool || tensor.shape().size() < 2) return;
  for (const std::string_view scale : kScales) {
    const auto found = search.there().find(module + std::string(scale));
    if (found == search.there().end() || found->second == &tensor) continue;
    ThrowUnreadable(tensor, fmt::format("it is not known how `{}` scales it", found->first));
  }
}

// Throws if a tensor that is not widened seems to have scales: without them, its numbers would
// lose their meaning.
void RequireUnscaled(const Search& search, const Tensor& tensor) {
  const std::string path(tensor.path());
  if (!IsByte(tensor)) return;
  const std::string before = ModuleOf(path);
  const std::string& around = before.empty() ? path : before;
  for (auto other = search.there().lower_bound(around);
       other != search.there().end() && other->first.starts_with(around); ++other) {
    const std::string_view rest = std::string_view(other->first).substr(before.size());
    if (other->second == &tensor || search.IsUsed(other->first) ||
        (rest.find("scale") == rest.npos && rest.find("absmax") == rest.npos && rest != "SCB")) {
      continue;
    }
    ThrowUnreadable(tensor, fmt::format("it is not known how `{}` scales it", other->first));
  }
}

// Throws if a tensor should have scales, or numbers that it scales.
void RequireNotAlone(const Tensor& tensor) {
  constexpr std::string_view kScaleInv = "_scale_inv";
  const std::string path(tensor.path());
  if (path.ends_with(kScaleInv)) {
    ThrowUnreadable(tensor, fmt::format("it scales `{}`, which is missing",
                                        path.substr(0, path.size() - kScaleInv.size())));
  }
  const bool has_numbers = InfoOf(tensor.dtype()).has_fractions() || path.ends_with("_blocks") ||
                           path.ends_with(".weight");
  if (!IsByte(tensor) || !has_numbers) return;
  ThrowUnreadable(tensor, "it has no scales, but other tensors or config.json have them");
}

}  // namespace

void RequireReadable(const Plan& plan, const IsDropped& is_dropped) {
  const Search search(plan, DType::f32, is_dropped, {});
  for (const auto& [path, tensor] : search.there()) RequireUnpacked(search, *tensor);
}

std::deque<Widening> FindWidenings(const Plan& plan, DType dtype, const IsDropped& is_dropped,
                                   const ReadWhole& read) {
  Search search(plan, dtype, is_dropped, read);
  for (const auto& [path, tensor] : search.there()) {
    for (const auto& kind : kKinds) {
      if (!path.ends_with(kind.ending) || !kind.takes(*tensor)) continue;
      const std::string around = path.substr(0, path.size() - kind.ending.size());
      if (kind.find(search, *tensor, around)) break;
    }
  }
  std::deque<Widening> found = search.Take();
  FormPool forms;
  for (Widening& widening : found) forms.ShareForm(widening.made);
  RequireUndropped(search, found);
  // Scales of a quantized cache stand next to the projections.
  for (const auto& [path, tensor] : search.there()) {
    const bool is_of_cache = path.ends_with(".k_scale") || path.ends_with(".v_scale");
    if (is_of_cache && tensor->elements() == 1 && !found.empty()) search.Leave(&found[0], path);
  }
  const bool is_quantized = search.config().is_there() || search.has_found();
  for (const auto& [path, tensor] : search.there()) {
    if (search.IsUsed(path)) continue;
    RequireUnpacked(search, *tensor);
    RequireUnscaled(search, *tensor);
    if (is_quantized) RequireNotAlone(*tensor);
  }
  return found;
}

}  // namespace shardinit
