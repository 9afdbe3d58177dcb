#include "checkpoint/relaid_source.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/sha256.h"
#include "base/suggest.h"
#include "base/text.h"
#include "checkpoint/cell_cache.h"
#include "generate/filler.h"
#include "generate/view.h"
#include "graph/stored/rearrange.h"
#include "plan/load.h"
#include "plan/relayout.h"

namespace shardinit {
namespace {

// The layout with a model's names at Hugging Face. If the spec has no layout of this name, these
// are the names of the spec itself.
constexpr std::string_view kHubLayout = "hub";

// Each cell is made from cells of the stored tensors. If a layout transposes, larger cells read the
// stored cells fewer times.
constexpr int64_t kPlainCell = 1 << 20, kTransposedCell = 4 << 20;

// Copies elements of a stored tensor. Not thread-safe.
class CellsFiller final : public Filler {
 public:
  CellsFiller(const SourceTensor& data, CellCache& cache) : data_(data), cache_(cache) {}

  void Fill(const Runs& runs, int64_t first, int64_t count, void* out) const override {
    const int64_t bytes = InfoOf(data_.dtype()).bytes;
    auto* to = static_cast<uint8_t*>(out);
    for (int64_t done = 0; done < count;) {
      auto [linear, length] = NeighboursAt(runs, first + done, count - done);
      const int64_t cell = linear / data_.cell_elements();
      if (cell != number_) {
        held_ = cache_.Get(data_, cell);
        number_ = cell;
      }
      const int64_t in_cell = linear - cell * data_.cell_elements();
      length = std::min(length, std::ssize(*held_) / bytes - in_cell);
      std::memcpy(to + done * bytes, held_->data() + in_cell * bytes,
                  static_cast<size_t>(length * bytes));
      done += length;
    }
  }

 private:
  const SourceTensor& data_;
  CellCache& cache_;
  mutable int64_t number_ = -1;
  mutable CellCache::Bytes held_;
};

class RelaidTensor final : public ComputedTensor {
 public:
  // `view` refers to the tensors in `data`, by their paths. `owner` keeps these tensors and the
  // cache alive.
  RelaidTensor(std::string text, Tensor view, std::map<std::string, SourceTensorPtr> data,
               std::shared_ptr<const SourceFolder> owner, CellCache& cache)
      : ComputedTensor(std::move(text), view.dtype(), view.shape(),
                       ViewFiller(view, WholeOf(view.shape()), FillerFor(data, cache)).transposes()
                           ? kTransposedCell
                           : kPlainCell),
        view_(std::move(view)),
        data_(std::move(data)),
        owner_(std::move(owner)),
        cache_(cache) {}

  const std::string& file() const override { return data_.begin()->second->file(); }

  Scaled scaled() const override {
    for (const auto& [name, data] : data_) {
      if (Scaled scaled = data->scaled(); !scaled.why.empty()) return scaled;
    }
    return {};
  }

  void ReadCells(int64_t first, int64_t count, void* out) const override {
    const int64_t begin = first * cell_elements();
    const ViewFiller filler(view_, WholeOf(shape()), FillerFor(data_, cache_));
    filler.Fill(begin, std::min(count * cell_elements(), elements() - begin), out);
  }

 private:
  static ViewFiller::FillerFunction FillerFor(const std::map<std::string, SourceTensorPtr>& data,
                                              CellCache& cache) {
    return [&](const Tensor& stored) {
      return std::make_unique<const CellsFiller>(*data.at(std::string(stored.path())), cache);
    };
  }

  const Tensor view_;
  const std::map<std::string, SourceTensorPtr> data_;
  const std::shared_ptr<const SourceFolder> owner_;
  CellCache& cache_;
};

class RelaidSource final : public SourceFolder, public std::enable_shared_from_this<RelaidSource> {
 public:
  RelaidSource(SourceRequest request, std::shared_ptr<const SourceFolder> stored, Relayout plans)
      : request_(std::move(request)),
        stored_(std::move(stored)),
        plans_(std::move(plans)),
        rearrangement_(plans_.from.graph, plans_.to.graph) {
    for (const Tensor& tensor : plans_.to.graph.tensors) tensors_.emplace(tensor.path(), &tensor);
  }

  SourceTensorPtr Find(const std::string& name) const override {
    const auto it = tensors_.find(name);
    if (it == tensors_.end()) return nullptr;
    const std::lock_guard lock(mutex_);
    std::weak_ptr<const SourceTensor>& opened = opened_[name];
    if (SourceTensorPtr known = opened.lock()) return known;
    Tensor view = rearrangement_.ViewOf(*it->second);
    std::map<std::string, SourceTensorPtr> data;
    for (const Piece& piece : view.view()->pieces) {
      if (piece.source == Piece::kPadding) continue;
      const Tensor& of = (*view.view()->drawn)[static_cast<size_t>(piece.source)];
      if (!data.contains(std::string(of.path())))
        data[std::string(of.path())] = stored_->Find(std::string(of.path()));
    }
    const auto made = std::make_shared<const RelaidTensor>(
        fmt::format("{} of source {}", Quote(name), Quote(request_.name)), std::move(view),
        std::move(data), shared_from_this(), cache_);
    opened = made;
    return made;
  }

  std::vector<std::string> Names() const override {
    std::vector<std::string> names;
    for (const auto& [name, tensor] : tensors_) names.push_back(name);
    return names;
  }

  // The pin depends on the layout: the same folder has other values in another one.
  std::string warning() const override { return stored_->warning(); }
  std::string pin() const override {
    const std::string stored = stored_->pin();
    const std::lock_guard lock(mutex_);
    if (pin_.empty() && !stored.empty()) {
      Sha256 hash;
      hash.Update(stored);
      for (const auto& [name, tensor] : tensors_) hash.Update(PlacesOf(name, *tensor));
      pin_ = ToHex(hash.Finish());
    }
    return pin_;
  }

 private:
  // Describes which elements of the folder a tensor has.
  std::string PlacesOf(const std::string& name, const Tensor& tensor) const {
    std::string text = fmt::format("\n{} [{}]", name, fmt::join(tensor.shape(), ", "));
    try {
      AddPlaces(rearrangement_.ViewOf(tensor), &text);
    } catch (const Error&) {
      text += " is not stored";  // Find() throws the error.
    }
    return text;
  }

  static void AddPlaces(const Tensor& tensor, std::string* text) {
    const View& view = *tensor.view();
    for (const Piece& piece : view.pieces) {
      *text += piece.source == Piece::kPadding
                   ? fmt::format("\n{}", piece.padding)
                   : fmt::format("\n{} {}", piece.from,
                                 (*view.drawn)[static_cast<size_t>(piece.source)].path());
      *text += fmt::format(" at {}", piece.base);
      for (const Piece::Loop& loop : piece.loops) {
        *text += fmt::format(", {} {} {}", loop.extent, loop.stride, loop.from);
      }
    }
  }

  const SourceRequest request_;
  const std::shared_ptr<const SourceFolder> stored_;
  const Relayout plans_;
  mutable Rearrangement rearrangement_;
  mutable CellCache cache_;
  std::map<std::string, const Tensor*> tensors_;
  mutable std::mutex mutex_;
  mutable std::map<std::string, std::weak_ptr<const SourceTensor>> opened_;
  mutable std::string pin_;  // empty: not known yet, or none
};

// Returns the file with the spec of the folder's model; empty if it has none.
std::string SpecOf(const SourceRequest& request) {
  if (!request.spec.empty()) return request.spec;
  const std::string config = request.folder + "/config.json";
  return IsFolder(request.folder) && Exists(config) ? config : std::string();
}

std::vector<std::string> LayoutsOf(const std::string& spec) {
  Diagnostics diagnostics;
  SpecRequest of;
  of.path = spec;
  of.is_widened = true;  // only names are needed here
  const auto model = LoadSpec(of, diagnostics);
  diagnostics.ThrowIfErrors();
  std::vector<std::string> names;
  for (const auto& layout : model->layouts) names.push_back(layout.name.value);
  return names;
}

Plan LoadIn(const SourceRequest& request, const std::string& spec, const std::string& layout) {
  PlanRequest wanted;
  wanted.spec.path = spec;
  wanted.spec.is_widened = request.widens;
  wanted.layout = layout;
  wanted.places = Places::kLeast;
  wanted.open_source = [&](const SourceRequest& inner) -> std::shared_ptr<const SourceFolder> {
    throw Error(ExitCode::kUsage,
                fmt::format("the spec of source {} has its own source, {}", Quote(request.name),
                            Quote(inner.name)),
                "give the folder's spec, without that source");
  };
  Diagnostics diagnostics;
  return LoadPlan(wanted, diagnostics);
}

// Returns a plan of the tensors of `stored` that `from` has. Throws Error unless `stored` has all
// of them, with the same shapes.
Plan StoredAs(const SourceRequest& request, const SourceFolder& stored, const Plan& from) {
  InitGraph graph;
  graph.name = from.graph.name;
  for (const Tensor& wanted : from.graph.tensors) {
    const SourceTensorPtr found = stored.Find(std::string(wanted.path()));
    if (found == nullptr) {
      throw Error(ExitCode::kUsage,
                  fmt::format("`{}` has no {}, which the layout {} of {} has", request.folder,
                              Quote(wanted.path()), Quote(request.layout), Quote(from.graph.name)),
                  "give the folder's layout, and the `spec` of the model in it");
    }
    if (found->shape() != wanted.shape()) {
      throw Error(ExitCode::kUsage,
                  fmt::format("{} in `{}` is [{}], but [{}] in the layout {} of {}",
                              Quote(wanted.path()), found->file(), fmt::join(found->shape(), ", "),
                              fmt::join(wanted.shape(), ", "), Quote(request.layout),
                              Quote(from.graph.name)),
                  "give the `spec` of the model that is in the folder, with its sizes");
    }
    Tensor tensor;
    tensor.set_path(wanted.path());
    tensor.Edit().shape = wanted.shape();
    tensor.Edit().dtype = found->dtype();
    tensor.Edit().partition = PartitionSpec(tensor.shape().size());
    graph.tensors.push_back(std::move(tensor));
  }
  return MakePlan(std::move(graph));
}

}  // namespace

std::shared_ptr<const SourceFolder> InLayoutOfSpec(
    const SourceRequest& request, const std::shared_ptr<const SourceFolder>& stored) {
  const std::string spec = SpecOf(request);
  const bool is_hub = request.layout == kHubLayout;
  if (spec.empty()) {
    if (is_hub) return stored;
    throw Error(ExitCode::kUsage,
                fmt::format("`{}` has no config.json, so its layout {} is unknown", request.folder,
                            Quote(request.layout)),
                "give the spec of the model that is in the folder, as `spec` beside `layout`");
  }
  const std::vector<std::string> layouts = LayoutsOf(spec);
  const bool has_layout = std::ranges::find(layouts, request.layout) != layouts.end();
  if (!has_layout && !is_hub) {
    throw Error(ExitCode::kUsage,
                fmt::format("`{}`, the spec of source {}, has no layout {}", spec,
                            Quote(request.name), Quote(request.layout)),
                layouts.empty() ? "it declares none; see `layouts` in shardinit-spec(5)"
                                : DidYouMean(request.layout, layouts));
  }
  Plan to = LoadIn(request, spec, {});
  Plan from = LoadIn(request, spec, has_layout ? request.layout : "");
  const Plan folder = StoredAs(request, *stored, from);
  Relayout plans =
      RelayoutOf(folder, std::move(from), std::move(to), [](const std::string&) { return false; });
  // A source's elements are the elements of its files: this code computes no values.
  if (!plans.changed.empty()) {
    throw Error(
        ExitCode::kUsage,
        fmt::format(
            "the trainer of the layout {} multiplies or adds to values, such as those of {}",
            Quote(request.layout), Quote(plans.changed.front())),
        "convert the folder to `hub` with `shardinit convert … --inexact`, and use the result");
  }
  return std::make_shared<const RelaidSource>(request, stored, std::move(plans));
}

}  // namespace shardinit
