#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "commands/tensor_facts.h"
#include "report/text.h"

namespace shardinit {

std::string Chain(const std::vector<std::string>& parts) {
  std::string text, last;
  for (const std::string& part : parts) {
    if (part.empty() || part == last) continue;
    text += (text.empty() ? "" : " = ") + part;
    last = part;
  }
  return text;
}

std::string InSlices(const Box& box) {
  std::vector<std::string> slices;
  for (size_t d = 0; d < box.shape.size(); ++d) {
    slices.push_back(fmt::format("{}:{}", box.offset[d], box.offset[d] + box.shape[d]));
  }
  return fmt::format("[{}]", fmt::join(slices, ", "));
}

Fact FactOf(const Setting& setting, std::string label, Facts members) {
  members.push_back({"name", setting.name});
  if (!setting.text.empty()) members.push_back({"text", setting.text});
  if (!setting.value.empty()) members.push_back({"value", setting.value});
  return At({"",
             std::move(members),
             {.label = std::move(label), .text = Chain({setting.text, setting.value})}},
            setting.span);
}

namespace {

// Describes the rank's parts of the tensor, and the file that stores them.
Fact FactOfBoxes(const ExplainedTensor& subject) {
  constexpr size_t kMostShown = 4;
  const auto& [plan, why, tensor, rank] = subject;
  const Sharding sharding = plan.ShardingOf(tensor);
  const std::vector<Box> boxes = sharding.BoxesOn(rank);
  const Shape none(tensor.shape().size());
  const int64_t bytes = sharding.ElementsOn(rank) * InfoOf(tensor.dtype()).bytes;
  Facts members = {{"rank", rank},
                   {"coordinate", plan.graph.mesh.CoordinateOf(rank)},
                   {"offset", boxes.empty() ? none : boxes[0].offset},
                   {"shape", boxes.empty() ? none : boxes[0].shape},
                   {"bytes", bytes}};
  FactScalar file;
  std::string text = "nothing of it";
  if (!boxes.empty()) {
    const int64_t storer = sharding.Stores(rank) ? rank : sharding.FirstHolder(rank);
    if (storer == rank) file = RankFile(rank);
    text.clear();
    for (size_t i = 0; i < std::min(boxes.size(), kMostShown); ++i) {
      text += InSlices(boxes[i]) + ", ";
    }
    if (boxes.size() > kMostShown) text += fmt::format("{} more, ", boxes.size() - kMostShown);
    text += fmt::format("{}, {}{}", InBytes(bytes), storer == rank ? "in " : "stored in ",
                        RankFile(storer));
  }
  members.push_back({"file", std::move(file)});
  if (boxes.size() > 1) {
    FactList more;
    for (size_t i = 1; i < boxes.size(); ++i) {
      more.items.push_back({"", Facts{{"offset", boxes[i].offset}, {"shape", boxes[i].shape}}});
    }
    members.push_back({"more", std::move(more)});
  }
  return {
      "box", std::move(members), {.label = fmt::format("rank {}", rank), .text = std::move(text)}};
}

// Lists ways to shard the tensor, each with the resulting cost of all tensors. People see only the
// best ones.
Fact FactOfAlternatives(const ExplainedTensor& subject) {
  constexpr size_t kMostRows = 6;
  FactList list;
  for (const auto& [partition, seconds, padding, memory, fits] : subject.why.alternatives) {
    const std::string text = InText(partition, subject.plan.graph.mesh);
    FactRow row;
    if (list.items.size() < kMostRows) {
      row.label = list.items.empty() ? "  costs" : "";
      row.text = fmt::format("{}: {:.6g} s a step, {} a rank", text, seconds,
                             InBytes(static_cast<int64_t>(memory)));
      if (!fits) row.text += ", too much";
      if (padding > 0) {
        row.text += fmt::format(", {} of padding", InBytes(static_cast<int64_t>(padding)));
      }
    }
    list.items.push_back({"",
                          Facts{{"partition", text},
                                {"seconds", seconds},
                                {"padding", static_cast<int64_t>(padding)},
                                {"memory", static_cast<int64_t>(memory)},
                                {"fits", fits}},
                          std::move(row)});
  }
  return {"alternatives", std::move(list)};
}

}  // namespace

void AddSharding(const ExplainedTensor& subject, Facts* facts) {
  const auto& [plan, why, tensor, rank] = subject;
  const size_t first = facts->size();
  const Sharding sharding = plan.ShardingOf(tensor);
  facts->push_back({"partition",
                    InText(tensor.partition(), plan.graph.mesh),
                    {.label = "partition", .place = PlaceOf(why.shard)}});
  if (why.shard.source != nullptr) {
    facts->push_back({"shard", PlaceOf(why.shard)});
  }
  if (why.stage.source != nullptr) {
    std::string text = tensor.partition().pins.empty() ? "all ranks" : "";
    for (const Pin& pin : tensor.partition().pins) {
      text += fmt::format("{}{} {}", text.empty() ? "" : ", ", plan.graph.mesh.axes[pin.axis],
                          fmt::join(pin.indices, " and "));
    }
    const std::string place = PlaceOf(why.stage);
    facts->push_back(
        {"stage", place, {.label = "  stage", .text = std::move(text), .place = place}});
  }
  FactList rules;
  for (const auto& [dimension, rule, outcome] : why.rules) {
    Facts members = {{"dimension", dimension}, {"applies", outcome.empty()}};
    if (!outcome.empty()) members.push_back({"outcome", outcome});
    Fact fact = FactOf(rule, fmt::format("  dimension {}", dimension), std::move(members));
    fact.row.text =
        fmt::format("rule {}{}", rule.text, outcome.empty() ? "" : ", not used: " + outcome);
    rules.items.push_back(std::move(fact));
  }
  facts->push_back({"rules", std::move(rules)});
  if (!why.alternatives.empty()) {
    facts->push_back({"block", why.block, {.label = "  block"}});
    facts->push_back(FactOfAlternatives(subject));
  }
  if (!why.pins.empty()) {
    facts->push_back(
        FactOf("pins", why.pins, [](const Setting& pin, bool) { return "  only on " + pin.name; }));
  }
  facts->push_back(FactOf("mesh", why.mesh,
                          [](const Setting& axis, bool) { return "  mesh axis " + axis.name; }));
  facts->push_back({"boxes",
                    sharding.CountBoxes(),
                    {.label = "boxes",
                     .text = fmt::format("{} different, each on {}", Grouped(sharding.CountBoxes()),
                                         Count(sharding.holders(), "rank"))}});
  facts->push_back({"replicas", sharding.holders()});
  facts->push_back(FactOfBoxes(subject));
  for (size_t i = first; i < facts->size(); ++i) (*facts)[i].row.section = kSharding;
}

}  // namespace shardinit
