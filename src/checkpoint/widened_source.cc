#include "checkpoint/widened_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "checkpoint/cell_cache.h"
#include "quantized/config.h"
#include "quantized/find.h"
#include "tensor/encode.h"

namespace shardinit {
namespace {

constexpr int64_t kCell = 1 << 20;  // bytes

std::vector<double> ReadWhole(const SourceFolder& stored, const Tensor& tensor) {
  const SourceTensorPtr data = stored.Find(std::string(tensor.path()));
  const int64_t bytes = InfoOf(tensor.dtype()).bytes;
  std::vector<uint8_t> elements(static_cast<size_t>(tensor.bytes()));
  CellCache().Read(*data, 0, tensor.elements(), elements.data());
  std::vector<double> numbers;
  for (int64_t at = 0; at < std::ssize(elements); at += bytes) {
    numbers.push_back(Decode(&elements[static_cast<size_t>(at)], tensor.dtype()));
  }
  return numbers;
}

std::deque<Widening> FindIn(const SourceFolder& stored, const Plan& plan) {
  return FindWidenings(
      plan, DType::f32, [](const std::string&) { return false; },
      [&](const Tensor& tensor) { return ReadWhole(stored, tensor); });
}

class WideTensor final : public ComputedTensor {
 public:
  // `owner` keeps `widening` and the cache alive.
  WideTensor(std::string text, const Widening& widening, const SourceFolder& stored,
             std::shared_ptr<const SourceFolder> owner, CellCache& cache)
      : ComputedTensor(std::move(text), DType::f32, widening.made.shape(), kCell),
        owner_(std::move(owner)) {
    std::array<BoxElements, Widening::kParts> readers;
    for (size_t part = 0; part < Widening::kParts; ++part) {
      const std::string path(widening.parts[part].path());
      if (path.empty()) continue;
      parts_.push_back(stored.Find(path));
      readers[part] = [data = parts_.back().get(), &cache](int64_t first, int64_t count,
                                                           void* out) {
        cache.Read(*data, first, count, out);
      };
    }
    elements_ = Widen(widening, std::move(readers));
  }

  const std::string& file() const override { return parts_.front()->file(); }

  void ReadCells(int64_t first, int64_t count, void* out) const override {
    const int64_t begin = first * cell_elements();
    elements_(begin, std::min(count * cell_elements(), elements() - begin), out);
  }

 private:
  const std::shared_ptr<const SourceFolder> owner_;
  std::vector<SourceTensorPtr> parts_;
  BoxElements elements_;
};

class WideFolder final : public SourceFolder, public std::enable_shared_from_this<WideFolder> {
 public:
  WideFolder(std::string name, std::shared_ptr<const SourceFolder> stored, const Plan& plan)
      : name_(std::move(name)), stored_(std::move(stored)) {
    for (Widening& widening : FindIn(*stored_, plan)) {
      for (const Tensor& part : widening.parts) replaced_.emplace(part.path());
      replaced_.insert(widening.unused.begin(), widening.unused.end());
      const std::string path(widening.made.path());
      widenings_.emplace(path, std::move(widening));
    }
  }

  SourceTensorPtr Find(const std::string& name) const override {
    const auto it = widenings_.find(name);
    if (it == widenings_.end()) return replaced_.contains(name) ? nullptr : stored_->Find(name);
    const std::lock_guard lock(mutex_);
    std::weak_ptr<const SourceTensor>& opened = opened_[name];
    if (SourceTensorPtr known = opened.lock()) return known;
    const auto made = std::make_shared<const WideTensor>(
        fmt::format("{} of source {}", Quote(name), Quote(name_)), it->second, *stored_,
        shared_from_this(), cache_);
    opened = made;
    return made;
  }

  std::vector<std::string> Names() const override {
    std::vector<std::string> names = stored_->Names();
    std::erase_if(names, [&](const std::string& name) { return replaced_.contains(name); });
    for (const auto& [name, widening] : widenings_) names.push_back(name);
    return names;
  }

  // A quantized folder has other values if it is not widened.
  std::string pin() const override {
    const std::string stored = stored_->pin();
    if (stored.empty() || widenings_.empty()) return stored;
    return ToHex(Sha256Of(stored + "\nwidened"));
  }
  std::string warning() const override { return stored_->warning(); }

 private:
  const std::string name_;
  const std::shared_ptr<const SourceFolder> stored_;
  std::map<std::string, Widening> widenings_;  // by the path of Widening::made
  std::set<std::string> replaced_;
  mutable CellCache cache_;
  mutable std::mutex mutex_;
  mutable std::map<std::string, std::weak_ptr<const SourceTensor>> opened_;
};

}  // namespace

std::shared_ptr<const SourceFolder> WidenedSource(const SourceRequest& request,
                                                  const std::shared_ptr<const SourceFolder>& stored,
                                                  const Plan& plan) {
  try {
    return std::make_shared<const WideFolder>(request.name, stored, plan);
  } catch (const Unreadable& error) {
    throw Error(error.code(), error.what(), "leave out `quantized` to take the stored tensors");
  }
}

ScaledTensors FindScaled(const SourceFolder& stored, const Plan& plan) {
  ScaledTensors found;
  try {
    for (const Widening& widening : FindIn(stored, plan)) {
      found.by.emplace(widening.numbers().path(), widening.scales().path());
    }
  } catch (const Unreadable& error) {
    found.problem = error.what();
  }
  return found;
}

}  // namespace shardinit
