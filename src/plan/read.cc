// Reads plan.json (written by plan/write.cc) without trusting its content.
#include "plan/read.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "base/text.h"
#include "graph/drawn/norm.h"
#include "graph/engines/engines.h"
#include "graph/stored/view.h"
#include "graph/validate.h"
#include "plan/plan.h"
#include "report/text.h"
#include "rng/engines.h"
#include "spec/names.h"

namespace shardinit {

using nlohmann::json;

Tensor ReadTensor(const json& in, const std::string& path) {
  Tensor tensor;
  tensor.set_path(in.at("path").get<std::string>());
  if (!IsPath(tensor.path()))
    RefusePlan(path, "no spec has the tensor path {}", Quote(tensor.path()));
  const auto dtype = FindDType(in.at("dtype").get<std::string>());
  if (!dtype) RefusePlan(path, "unknown dtype {}", in.at("dtype").dump());
  tensor.Edit().dtype = *dtype;
  tensor.Edit().shape = in.at("global_shape").get<Shape>();
  if (tensor.shape().size() > 32) {
    RefusePlan(path, "`{}` has {} dimensions, but at most 32 are allowed", tensor.path(),
               tensor.shape().size());
  }
  int64_t bytes = std::max(InfoOf(*dtype).bytes, InfoOf(*dtype).numbers);
  for (const int64_t extent : tensor.shape()) {
    if (extent < 1 || __builtin_mul_overflow(bytes, extent, &bytes)) {
      RefusePlan(path, "`{}` cannot have the shape [{}]", tensor.path(),
                 fmt::join(tensor.shape(), ", "));
    }
  }
  return tensor;
}

uint64_t ReadSeed(const json& in, const std::string& path) {
  const json& seed = in.at("seed");
  if (!seed.is_number_unsigned()) {
    RefusePlan(path, "`seed` must be a whole number from 0 on, not {}", seed.dump());
  }
  return seed.get<uint64_t>();
}

Mesh ReadMesh(const json& in, const std::string& path) {
  Mesh mesh;
  mesh.axes = in.at("axes").get<std::vector<std::string>>();
  mesh.shape = in.at("shape").get<Shape>();
  if (mesh.axes.size() != mesh.shape.size())
    RefusePlan(path, "`axes` and `shape` of the mesh have {} and {} entries", mesh.axes.size(),
               mesh.shape.size());
  for (size_t a = 0; a < mesh.axes.size(); ++a) {
    if (!IsIdentifier(mesh.axes[a]) || mesh.Find(mesh.axes[a]) != static_cast<int>(a)) {
      RefusePlan(path, "the mesh has the axis {} twice, or no spec has such a name",
                 Quote(mesh.axes[a]));
    }
  }
  int64_t size = 1;
  for (const int64_t extent : mesh.shape) {
    if (extent < 1 || extent > kMaxWorldSize || (size *= extent) > kMaxWorldSize) {
      RefusePlan(path, "the mesh [{}] has an axis below 1 or more than {} ranks",
                 fmt::join(mesh.shape, ", "), kMaxWorldSize);
    }
  }
  return mesh;
}

namespace {

void CheckTensors(std::vector<Tensor>& tensors, const std::string& path) try {
  Diagnostics diagnostics;
  const Span nowhere;
  ValidateTensors(tensors, std::vector<const Span*>(tensors.size(), &nowhere), {}, diagnostics);
  diagnostics.ThrowIfErrors();
  BindNorms(tensors,
            [&](size_t, const NormProblem& problem) { RefusePlan(path, "{}", problem.message); });
} catch (const InvalidSpec& e) {
  RefusePlan(path, "{}", e.diagnostics().front().message);
}

const Engine& ReadEngine(const json& in, const std::string& path) {
  const auto name = in.at("engine").get<std::string>();
  const Engine* engine = FindEngine(name);
  if (engine == nullptr || engine->name != name) {
    RefusePlan(path, "unknown engine {}", Quote(name));
  }
  return *engine;
}

void AssignReadStreams(const Engine& engine, uint64_t seed, const std::string& path,
                       std::vector<Tensor>& tensors) {
  for (const Tensor& tensor : tensors) {
    if (tensor.view()) continue;
    const bool has_place = engine.has_places && HasPlace(tensor);
    const auto* const matrix = std::get_if<Orthogonal>(&tensor.distribution());
    // Only PyTorch draws a matrix that it multiplies by zero.
    if ((matrix != nullptr && matrix->gain == 0 && !engine.has_places) ||
        std::holds_alternative<StreamPlace>(tensor.key()) != has_place ||
        OtherEngine(tensor.distribution(), engine) != nullptr ||
        !RefusalOf(engine, tensor).empty()) {
      RefusePlan(path, "the engine cannot draw `{}` with this key", tensor.path());
    }
  }
  AssignStreams(engine, seed, tensors);
}

void ReadSegments(const json& in, const Mesh& mesh, const std::string& path, Tensor& tensor) {
  const auto segments = in.get<std::vector<int64_t>>();
  bool good = segments.size() == tensor.shape().size();
  int64_t boxes = 1;
  for (size_t d = 0; good && d < segments.size(); ++d) {
    DimensionPartition& by = tensor.Edit().partition.dimensions[d];
    by.segments = segments[d];
    good = segments[d] >= 1 && segments[d] <= kMaxSegments / boxes &&
           segments[d] <= tensor.shape()[d] && (segments[d] == 1 || PartsOf(by, mesh) > 1);
    boxes *= segments[d];
  }
  if (!good)
    RefusePlan(path, "the `segments` of `{}` do not fit its shape and partition", tensor.path());
}

void ReadNested(const json& in, const Mesh& mesh, const std::string& path, Tensor& tensor) {
  const auto nested = in.get<std::vector<std::vector<int64_t>>>();
  PartitionSpec& partition = tensor.Edit().partition;
  bool good = nested.size() == partition.dimensions.size();
  int64_t boxes = 1;
  for (size_t d = 0; good && d < nested.size(); ++d) {
    DimensionPartition& by = partition.dimensions[d];
    by.nested = nested[d];
    good = by.nested.empty() ||
           (by.nested.size() == by.axes.size() && by.segments == 1 && by.nested[0] > 0);
    for (const int64_t segments : by.nested) {
      good = good && segments >= 0 && segments <= kMaxSegments / boxes;
      if (good) boxes *= std::max<int64_t>(1, segments);
    }
  }
  if (!good || Simplified(partition, tensor.shape(), mesh) != partition) {
    RefusePlan(path, "the `nested` axes of `{}` do not fit its shape and partition", tensor.path());
  }
}

void ReadPins(const json& in, const Mesh& mesh, const std::vector<bool>& used,
              const std::string& path, Tensor& tensor) {
  // The JSON library sorts keys. A wrong order in the text is detected when the plan is written
  // again.
  for (size_t axis = 0; axis < mesh.axes.size(); ++axis) {
    if (!in.contains(mesh.axes[axis])) continue;
    Pin pin{static_cast<int>(axis), in.at(mesh.axes[axis]).get<std::vector<int64_t>>()};
    const std::vector<int64_t>& indices = pin.indices;
    if (used[axis] || indices.empty() || std::ssize(indices) >= mesh.shape[axis] ||
        indices.front() < 0 || indices.back() >= mesh.shape[axis] ||
        std::adjacent_find(indices.begin(), indices.end(), std::greater_equal<>()) !=
            indices.end()) {
      break;
    }
    tensor.Edit().partition.pins.push_back(std::move(pin));
  }
  if (tensor.partition().pins.size() != in.size()) {
    RefusePlan(path, "the `stage` of `{}` does not fit the mesh", tensor.path());
  }
}

void ReadPartition(const json& in, const InitGraph& graph, const std::string& path,
                   Tensor& tensor) {
  std::vector<bool> used(graph.mesh.axes.size());
  for (const json& axes : in.at("partition_spec")) {
    tensor.Edit().partition.dimensions.emplace_back();
    for (const json& name : axes) {
      const int axis = graph.mesh.Find(name.get<std::string>());
      if (axis < 0 || used[axis])
        RefusePlan(path, "`{}` has a mesh axis twice, or one that is not in the mesh",
                   tensor.path());
      used[axis] = true;
      tensor.Edit().partition.dimensions.back().axes.push_back(axis);
    }
  }
  if (tensor.partition().dimensions.size() != tensor.shape().size()) {
    RefusePlan(path, "the partition of `{}` has {}, but its shape {}", tensor.path(),
               Count(std::ssize(tensor.partition().dimensions), "dimension"),
               tensor.shape().size());
  }
  if (in.contains("segments")) ReadSegments(in.at("segments"), graph.mesh, path, tensor);
  if (in.contains("nested")) ReadNested(in.at("nested"), graph.mesh, path, tensor);
  if (in.contains("stage")) ReadPins(in.at("stage"), graph.mesh, used, path, tensor);
}

class ViewReader {
 public:
  ViewReader(std::shared_ptr<const std::vector<Tensor>> drawn, const std::string& path)
      : drawn_(std::move(drawn)), path_(path) {
    for (size_t i = 0; i < drawn_->size(); ++i) by_path_.emplace((*drawn_)[i].path(), i);
  }

  void Read(const json& in, Tensor& tensor) {
    ViewNode root;
    Viewed viewed = ReadNode(in, 0, tensor, &root);
    if (viewed.arrangement.shape != tensor.shape()) {
      RefusePlan(path_, "the `view` of `{}` gives the shape [{}] instead of [{}]", tensor.path(),
                 fmt::join(viewed.arrangement.shape, ", "), fmt::join(tensor.shape(), ", "));
    }
    for (const Piece& piece : viewed.arrangement.pieces) {
      if (MisfitOf(Constant{piece.padding}, tensor.dtype()).what.empty()) continue;
      RefusePlan(path_, "the padding of `{}` is {}, which its dtype cannot hold", tensor.path(),
                 piece.padding);
    }
    tensor.set_view(std::make_shared<View>(
        View{drawn_, std::move(root), std::move(viewed.arrangement.pieces)}));
  }

 private:
  static void ReadArguments(const json& body, ViewNode* node) {
    for (const ViewParameter& parameter : node->operation->parameters) {
      const json& value = body.at(std::string(parameter.name));
      switch (parameter.kind) {
        case ViewParameter::kInteger:
          node->arguments.emplace_back(value.get<int64_t>());
          break;
        case ViewParameter::kNumber:
          node->arguments.emplace_back(value.get<double>());
          break;
        case ViewParameter::kIntegers:
          node->arguments.emplace_back(value.get<Shape>());
          break;
      }
    }
  }

  Viewed ReadNode(const json& in, int depth, const Tensor& tensor, ViewNode* node) {
    if (in.is_string()) {
      const auto it = by_path_.find(in.get<std::string>());
      if (it == by_path_.end() || (*drawn_)[it->second].dtype() != tensor.dtype() ||
          --budget_ <= 0) {
        RefusePlan(path_, "the `view` of `{}` has {}, which is unknown or of another dtype",
                   tensor.path(), Quote(in.get<std::string>()));
      }
      node->tensor = it->second;
      return ViewedTensor(it->second, (*drawn_)[it->second]);
    }
    if (!in.is_object() || in.size() != 1 || depth == kMaxViewDepth) {
      RefusePlan(path_, "the `view` of `{}` has no single operation, or more than {} nested ones",
                 tensor.path(), kMaxViewDepth);
    }
    node->operation = FindViewOperation(in.begin().key());
    if (node->operation == nullptr)
      RefusePlan(path_, "unknown view operation {}", Quote(in.begin().key()));
    const json& body = in.begin().value();
    ReadArguments(body, node);
    std::vector<Viewed> of;
    const auto read = [&](const json& operand) {
      of.push_back(ReadNode(operand, depth + 1, tensor, &node->of.emplace_back()));
    };
    const json& operands = body.at("of");
    if (!node->operation->many) {
      read(operands);
    } else {
      if (!operands.is_array() || operands.empty())
        RefusePlan(path_, "the `view` of `{}` has an operation without inputs", tensor.path());
      for (const json& operand : operands) read(operand);
    }
    ViewProblem problem;
    auto viewed = Apply(*node->operation, std::move(of), node->arguments, &budget_, &problem);
    if (!viewed) RefusePlan(path_, "{}", problem.message);
    node->shape = viewed->arrangement.shape;
    return std::move(*viewed);
  }

  const std::shared_ptr<const std::vector<Tensor>> drawn_;
  const std::string& path_;
  std::unordered_map<std::string_view, size_t> by_path_;
  PieceBudget budget_ = kMaxPieces;
};

// Reads tensors one by one as they arrive, because there may be a million of them.
class PlanReader {
 public:
  explicit PlanReader(const std::string& path) : path_(path) {}

  // Reads one element, as an ElementVisitor does.
  bool ReadElement(const json& top, const std::string& key, const json& element) {
    if (key != "logical" && key != "tensors") return false;
    ReadHead(top);
    if (key == "logical") {
      if (!drawn_ || views_)
        RefusePlan(path_, "`logical` must come before `tensors`, and needs a `layout`");
      Tensor& tensor = drawn_->emplace_back(ReadTensor(element, path_));
      tensor.Edit().partition.dimensions.resize(tensor.shape().size());
      ReadDraw(element, path_, tensor);
      Count(tensor);
      forms_.ShareForm(tensor);
      return true;
    }
    EndDrawn();
    Tensor& tensor = graph_.tensors.emplace_back(ReadTensor(element, path_));
    ReadPartition(element, graph_, path_, tensor);
    views_ ? views_->Read(element.at("view"), tensor) : ReadDraw(element, path_, tensor);
    Count(tensor);
    forms_.ShareForm(tensor);
    return true;
  }

  InitGraph Finish(const json& top) {
    ReadHead(top);
    EndDrawn();
    if (!top.at("tensors").is_array()) RefusePlan(path_, "`tensors` is not a list");
    Assign(graph_.tensors);
    CheckTensors(graph_.tensors, path_);
    return std::move(graph_);
  }

 private:
  // Reads the members before the tensors, which determine how tensors are read.
  void ReadHead(const json& top) {
    if (std::exchange(has_head_, true)) return;
    if ((top.at("format_version") != kFormatVersion &&
         top.at("format_version") != kNewestFormatVersion) ||
        top.at("contract_version") != kContractVersion) {
      throw UnknownVersion(path_, top.at("format_version").dump(),
                           top.at("contract_version").dump());
    }
    graph_.name = top.at("name").get<std::string>();
    if (!IsModelName(graph_.name))
      RefusePlan(path_, "no spec has the model name {}", Quote(graph_.name));
    graph_.engine = ReadEngine(top, path_).name;
    graph_.seed = ReadSeed(top, path_);
    graph_.mesh = ReadMesh(top.at("mesh"), path_);
    graph_.replicas = top.at("replicas") == "full" ? Replicas::kFull : Replicas::kDedupe;
    if (top.contains("sources")) {
      for (const json& source : top.at("sources")) {
        const json& digest = source.at("digest");
        graph_.sources.push_back({source.at("name").get<std::string>(),
                                  digest.is_null() ? "" : digest.get<std::string>()});
      }
    }
    if (top.contains("config")) {
      if (!top.at("config").is_object()) RefusePlan(path_, "`config` is not an object");
      graph_.config = top.at("config").dump();
    }
    if (top.contains("layout")) {
      graph_.layout = top.at("layout").get<std::string>();
      if (!IsIdentifier(graph_.layout))
        RefusePlan(path_, "no spec has the layout name {}", Quote(graph_.layout));
      drawn_ = std::make_shared<std::vector<Tensor>>();
    }
  }

  // All drawn tensors are read before the first tensor of a layout.
  void Assign(std::vector<Tensor>& tensors) const {
    AssignReadStreams(*FindEngine(graph_.engine), graph_.seed, path_, tensors);
  }

  void EndDrawn() {
    if (!drawn_ || views_) return;
    Assign(*drawn_);
    CheckTensors(*drawn_, path_);
    views_.emplace(drawn_, path_);
    graph_.drawn = drawn_;
    bytes_ = 0;
  }

  void Count(const Tensor& tensor) {
    if (__builtin_add_overflow(bytes_, tensor.bytes(), &bytes_)) {
      RefusePlan(path_, "the model has more than 2^63 - 1 bytes");
    }
  }

  const std::string& path_;
  bool has_head_ = false;
  InitGraph graph_;
  std::shared_ptr<std::vector<Tensor>> drawn_;
  std::optional<ViewReader> views_;
  FormPool forms_;
  int64_t bytes_ = 0;
};

}  // namespace

Tensor ReadOnlyTensor(const json& in, const std::string& path) {
  std::vector<Tensor> tensors;
  const auto read = [&](const json& tensor) {
    tensors.push_back(ReadTensor(tensor, path));
    tensors.back().Edit().partition.dimensions.resize(tensors.back().shape().size());
    ReadDraw(tensor, path, tensors.back());
  };
  read(in);
  if (in.contains("tensors")) {
    for (const json& other : in.at("tensors")) {
      if (other.contains("path")) read(other);
    }
  }
  AssignReadStreams(ReadEngine(in, path), ReadSeed(in, path), path, tensors);
  CheckTensors(tensors, path);
  return std::move(tensors[0]);
}

UnknownVersion::UnknownVersion(const std::string& path, std::string_view format,
                               std::string_view contract)
    : Error(ExitCode::kRefused,
            contract.empty()
                ? fmt::format("`{}` has format version {}, but this tool knows {} to {}", path,
                              format, kFormatVersion, kNewestFormatVersion)
                : fmt::format("`{}` has format version {} and contract version {}, but this tool "
                              "knows {} to {}, and {}",
                              path, format, contract, kFormatVersion, kNewestFormatVersion,
                              kContractVersion),
            "use the release of shardinit that wrote it") {}

void RequireKnownVersion(std::string_view text, const std::string& path) {
  const std::string_view head = text.substr(0, 1024);  // the versions are the first members
  const auto number_of = [&](std::string_view key) -> std::string_view {
    const size_t at = head.find(key);
    if (at == head.npos) return {};
    const size_t begin = std::min(head.find_first_not_of(": \t\r\n", at + key.size()), head.size());
    const size_t end = std::min(head.find_first_not_of("0123456789", begin), head.size());
    return head.substr(begin, end - begin);
  };
  const std::string_view format = number_of("\"format_version\""),
                         contract = number_of("\"contract_version\"");
  const bool is_known = format.empty() || format == fmt::to_string(kFormatVersion) ||
                        format == fmt::to_string(kNewestFormatVersion);
  const bool keeps_contract = contract.empty() || contract == fmt::to_string(kContractVersion);
  if (!is_known || (!format.empty() && !keeps_contract)) {
    throw UnknownVersion(path, format, contract);
  }
}

Plan ReadPlan(std::string_view text, const std::string& path) {
  try {
    PlanReader reader(path);
    const json in =
        ParseJson(text, path, [&](const json& top, const std::string& key, const json& element) {
          return reader.ReadElement(top, key, element);
        });
    Plan plan = MakePlan(reader.Finish(in));
    // This program never writes other types, other keys or another order.
    if (WritePlan(plan) != text) RefusePlan(path, "it is not written as this tool writes");
    return plan;
  } catch (const json::exception& e) {
    RefusePlan(path, "{}", ComplaintOf(e));
  }
}

}  // namespace shardinit
