#include "export/record.h"

#include "base/json.h"
#include "rng/stream.h"

namespace shardinit {
namespace {

constexpr int kExportVersion = 1;

void BeginRecord(const Plan& plan, const ExportRequest& request, JsonWriter& out) {
  out.BeginObject(JsonWriter::kLines).Member("export_version", kExportVersion);
  out.Member("contract_version", kContractVersion).Member("format", request.format->name);
  out.Member("name", plan.graph.name).Member("engine", plan.graph.engine);
  out.Member("seed", plan.graph.seed).Member("plan_sha256", ToHex(Sha256Of(WritePlan(plan))));
  out.Key("only");
  request.only.empty() ? out.Null() : out.Value(request.only);
  out.Member("max_shard_size", request.max_shard_size);
}

}  // namespace

std::string WriteOrigin(const Plan& plan, const ExportRequest& request) {
  JsonWriter out;
  BeginRecord(plan, request, out);
  return out.Take();
}

std::string WriteRecord(const Plan& plan, const ExportRequest& request,
                        const std::vector<FileLayout>& files,
                        const std::vector<std::vector<Digest>>& digests) {
  JsonWriter out;
  BeginRecord(plan, request, out);
  out.Key("files").BeginArray(JsonWriter::kLines);
  for (size_t f = 0; f < files.size(); ++f) {
    out.BeginObject().Member("file", files[f].path).Member("size", files[f].size());
    out.Member("head_sha256", ToHex(Sha256Of(files[f].head)));
    out.Key("boxes").BeginArray(JsonWriter::kLines);
    for (size_t b = 0; b < files[f].boxes.size(); ++b) {
      const FileBox& box = files[f].boxes[b];
      out.BeginObject().Member("path", box.tensor->path);
      out.Member("dtype", InfoOf(box.tensor->dtype).name);
      out.Member("global_shape", box.tensor->shape).Member("offset", box.box.offset);
      out.Member("shape", box.box.shape).Member("file_offset", box.offset);
      out.Member("sha256", ToHex(digests[f][b])).EndObject();
    }
    out.EndArray().EndObject();
  }
  out.EndArray().EndObject();
  return out.Finish();
}

}  // namespace shardinit
