// Pipeline parallelism: which ranks of a mesh axis hold a layer. As in Megatron
// (core/transformer/transformer_layer.py) and torchtitan (distributed/pipeline_parallel.py), layers
// are assigned to stages in order, and virtual stages to ranks in turn. In both, the first stage's
// tensors before the layers and the last stage's tensors after them can count as a number of
// layers.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "base/parse_number.h"
#include "base/text.h"
#include "graph/languages/languages.h"
#include "graph/languages/stages.h"
#include "graph/languages/tensor_patterns.h"
#include "report/text.h"

namespace shardinit {
namespace {

constexpr int64_t kMostLayers = 1'000'000;
constexpr std::string_view kLayerEnd = ".*.**";  // end of a pattern of layers

class PipelineLanguage : public OnceLanguage {
 public:
  struct Text {
    Span place;
    int axis = -1;  // -1: an error
    std::vector<Located<std::string>> layers, first, last;
    std::vector<int64_t> ranks;  // of each layer
    int64_t first_rank = 0, last_rank = 0;
  };

  PipelineLanguage(LanguageContext& context, Text text)
      : OnceLanguage(context), text_(std::move(text)), layers_(text_.layers), ends_([&] {
          std::vector<Located<std::string>> all = text_.first;
          all.insert(all.end(), text_.last.begin(), text_.last.end());
          return all;
        }()) {}

  bool Shard(const TensorToShard& tensor, TensorSharding* sharding) override {
    if (tensor.path.empty()) return true;
    if (text_.axis < 0) return false;
    if (sharding->is_pinned) return true;  // a view is on the same ranks as its sources
    std::set<int64_t> ranks;
    std::string why;
    for (const size_t end : ends_.Match(tensor.path)) {
      const bool is_first = end < text_.first.size();
      ranks.insert(is_first ? text_.first_rank : text_.last_rank);
      why += fmt::format("{}{}: {}", why.empty() ? "" : ", ", is_first ? "first" : "last",
                         ends_.all()[end].value);
    }
    if (const auto layer = LayerOf(tensor.path)) {
      if (*layer >= std::ssize(text_.ranks)) {
        return ReportOnce(text_.place,
                          fmt::format("`{}` belongs to layer {}, but `count` is {}", tensor.path,
                                      *layer, text_.ranks.size()),
                          "`count` is the number of layers, counted from 0");
      }
      ranks.insert(text_.ranks[static_cast<size_t>(*layer)]);
      why = fmt::format("layer {}", *layer);
    }
    if (ranks.empty() && ends_.all().empty()) {
      if (const auto is_before = IsBeforeLayers(tensor.path)) {
        ranks.insert(*is_before ? text_.first_rank : text_.last_rank);
        why = *is_before ? "before the layers" : "after the layers";
      }
    }
    if (ranks.empty()) {
      if (context_.lacks_tensors) return false;  // the tensor's path may be wrong
      return ReportOnce(text_.place, fmt::format("no stage has `{}`", tensor.path),
                        "name it under `first` or `last`, or its layers under `layers`");
    }
    // A pin to all ranks is redundant.
    sharding->is_pinned = true;
    if (std::ssize(ranks) < context_.mesh.shape[static_cast<size_t>(text_.axis)]) {
      std::vector<Pin>& pins = sharding->partition.pins;
      pins.push_back({text_.axis, {ranks.begin(), ranks.end()}});
      std::ranges::sort(pins);
    }
    context_.building.why.Note([&](Explanation& notes) {
      notes.pins.push_back({context_.mesh.axes[static_cast<size_t>(text_.axis)],
                            {},
                            fmt::format("{}, by {}", fmt::join(ranks, ", "), why),
                            text_.place});
    });
    return true;
  }

  bool Pins() const override { return true; }

  void CheckUse() override {
    if (context_.lacks_tensors || text_.axis < 0) return;
    layers_.CheckUse(context_.building, context_.mesh);
    ends_.CheckUse(context_.building, context_.mesh);
  }

 private:
  // Returns the number at the position of the pattern's last `*`.
  std::optional<int64_t> LayerOf(std::string_view path) {
    for (const size_t match : layers_.Match(path)) {
      std::string_view before = layers_.all()[match].value;
      before.remove_suffix(kLayerEnd.size());
      for (size_t dot = path.find('.'); dot != path.npos; dot = path.find('.', dot + 1)) {
        if (!PathMatches(before, path.substr(0, dot))) continue;
        const size_t end = std::min(path.find('.', dot + 1), path.size());
        if (const auto layer = ParseNumber<int64_t>(path.substr(dot + 1, end - dot - 1)))
          return layer;
      }
    }
    return {};
  }

  // Returns whether a tensor outside all layers is declared before the layers, not after.
  std::optional<bool> IsBeforeLayers(std::string_view path) {
    if (!order_) {
      order_.emplace();
      bool met_layers = false;
      const auto declared = DeclaredPaths(context_.building, context_.mesh);
      for (const DeclaredPath& of : declared) {
        if (!of.is_drawn) break;  // views are on the same ranks as their sources
        const bool is_layer = LayerOf(of.path).has_value();
        met_layers |= is_layer;
        if (!is_layer) order_->emplace(WithoutNumbers(of.path), !met_layers);
      }
    }
    const auto found = order_->find(WithoutNumbers(path));
    return found == order_->end() ? std::nullopt : std::optional(found->second);
  }

  const Text text_;
  TensorPatterns layers_, ends_;
  std::optional<std::map<std::string, bool>> order_;
};

class PipelineReader {
 public:
  PipelineReader(LanguageContext& context, const LanguageText& text)
      : context_(context), map_(*text.value), key_(text.key) {}

  std::unique_ptr<ShardingLanguage> Read() {
    const size_t before = context_.building.Reported();
    if (!context_.CheckKeys(map_, "pipeline",
                            {"axis", "layers", "count", "first", "last", "virtual", "style",
                             "stages", "first_counts_as", "last_counts_as", "layers_in_first",
                             "layers_in_last", "remainder"})) {
      return nullptr;
    }
    PipelineLanguage::Text text;
    text.place = key_;
    const std::vector<int> axes = context_.Axes(map_.Find("axis"), "pipe", key_);
    if (axes.size() > 1) context_.Error(map_.Find("axis")->span, "a pipeline has one mesh axis");
    for (const Node::Entry& entry : map_.entries) {
      if (entry.key->text == "layers") text.layers = LayerPatterns(entry);
      if (entry.key->text == "first") text.first = context_.Patterns(entry);
      if (entry.key->text == "last") text.last = context_.Patterns(entry);
    }
    for (const std::string_view key : {"layers", "count"}) {
      if (map_.Find(key) != nullptr) continue;
      context_.Error(key_, fmt::format("`pipeline` has no `{}`", key),
                     "write it as in `{layers: \"model.layers.*\", count: layers}`");
    }
    if (context_.building.Reported() == before && axes.size() == 1) {
      ranks_ = context_.mesh.shape[static_cast<size_t>(axes.front())];
      ReadStages(&text);
    }
    if (context_.building.Reported() == before && !axes.empty() && knows_numbers_) {
      text.axis = axes.front();
    }
    return std::make_unique<PipelineLanguage>(context_, std::move(text));
  }

 private:
  // Reads patterns; `layers.*` is short for `layers.*.**`.
  std::vector<Located<std::string>> LayerPatterns(const Node::Entry& entry) {
    std::vector<Located<std::string>> patterns = context_.Patterns(entry);
    for (auto& pattern : patterns) {
      if (!pattern.value.ends_with(".*")) {
        context_.Error(pattern.span, fmt::format("{} does not end in `.*`", Quote(pattern.value)),
                       "`layers` names the module of each layer, such as `model.layers.*`");
      }
      pattern.value += kLayerEnd.substr(2);
    }
    return patterns;
  }

  int64_t Integer(std::string_view key, int64_t fallback, int64_t low, int64_t high) {
    const Node::Entry* const entry = map_.FindEntry(key);
    if (entry == nullptr) return fallback;
    return RecordIfUnknown(context_.Integer(*entry, low, high)).value_or(fallback);
  }
  // Records whether a number is unknown. The error that hides it was reported elsewhere.
  std::optional<int64_t> RecordIfUnknown(std::optional<int64_t> number) {
    knows_numbers_ &= number.has_value();
    return number;
  }
  std::string_view Choice(std::string_view key, std::span<const std::string_view> words) {
    const Node::Entry* const entry = map_.FindEntry(key);
    const auto word = entry ? context_.reader.ReadChoice(*entry, words) : std::nullopt;
    knows_numbers_ &= entry == nullptr || word.has_value();
    return word ? *std::ranges::find(words, word->value) : words[0];
  }

  void ReadStages(PipelineLanguage::Text* text) {
    static constexpr std::string_view kStyles[] = {"loop", "v"};
    static constexpr std::string_view kRemainders[] = {"error", "first"};
    const int64_t rounds = Integer("virtual", 1, 1, 1024);
    const bool is_v = Choice("style", kStyles) == "v";
    StageCounts counts;
    counts.ranks = ranks_;
    counts.rounds = rounds;
    counts.layers = Integer("count", 0, 0, kMostLayers);
    counts.before = Integer("first_counts_as", 0, 0, 1000);
    counts.behind = Integer("last_counts_as", 0, 0, 1000);
    if (map_.Find("layers_in_first") != nullptr) {
      counts.in_first = Integer("layers_in_first", 1, 1, kMostLayers);
    }
    if (map_.Find("layers_in_last") != nullptr) {
      counts.in_last = Integer("layers_in_last", 1, 1, kMostLayers);
    }
    counts.remainder = Choice("remainder", kRemainders) == "first";
    if (!knows_numbers_ || !CheckOneWay(counts, is_v)) return;
    const auto stages = StagesOf(counts);
    if (!stages) return;
    // Megatron's virtual stages go round the ranks. In a V, every other round goes backwards.
    const auto rank_of = [&](int64_t stage) {
      const int64_t rank = stage % ranks_;
      return is_v && stage / ranks_ % 2 == 1 ? ranks_ - 1 - rank : rank;
    };
    for (const int64_t stage : *stages) text->ranks.push_back(rank_of(stage));
    text->first_rank = rank_of(0);
    text->last_rank = rank_of(counts.stages() - 1);
  }

  // Checks that a spec uses only one way to specify how many layers the stages have.
  bool CheckOneWay(const StageCounts& counts, bool is_v) {
    const std::pair<std::string_view, bool> by_parts[] = {{"first_counts_as", counts.before != 0},
                                                          {"last_counts_as", counts.behind != 0},
                                                          {"remainder", counts.remainder}};
    const std::pair<std::string_view, bool> by_ranks[] = {
        {"layers_in_first", counts.in_first.has_value()},
        {"layers_in_last", counts.in_last.has_value()}};
    const std::pair<std::string_view, bool> listed[] = {{"stages", map_.Find("stages") != nullptr}};
    const std::pair<std::string_view, bool> in_a_v[] = {{"style", is_v}};
    const auto check = [&](const auto& some, const auto& others) -> bool {
      for (const auto& [key, is_said] : some) {
        for (const auto& [other, is_other_said] : others) {
          if (!is_said || !is_other_said) continue;
          return context_.Error(
              map_.FindEntry(key)->key->span,
              fmt::format("`{}` and `{}` exclude each other", key, other),
              "`stages` lists the number of layers of each stage, as in `[9, 8, 8, 7]`");
        }
      }
      return true;
    };
    return check(by_ranks, by_parts) && check(by_ranks, in_a_v) && check(by_ranks, listed) &&
           check(by_parts, listed);
  }

  // Returns the stage of each layer.
  std::optional<std::vector<int64_t>> StagesOf(const StageCounts& counts) {
    std::vector<int64_t> of_stage;
    const Node* written = map_.Find("stages");
    if (written == nullptr) {
      std::string problem;
      const auto distributed = Distribute(counts, &problem);
      if (!distributed) {
        const Node* count = map_.Find("count");
        const bool says_ranks = counts.in_first || counts.in_last;
        const bool leaves_some =
            (counts.layers + counts.before + counts.behind) % counts.stages() != 0;
        return context_.Error(
            count->span, std::move(problem),
            fmt::format(
                "list the number of layers of each, as in `stages: [9, 8, 8, 7]`{}",
                says_ranks || counts.remainder || !leaves_some ? "" : ", or `remainder: first`"));
      }
      of_stage = *distributed;
    } else if (!written->IsSequence()) {
      return context_.Error(written->span,
                            fmt::format("`stages` takes a list, not {}", Describe(*written)),
                            "list the number of layers of each stage, as in `[9, 8, 8, 7]`");
    } else if (std::ranges::any_of(written->entries, [](const Node::Entry& item) {
                 return item.value->IsSequence();
               })) {
      return ListedStages(*written, counts);
    } else {
      for (const ExprPtr& expr :
           context_.reader.ReadExprList(*map_.FindEntry("stages"), "a number of layers")) {
        const auto count =
            expr == nullptr ? std::nullopt : context_.Integer(*expr, 0, kMostLayers, "a stage");
        if (!RecordIfUnknown(count)) return {};
        of_stage.push_back(*count);
      }
      if (!CheckStages(*written, of_stage.size(), counts)) return {};
      const int64_t sum = std::accumulate(of_stage.begin(), of_stage.end(), int64_t{0});
      if (sum != counts.layers) {
        return context_.Error(
            written->span,
            fmt::format("the stages have {} layers, but there are {}", sum, counts.layers));
      }
    }
    std::vector<int64_t> stages;
    for (size_t s = 0; s < of_stage.size(); ++s) {
      stages.insert(stages.end(), static_cast<size_t>(of_stage[s]), static_cast<int64_t>(s));
    }
    return stages;
  }

  // Reads `[[0, 1], [2, 3, 5], [4]]`, the layers of each stage.
  std::optional<std::vector<int64_t>> ListedStages(const Node& written, const StageCounts& counts) {
    if (!CheckStages(written, written.entries.size(), counts)) return {};
    std::vector<int64_t> stages(static_cast<size_t>(counts.layers), -1);
    for (size_t s = 0; s < written.entries.size(); ++s) {
      const Node& list = *written.entries[s].value;
      if (!list.IsSequence()) {
        return context_.Error(list.span, "a list of stages has either numbers or lists of layers");
      }
      for (const ExprPtr& expr :
           context_.reader.ReadExprList({map_.FindEntry("stages")->key, &list}, "a layer")) {
        const auto layer = expr == nullptr
                               ? std::nullopt
                               : context_.Integer(*expr, 0, counts.layers - 1, "a layer");
        if (!RecordIfUnknown(layer)) return {};
        if (stages[static_cast<size_t>(*layer)] >= 0) {
          return context_.Error(SpanOf(*expr),
                                fmt::format("layer {} is on two stages, {} and {}", *layer,
                                            stages[static_cast<size_t>(*layer)], s));
        }
        stages[static_cast<size_t>(*layer)] = static_cast<int64_t>(s);
      }
    }
    const auto missing = std::ranges::find(stages, -1);
    if (missing == stages.end()) return stages;
    return context_.Error(written.span,
                          fmt::format("no stage has layer {}", missing - stages.begin()));
  }

  bool CheckStages(const Node& written, size_t stages, const StageCounts& counts) {
    if (std::ssize(written.entries) == counts.stages() && std::cmp_equal(stages, counts.stages())) {
      return true;
    }
    return context_.Error(
        written.span, fmt::format("{} stages are listed, but there are {}: {} ranks × {} virtual",
                                  stages, counts.stages(), ranks_, counts.rounds));
  }

  LanguageContext& context_;
  const Node& map_;
  const Span key_;
  int64_t ranks_ = 1;
  bool knows_numbers_ = true;
};

std::unique_ptr<ShardingLanguage> ReadPipeline(LanguageContext& context, const LanguageText& text) {
  return PipelineReader(context, text).Read();
}

}  // namespace

extern const LanguageRow kPipelineLanguage = {
    .name = "pipeline",
    .description = "layers in stages, over `axis`; for use with languages that shard dimensions",
    .is_word = false,
    .read = ReadPipeline,
};

}  // namespace shardinit
