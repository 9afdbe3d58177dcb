#include "commands/tensor_facts.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string>
#include <utility>
#include <vector>

#include "graph/engines/streams.h"
#include "graph/engines/torch_draws.h"
#include "graph/outline.h"
#include "graph/stored/pad.h"
#include "graph/stored/view.h"
#include "report/text.h"
#include "rng/engines.h"

namespace shardinit {
namespace {

// The rows for people stand in this order.
enum TensorSection { kTensor, kEngine, kSharding, kLayouts, kVariables };

constexpr std::string_view kInexact =
    ", inexact: PyTorch may round some of these numbers otherwise";

// Returns `gain / sqrt(fan_in) = 1.41421 / sqrt(4096) = 0.0220971`, without repeats.
std::string Chain(const std::vector<std::string>& parts) {
  std::string text, last;
  for (const std::string& part : parts) {
    if (part.empty() || part == last) continue;
    text += (text.empty() ? "" : " = ") + part;
    last = part;
  }
  return text;
}

// Makes a fact of a setting as it was written. `members` stand before the setting's own.
Fact FactOf(const Setting& setting, std::string label, Facts members = {}) {
  members.push_back({"name", setting.name});
  if (!setting.text.empty()) members.push_back({"text", setting.text});
  if (!setting.value.empty()) members.push_back({"value", setting.value});
  return At({"",
             std::move(members),
             {.label = std::move(label), .text = Chain({setting.text, setting.value})}},
            setting.span);
}

// Makes a list of settings as they were written, with a label for each.
template <typename F>
Fact FactOf(std::string_view key, const std::vector<Setting>& settings, F label) {
  FactList list;
  for (const Setting& setting : settings) {
    list.items.push_back(FactOf(setting, label(setting, list.items.empty())));
  }
  return {key, std::move(list)};
}

std::string InHex(const Tensor& tensor) { return fmt::format("{:016x}", tensor.stream.key); }

// Returns the key of the tensor's random numbers, if it has some.
FactValue KeyOf(const Tensor& tensor) {
  if (!IsRandom(tensor.distribution)) return nullptr;
  if (tensor.given_key) return Facts{{"value", InHex(tensor)}};
  if (tensor.stream.engine == &kTorchCpu) {
    if (!HasPlace(tensor)) return nullptr;
    if (tensor.stream.is_least) return Facts{{"least_position", tensor.stream.position}};
    Facts place = {{"position", tensor.stream.position}};
    if (tensor.stream.spare != kNoSpare) place.push_back({"spare", tensor.stream.spare});
    return place;
  }
  return Facts{{"value", InHex(tensor)}, {"path", DrawPathOf(tensor)}};
}

void AddShape(const Subject& subject, Facts* facts) {
  const auto& [plan, why, tensor, rank] = subject;
  if (!why.conditions.empty()) {
    facts->push_back(FactOf("conditions", why.conditions,
                            [](const Setting&, bool first) { return first ? "when" : ""; }));
  }
  facts->push_back({"shape", tensor.shape, {.label = "shape", .place = PlaceOf(why.place)}});
  FactList dimensions;
  for (const Setting& dimension : why.dimensions) {
    Fact fact = FactOf(dimension, fmt::format("  dimension {}", dimensions.items.size()));
    if (!dimension.name.empty()) fact.row.text += ", axis " + dimension.name;
    dimensions.items.push_back(std::move(fact));
  }
  facts->push_back({"dimensions", std::move(dimensions)});
  facts->push_back(
      At({"dtype", std::string(InfoOf(tensor.dtype).name), {.label = "dtype"}}, why.dtype, ""));
  if (IsBuffer(tensor)) facts->push_back({"kind", "buffer", {.label = "kind"}});
  facts->push_back({"elements",
                    tensor.elements(),
                    {.label = "size",
                     .text = fmt::format("{}, {}", Count(tensor.elements(), "element"),
                                         InBytes(tensor.bytes()))}});
  facts->push_back({"bytes", tensor.bytes()});
}

Fact FactOf(const Working& step, const Span& fans) {
  Facts members = {{"name", step.name},
                   {"formula", step.formula},
                   {"numbers", step.numbers},
                   {"value", step.value}};
  std::string text = Chain({step.formula, step.numbers, fmt::format("{:.6g}", step.value)});
  const bool is_fan = !step.reason.empty();
  if (is_fan) {
    members.push_back({"reason", step.reason});
    text += ", by " + step.reason;
  }
  return {
      "",
      std::move(members),
      {.label = "  " + step.name, .text = std::move(text), .place = is_fan ? PlaceOf(fans) : ""}};
}

void AddInitializer(const Subject& subject, Facts* facts) {
  const auto& [plan, why, tensor, rank] = subject;
  FactList initializers, working;
  for (const Setting& initializer : why.initializers) {
    initializers.items.push_back(
        At({"",
            Facts{{"name", initializer.name}},
            {.label = initializers.items.empty() ? "init" : "", .text = initializer.name}},
           initializer.span, ""));
  }
  facts->push_back({"initializers", std::move(initializers)});
  facts->push_back(FactOf("arguments", why.arguments,
                          [](const Setting& argument, bool) { return "  " + argument.name; }));
  Fact fans;
  if (why.fans.span.source != nullptr) fans.value = FactOf(why.fans, "").value;
  fans.key = "fans";
  facts->push_back(std::move(fans));
  for (const Working& step : why.working) working.items.push_back(FactOf(step, why.fans.span));
  facts->push_back({"working", std::move(working)});
  Fact values = {"distribution", InText(tensor.distribution), {.label = "values"}};
  if (IsInexact(tensor) && !IsRandom(tensor.distribution)) {
    values.row.text = fmt::format("{}{}", InText(tensor.distribution), kInexact);
  }
  facts->push_back(std::move(values));
  if (std::string matrix = MatrixInText(tensor.distribution, tensor.shape); !matrix.empty()) {
    facts->push_back({"matrix", std::move(matrix), {.label = "matrix"}});
  }
  facts->push_back({"draws", DrawsOf(tensor.distribution)});
}

// Adds facts of the stream. People see them only for a tensor that is drawn at random.
void AddStream(const Subject& subject, Facts* facts) {
  const auto& [plan, why, tensor, rank] = subject;
  Fact seed = At({"seed", plan.graph.seed}, why.seed);
  Fact engine = At({"engine", plan.graph.engine}, why.engine);
  Fact key = {"key", KeyOf(tensor)};
  if (IsRandom(tensor.distribution)) {
    seed.row.label = "seed";
    seed.row.text = fmt::to_string(plan.graph.seed);
    engine.row.label = "engine";
    engine.row.text = fmt::format("{}, {} for each element", plan.graph.engine,
                                  Count(DrawsOf(tensor.distribution), "draw"));
    engine.row.section = kEngine;
    key.row.label = "key";
    if (tensor.stream.engine == &kTorchCpu) {
      engine.row.text = plan.graph.engine;
    }
    if (IsInexact(tensor)) {
      engine.row.text += kInexact;
    }
    if (tensor.stream.engine == &kTorchCpu && !HasPlace(tensor)) {
      key.row = {.label = "positions", .text = "in the expression"};
    } else if (tensor.stream.engine == &kTorchCpu) {
      key.row.label = "position";
      key.row.text = fmt::format("{} words of the stream before", Grouped(tensor.stream.position));
      if (tensor.stream.is_least) {
        key.row.text += " at least: truncated normal numbers that are not made here say how many";
      } else if (tensor.stream.spare != kNoSpare) {
        key.row.text +=
            fmt::format(", and a second number of the four at {}", Grouped(tensor.stream.spare));
      }
    } else {
      key.row.text = tensor.given_key ? fmt::format("{}, given", InHex(tensor))
                                      : fmt::format("{}, of the seed and `{}`", InHex(tensor),
                                                    DrawPathOf(tensor));
    }
    key = At(std::move(key), why.key, "");
  }
  facts->insert(facts->end(), {std::move(seed), std::move(engine), std::move(key)});
}

// Adds the operations of a view, each above its operands.
void AddOperations(const ViewOutline& view, size_t level, Facts* facts) {
  std::string text(2 * level, ' ');
  if (view.copies > 1) text += fmt::format("{} × ", Grouped(view.copies));
  if (view.operation != nullptr) {
    facts->push_back(
        {"", nullptr, {.text = text + std::string(view.operation->name) + view.arguments}});
    for (const ViewOutline& of : view.of) AddOperations(of, level + 1, facts);
    return;
  }
  const Tensor& first = *view.tensors.front();
  std::string shapes = InShape(first.shape);
  for (const Tensor* tensor : view.tensors) {
    if (tensor->shape != first.shape) shapes = "different shapes";
  }
  ViewOutline alone = view;
  alone.copies = 1;
  facts->push_back({"",
                    nullptr,
                    {.text = fmt::format("{}{}: {}, {}", text, Describe(alone), shapes,
                                         DescribeValues(view.tensors))}});
}

// Returns the drawn tensors that a view is made of, in its order, each once.
std::vector<const Tensor*> SourcesOf(const View& view) {
  std::vector<const Tensor*> sources;
  std::vector<bool> seen(view.drawn->size());
  const auto visit = [&](const ViewNode& node, const auto& self) -> void {
    if (node.operation == nullptr && !seen[node.tensor]) {
      seen[node.tensor] = true;
      sources.push_back(&(*view.drawn)[node.tensor]);
    }
    for (const ViewNode& of : node.of) self(of, self);
  };
  visit(view.root, visit);
  return sources;
}

void AddView(const Subject& subject, Facts* facts) {
  const auto& [plan, why, tensor, rank] = subject;
  const ViewOutline outline = OutlineOfViews({&tensor});
  facts->push_back({"layout", plan.graph.layout});
  const size_t first = facts->size();
  AddOperations(outline, 0, facts);
  Fact& view = (*facts)[first];
  view.key = "view";
  view.row.label = "view";
  view.value = Facts{{"text", Describe(outline)}};
  view = At(std::move(view), why.view, "");
  FactList logical;
  for (const Tensor* source : SourcesOf(*tensor.view)) {
    logical.items.push_back({"", Facts{{"path", source->path},
                                       {"shape", source->shape},
                                       {"distribution", InText(source->distribution)},
                                       {"key", KeyOf(*source)}}});
  }
  facts->push_back({"logical", std::move(logical)});
}

void AddVariables(const Subject& subject, Facts* facts) {
  FactList variables;
  for (const Setting& variable : subject.why.variables) {
    Fact fact = FactOf(variable, (variables.items.empty() ? "using " : "      ") + variable.name);
    if (variable.text.empty()) {
      fact.row.place = variable.name.starts_with("mesh_") ? "(mesh)" : "(repeat)";
    }
    variables.items.push_back(std::move(fact));
  }
  facts->push_back({"variables", std::move(variables), {.section = kVariables}});
}

// Says where a layout puts a tensor of so many elements.
Fact FactOf(const Explanation::Place& place, int64_t elements) {
  Facts members = {{"layout", place.layout}};
  if (!place.view) {
    members.push_back({"path", nullptr});
    return {"", std::move(members), {.text = "(omitted)", .place = PlaceOf(place.span)}};
  }
  std::string text = place.path;
  const ViewNode* node = &place.view->root;
  for (int level = 0; node->operation != nullptr; ++level, node = &node->of.front()) {
    text += fmt::format("{}{}", level == 0 ? ": " : " of ", node->operation->name);
  }
  if (place.elements < elements) text += fmt::format(", {} elements", Grouped(place.elements));
  members.push_back({"path", place.path});
  members.push_back({"view", Describe(*place.view)});
  members.push_back({"elements", place.elements});
  return At({"", std::move(members), {.text = std::move(text)}}, place.span, "");
}

void AddLayouts(const Subject& subject, Facts* facts) {
  FactList layouts;
  std::string last;
  for (const auto& place : subject.why.places) {
    Fact fact = FactOf(place, subject.tensor.elements());
    if (place.layout != last) fact.row.label = "in layout " + place.layout;
    layouts.items.push_back(std::move(fact));
    last = place.layout;
  }
  if (layouts.items.empty()) return;
  facts->push_back({"layouts", std::move(layouts), {.section = kLayouts}});
}

// Writes the ranges in each dimension: `0:2, 4:8`.
std::string RangesOf(const Box& box) {
  std::string ranges;
  for (size_t d = 0; d < box.shape.size(); ++d) {
    ranges +=
        fmt::format("{}{}:{}", d == 0 ? "" : ", ", box.offset[d], box.offset[d] + box.shape[d]);
  }
  return ranges;
}

// Says which parts of the tensor the rank has, and which file stores them.
Fact FactOfBoxes(const Subject& subject) {
  constexpr size_t kMostShown = 4;
  const auto& [plan, why, tensor, rank] = subject;
  const Sharding sharding = plan.ShardingOf(tensor);
  const std::vector<Box> boxes = sharding.BoxesOn(rank);
  const Shape none(tensor.shape.size());
  const int64_t bytes = sharding.ElementsOn(rank) * InfoOf(tensor.dtype).bytes;
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
      text += fmt::format("[{}], ", RangesOf(boxes[i]));
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

// Lists ways to cut the tensor, with the cost of all tensors then. People see the best ones.
Fact FactOfAlternatives(const Subject& subject) {
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

void AddSharding(const Subject& subject, Facts* facts) {
  const auto& [plan, why, tensor, rank] = subject;
  const size_t first = facts->size();
  const Sharding sharding = plan.ShardingOf(tensor);
  facts->push_back({"partition",
                    InText(tensor.partition, plan.graph.mesh),
                    {.label = "partition", .place = PlaceOf(why.shard)}});
  if (why.shard.source != nullptr) {
    facts->push_back({"shard", PlaceOf(why.shard)});
  }
  if (why.stage.source != nullptr) {
    std::string text = tensor.partition.pins.empty() ? "all ranks" : "";
    for (const Pin& pin : tensor.partition.pins) {
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

}  // namespace

Facts FactsOf(const Subject& subject, int64_t matches) {
  const auto& [plan, why, tensor, rank] = subject;
  Facts facts = {{"path", tensor.path}, {"matches", matches}, {"place", PlaceOf(why.place)}};
  AddShape(subject, &facts);
  tensor.view ? AddView(subject, &facts) : AddInitializer(subject, &facts);
  AddVariables(subject, &facts);
  if (!tensor.view) AddStream(subject, &facts);
  AddLayouts(subject, &facts);
  // Another tensor is in no file: only tensors of a layout are made of it. A padded tensor is shown
  // as it is stored.
  const InitGraph& graph = plan.graph;
  if (tensor.view || !graph.drawn) {
    AddSharding(subject, &facts);
  } else if (IsPadded(graph)) {
    const auto number = static_cast<size_t>(&tensor - graph.drawn->data());
    const Tensor& stored = graph.tensors[number];
    if (stored.shape != tensor.shape) {
      facts.push_back({"stored_shape",
                       stored.shape,
                       {.label = "stored",
                        .text = fmt::format("{}, {} of padding", InShape(stored.shape),
                                            InBytes(stored.bytes() - tensor.bytes())),
                        .section = kSharding}});
    }
    AddSharding({plan, why, stored, rank}, &facts);
  }
  return facts;
}

}  // namespace shardinit
