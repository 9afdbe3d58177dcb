#include "generate/digests.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/text.h"
#include "rng/stream.h"
#include "tensor/dtype.h"

namespace shardinit {

std::vector<TensorDigest> DigestTensors(
    const std::vector<const Tensor*>& tensors, const WorkerOptions& options,
    const std::function<void(const WorkCounters& counters)>& progress, WorkCounters* counters,
    const SourceOf& source) {
  std::vector<TensorDigest> digests;
  for (const Tensor* tensor : tensors) digests.push_back({tensor, {}});
  std::vector<BoxTask> tasks;
  for (TensorDigest& digest : digests) {
    tasks.push_back({digest.tensor, WholeOf(digest.tensor->shape()), {}, &digest.sha256});
    if (source) tasks.back().source = source(*digest.tensor);
  }
  Workers workers(options, counters);
  workers.Submit(std::move(tasks), nullptr);
  workers.WaitFor(1, [&] {
    if (progress) progress(*counters);
  });
  return digests;
}

DigestList ReadDigests(const std::string& path) {
  const nlohmann::json in = ParseJson(ReadFile(path, size_t{1} << 30), path);
  DigestList list;
  const auto refuse = [&](const std::string& why) {
    return Error(ExitCode::kRefused, fmt::format("`{}` is not a list of digests{}", path, why),
                 "make one with `shardinit digest SPEC --write FILE`");
  };
  try {
    if (const auto& version = in.at("contract_version");
        version.get<int64_t>() != kContractVersion) {
      throw refuse(fmt::format(" of this version: its contract_version is {} instead of {}",
                               version.dump(), kContractVersion));
    }
    if (!in.at("seed").is_null()) list.seed = in["seed"].get<uint64_t>();
    if (!in.at("engine").is_null()) list.engine = in["engine"].get<std::string>();
    for (const auto& tensor : in.at("tensors")) {
      const auto name = tensor.at("path").get<std::string>();
      RecordedDigest digest{tensor.at("dtype").get<std::string>(),
                            tensor.at("sha256").get<std::string>(),
                            tensor.at("shape").get<Shape>()};
      const bool is_new = list.tensors.emplace(name, std::move(digest)).second;
      if (!is_new) throw refuse(fmt::format(": it has {} twice", Quote(name)));
    }
    // The list does not contain the digest of a part of the model.
    if (const auto& model = in.at("model_digest"); !model.is_null()) {
      const std::string tensors = ToHex(ModelDigest(list.tensors));
      if (model.get<std::string>() != tensors) {
        throw refuse(fmt::format(": its model_digest is {}, but its tensors have the digest {}",
                                 Quote(model.get<std::string>()), tensors));
      }
    }
  } catch (const nlohmann::json::exception&) {
    throw refuse("");
  }
  return list;
}

Digest ModelDigest(const RecordedDigests& tensors) {
  std::vector<std::string> lines;
  for (const auto& [path, tensor] : tensors) {
    lines.push_back(fmt::format("{} {} [{}] {}\n", path, tensor.dtype, fmt::join(tensor.shape, ","),
                                tensor.sha256));
  }
  std::sort(lines.begin(), lines.end());
  Sha256 hash;
  for (const std::string& line : lines) hash.Update(line);
  return hash.Finish();
}

Digest ModelDigest(const std::vector<TensorDigest>& tensors) {
  RecordedDigests digests;
  for (const auto& [tensor, sha256] : tensors) {
    digests[std::string(tensor->path())] = {std::string(InfoOf(tensor->dtype()).name),
                                            ToHex(sha256), tensor->shape_in_numbers()};
  }
  return ModelDigest(digests);
}

}  // namespace shardinit
