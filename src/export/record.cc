#include "export/record.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/json.h"
#include "base/overloaded.h"
#include "checkpoint/file_tasks.h"
#include "checkpoint/folder.h"
#include "rng/stream.h"

namespace shardinit {
namespace {

// Writes the optimizer in the form that `--optimizer` accepts.
void WriteOptimizer(const OptimizerSpec& spec, JsonWriter& out) {
  out.BeginObject().Key("adamw").BeginArray();
  for (const ParamGroup& group : spec.groups) {
    out.BeginObject().Member("params", ValuesOf(group.params));
    if (spec.has_schedule) out.Member("schedule", true);
    for (const auto& [name, value] : group.hyperparameters) {
      out.Key(name);
      std::visit(
          Overloaded{[&](const std::pair<double, double>& both) {
                       out.Value(std::array{both.first, both.second});
                     },
                     [&](const OneOf<std::nullptr_t, bool, double> auto& one) { out.Value(one); }},
          value);
    }
    out.EndObject();
  }
  out.EndArray().EndObject();
}

void BeginRecord(const Plan& plan, const ExportRequest& request, JsonWriter& out) {
  out.BeginObject(JsonWriter::kLines).Member("export_version", kExportVersion);
  out.Member("contract_version", kContractVersion).Member("format", request.format->name);
  out.Member("name", plan.graph.name).Member("engine", plan.graph.engine);
  out.Member("seed", plan.graph.seed).Member("plan_sha256", ToHex(Sha256Of(WritePlan(plan))));
  out.MemberOrNull("only", !request.only.empty(), request.only);
  for (const FormatOption* option : request.format->options) {
    out.Member(option->member, request.options.at(option));
  }
  if (request.optimizer) WriteOptimizer(request.optimizer->spec, out.Key("optimizer"));
}

constexpr std::string_view kConfigKey = ",\n \"config\": ";

}  // namespace

std::string WriteOrigin(const Plan& plan, const ExportRequest& request) {
  JsonWriter out;
  BeginRecord(plan, request, out);
  return out.Take();
}

bool IsRecordOf(std::string_view record, std::string_view origin) {
  // The next key ends the last value. Otherwise 5 MB would match 50 MB, and an export without an
  // optimizer would match one with it.
  if (!record.starts_with(origin)) return false;
  record.remove_prefix(origin.size());
  return record.starts_with(",\n \"files\": ") || record.starts_with(kConfigKey);
}

std::string WriteRecord(const Plan& plan, const ExportRequest& request,
                        const std::vector<FileLayout>& files,
                        const std::vector<std::vector<Digest>>& digests,
                        const std::vector<std::vector<uint32_t>>& crcs) {
  JsonWriter out;
  BeginRecord(plan, request, out);
  // If the format has no config.json, the record keeps it for converting back.
  const bool has_config =
      std::ranges::any_of(files, [](const auto& file) { return file.path == "config.json"; });
  const std::string& config = plan.graph.config;
  if (!config.empty() && !has_config && config.size() < kRecordedConfigEnd / 2) {
    out.Key("config").Raw(config);
  }
  out.Key("files").BeginArray(JsonWriter::kLines);
  for (size_t f = 0; f < files.size(); ++f) {
    const FileLayout file = Finished(files[f], crcs[f]);
    out.BeginObject().Member("file", file.path).Member("size", file.size());
    out.Member("head_sha256", ToHex(Sha256Of(file.head)));
    out.Key("boxes").BeginArray(JsonWriter::kLines);
    Check(file.texts.empty() || file.texts.size() == file.boxes.size(),
          "a text that is behind no box");
    for (size_t b = 0; b < file.boxes.size(); ++b) {
      const FileBox& box = file.boxes[b];
      out.BeginObject().Member("path", box.tensor->path());
      out.Member("dtype", InfoOf(box.tensor->dtype()).name);
      out.Member("global_shape", box.tensor->shape()).Member("offset", box.box.offset);
      out.Member("shape", box.box.shape).Member("file_offset", box.offset);
      out.Member("sha256", ToHex(digests[f][b]));
      if (!file.texts.empty()) {
        const FileText& tail = file.texts[b];
        out.Member("tail_offset", tail.offset).Member("tail_sha256", ToHex(Sha256Of(tail.bytes)));
      }
      out.EndObject();
    }
    out.EndArray().EndObject();
  }
  out.EndArray();
  return WithDigest(out.Take() + ",\n");
}

}  // namespace shardinit
