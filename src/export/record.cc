#include "export/record.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json.h"
#include "base/overloaded.h"
#include "base/text.h"
#include "checkpoint/file_tasks.h"
#include "checkpoint/folder.h"
#include "rng/stream.h"

namespace shardinit {
namespace {

constexpr int kExportVersion = 2;  // Version 1 had no digest of itself.

// Writes the optimizer as `--optimizer` takes it.
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

using nlohmann::json;

[[noreturn]] void Refuse(const std::string& record, std::string_view what) {
  throw Error(ExitCode::kRefused,
              fmt::format("`{}` is not the record of an export: {}", record, what));
}

Digest DigestIn(const json& hex, const std::string& record) {
  Digest digest;
  if (!FromHex(hex.get<std::string>(), &digest)) {
    Refuse(record, fmt::format("a digest must be 64 hexadecimal digits, not {}",
                               Quote(hex.get<std::string>())));
  }
  return digest;
}

int64_t PlaceIn(const json& number, int64_t low, int64_t high, const std::string& record) {
  if (!number.is_number_unsigned() || number > high || number < low) {
    Refuse(record, fmt::format("a size or offset must be a whole number from {} to {}, not {}", low,
                               high, number.dump()));
  }
  return number;
}

// Returns a name within the folder: a record must not lead elsewhere.
std::string PathIn(const json& name, const std::string& record) {
  const std::string path = name.get<std::string>();
  const std::string parts = "/" + path + "/";
  if (path.empty() || parts.find("//") != parts.npos || parts.find("/./") != parts.npos ||
      parts.find("/../") != parts.npos || path.find('\0') != path.npos) {
    Refuse(record, fmt::format("its file {} is not in the folder", Quote(path)));
  }
  return path;
}

RecordedFile FileIn(const json& in, const std::string& record) {
  RecordedFile file{.path = PathIn(in.at("file"), record),
                    .size = PlaceIn(in.at("size"), 0, std::numeric_limits<int64_t>::max(), record),
                    .parts = {}};
  file.parts.push_back({"", 0, file.size, DigestIn(in.at("head_sha256"), record)});
  // Ends the last part here and begins one that goes on to the next part, or to the end.
  const auto add = [&](const json& box, const char* place, const char* sha256) {
    RecordedFile::Part& last = file.parts.back();
    const int64_t offset = PlaceIn(box.at(place), last.offset, file.size, record);
    last.bytes = offset - last.offset;
    file.parts.push_back(
        {box.at("path"), offset, file.size - offset, DigestIn(box.at(sha256), record)});
  };
  for (const json& box : in.at("boxes")) {
    add(box, "file_offset", "sha256");
    if (box.contains("tail_sha256")) add(box, "tail_offset", "tail_sha256");
    ++file.boxes;
  }
  return file;
}

}  // namespace

std::string WriteOrigin(const Plan& plan, const ExportRequest& request) {
  JsonWriter out;
  BeginRecord(plan, request, out);
  return out.Take();
}

bool IsRecordOf(std::string_view record, std::string_view origin) {
  // The next key ends the last value. Without it, 50 MB would begin as 5 MB does, and an export
  // with an optimizer as one without.
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
  // Where the format has no config.json, this keeps it for the way back.
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

std::string WithDigest(std::string lines) {
  return fmt::format("{0} \"sha256\": \"{1}\"\n}}\n", lines, ToHex(Sha256Of(lines)));
}

Record ReadRecord(std::string_view text, const std::string& path) {
  const json in = ParseJson(text, path);
  try {
    if (in.at("export_version") != kExportVersion) {
      Refuse(path, fmt::format("it has version {} instead of {}; export again, into another folder",
                               in.at("export_version").dump(), kExportVersion));
    }
    const size_t end = text.rfind("\n \"sha256\": ");
    if (end == text.npos || WithDigest(std::string(text.substr(0, end + 1))) != text) {
      Refuse(path, "it is damaged: its last line but one is not the digest of those before it");
    }
    Record record = {FindFormat(in.at("format").get<std::string>()), {}};
    if (record.format == nullptr)
      Refuse(path, fmt::format("this version has no format {}", in.at("format").dump()));
    for (const json& file : in.at("files")) record.files.push_back(FileIn(file, path));
    return record;
  } catch (const json::exception& e) {
    Refuse(path, ComplaintOf(e));
  }
}

}  // namespace shardinit
