// `auto`: the sharding that costs least, by the model of shardinit-auto(7).
#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "graph/languages/languages.h"
#include "graph/training.h"
#include "report/text.h"
#include "sharding/search.h"

namespace shardinit {
namespace {

class AutoLanguage : public ShardingLanguage {
 public:
  AutoLanguage(LanguageContext& context, Span place) : context_(context), place_(place) {}

  void Look(const WrittenTensors& drawn, const std::vector<const PartitionSpec*>& fixed) override {
    const ModelSpec& spec = context_.building.spec;
    if (context_.building.diagnostics.HasErrors() || drawn.tensors.empty()) return;
    if (drawn.specs.front() == nullptr || drawn.specs.front()->from) return;  // A layout's.
    Diagnostics heard_before;
    Building building(spec, heard_before);
    const Training training = BindTraining(building, context_.mesh);
    const TrainingStep step = StepOf(drawn, training, context_.mesh, false, spec);
    std::vector<std::optional<AxisCuts>> given(step.model.weights.size());
    for (size_t i = 0; i < drawn.tensors.size(); ++i) {
      if (fixed[i] != nullptr) given[step.weights[i]] = CutsOf(*fixed[i], context_.mesh);
    }
    const SearchResult result = FindSharding(step.model, given, training.memory_per_rank);
    if (result.status != SearchResult::kFound) return Report(result, training);
    for (size_t w = 0; w < result.cuts.size(); ++w) {
      chosen_.push_back(
          PartitionOf(result.cuts[w], step.model.weights[w].shape.size(), step.model));
    }
    for (size_t i = 0; i < drawn.tensors.size(); ++i) {
      weights_.emplace(drawn.tensors[i].path, step.weights[i]);
    }
  }

  bool Cut(const TensorToCut& tensor, Cutting* cutting, ShardingNotes*) override {
    if (tensor.is_view) return true;  // Cut as what it is of.
    const auto weight = weights_.find(tensor.path);
    if (weight == weights_.end()) return true;
    cutting->partition.cuts = chosen_[weight->second].cuts;
    cutting->says_cuts = true;
    return true;
  }

  bool AllowsUneven() const override { return true; }
  bool Chooses() const override { return true; }

 private:
  void Report(const SearchResult& result, const Training& training) {
    if (result.status == SearchResult::kTooMany) {
      return context_.Error(place_, "there are too many ways to cut these tensors to compare all",
                            "name fewer logical axes, or fewer mesh axes for the computation in "
                            "`training`");
    }
    const ExprPtr& memory = context_.building.spec.training.memory_per_rank;
    context_.Error(
        SpanOf(*memory),
        fmt::format("`memory_per_rank` is {}, but each way to cut the tensors gives some "
                    "rank at least {}",
                    InBytes(static_cast<int64_t>(*training.memory_per_rank)),
                    InBytes(static_cast<int64_t>(result.cost.rank_bytes))),
        "use a larger mesh");
  }

  LanguageContext& context_;
  const Span place_;
  std::vector<PartitionSpec> chosen_;                     // Of each weight.
  std::unordered_map<std::string_view, size_t> weights_;  // By the path of a drawn tensor.
};

std::unique_ptr<ShardingLanguage> ReadAuto(LanguageContext& context, const LanguageText& text) {
  if (text.value != nullptr && !context.CheckKeys(*text.value, "auto", {})) return nullptr;
  return std::make_unique<AutoLanguage>(context, text.key);
}

}  // namespace

extern const LanguageRow kAutoLanguage = {
    .name = "auto",
    .description = "all tensors as it costs least in training, by a model of what is sent",
    .is_word = true,
    .read = ReadAuto,
};

}  // namespace shardinit
