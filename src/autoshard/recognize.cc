// Recognizes the blocks of a model by dimension names, widths and paths. Weights that do not fit
// any block are sharded only for storage.
#include <algorithm>
#include <charconv>
#include <deque>
#include <functional>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "autoshard/step.h"
#include "base/checked_math.h"
#include "base/table.h"

namespace shardinit {
namespace {

constexpr struct {
  std::string_view name;
  DimensionName means;
} kNames[] = {
    {"heads", DimensionName::kHeads},
    {"q_heads", DimensionName::kHeads},
    {"kv_heads", DimensionName::kHeads},
    {"joined_kv", DimensionName::kHeads},
    {"mlp", DimensionName::kHidden},
    {"ff", DimensionName::kHidden},
    {"ffn", DimensionName::kHidden},
    {"intermediate", DimensionName::kHidden},
    {"vocab", DimensionName::kVocabulary},
    {"vocab_size", DimensionName::kVocabulary},
    {"table_rows", DimensionName::kVocabulary},
    {"exp", DimensionName::kExperts},
};

bool IsNumber(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == text.npos;
}

// Parts of a tensor's path. `inner` ends with the last number, of a layer or an expert. `layer`
// ends with the layer's number. `expert` is the expert's number.
struct Places {
  std::string_view inner, layer;
  int64_t expert = -1;
};

Places PlacesOf(std::string_view path) {
  Places places;
  size_t at = 0;
  bool after_experts = false;
  for (size_t end; at <= path.size(); at = end + 1) {
    end = std::min(path.find('.', at), path.size());
    const std::string_view part = path.substr(at, end - at);
    if (IsNumber(part)) {
      places.inner = path.substr(0, end);
      if (!after_experts) places.layer = places.inner;
      if (after_experts) std::from_chars(part.data(), part.data() + part.size(), places.expert);
    }
    after_experts = part.find("expert") != part.npos;
  }
  return places;
}

// Counts distinct names by their hashes, which take 8 bytes each.
class DistinctNames {
 public:
  // Must be called before Settle().
  void Add(std::string_view name) {
    const size_t hash = std::hash<std::string_view>()(name);
    if (hashes_.empty() || hashes_.back() != hash) hashes_.push_back(hash);
  }
  void Settle() {
    std::ranges::sort(hashes_);
    hashes_.erase(std::unique(hashes_.begin(), hashes_.end()), hashes_.end());
  }
  int64_t count() const { return std::ssize(hashes_); }
  int64_t CountOutside(const DistinctNames& other) const {
    return std::ranges::count_if(
        hashes_, [&](size_t hash) { return !std::ranges::binary_search(other.hashes_, hash); });
  }

 private:
  std::vector<size_t> hashes_;
};

double Product(const Shape& shape, const std::vector<size_t>& dimensions) {
  double product = 1;
  for (const size_t d : dimensions) product *= static_cast<double>(shape[d]);
  return product;
}

// Makes experts of a layer in separate tensors look like one stacked tensor.
void ListExperts(const StepTensors& for_each_tensor, StepModel* model) {
  std::vector<std::set<std::string_view>> layers(model->weights.size());
  std::vector<int64_t> experts(model->weights.size());
  for_each_tensor([&](const StepTensor& tensor) {
    const Places places = PlacesOf(tensor.path);
    if (places.expert < 0) return;
    layers[tensor.weight].insert(places.layer);
    ++experts[tensor.weight];
  });
  for (size_t w = 0; w < layers.size(); ++w) {
    StepWeight& weight = model->weights[w];
    const bool is_stack = std::ranges::any_of(
        weight.batch, [&](size_t d) { return weight.names[d] == DimensionName::kExperts; });
    if (layers[w].empty() || is_stack) continue;
    weight.is_list = true;
    weight.shape.insert(weight.shape.begin(), CeilDiv(experts[w], std::ssize(layers[w])));
    weight.names.insert(weight.names.begin(), DimensionName::kExperts);
    for (auto* dimensions : {&weight.in, &weight.out, &weight.batch}) {
      for (size_t& d : *dimensions) ++d;
    }
    weight.batch.insert(weight.batch.begin(), 0);
  }
}

// Counts the tensors of each weight, and the layers, on each stage.
void CountTensors(const StepTensors& for_each_tensor, size_t stages, StepModel* model) {
  std::vector<DistinctNames> layers(stages);
  for (StepWeight& weight : model->weights) weight.held.resize(stages);
  // Tensors that all stages hold are counted once, because there may be as many stages as tensors.
  DistinctNames layers_of_all;
  std::vector<double> held_by_all(model->weights.size());
  for_each_tensor([&](const StepTensor& tensor) {
    StepWeight& weight = model->weights[tensor.weight];
    const Places places = PlacesOf(tensor.path);
    weight.is_in_layer |= !places.inner.empty();
    const double part = weight.is_list ? 1 / static_cast<double>(weight.shape[0]) : 1;
    weight.count += part;
    if (tensor.stages.empty()) {
      held_by_all[tensor.weight] += part;
      if (!places.layer.empty()) layers_of_all.Add(places.layer);
    }
    for (const size_t s : tensor.stages) {
      weight.held[s] += part;
      if (!places.layer.empty()) layers[s].Add(places.layer);
    }
  });
  layers_of_all.Settle();
  for (size_t w = 0; w < model->weights.size(); ++w) {
    for (double& held : model->weights[w].held) held += held_by_all[w];
  }
  model->layers.clear();
  for (size_t s = 0; s < stages; ++s) {
    layers[s].Settle();
    const int64_t own = layers[s].CountOutside(layers_of_all);
    model->layers.push_back(std::max(1., static_cast<double>(own + layers_of_all.count())));
    for (const StepWeight& weight : model->weights) {
      if (weight.held[s] > 0) model->layers[s] = std::max(model->layers[s], weight.layers);
    }
  }
}

// Drops stages that do not exceed another stage in anything: they never decide the cost.
void KeepFullest(size_t stages, StepModel* model) {
  const auto is_below = [&](size_t s, size_t other) {
    return model->layers[s] <= model->layers[other] &&
           std::ranges::all_of(model->weights, [&](const auto& weight) {
             return weight.held[s] <= weight.held[other];
           });
  };
  std::vector<size_t> kept;
  for (size_t s = 0; s < stages; ++s) {
    if (std::ranges::any_of(kept, [&](size_t k) { return is_below(s, k); })) continue;
    std::erase_if(kept, [&](size_t k) { return is_below(k, s); });
    kept.push_back(s);
  }
  const auto keep = [&](std::vector<double>* of_stages) {
    std::vector<double> left;
    for (const size_t s : kept) left.push_back((*of_stages)[s]);
    *of_stages = std::move(left);
  };
  for (StepWeight& weight : model->weights) keep(&weight.held);
  keep(&model->layers);
}

class Recognizer {
 public:
  Recognizer(const StepTensors& tensors, size_t stages, StepModel* model)
      : model_(*model), blocks_(model->weights.size()) {
    std::iota(blocks_.begin(), blocks_.end(), size_t{0});
    ListExperts(tensors, model);
    for (StepWeight& weight : model_.weights) Measure(&weight);
    CountTensors(tensors, stages, model);
    Join(tensors);
    MakeBlocks();
    KeepFullest(stages, model);
  }

 private:
  // Joins the weights of one layer that have heads, hidden units or experts into a block.
  void Join(const StepTensors& for_each_tensor) {
    struct Member {
      std::string_view layer;
      DimensionName kind;
      uint32_t weight;
    };
    // For consecutive tensors of one layer, store only the first.
    std::deque<Member> firsts;
    std::map<DimensionName, Member> latest;
    for_each_tensor([&](const StepTensor& tensor) {
      const DimensionName kind = KindOf(model_.weights[tensor.weight]);
      if (kind == DimensionName::kNone || kind == DimensionName::kVocabulary) return;
      const Member member = {PlacesOf(tensor.path).inner, kind,
                             static_cast<uint32_t>(tensor.weight)};
      const auto [last, is_first] = latest.try_emplace(kind, member);
      if (!is_first && last->second.layer == member.layer) {
        MergeBlocks(last->second.weight, member.weight);
      } else {
        firsts.push_back(member);
        last->second = member;
      }
    });
    const auto layer_of = [](const Member& member) { return std::pair(member.kind, member.layer); };
    std::ranges::sort(firsts, {}, layer_of);
    for (size_t k = 1; k < firsts.size(); ++k) {
      if (layer_of(firsts[k - 1]) == layer_of(firsts[k])) {
        MergeBlocks(firsts[k - 1].weight, firsts[k].weight);
      }
    }
  }

  int64_t TopK() const { return model_.training.experts_per_token; }

  void Measure(StepWeight* weight) {
    weight->split_sends.assign(weight->shape.size(), -1);
    weight->fused.assign(weight->shape.size(), 1);
    // One number per head, as in relative positions, is not a matrix that activations are
    // multiplied by.
    for (size_t d = 0; d < weight->shape.size() && weight->shape.size() == 2; ++d) {
      if (weight->names[d] != DimensionName::kHeads || !Contains(weight->in, d)) continue;
      if (weight->shape[d] == model_.training.heads) weight->in = weight->out = {};
    }
    double experts = 1;
    for (const size_t d : weight->batch) {
      if (weight->names[d] == DimensionName::kExperts) {
        weight->experts = static_cast<int>(d);
        experts = static_cast<double>(weight->shape[d]);
      } else {
        weight->layers *= static_cast<double>(weight->shape[d]);
      }
    }
    weight->is_in_layer = weight->layers > 1;
    if (weight->experts >= 0) weight->share = static_cast<double>(std::max<int64_t>(TopK(), 1));
    if (!weight->is_matrix()) return;
    weight->inputs = weight->is_table ? 0 : Product(weight->shape, weight->in);
    weight->outputs = Product(weight->shape, weight->out);
    if (weight->is_table) return;
    weight->operations =
        static_cast<double>(ElementCount(weight->shape)) / experts / weight->layers;
    for (const double width : {weight->inputs, weight->outputs}) {
      widths_[width].push_back(static_cast<double>(weight->element_bytes));
    }
  }

  // Returns the dimension name by which a weight joins others in a block.
  static DimensionName KindOf(const StepWeight& weight) {
    if (weight.experts >= 0) return DimensionName::kExperts;
    for (const DimensionName name : weight.names) {
      if (name != DimensionName::kNone && name != DimensionName::kExperts) return name;
    }
    return DimensionName::kNone;
  }

  size_t RootOf(size_t w) const {
    while (blocks_[w] != w) w = blocks_[w];
    return w;
  }
  void MergeBlocks(size_t a, size_t b) {
    blocks_[std::max(RootOf(a), RootOf(b))] = std::min(RootOf(a), RootOf(b));
  }

  void MakeBlocks() {
    std::map<size_t, std::vector<size_t>> members;
    std::vector<size_t> matrices, vectors;
    for (size_t w = 0; w < blocks_.size(); ++w) members[RootOf(w)].push_back(w);
    for (auto& [root, weights] : members) {
      StepBlock block;
      block.weights = weights;
      const DimensionName kind = KindOf(model_.weights[root]);
      if (kind == DimensionName::kVocabulary ? Vocabulary(&block)
          : kind != DimensionName::kNone     ? Pair(kind, &block)
                                             : false) {
        Add(std::move(block));
        continue;
      }
      for (const size_t w : weights) {
        (model_.weights[w].is_matrix() ? matrices : vectors).push_back(w);
      }
    }
    if (!matrices.empty()) Add({.kind = "other", .weights = std::move(matrices)});
    if (!vectors.empty()) Add({.kind = "vectors", .weights = std::move(vectors)});
    for (const auto& [width, bytes] : widths_) {
      if (bytes.size() <= widths_[model_.width].size()) continue;
      model_.width = width;
      model_.width_bytes = bytes.front();
    }
  }

  void Add(StepBlock block) {
    for (const size_t w : block.weights) {
      model_.weights[w].block = static_cast<int>(model_.blocks.size());
    }
    model_.blocks.push_back(std::move(block));
  }

  // Recognizes a table, or a head, which makes logits.
  bool Vocabulary(StepBlock* block) {
    StepWeight& weight = model_.weights[block->weights.front()];
    if (!weight.is_matrix()) return false;
    const bool is_tied = weight.is_table && !HasHead();
    for (size_t d = 0; d < weight.shape.size(); ++d) {
      const bool is_vocabulary = weight.names[d] == DimensionName::kVocabulary;
      if (weight.is_table && is_vocabulary && Contains(weight.in, d)) {
        weight.split_sends[d] = (is_tied ? 4 : 2) * weight.outputs;
        if (is_tied) weight.logits = static_cast<double>(weight.shape[d]);
      } else if (weight.is_table && !is_tied && Contains(weight.out, d)) {
        weight.split_sends[d] = weight.outputs;
      } else if (!weight.is_table && is_vocabulary && Contains(weight.out, d)) {
        weight.split_sends[d] = 2 * weight.inputs;
      }
    }
    if (is_tied) weight.operations = static_cast<double>(ElementCount(weight.shape));
    block->kind = weight.is_table ? "table" : "head";
    return true;
  }

  bool HasHead() const {
    return std::ranges::any_of(model_.weights, [](const StepWeight& weight) {
      return !weight.is_table && weight.is_matrix() && KindOf(weight) == DimensionName::kVocabulary;
    });
  }

  // Recognizes matrices sharded by columns, then by rows: the latter contract the outputs of the
  // former.
  bool Pair(DimensionName kind, StepBlock* block) {
    const bool of_experts = kind == DimensionName::kExperts;
    const DimensionName inner = of_experts ? DimensionName::kHidden : kind;
    int columns = 0, rows = 0;
    std::set<int64_t> contracted, experts;
    bool is_clear = true;
    for (const size_t w : block->weights) {
      const StepWeight& weight = model_.weights[w];
      if (of_experts) experts.insert(weight.shape[static_cast<size_t>(weight.experts)]);
      for (const size_t d : Named(weight, inner)) {
        columns += Contains(weight.out, d);
        if (Contains(weight.in, d)) contracted.insert(weight.shape[d]);
        rows += Contains(weight.in, d);
        // The pair does not explain a matrix whose dimension is in neither place.
        is_clear &= !weight.is_matrix() || Contains(weight.out, d) || Contains(weight.in, d);
      }
      is_clear &= Named(weight, inner).size() <= 1;
    }
    if (columns == 0 || rows == 0 || experts.size() > 1) return false;
    block->kind = of_experts ? "experts" : kind == DimensionName::kHeads ? "attention" : "mlp";
    if (of_experts) block->experts = *experts.begin();
    if (kind == DimensionName::kHeads) {
      const int64_t of_heads = std::gcd(model_.training.heads, model_.training.kv_heads);
      block->units = std::max<int64_t>(of_heads, 1);
    }
    is_clear &= Fuse(*block, inner, contracted);
    for (const size_t w : block->weights) {
      StepWeight& weight = model_.weights[w];
      if (of_experts && weight.is_matrix()) weight.route_sends = RouteSends(weight, columns);
      if (!is_clear) continue;
      for (const size_t d : Named(weight, inner)) {
        weight.split_sends[d] = Contains(weight.in, d) ? 4 * weight.outputs : 0;
      }
    }
    return true;
  }

  static std::vector<size_t> Named(const StepWeight& weight, DimensionName name) {
    std::vector<size_t> found;
    for (size_t d = 0; d < weight.names.size(); ++d) {
      if (weight.names[d] == name) found.push_back(d);
    }
    return found;
  }

  // Computes how many contracted widths each tensor produces. Returns false if hidden units are not
  // a multiple of the contracted width, or if heads do not fit the block's units.
  bool Fuse(const StepBlock& block, DimensionName inner, const std::set<int64_t>& contracted) {
    const bool of_heads = inner == DimensionName::kHeads;
    for (const size_t w : block.weights) {
      StepWeight& weight = model_.weights[w];
      for (const size_t d : Named(weight, inner)) {
        const int64_t extent = weight.shape[d];
        const bool is_multiple =
            contracted.size() == 1 && *contracted.begin() > 0 && extent % *contracted.begin() == 0;
        if (of_heads ? extent % block.units != 0 : !is_multiple) return false;
        if (is_multiple) weight.fused[d] = extent / *contracted.begin();
      }
    }
    return true;
  }

  static double RouteSends(const StepWeight& weight, int columns) {
    for (const size_t d : weight.out) {
      if (weight.names[d] == DimensionName::kHidden) return 2 * weight.inputs / columns;
    }
    return 2 * weight.outputs;
  }

  StepModel& model_;
  std::vector<size_t> blocks_;  // for each weight another one of its block, or itself
  std::map<double, std::vector<double>> widths_;  // widths of matrices, and their element sizes
};

}  // namespace

DimensionName DimensionNamed(std::string_view name) {
  for (const auto& [known, means] : kNames) {
    if (known == name) return means;
  }
  return name.find("expert") != name.npos ? DimensionName::kExperts : DimensionName::kNone;
}

int64_t ExpertOf(std::string_view path) { return PlacesOf(path).expert; }

void Recognize(const StepTensors& for_each_tensor, size_t stages, StepModel* model) {
  Recognizer(for_each_tensor, stages, model);
}

bool StepWeight::MaySplit() const {
  return std::ranges::any_of(split_sends, [](double sends) { return sends >= 0; });
}

}  // namespace shardinit
