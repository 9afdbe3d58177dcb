#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>

#include "base/glob.h"
#include "base/json.h"
#include "base/suggest.h"
#include "commands/command.h"
#include "commands/options.h"
#include "graph/outline.h"
#include "report/text.h"

namespace shardinit {
namespace {

struct ExplainOptions {
  SpecOptions spec;
  std::string path;
  int64_t rank = 0;
  bool json = false;
};

// Those with one of which `path` is a path.
const std::vector<Tensor>& Candidates(const Plan& plan, bool stored) {
  return stored ? plan.graph.tensors : plan.graph.logical();
}

[[noreturn]] void ReportNoTensor(const std::string& path, const Plan& plan,
                                 const Explanation& why) {
  const auto& left_out = why.left_out ? why.left_out
                         : why.stored ? why.stored->left_out
                                      : why.left_out;
  if (left_out) {
    throw Error(
        ExitCode::kUsage,
        fmt::format("`{}` is left out: `when: {}` is 0", left_out->path, left_out->when.text),
        fmt::format("the condition is at {}", PlaceOf(left_out->when.span)));
  }
  if (!why.places.empty()) {
    const auto& [layout, stored, view, elements, span] = why.places.front();
    throw Error(ExitCode::kUsage,
                fmt::format("the model has no tensor `{}`, but its layout `{}` has", path, layout),
                fmt::format("use `--layout {}` to explain `{}`", layout, stored));
  }
  std::vector<std::string> paths;
  std::string hint;
  int64_t members = 0;
  for (const bool stored : {true, false}) {
    if (stored && !plan.graph.drawn) continue;
    for (const Tensor& tensor : Candidates(plan, stored)) {
      paths.push_back(tensor.path);
      members += tensor.path.starts_with(path + ".");
      if (hint.empty() && tensor.path.ends_with("." + path)) {
        hint = fmt::format("did you mean `{}`?", tensor.path);
      }
    }
    if (members > 0) break;
  }
  if (members > 0) {
    throw Error(
        ExitCode::kUsage,
        fmt::format("`{}` is no tensor, but the group of {}", path, Count(members, "tensor")),
        fmt::format("`{}.*` explains the first of them", path));
  }
  if (hint.empty()) hint = DidYouMean(path, paths);
  throw Error(ExitCode::kUsage, fmt::format("no tensor has the path `{}`", path),
              hint.empty() ? "`shardinit graph SPEC` shows the paths" : hint);
}

// What is shown, gathered from the plan and the explanation.
struct Facts {
  const Plan& plan;
  const Explanation& why;
  const Tensor& tensor;
  int64_t rank, matches;
  std::vector<int64_t> coordinate;
  Box box;

  Sharding sharding() const { return plan.ShardingOf(tensor); }
  // The rank whose file has the box: that one, or the lowest that holds the same.
  int64_t storer() const { return sharding().Stores(rank) ? rank : sharding().FirstHolder(rank); }
  int64_t box_bytes() const { return ElementCount(box.shape) * InfoOf(tensor.dtype).bytes; }
  // Whether it is cut and in files, or only what tensors of a layout are made of.
  bool is_of_layout() const { return tensor.view != nullptr || !plan.graph.drawn; }
};

const std::string& DrawPath(const Tensor& tensor) {
  return tensor.draw_path.empty() ? tensor.path : tensor.draw_path;
}

void WriteSetting(const Explanation::Setting& setting, JsonWriter& out) {
  out.Member("name", setting.name);
  if (!setting.text.empty()) out.Member("text", setting.text);
  if (!setting.value.empty()) out.Member("value", setting.value);
  out.Key("place");
  setting.span.source != nullptr ? out.Value(PlaceOf(setting.span)) : out.Null();
}

void WriteSettings(std::string_view key, const std::vector<Explanation::Setting>& settings,
                   JsonWriter& out) {
  out.Key(key).BeginArray(JsonWriter::kLines);
  for (const auto& setting : settings) {
    out.BeginObject();
    WriteSetting(setting, out);
    out.EndObject();
  }
  out.EndArray();
}

void WritePlace(const Span& span, JsonWriter& out) {
  out.Key("place");
  span.source != nullptr ? out.Value(PlaceOf(span)) : out.Null();
}

void WriteKey(const Tensor& tensor, JsonWriter& out) {
  out.Member("value", fmt::format("{:016x}", tensor.stream.key)).Member("path", DrawPath(tensor));
}

void WriteInit(const Facts& facts, JsonWriter& out) {
  const auto& [plan, why, tensor, rank, matches, coordinate, box] = facts;
  WriteSettings("initializers", why.initializers, out);
  WriteSettings("arguments", why.arguments, out);
  out.Key("fans");
  if (why.fans.span.source != nullptr) {
    out.BeginObject();
    WriteSetting(why.fans, out);
    out.EndObject();
  } else {
    out.Null();
  }
  out.Key("working").BeginArray(JsonWriter::kLines);
  for (const Working& step : why.working) {
    out.BeginObject().Member("name", step.name).Member("formula", step.formula);
    out.Member("numbers", step.numbers).Member("value", step.value);
    if (!step.reason.empty()) out.Member("reason", step.reason);
    out.EndObject();
  }
  out.EndArray().Member("distribution", InText(tensor.distribution));
  if (const auto matrix = MatrixInText(tensor.distribution, tensor.shape); !matrix.empty()) {
    out.Member("matrix", matrix);
  }
  out.Member("draws", DrawsOf(tensor.distribution));
}

void WriteStream(const Facts& facts, JsonWriter& out) {
  const auto& [plan, why, tensor, rank, matches, coordinate, box] = facts;
  out.Key("seed").BeginObject().Member("value", plan.graph.seed);
  WritePlace(why.seed, out);
  out.EndObject().Key("engine").BeginObject().Member("value", plan.graph.engine);
  WritePlace(why.engine, out);
  out.EndObject().Key("key");
  if (IsRandom(tensor.distribution)) {
    WriteKey(tensor, out.BeginObject());
    WritePlace(why.key, out);
    out.EndObject();
  } else {
    out.Null();
  }
  if (why.places.empty()) return;
  out.Key("layouts").BeginArray(JsonWriter::kLines);
  for (const auto& place : why.places) {
    out.BeginObject().Member("layout", place.layout);
    if (place.view) {
      out.Member("path", place.path)
          .Member("view", Describe(*place.view))
          .Member("elements", place.elements);
      WritePlace(place.span, out);
    } else {
      out.Key("path").Null();
    }
    out.EndObject();
  }
  out.EndArray();
}

// The drawn tensors that a view is of, in its order, each once.
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

void WriteViewFacts(const Facts& facts, JsonWriter& out) {
  out.Member("layout", facts.plan.graph.layout);
  out.Key("view").BeginObject().Member("text", Describe(OutlineOfViews({&facts.tensor})));
  WritePlace(facts.why.view, out);
  out.EndObject().Key("logical").BeginArray(JsonWriter::kLines);
  for (const Tensor* tensor : SourcesOf(*facts.tensor.view)) {
    out.BeginObject().Member("path", tensor->path).Member("shape", tensor->shape);
    out.Member("distribution", InText(tensor->distribution)).Key("key");
    if (IsRandom(tensor->distribution)) {
      WriteKey(*tensor, out.BeginObject());
      out.EndObject();
    } else {
      out.Null();
    }
    out.EndObject();
  }
  out.EndArray();
}

void WriteSharding(const Facts& facts, JsonWriter& out) {
  const auto& [plan, why, tensor, rank, matches, coordinate, box] = facts;
  out.Member("partition", InText(tensor.partition, plan.graph.mesh));
  if (why.shard.source != nullptr) out.Member("shard", PlaceOf(why.shard));
  out.Key("rules").BeginArray(JsonWriter::kLines);
  for (const auto& trial : why.rules) {
    out.BeginObject().Member("dimension", trial.dimension).Member("applies", trial.outcome.empty());
    if (!trial.outcome.empty()) out.Member("outcome", trial.outcome);
    WriteSetting(trial.rule, out);
    out.EndObject();
  }
  out.EndArray();
  WriteSettings("mesh", why.mesh, out);
  out.Member("boxes", facts.sharding().CountBoxes()).Member("replicas", facts.sharding().holders());
  out.Key("box").BeginObject().Member("rank", rank).Member("coordinate", coordinate);
  out.Member("offset", box.offset).Member("shape", box.shape).Member("bytes", facts.box_bytes());
  out.Key("file");
  !IsEmpty(box) && facts.storer() == rank ? out.Value(RankFile(rank)) : out.Null();
  out.EndObject();
}

std::string InJson(const Facts& facts) {
  const auto& [plan, why, tensor, rank, matches, coordinate, box] = facts;
  JsonWriter out;
  out.BeginObject(JsonWriter::kLines).Member("path", tensor.path).Member("matches", matches);
  out.Member("place", PlaceOf(why.place));
  if (!why.conditions.empty()) WriteSettings("conditions", why.conditions, out);
  out.Member("shape", tensor.shape);
  WriteSettings("dimensions", why.dimensions, out);
  out.Key("dtype").BeginObject().Member("value", InfoOf(tensor.dtype).name);
  WritePlace(why.dtype, out);
  out.EndObject().Member("elements", tensor.elements()).Member("bytes", tensor.bytes());
  tensor.view ? WriteViewFacts(facts, out) : WriteInit(facts, out);
  WriteSettings("variables", why.variables, out);
  if (!tensor.view) WriteStream(facts, out);
  if (facts.is_of_layout()) WriteSharding(facts, out);
  out.EndObject();
  return out.Finish();
}

using Rows = std::vector<std::vector<std::string>>;

// `gain / sqrt(fan_in) = 1.41421 / sqrt(4096) = 0.0220971`, without repeats.
std::string Chain(const std::vector<std::string>& parts) {
  std::string text, last;
  for (const std::string& part : parts) {
    if (part.empty() || part == last) continue;
    text += (text.empty() ? "" : " = ") + part;
    last = part;
  }
  return text;
}

void AddSetting(const std::string& name, const Explanation::Setting& setting, Rows* rows) {
  rows->push_back({name, Chain({setting.text, setting.value}),
                   setting.span.source != nullptr ? PlaceOf(setting.span) : "(default)"});
}

void AddInitializer(const Facts& facts, Rows* rows) {
  const Explanation& why = facts.why;
  for (size_t i = 0; i < why.initializers.size(); ++i) {
    const auto& initializer = why.initializers[i];
    rows->push_back({i == 0 ? "init" : "", initializer.name, PlaceOf(initializer.span)});
  }
  for (const auto& argument : why.arguments) AddSetting("  " + argument.name, argument, rows);
  for (const Working& step : why.working) {
    const bool fan = !step.reason.empty();
    rows->push_back({"  " + step.name,
                     Chain({step.formula, step.numbers, fmt::format("{:.6g}", step.value)}) +
                         (fan ? ", by " + step.reason : ""),
                     fan ? PlaceOf(why.fans.span) : ""});
  }
  rows->push_back({"values", InText(facts.tensor.distribution), ""});
  const std::string matrix = MatrixInText(facts.tensor.distribution, facts.tensor.shape);
  if (!matrix.empty()) rows->push_back({"matrix", matrix, ""});
}

// The operations of a view, each above what it is of.
void AddView(const ViewOutline& view, size_t level, Rows* rows) {
  std::string text(2 * level, ' ');
  if (view.copies > 1) text += fmt::format("{} × ", Grouped(view.copies));
  if (view.operation != nullptr) {
    rows->push_back({"", text + std::string(view.operation->name) + view.arguments, ""});
    for (const ViewOutline& of : view.of) AddView(of, level + 1, rows);
    return;
  }
  const Tensor& first = *view.tensors.front();
  std::string shapes = InShape(first.shape);
  for (const Tensor* tensor : view.tensors) {
    if (tensor->shape != first.shape) shapes = "different shapes";
  }
  ViewOutline alone = view;
  alone.copies = 1;
  rows->push_back(
      {"", fmt::format("{}{}: {}, {}", text, Describe(alone), shapes, DescribeValues(view.tensors)),
       ""});
}

void AddPlaces(const Explanation& why, int64_t elements, Rows* rows) {
  std::string last;
  for (const auto& place : why.places) {
    std::string text = place.view ? place.path : "(omitted)";
    const ViewNode* node = place.view ? &place.view->root : nullptr;
    for (int level = 0; node != nullptr && node->operation != nullptr;
         ++level, node = &node->of.front()) {
      text += fmt::format("{}{}", level == 0 ? ": " : " of ", node->operation->name);
    }
    if (place.view && place.elements < elements)
      text += fmt::format(", {} elements", Grouped(place.elements));
    rows->push_back(
        {place.layout == last ? "" : "in layout " + place.layout, text, PlaceOf(place.span)});
    last = place.layout;
  }
}

void AddSharding(const Facts& facts, Rows* rows) {
  const auto& [plan, why, tensor, rank, matches, coordinate, box] = facts;
  rows->push_back({"partition", InText(tensor.partition, plan.graph.mesh), PlaceOf(why.shard)});
  for (const auto& trial : why.rules) {
    rows->push_back({fmt::format("  dimension {}", trial.dimension),
                     fmt::format("rule {}{}", trial.rule.text,
                                 trial.outcome.empty() ? "" : ", not used: " + trial.outcome),
                     PlaceOf(trial.rule.span)});
  }
  for (const auto& axis : why.mesh) AddSetting("  mesh axis " + axis.name, axis, rows);
  rows->push_back({"boxes",
                   fmt::format("{} different, each on {}", Grouped(facts.sharding().CountBoxes()),
                               Count(facts.sharding().holders(), "rank")),
                   ""});
  std::string where;
  for (size_t d = 0; d < box.shape.size(); ++d) {
    where +=
        fmt::format("{}{}:{}", d == 0 ? "" : ", ", box.offset[d], box.offset[d] + box.shape[d]);
  }
  rows->push_back({fmt::format("rank {}", rank),
                   IsEmpty(box) ? "nothing of it"
                                : fmt::format("[{}], {}, {}", where, InBytes(facts.box_bytes()),
                                              (facts.storer() == rank ? "in " : "stored in ") +
                                                  RankFile(facts.storer())),
                   ""});
}

void AddDraws(const Facts& facts, Rows* rows) {
  const auto& [plan, why, tensor, rank, matches, coordinate, box] = facts;
  if (!IsRandom(tensor.distribution)) return;
  AddSetting("seed", {{}, {}, fmt::to_string(plan.graph.seed), why.seed}, rows);
  rows->push_back(
      {"key", fmt::format("{:016x}, of the seed and `{}`", tensor.stream.key, DrawPath(tensor)),
       PlaceOf(why.key)});
  AddSetting("engine", {{}, {}, plan.graph.engine, why.engine}, rows);
  rows->back()[1] += ", " + Count(DrawsOf(tensor.distribution), "draw") + " for each element";
}

std::string InTable(const Facts& facts) {
  const auto& [plan, why, tensor, rank, matches, coordinate, box] = facts;
  Rows rows;
  for (size_t i = 0; i < why.conditions.size(); ++i)
    AddSetting(i == 0 ? "when" : "", why.conditions[i], &rows);
  rows.push_back({"shape", InShape(tensor.shape), PlaceOf(why.place)});
  for (size_t d = 0; d < why.dimensions.size(); ++d) {
    const auto& dimension = why.dimensions[d];
    AddSetting(fmt::format("  dimension {}", d), dimension, &rows);
    if (!dimension.name.empty()) rows.back()[1] += ", axis " + dimension.name;
  }
  rows.push_back({"dtype", std::string(InfoOf(tensor.dtype).name), PlaceOf(why.dtype)});
  rows.push_back(
      {"size", fmt::format("{}, {}", Count(tensor.elements(), "element"), InBytes(tensor.bytes())),
       ""});
  if (tensor.view) {
    const size_t first = rows.size();
    AddView(OutlineOfViews({&tensor}), 0, &rows);
    rows[first][0] = "view";
    rows[first][2] = PlaceOf(why.view);
  } else {
    AddInitializer(facts, &rows);
    AddDraws(facts, &rows);
  }
  if (facts.is_of_layout()) AddSharding(facts, &rows);
  AddPlaces(why, tensor.elements(), &rows);
  for (size_t i = 0; i < why.variables.size(); ++i) {
    const auto& use = why.variables[i];
    AddSetting((i == 0 ? "using " : "      ") + use.name, use, &rows);
    if (use.text.empty()) rows.back()[2] = use.name.starts_with("mesh_") ? "(mesh)" : "(repeat)";
  }
  const std::string others =
      matches == 1 ? "" : fmt::format(" (the first of {} that match)", Grouped(matches));
  const std::string layout =
      tensor.view ? fmt::format(", stored in layout {}", plan.graph.layout) : "";
  return fmt::format("{}{}{}\n\n{}", tensor.path, layout, others,
                     Table(rows, {false, false, false}));
}

ExitCode RunExplain(const ExplainOptions& options) {
  Diagnostics diagnostics;  // Owns the places.
  Explanation why;
  why.pattern = options.path;
  const Plan plan = options.spec.Load(diagnostics, &why);
  CheckRank(options.rank, plan);
  // With a layout, what is stored comes first.
  const bool stored = why.stored && why.stored->tensor;
  const Explanation& found = stored ? *why.stored : why;
  if (!found.tensor) ReportNoTensor(options.path, plan, why);
  const std::vector<Tensor>& tensors = Candidates(plan, stored);
  const Tensor& tensor = tensors[*found.tensor];
  const Facts facts = {
      plan,
      found,
      tensor,
      options.rank,
      std::count_if(tensors.begin(), tensors.end(),
                    [&](const Tensor& t) { return GlobMatches(options.path, t.path); }),
      plan.graph.mesh.CoordinateOf(options.rank),
      plan.ShardingOf(tensor).BoxOn(options.rank)};
  Print(options.json ? InJson(facts) : InTable(facts));
  return ExitCode::kOk;
}

}  // namespace

extern const Command kExplain = {
    .name = "explain",
    .summary = "Show where a tensor's values and sharding come from",
    .configure = [](CLI::App& app) -> std::function<ExitCode()> {
      auto options = std::make_shared<ExplainOptions>();
      options->spec.AddTo(app);
      options->spec.AddLayoutTo(app);
      options->spec.AddReplicasTo(app);
      app.add_option("PATH", options->path,
                     "Path of a tensor, or a pattern such as '*.q_proj.weight'")
          ->required();
      AddRank(app, &options->rank, "Show the box of this rank; default 0");
      AddJson(app, &options->json);
      return [options] { return RunExplain(*options); };
    },
};

}  // namespace shardinit
