// Writes plan.json, which contains everything that affects the bytes of a checkpoint, in a fixed
// order.
#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/json.h"
#include "base/overloaded.h"
#include "graph/engines/engines.h"
#include "graph/stored/view.h"
#include "plan/plan.h"
#include "spec/names.h"

namespace shardinit {
namespace {

void WriteValue(double value, JsonWriter& out) { out.Value(value); }
void WriteValue(int64_t value, JsonWriter& out) { out.Value(value); }
void WriteValue(DimensionSet set, JsonWriter& out) { out.Value(DimensionsOf(set)); }
void WriteValue(const std::string& text, JsonWriter& out) { out.Value(text); }
void WriteValue(const ProgramPtr& program, JsonWriter& out) { out.Value(program->text); }
void WriteDistribution(const Distribution& distribution, JsonWriter& out);
void WriteValue(const PartsPtr& of, JsonWriter& out) {
  out.BeginArray();
  for (const Part& part : of->parts) {
    out.BeginObject().Member("length", part.length).Key("init");
    WriteDistribution(part.distribution, out);
    out.EndObject();
  }
  out.EndArray();
}
void WriteValue(const std::vector<ProgramPtr>& programs, JsonWriter& out) {
  out.BeginArray();
  for (const ProgramPtr& program : programs) WriteValue(program, out);
  out.EndArray();
}

void WriteDistribution(const Distribution& distribution, JsonWriter& out) {
  std::visit(
      [&](const auto& each) {
        out.BeginObject().Key(each.kName).BeginObject();
        ForEachMember(each, [&](const auto& member, const auto& value) {
          WriteValue(value, out.Key(member.key));
        });
        out.EndObject().EndObject();
      },
      distribution);
}

// Writes a view as in specs, with all its arguments.
void WriteView(const ViewNode& node, const std::vector<Tensor>& drawn, JsonWriter& out) {
  if (node.operation == nullptr) {
    out.Value(drawn[node.tensor].path());
    return;
  }
  out.BeginObject().Key(node.operation->name).BeginObject();
  for (size_t i = 0; i < node.arguments.size(); ++i) {
    out.Key(node.operation->parameters[i].name);
    std::visit(Overloaded{[](std::monostate) { Check(false, "a view without its arguments"); },
                          [&](const auto& value) { out.Value(value); }},
               node.arguments[i]);
  }
  out.Key("of");
  if (node.operation->many) out.BeginArray();
  for (const ViewNode& of : node.of) WriteView(of, drawn, out);
  if (node.operation->many) out.EndArray();
  out.EndObject().EndObject();
}

void WriteTensor(const Tensor& tensor, JsonWriter& out) {
  out.Member("path", tensor.path()).Member("dtype", InfoOf(tensor.dtype()).name);
  out.Member("global_shape", tensor.shape());
}

void WriteKey(const DrawKey& key, JsonWriter& out) {
  if (const auto* const words = std::get_if<KeyWords>(&key)) {
    out.Key("key").BeginObject();
    out.Member("words", std::array{words->key & 0xFFFFFFFF, words->key >> 32}).EndObject();
  } else if (const std::string& path = std::get<DrawPath>(key).path; !path.empty()) {
    out.Member("key", path);
  }
}

void WritePlace(const StreamPlace& place, bool is_least, JsonWriter& out) {
  out.Key("key").BeginObject();
  out.Member(is_least ? "least_position" : "position", place.position);
  if (!is_least && place.spare != kNoSpare) out.Member("spare", place.spare);
  out.EndObject();
}

void WriteInit(const Tensor& tensor, JsonWriter& out) {
  out.Key("init");
  WriteDistribution(NamedDistribution(tensor), out);
  if (IsInexact(tensor)) out.Member("inexact", true);
  const auto* const place = std::get_if<StreamPlace>(&tensor.key());
  if (place != nullptr) WritePlace(*place, tensor.stream().is_least, out);
  if (tensor.is_buffer()) out.Member("kind", kBufferKind);
  if (place == nullptr) WriteKey(tensor.key(), out);
}

}  // namespace

void WriteMesh(const Mesh& mesh, JsonWriter& out) {
  out.Key("mesh").BeginObject().Member("axes", mesh.axes).Member("shape", mesh.shape).EndObject();
}

std::string_view NameOf(Replicas replicas) {
  return replicas == Replicas::kFull ? "full" : "dedupe";
}

void WriteDrawn(const Tensor& tensor, JsonWriter& out) {
  WriteTensor(tensor, out);
  WriteInit(tensor, out);
}

void WriteStored(const Tensor& tensor, const InitGraph& graph, JsonWriter& out) {
  WriteTensor(tensor, out);
  out.Key("partition_spec").BeginArray();
  for (const DimensionPartition& by : tensor.partition().dimensions) {
    out.BeginArray();
    for (const int axis : by.axes) out.Value(graph.mesh.axes[axis]);
    out.EndArray();
  }
  out.EndArray();
  if (const auto segments = tensor.partition().segments(); !segments.empty()) {
    out.Member("segments", segments);
  }
  if (tensor.partition().IsNested()) {
    out.Key("nested").BeginArray();
    for (const DimensionPartition& by : tensor.partition().dimensions) out.Value(by.nested);
    out.EndArray();
  }
  if (!tensor.partition().pins.empty()) {
    out.Key("stage").BeginObject();
    for (const Pin& pin : tensor.partition().pins) {
      out.Member(graph.mesh.axes[pin.axis], pin.indices);
    }
    out.EndObject();
  }
  if (tensor.view()) WriteView(tensor.view()->root, *graph.drawn, out.Key("view"));
}

std::string WritePlan(const Plan& plan) {
  const InitGraph& graph = plan.graph;
  Check(std::none_of(graph.logical().begin(), graph.logical().end(),
                     [](const Tensor& tensor) { return tensor.stream().is_least; }),
        "a plan without the places in its stream");
  JsonWriter out;
  out.BeginObject(JsonWriter::kLines);
  out.Member("format_version", plan.format_version).Member("contract_version", kContractVersion);
  out.Member("name", graph.name).Member("engine", graph.engine).Member("seed", graph.seed);
  WriteMesh(graph.mesh, out);
  out.Member("replicas", NameOf(graph.replicas));
  if (!graph.config.empty()) out.Key("config").Raw(graph.config);
  if (!graph.sources.empty()) {
    out.Key("sources").BeginArray();
    for (const SourcePin& source : graph.sources) {
      out.BeginObject().Member("name", source.name);
      out.MemberOrNull("digest", !source.digest.empty(), source.digest).EndObject();
    }
    out.EndArray();
  }
  if (graph.drawn) {
    out.Member("layout", graph.layout).Key("logical").BeginArray(JsonWriter::kLines);
    for (const Tensor& tensor : *graph.drawn) {
      WriteDrawn(tensor, out.BeginObject());
      out.EndObject();
    }
    out.EndArray();
  }
  out.Key("tensors").BeginArray(JsonWriter::kLines);
  for (const Tensor& tensor : graph.tensors) {
    WriteStored(tensor, graph, out.BeginObject());
    if (!tensor.view()) WriteInit(tensor, out);
    out.EndObject();
  }
  out.EndArray().EndObject();
  return out.Finish();
}

}  // namespace shardinit
