#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/json.h"
#include "base/text.h"
#include "checkpoint/folder.h"
#include "checkpoint/manifest.h"
#include "commands/command.h"
#include "commands/folders.h"
#include "commands/options.h"
#include "commands/tensor_facts.h"
#include "formats/hdf5/reader.h"
#include "formats/input.h"
#include "report/text.h"

namespace shardinit {
namespace {

using nlohmann::json;

struct InspectOptions {
  explicit InspectOptions(CLI::App& app) {
    TakesUrl(app.add_option("PATH", path,
                            "Folder or file with tensors, in any supported format, or its URL; or "
                            "an HDF5 file of a checkpoint"))
        ->required();
    AddOnly(app, &only);
    AddPartOfFile(app, &part);
    AddJson(app, &json);
  }

  std::string path, only, part;
  bool json = false;
};

std::string MatrixText(const Tensor& tensor) {
  return tensor.view() ? std::string() : MatrixInText(tensor.distribution(), tensor.shape());
}

void InspectFolder(const InspectOptions& options) {
  Digest plan_sha256;
  const Plan plan = LoadCheckpointPlan(options.path, &plan_sha256);
  const bool complete = InputExists(options.path + "/" + kManifestName);
  const InitGraph& graph = plan.graph;
  const std::vector<const Tensor*> tensors = Matching(graph.tensors, options.only);
  const FactTable table = {
      tensors.size(),
      {"path", "dtype", "global shape", "shards", "init"},
      [&](size_t row) {
        const Tensor& tensor = *tensors[row];
        const std::string init = InitText(tensor), matrix = MatrixText(tensor);
        Facts facts = FactsOf(tensor);
        facts.push_back({"shards", plan.ShardingOf(tensor).CountBoxes()});
        facts.push_back({"init", init, {.text = matrix.empty() ? init : init + ": " + matrix}});
        if (!matrix.empty()) facts.push_back({"matrix", matrix});
        return facts;
      },
      {false, false, false, true}};
  if (options.json) {
    JsonWriter out;
    out.BeginObject(JsonWriter::kLines).Member("folder", options.path).Member("complete", complete);
    out.Member("name", graph.name).Member("seed", graph.seed).Member("engine", graph.engine);
    out.Member("parameters", plan.parameters).Member("bytes", plan.bytes);
    out.Member("world_size", plan.world_size()).Member("plan_sha256", ToHex(plan_sha256));
    WriteTable(table, out.Key("tensors"));
    out.EndObject();
    return Print(out.Finish());
  }
  std::string text =
      fmt::format("{}: {}, {} in {}, {}, {}, seed {}, {}\n\n", Escape(options.path), graph.name,
                  Count(plan.parameters, "parameter"), Count(std::ssize(graph.tensors), "tensor"),
                  InBytes(plan.bytes), Count(plan.world_size(), "rank"), graph.seed,
                  complete ? "complete" : "unfinished");
  Print(text + TableInText(table));
}

// Returns whether the size of a part's tensors was read.
bool IsKnown(const PartSize& size) { return size.elements > 0 || size.tensors == 0; }

// Returns a table of the parts, or an empty text if the folder has one part.
std::string PartsText(const TensorFolder& folder) {
  const Plan& plan = folder.plan();
  if (folder.part().empty() && folder.others().empty()) return {};
  std::vector<std::vector<std::string>> rows = {
      {"part", "", "tensors", "elements", "bytes", "other entries"}};
  const auto add = [&](const std::string& name, std::string_view what, const PartSize& size) {
    rows.push_back({Escape(name), std::string(what), Grouped(size.tensors),
                    IsKnown(size) ? Grouped(size.elements) : "",
                    IsKnown(size) ? InBytes(size.bytes) : "",
                    Grouped(size.entries - size.tensors)});
  };
  const int64_t tensors = std::ssize(plan.graph.tensors);
  add(folder.part().empty() ? "." : folder.part(), "shown",
      {tensors, tensors, plan.parameters, plan.bytes});
  for (const auto& [name, size] : folder.others()) add(name, "not read", size);
  return Table(rows, {false, false, true, true, true, true}) + "\n";
}

// Shows tensors that have no shardinit plan.
void InspectForeign(const InspectOptions& options) {
  const TensorFolder folder(options.path, options.part);
  const Plan& plan = folder.plan();
  const std::vector<const Tensor*> tensors = Matching(plan.graph.tensors, options.only);
  const FactTable table = {
      tensors.size(),
      {"path", "dtype", "global shape", "pieces", "file"},
      [&](size_t row) {
        const std::vector<FilePiece>& pieces = folder.PiecesOf(*tensors[row]);
        const std::string& file = pieces.front().file;
        Facts facts = FactsOf(*tensors[row]);
        facts.push_back({"shards", pieces.size()});
        facts.push_back({"file", file, {.text = Escape(shardinit::NameOf(file))}});
        return facts;
      },
      {false, false, false, true}};
  if (options.json) {
    JsonWriter out;
    out.BeginObject(JsonWriter::kLines).Member("folder", options.path);
    out.Member("files", folder.what()).Member("bytes", plan.bytes);
    out.Key("warnings").Value(folder.warnings()).Key("others").BeginObject();
    for (const auto& [name, size] : folder.others()) {
      out.Key(name).BeginObject().Member("entries", size.entries).Member("tensors", size.tensors);
      out.MemberOrNull("elements", IsKnown(size), size.elements);
      out.MemberOrNull("bytes", IsKnown(size), size.bytes).EndObject();
    }
    out.EndObject();
    if (!folder.part().empty()) out.Member("part", folder.part());
    out.Key("unread").BeginObject();
    for (const auto& [name, why] : folder.unread()) out.Member(name, why);
    WriteTable(table, out.EndObject().Key("tensors"));
    out.EndObject();
    return Print(out.Finish());
  }
  SayFolder(folder, false);
  Print(fmt::format("{}: {}: {} in {}, {}\n\n", Escape(options.path), folder.what(),
                    Count(plan.parameters, "element"),
                    Count(std::ssize(plan.graph.tensors), "tensor"), InBytes(plan.bytes)) +
        PartsText(folder) + TableInText(table));
}

void InspectFile(const InspectOptions& options) {
  const std::string description = hdf5::DescribeFile(options.path);
  if (options.json) return Print(description);
  const json in = ParseJson(description, options.path);
  std::string text = Escape(options.path) + ":";
  for (const auto& [key, value] : in.items()) {
    if (key != "datasets") text += fmt::format(" {} {},", key, Escape(value.dump()));
  }
  text += fmt::format(" {}\n\n", Count(static_cast<int64_t>(in.at("datasets").size()), "dataset"));
  std::vector<std::vector<std::string>> rows = {
      {"dataset", "dtype", "global shape", "offset", "shape", "layout", "file offset"}};
  for (const json& d : in.at("datasets")) {
    const auto shape = [&](const char* key) {
      return d.contains(key) ? InShape(d.at(key).get<std::vector<int64_t>>()) : "";
    };
    rows.push_back({Escape(d.at("dataset").get<std::string>()),
                    Escape(d.at("dtype").get<std::string>()), shape("global_shape"),
                    shape("offset"), shape("shape"), d.at("layout").get<std::string>(),
                    d.contains("file_offset") ? d.at("file_offset").dump() : ""});
  }
  Print(text + Table(rows, {false, false, false, false, false, false, true}));
}

void RunInspect(const InspectOptions& options) {
  const bool is_own = IsInputFolder(options.path) && InputExists(options.path + "/" + kPlanName);
  if (is_own && options.part.empty()) return InspectFolder(options);
  if (MayHoldTensors(options.path)) return InspectForeign(options);
  if (!Exists(options.path)) {
    throw Usage(fmt::format("there is no file or folder `{}`", options.path));
  }
  const FileKind* kind = KindOfPath(options.path);
  if (kind != nullptr && kind != &kHdf5Kind) {
    throw WrongKind(*kind, options.path, "a checkpoint or an HDF5 file of one");
  }
  RequireNoPart(options.part, options.path);
  if (!options.only.empty()) {
    throw Usage("`--only` selects tensors of a folder, but this is one file of a checkpoint",
                "name the checkpoint's folder");
  }
  return InspectFile(options);
}

}  // namespace

extern const Command kInspect = {"inspect",
                                 "Show the contents of a folder of tensors or of one of its files",
                                 Configure<RunInspect>};

}  // namespace shardinit
