// `auto`: chooses the sharding of least cost, by the model of shardinit-auto(7).
#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

#include "autoshard/choose.h"
#include "graph/languages/languages.h"
#include "graph/sharded/training.h"
#include "report/text.h"

namespace shardinit {
namespace {

class AutoLanguage : public ShardingLanguage {
 public:
  AutoLanguage(LanguageContext& context, Span place) : context_(context), place_(place) {}

  void Look(const WrittenTensors& drawn, const std::vector<const PartitionSpec*>& fixed) override {
    if (context_.building.diagnostics.HasErrors() || drawn.tensors.empty()) return;
    // Only drawn tensors count. Tensors of a layout are views or are kept.
    if (drawn.specs.front() == nullptr || drawn.specs.front()->from) return;
    const Training& training = *context_.building.training;
    const TrainingStep step = StepOf(drawn, training, context_.mesh, false);
    if (const auto missing = MissingForChoice(step.model)) {
      context_.Error(place_, "`auto` cannot choose: " + missing->what, missing->hint);
      return;
    }
    FixedPlacements given(step.model.weights.size());
    for (size_t i = 0; i < drawn.tensors.size(); ++i) {
      const size_t w = step.weights[i];
      if (fixed[i] != nullptr)
        given[w] = PlacementsOf(*fixed[i], step.model, step.model.weights[w]);
    }
    const Choice choice = Choose(step.model, given);
    if (choice.status != Choice::kFound) return Report(choice, training);
    std::vector<std::vector<AxisStrategy>> uses(choice.placements.size());
    for (const StepBlock& block : step.model.blocks) {
      BlockPlacements placements;
      for (const size_t w : block.weights) placements.push_back(choice.placements[w]);
      const auto of_block = UsesOf(step.model, block, placements);
      for (size_t i = 0; i < placements.size(); ++i) uses[block.weights[i]] = of_block[i];
    }
    for (size_t i = 0; i < drawn.tensors.size(); ++i) {
      const std::string_view path = drawn.tensors[i].path();
      const size_t w = step.weights[i];
      chosen_.emplace(path, PartitionOf(choice.placements[w], uses[w], step.model,
                                        step.model.weights[w], ExpertOf(path)));
    }
  }

  bool Shard(const TensorToShard& tensor, TensorSharding* sharding) override {
    if (tensor.is_view) return true;  // a view inherits its sources' sharding
    const auto chosen = chosen_.find(tensor.path);
    if (chosen == chosen_.end()) return true;
    sharding->partition.dimensions = chosen->second.dimensions;
    sharding->says_sharding = true;
    std::vector<Pin>& pins = sharding->partition.pins;
    for (const Pin& pin : chosen->second.pins) {
      const auto is_known = [&](const Pin& other) { return other.axis == pin.axis; };
      if (std::ranges::none_of(pins, is_known)) pins.push_back(pin);
    }
    std::ranges::sort(pins);
    return true;
  }

  bool AllowsUneven() const override { return true; }
  bool Chooses() const override { return true; }

 private:
  void Report(const Choice& choice, const Training& training) {
    if (choice.status == Choice::kTooMany) {
      context_.Error(place_, "these tensors can be sharded in too many ways to compare them all",
                     "use a mesh of fewer axes");
      return;
    }
    const ExprPtr& memory = context_.building.spec.training.memory_per_rank;
    context_.Error(
        memory == nullptr ? place_ : SpanOf(*memory),
        fmt::format("`memory_per_rank` is {}{}, but weights, gradients, the optimizer's "
                    "state and activations are at least {} on some rank",
                    InBytes(static_cast<int64_t>(training.memory / kCountedMemory)),
                    training.says_memory ? "" : " by default",
                    InBytes(static_cast<int64_t>(choice.cost.memory))),
        "use a larger mesh, or fewer `tokens`; 5% of the memory is reserved for other data");
  }

  LanguageContext& context_;
  const Span place_;
  std::unordered_map<std::string_view, PartitionSpec> chosen_;  // by path of a drawn tensor
};

std::unique_ptr<ShardingLanguage> ReadAuto(LanguageContext& context, const LanguageText& text) {
  if (text.value != nullptr && !context.CheckKeys(*text.value, "auto", {})) return nullptr;
  return std::make_unique<AutoLanguage>(context, text.key);
}

}  // namespace

extern const LanguageRow kAutoLanguage = {
    .name = "auto",
    .description =
        "the sharding of all tensors that costs least in training, among strategies that trainers "
        "can run",
    .is_word = true,
    .read = ReadAuto,
};

}  // namespace shardinit
