// plan.json: everything that decides the bytes of a checkpoint, in one order.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json.h"
#include "base/overloaded.h"
#include "graph/validate.h"
#include "init/initializer.h"
#include "plan/plan.h"
#include "rng/engines.h"
#include "rng/sampler.h"
#include "rng/stream.h"

namespace shardinit {
namespace {

using nlohmann::json;

std::vector<int64_t> DimensionsOf(DimensionSet set) {
  std::vector<int64_t> dimensions;
  for (int64_t d = 0; d < 32; ++d) {
    if (set >> d & 1) dimensions.push_back(d);
  }
  return dimensions;
}

void WriteDistribution(const Distribution& distribution, JsonWriter& out) {
  out.BeginObject();
  std::visit(Overloaded{
                 [&](const Constant& c) {
                   out.Key("constant").BeginObject().Member("value", c.value).EndObject();
                 },
                 [&](const Uniform& u) {
                   out.Key("uniform").BeginObject().Member("low", u.low).Member("high", u.high);
                   out.EndObject();
                 },
                 [&](const Normal& n) {
                   out.Key("normal").BeginObject().Member("mean", n.mean).Member("std", n.std);
                   out.EndObject();
                 },
                 [&](const TruncatedNormal& t) {
                   out.Key("truncated_normal").BeginObject();
                   out.Member("mean", t.mean).Member("std", t.std);
                   out.Member("low", t.low).Member("high", t.high).EndObject();
                 },
                 [&](const Expression& e) {
                   out.Key("expr").BeginObject().Member("text", e.program->text).EndObject();
                 },
                 [&](const Orthogonal& o) {
                   out.Key("orthogonal").BeginObject().Member("gain", o.gain);
                   out.Member("rows", DimensionsOf(o.rows)).Member("columns", DimensionsOf(o.columns));
                   out.EndObject();
                 },
             },
             distribution);
  out.EndObject();
}

[[noreturn]] void Refuse(const std::string& path, std::string_view what) {
  throw Error(ExitCode::kRefused, fmt::format("`{}` is not a plan of this tool: {}", path, what));
}

Distribution ReadOrthogonal(const json& in, const Shape& shape, const std::string& path) {
  const auto set = [&](const char* key) {
    DimensionSet dimensions = 0;
    for (const json& number : in.at(key)) {
      const int64_t d = number;
      if (d < 0 || d >= std::ssize(shape)) Refuse(path, "a dimension that the tensor does not have");
      dimensions |= DimensionSet{1} << d;
    }
    return dimensions;
  };
  const Orthogonal o{in.at("gain"), set("rows"), set("columns")};
  const OrthogonalSize size = SizeOf(o, shape);
  if (o.gain == 0 || !IsValidScale(o.gain) || (o.rows & o.columns) != 0 || o.columns == 0 ||
      (o.rows & -o.rows) > (o.columns & -o.columns) || o.rows == 0 ||
      size.operations > kMaxOperations || size.bytes > kMaxMatrixBytes) {
    Refuse(path, "an orthogonal matrix that is none");
  }
  return o;
}

// Distributions are written like the initializers of their names, and read by
// these, which know what values are allowed.
Distribution ReadDistribution(const json& init, const Shape& shape, const std::string& path) {
  if (!init.is_object() || init.size() != 1) Refuse(path, "an `init` that is no single initializer");
  if (init.begin().key() == "expr") {
    const auto program =
        CompileCanonical(init.begin().value().at("text").get<std::string>(), shape);
    if (program == nullptr) Refuse(path, "an expression that is not one, or not as this tool writes it");
    return Expression{program};
  }
  if (init.begin().key() == "orthogonal") return ReadOrthogonal(init.begin().value(), shape, path);
  const Initializer* initializer = FindInitializer(init.begin().key());
  if (initializer == nullptr || initializer->lower == nullptr) Refuse(path, "an unknown initializer");
  std::vector<Argument> arguments;
  for (const Parameter& parameter : initializer->parameters) {
    if (!parameter.number || parameter.dimension) Refuse(path, "an initializer that is no distribution");
    arguments.push_back({init.begin().value().at(std::string(parameter.name)), {}});
  }
  Diagnostics diagnostics;
  const auto distribution = initializer->lower(arguments, Fans(), diagnostics);
  if (!distribution) Refuse(path, diagnostics.all().front().message);
  return *distribution;
}

void CheckGraph(const InitGraph& graph, const std::string& path) try {
  Diagnostics diagnostics;
  ValidateGraph(graph, std::vector<Span>(graph.tensors.size()), diagnostics);
  diagnostics.ThrowIfErrors();
} catch (const InvalidSpec& e) {
  Refuse(path, e.diagnostics().front().message);
}

// A path that names a dataset inside the checkpoint, and nothing else.
bool IsPath(std::string_view path) {
  bool part = false;
  for (const char c : path) {
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                        c == '_' || c == '-';
    if (!letter && !(c == '.' && part)) return false;
    part = letter;
  }
  return part;
}

Tensor ReadTensor(const json& in, const InitGraph& graph, const std::string& path) {
  Tensor tensor;
  tensor.path = in.at("path").get<std::string>();
  if (!IsPath(tensor.path)) Refuse(path, "a tensor path with characters that paths cannot have");
  const auto dtype = FindDType(in.at("dtype").get<std::string>());
  if (!dtype) Refuse(path, fmt::format("unknown dtype {}", in.at("dtype").dump()));
  tensor.dtype = *dtype;
  tensor.shape = in.at("global_shape").get<Shape>();
  if (tensor.shape.size() > 32) Refuse(path, "a tensor of more than 32 dimensions");
  int64_t bytes = InfoOf(*dtype).bytes;
  for (const int64_t extent : tensor.shape) {
    if (extent < 1 || __builtin_mul_overflow(bytes, extent, &bytes)) {
      Refuse(path, fmt::format("the shape of `{}` is not one", tensor.path));
    }
  }
  std::vector<bool> used(graph.mesh.axes.size());
  for (const json& axes : in.at("partition_spec")) {
    tensor.partition.emplace_back();
    for (const json& name : axes) {
      const int axis = graph.mesh.Find(name.get<std::string>());
      if (axis < 0 || used[axis]) Refuse(path, fmt::format("the partition of `{}`", tensor.path));
      used[axis] = true;
      tensor.partition.back().push_back(axis);
    }
  }
  if (tensor.partition.size() != tensor.shape.size()) {
    Refuse(path, fmt::format("the partition of `{}` has another rank than its shape", tensor.path));
  }
  tensor.distribution = ReadDistribution(in.at("init"), tensor.shape, path);
  if (in.contains("key")) tensor.draw_path = in.at("key").get<std::string>();
  if (IsRandom(tensor.distribution)) {
    tensor.key = KeyOf(static_cast<uint64_t>(graph.seed),
                       tensor.draw_path.empty() ? tensor.path : tensor.draw_path);
  }
  return tensor;
}

}  // namespace

void WriteMesh(const Mesh& mesh, JsonWriter& out) {
  out.Key("mesh").BeginObject().Key("axes").BeginArray();
  for (const std::string& axis : mesh.axes) out.Value(axis);
  out.EndArray().Member("shape", mesh.shape).EndObject();
}

std::string_view NameOf(Replicas replicas) {
  return replicas == Replicas::kFull ? "full" : "dedupe";
}

std::string WritePlan(const Plan& plan) {
  const InitGraph& graph = plan.graph;
  JsonWriter out;
  out.BeginObject(JsonWriter::kLines);
  out.Member("format_version", kFormatVersion).Member("contract_version", kContractVersion);
  out.Member("name", graph.name).Member("engine", graph.engine).Member("seed", graph.seed);
  WriteMesh(graph.mesh, out);
  out.Member("replicas", NameOf(graph.replicas));
  out.Key("tensors").BeginArray(JsonWriter::kLines);
  for (const Tensor& tensor : graph.tensors) {
    out.BeginObject().Member("path", tensor.path).Member("dtype", InfoOf(tensor.dtype).name);
    out.Member("global_shape", tensor.shape).Key("partition_spec").BeginArray();
    for (const auto& axes : tensor.partition) {
      out.BeginArray();
      for (const int axis : axes) out.Value(graph.mesh.axes[axis]);
      out.EndArray();
    }
    out.EndArray().Key("init");
    WriteDistribution(tensor.distribution, out);
    if (!tensor.draw_path.empty()) out.Member("key", tensor.draw_path);
    out.EndObject();
  }
  out.EndArray().EndObject();
  return out.Finish();
}

Plan ReadPlan(std::string_view text, const std::string& path) {
  const json in = ParseJson(text, path);
  try {
    if (in.at("format_version") != kFormatVersion || in.at("contract_version") != kContractVersion) {
      throw Error(ExitCode::kRefused,
                  fmt::format("`{}` has format version {} and contract version {}, but this tool "
                              "knows {} and {}",
                              path, in.at("format_version").dump(), in.at("contract_version").dump(),
                              kFormatVersion, kContractVersion),
                  "use the release of shardinit that wrote it");
    }
    InitGraph graph;
    graph.name = in.at("name").get<std::string>();
    graph.engine = in.at("engine").get<std::string>();
    if (FindEngine(graph.engine) == nullptr) Refuse(path, fmt::format("unknown engine `{}`", graph.engine));
    graph.seed = in.at("seed");
    if (graph.seed < 0) Refuse(path, "the seed");
    graph.mesh.axes = in.at("mesh").at("axes").get<std::vector<std::string>>();
    graph.mesh.shape = in.at("mesh").at("shape").get<Shape>();
    if (graph.mesh.axes.size() != graph.mesh.shape.size()) Refuse(path, "the mesh");
    for (size_t a = 0; a < graph.mesh.axes.size(); ++a) {
      const std::string& axis = graph.mesh.axes[a];
      if (!IsPath(axis) || graph.mesh.Find(axis) != static_cast<int>(a)) {
        Refuse(path, "the axes of the mesh");
      }
    }
    int64_t size = 1;
    for (const int64_t extent : graph.mesh.shape) {
      if (extent < 1 || extent > kMaxWorldSize || (size *= extent) > kMaxWorldSize) {
        Refuse(path, "the shape of the mesh");
      }
    }
    graph.replicas = in.at("replicas") == "full" ? Replicas::kFull : Replicas::kDedupe;
    int64_t bytes = 0;
    for (const json& tensor : in.at("tensors")) {
      graph.tensors.push_back(ReadTensor(tensor, graph, path));
      if (__builtin_add_overflow(bytes, graph.tensors.back().bytes(), &bytes)) {
        Refuse(path, "more than 2^63 - 1 bytes");
      }
    }
    CheckGraph(graph, path);
    Plan plan = MakePlan(std::move(graph));
    // Other types, keys or an order of its own: none of that is ours.
    if (WritePlan(plan) != text) Refuse(path, "it is not written as this tool writes");
    return plan;
  } catch (const json::exception& e) {
    Refuse(path, e.what());
  }
}

}  // namespace shardinit
