#include "commands/tensor_facts.h"

#include <fmt/format.h>

#include <string>
#include <utility>
#include <vector>

#include "graph/engines/engines.h"
#include "graph/outline.h"
#include "graph/stored/pad.h"
#include "graph/stored/view.h"
#include "report/text.h"

namespace shardinit {
namespace {

// Returns a suffix for values of which some bits may differ from the framework's.
std::string InexactInText(const ExplainedTensor& subject) {
  if (!IsInexact(subject.tensor)) return {};
  return fmt::format(", inexact: {} may round some of these numbers otherwise",
                     FindEngine(subject.plan.graph.engine)->framework);
}

std::string InHex(const Tensor& tensor) { return fmt::format("{:016x}", tensor.stream().key); }

// Returns the key of the tensor's random numbers, or null if it has none.
FactValue KeyOf(const Tensor& tensor) {
  if (!IsRandom(tensor.distribution())) return nullptr;
  if (std::holds_alternative<KeyWords>(tensor.key())) return Facts{{"value", InHex(tensor)}};
  if (const auto* const place = std::get_if<StreamPlace>(&tensor.key())) {
    if (tensor.stream().is_least) return Facts{{"least_position", place->position}};
    Facts facts = {{"position", place->position}};
    if (place->spare != kNoSpare) facts.push_back({"spare", place->spare});
    return facts;
  }
  if (tensor.stream().engine->has_places) return nullptr;
  return Facts{{"value", InHex(tensor)}, {"path", std::string(DrawPathOf(tensor))}};
}

std::string KeyInText(const Tensor& tensor) {
  if (std::holds_alternative<KeyWords>(tensor.key())) return InHex(tensor) + ", given";
  const auto* const place = std::get_if<StreamPlace>(&tensor.key());
  if (place == nullptr) {
    return fmt::format("{}, of the seed and `{}`", InHex(tensor), DrawPathOf(tensor));
  }
  std::string text = fmt::format("{} words of the stream before", Grouped(place->position));
  if (tensor.stream().is_least) {
    text += " at least; truncated normal numbers determine the exact count";
  } else if (place->spare != kNoSpare) {
    text += fmt::format(", and a second number of the four at {}", Grouped(place->spare));
  }
  return text;
}

void AddShape(const ExplainedTensor& subject, Facts* facts) {
  const auto& [plan, why, tensor, rank] = subject;
  if (!why.conditions.empty()) {
    facts->push_back(FactOf("conditions", why.conditions,
                            [](const Setting&, bool first) { return first ? "when" : ""; }));
  }
  facts->push_back({"shape", tensor.shape(), {.label = "shape", .place = PlaceOf(why.place)}});
  FactList dimensions;
  for (const Setting& dimension : why.dimensions) {
    Fact fact = FactOf(dimension, fmt::format("  dimension {}", dimensions.items.size()));
    if (!dimension.name.empty()) fact.row.text += ", axis " + dimension.name;
    dimensions.items.push_back(std::move(fact));
  }
  facts->push_back({"dimensions", std::move(dimensions)});
  facts->push_back(
      At({"dtype", std::string(InfoOf(tensor.dtype()).name), {.label = "dtype"}}, why.dtype, ""));
  if (IsBuffer(tensor)) facts->push_back({"kind", "buffer", {.label = "kind"}});
  facts->push_back({"elements",
                    tensor.elements(),
                    {.label = "size",
                     .text = fmt::format("{}, {}", Count(tensor.elements(), "element"),
                                         InBytes(tensor.bytes()))}});
  facts->push_back({"bytes", tensor.bytes()});
}

Fact FactOf(const ComputationStep& step, const Span& fans) {
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

void AddInitializer(const ExplainedTensor& subject, Facts* facts) {
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
  for (const ComputationStep& step : why.working)
    working.items.push_back(FactOf(step, why.fans.span));
  facts->push_back({"working", std::move(working)});
  Fact values = {"distribution", InText(tensor), {.label = "values"}};
  if (IsInexact(tensor) && !IsRandom(tensor.distribution())) {
    values.row.text = InText(tensor) + InexactInText(subject);
  }
  facts->push_back(std::move(values));
  if (!why.multipliers.empty()) {
    facts->push_back(
        FactOf("multipliers", why.multipliers, [](const Setting& multiplier, bool is_first) {
          return (is_first ? "multiply " : "         ") + multiplier.name;
        }));
  }
  if (std::string matrix = MatrixInText(tensor.distribution(), tensor.shape()); !matrix.empty()) {
    facts->push_back({"matrix", std::move(matrix), {.label = "matrix"}});
  }
  facts->push_back({"draws", DrawsOf(tensor.distribution())});
}

// Adds facts of the stream. People see them only for a tensor that is drawn at random.
void AddStream(const ExplainedTensor& subject, Facts* facts) {
  const auto& [plan, why, tensor, rank] = subject;
  Fact seed = At({"seed", plan.graph.seed}, why.seed);
  Fact engine = At({"engine", plan.graph.engine}, why.engine);
  Fact key = {"key", KeyOf(tensor)};
  if (IsRandom(tensor.distribution())) {
    seed.row.label = "seed";
    seed.row.text = fmt::to_string(plan.graph.seed);
    engine.row.label = "engine";
    const bool has_places = tensor.stream().engine->has_places;
    engine.row.text = plan.graph.engine;
    if (!has_places) {
      engine.row.text +=
          fmt::format(", {} for each element", Count(DrawsOf(tensor.distribution()), "draw"));
    }
    engine.row.text += InexactInText(subject);
    engine.row.section = kEngine;
    if (has_places && !HasPlace(tensor)) {
      key.row = {.label = "positions", .text = "in the expression"};
    } else {
      key.row.label = has_places ? "position" : "key";
      key.row.text = KeyInText(tensor);
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
  std::string shapes = InShape(first.shape());
  for (const Tensor* tensor : view.tensors) {
    if (tensor->shape() != first.shape()) shapes = "different shapes";
  }
  ViewOutline alone = view;
  alone.copies = 1;
  facts->push_back({"",
                    nullptr,
                    {.text = fmt::format("{}{}: {}, {}", text, Describe(alone), shapes,
                                         DescribeValues(view.tensors))}});
}

// Returns the drawn tensors that a view is made of, in the view's order, each once.
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

void AddView(const ExplainedTensor& subject, Facts* facts) {
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
  for (const Tensor* source : SourcesOf(*tensor.view())) {
    logical.items.push_back({"", Facts{{"path", std::string(source->path())},
                                       {"shape", source->shape()},
                                       {"distribution", InText(*source)},
                                       {"key", KeyOf(*source)}}});
  }
  facts->push_back({"logical", std::move(logical)});
}

void AddVariables(const ExplainedTensor& subject, Facts* facts) {
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

// Describes where a layout puts a tensor with `elements` elements.
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

void AddLayouts(const ExplainedTensor& subject, Facts* facts) {
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

}  // namespace

Facts FactsOf(const Tensor& tensor) {
  return {{"path", std::string(tensor.path())},
          {"dtype", std::string(InfoOf(tensor.dtype()).name)},
          {"global_shape", tensor.shape_in_numbers()}};
}

Facts FactsOf(const ExplainedTensor& subject, int64_t matches) {
  const auto& [plan, why, tensor, rank] = subject;
  Facts facts = {
      {"path", std::string(tensor.path())}, {"matches", matches}, {"place", PlaceOf(why.place)}};
  AddShape(subject, &facts);
  tensor.view() ? AddView(subject, &facts) : AddInitializer(subject, &facts);
  AddVariables(subject, &facts);
  if (!tensor.view()) AddStream(subject, &facts);
  AddLayouts(subject, &facts);
  // A layout stores the tensors made of drawn tensors, not the drawn tensors. A padded tensor is
  // shown as it is stored.
  const InitGraph& graph = plan.graph;
  if (tensor.view() || !graph.drawn) {
    AddSharding(subject, &facts);
  } else if (IsPadded(graph)) {
    const auto number = static_cast<size_t>(&tensor - graph.drawn->data());
    const Tensor& stored = graph.tensors[number];
    if (stored.shape() != tensor.shape()) {
      facts.push_back({"stored_shape",
                       stored.shape(),
                       {.label = "stored",
                        .text = fmt::format("{}, {} of padding", InShape(stored.shape()),
                                            InBytes(stored.bytes() - tensor.bytes())),
                        .section = kSharding}});
    }
    AddSharding({plan, why, stored, rank}, &facts);
  }
  return facts;
}

}  // namespace shardinit
