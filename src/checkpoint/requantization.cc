#include "checkpoint/requantization.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/glob.h"
#include "base/text.h"
#include "quantized/config.h"
#include "quantized/find.h"
#include "tensor/convert.h"

namespace shardinit {
namespace {

std::map<std::string_view, const Tensor*> ByPath(const Plan& plan) {
  std::map<std::string_view, const Tensor*> found;
  for (const Tensor& tensor : plan.graph.tensors) found.emplace(tensor.path(), &tensor);
  return found;
}

std::string InForm(const Tensor& tensor, const Shape& shape) {
  return fmt::format("{} [{}]", InfoOf(tensor.dtype()).name, fmt::join(shape, ", "));
}

bool IsWideFloat(DType dtype) { return InfoOf(dtype).is_float() && InfoOf(dtype).bytes > 1; }

// Returns elements of `tensor`: of `like` where it only differs from `from` by a rounding to the
// type `dtype` of `from`, and else of `from`.
BoxElements Unrounded(BoxElements from, DType dtype, BoxElements like, const Tensor& tensor,
                      IsCounted is_counted, NarrowingCounts* counts) {
  return [=, &tensor](int64_t first, int64_t count, void* out) {
    const auto narrow = static_cast<size_t>(InfoOf(dtype).bytes);
    const auto bytes = static_cast<size_t>(InfoOf(tensor.dtype()).bytes);
    std::vector<uint8_t> numbers(static_cast<size_t>(count) * narrow);
    from(first, count, numbers.data());
    like(first, count, out);
    auto* to = static_cast<uint8_t*>(out);
    const uint8_t* number = numbers.data();
    for (const int64_t end = first + count; first < end; ++first, number += narrow, to += bytes) {
      uint64_t same = 0;
      if (Convert(to, tensor.dtype(), dtype, &same) && std::memcmp(&same, number, narrow) == 0) {
        continue;
      }
      if (!Convert(number, dtype, tensor.dtype(), to)) {
        throw Error(ExitCode::kUsage,
                    fmt::format("`{}` has the value {}, which {} cannot hold", tensor.path(),
                                NumberInText(number, dtype), InfoOf(tensor.dtype()).name));
      }
      if (!is_counted(first)) continue;
      ++counts->changed;
      const bool is_exact =
          Convert(to, tensor.dtype(), dtype, &same) && std::memcmp(&same, number, narrow) == 0;
      counts->rounded += !is_exact;
    }
  };
}

// Returns whether an element of a tensor of this shape is in the box.
IsCounted IsIn(const Box& box, const Shape& shape) {
  if (box == WholeOf(shape)) return [](int64_t) { return true; };
  return [box, shape](int64_t element) {
    for (size_t d = shape.size(); d-- > 0; element /= shape[d]) {
      const int64_t at = element % shape[d] - box.offset[d];
      if (at < 0 || at >= box.shape[d]) return false;
    }
    return true;
  };
}

}  // namespace

Requantization::Requantization(const TensorFolder& from, const TensorFolder& like,
                               const std::vector<std::string>& dropped, bool is_fresh)
    : from_(from),
      like_(like),
      is_fresh_(is_fresh),
      in_from_(ByPath(from.plan())),
      in_like_(ByPath(like.plan())) {
  FindWidenings(dropped);
  InitGraph graph = like_.plan().graph;
  std::erase_if(graph.tensors, [&](const Tensor& tensor) {
    return MatchesAny(dropped, std::string(tensor.path()));
  });
  graph.name = from_.plan().graph.name;
  graph.config = WithQuantization(from_.plan().graph.config, graph.config);
  plan_ = MakePlan(std::move(graph));
  RequireSameTensors(dropped);
}

void Requantization::FindWidenings(const std::vector<std::string>& dropped) {
  const auto is_dropped = [&](const std::string& path) { return MatchesAny(dropped, path); };
  try {
    widenings_ =
        shardinit::FindWidenings(like_.plan(), DType::bf16, is_dropped,
                                 [&](const Tensor& each) { return like_.ReadWhole(each); });
  } catch (const Unreadable& e) {
    throw Error(e.code(), fmt::format("`{}`: {}", like_.path(), e.what()),
                "use a folder that `--dtype bf16` can widen; drop a tensor only with its scales");
  }
  if (widenings_.empty()) {
    throw Error(ExitCode::kUsage, fmt::format("`{}` has no quantized tensors", like_.path()),
                "name a folder in the form that the new folder should have");
  }
  for (Widening& widening : widenings_) {
    const Tensor& wide = NeedInFrom(widening.made, widening.made.shape());
    if (!IsWideFloat(wide.dtype())) {
      throw Error(ExitCode::kUsage,
                  fmt::format("`{}` of `{}` is {}, not a floating-point type of 16 bits or more",
                              wide.path(), from_.path(), InfoOf(wide.dtype()).name),
                  "convert it with `--dtype bf16` first");
    }
    widening.made.Edit().dtype = wide.dtype();
    by_numbers_.emplace(widening.numbers().path(), &widening);
    kept_.insert(widening.unused.begin(), widening.unused.end());
    if (is_fresh_) FreshScales(widening, nullptr);  // throws if it is not possible
    for (const auto part : {Widening::kScales, Widening::kZeros, Widening::kGlobal}) {
      std::string path(widening.parts[part].path());
      if (!is_fresh_) {
        kept_.insert(std::move(path));
      } else if (!path.empty()) {
        fresh_parts_.emplace(std::move(path), std::pair(&widening, part));
      }
    }
  }
}

const Tensor& Requantization::NeedInFrom(const Tensor& tensor, const Shape& shape) const {
  const auto found = in_from_.find(tensor.path());
  if (found == in_from_.end()) {
    throw Error(ExitCode::kUsage,
                fmt::format("`{}` has {}, but `{}` does not", like_.path(),
                            Quote(std::string(tensor.path())), from_.path()),
                "both must be one model, with the same names; `--drop` leaves a tensor out");
  }
  const Tensor& there = *found->second;
  if (there.shape() == shape) return there;
  throw Error(
      ExitCode::kUsage,
      fmt::format("`{}` is {} in `{}`, but {} in `{}`", tensor.path(), InForm(there, there.shape()),
                  from_.path(), InForm(tensor, shape), like_.path()),
      "both must be one model, with the same names and shapes");
}

void Requantization::RequireSameTensors(const std::vector<std::string>& dropped) const {
  std::set<std::string_view> wanted;
  for (const Widening& widening : widenings_) wanted.insert(widening.made.path());
  for (const Tensor& tensor : plan_.graph.tensors) {
    const std::string path(tensor.path());
    if (by_numbers_.contains(path) || fresh_parts_.contains(path) || kept_.contains(path)) continue;
    const Tensor& there = NeedInFrom(tensor, tensor.shape());
    wanted.insert(tensor.path());
    if (there.dtype() == tensor.dtype()) continue;
    if (IsWideFloat(there.dtype()) && IsWideFloat(tensor.dtype())) continue;
    throw Error(
        ExitCode::kUsage,
        fmt::format("`{}` is {} in `{}`, but {} in `{}`", path, InForm(there, there.shape()),
                    from_.path(), InForm(tensor, tensor.shape()), like_.path()),
        "both must be one model, with the same names and types");
  }
  for (const auto& [path, tensor] : in_from_) {
    if (wanted.contains(path) || MatchesAny(dropped, std::string(path))) continue;
    throw Error(ExitCode::kUsage,
                fmt::format("`{}` has {}, but `{}` does not", from_.path(),
                            Quote(std::string(path)), like_.path()),
                "both must be one model, with the same names; `--drop` leaves a tensor out");
  }
}

BoxElements Requantization::Checked(const TensorFolder& folder, const Tensor& tensor) {
  {
    const std::lock_guard lock(mutex_);
    if (checked_.insert(&tensor).second) folder.RequireRecorded(tensor);
  }
  return folder.ElementsOf(tensor);
}

std::shared_ptr<const FreshScales> Requantization::FreshScalesOf(const Widening& widening) {
  BoxElements made = Checked(from_, *in_from_.at(widening.made.path()));
  const std::lock_guard lock(mutex_);
  std::weak_ptr<const FreshScales>& known = fresh_[&widening];
  if (auto scales = known.lock()) return scales;
  const auto scales = std::make_shared<const FreshScales>(widening, std::move(made));
  known = scales;
  return scales;
}

BoxElements Requantization::NarrowedElements(const Widening& widening, IsCounted is_counted) {
  std::array<BoxElements, Widening::kParts> stored;
  for (size_t part = 0; part < Widening::kParts; ++part) {
    const std::string_view path = widening.parts[part].path();
    if (!path.empty()) stored[part] = Checked(like_, *in_like_.at(path));
  }
  return Narrow(widening, std::move(stored), Checked(from_, *in_from_.at(widening.made.path())),
                std::move(is_counted), &counts_, is_fresh_ ? FreshScalesOf(widening) : nullptr);
}

BoxElements Requantization::ElementsOf(const Tensor& stored, IsCounted is_counted) {
  const std::string path(stored.path());
  if (const auto found = by_numbers_.find(path); found != by_numbers_.end()) {
    return NarrowedElements(*found->second, std::move(is_counted));
  }
  if (const auto found = fresh_parts_.find(path); found != fresh_parts_.end()) {
    const auto [widening, part] = found->second;
    return [fresh = FreshScalesOf(*widening), part = part](
               int64_t first, int64_t count, void* out) { fresh->Fill(part, first, count, out); };
  }
  const Tensor& like = *in_like_.at(path);
  if (kept_.contains(path)) return Checked(like_, like);
  const Tensor& from = *in_from_.at(path);
  if (from.dtype() == like.dtype()) return Checked(from_, from);
  return Unrounded(Checked(from_, from), from.dtype(), Checked(like_, like), like,
                   std::move(is_counted), &counts_);
}

std::function<void()> Requantization::Open(std::vector<BoxTask>* tasks) {
  for (BoxTask& task : *tasks) {
    const int bytes = InfoOf(task.tensor->dtype()).bytes;
    task.source = [elements = ElementsOf(*task.tensor, IsIn(task.box, task.tensor->shape())),
                   whole = WholeOf(task.tensor->shape()), box = task.box,
                   bytes](int64_t first, int64_t count, void* out) {
      ReadPiece(whole, bytes, box, first, count, out, [&](int64_t offset, int64_t size, void* to) {
        elements(offset / bytes, size / bytes, to);
      });
    };
  }
  return [this] {
    from_.RequireUnchanged();
    like_.RequireUnchanged();
  };
}

}  // namespace shardinit
