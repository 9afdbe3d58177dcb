#include "generate/digests.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <utility>

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
    tasks.push_back({digest.tensor, WholeOf(digest.tensor->shape), {}, &digest.sha256});
    if (source) tasks.back().source = source(*digest.tensor);
  }
  Workers workers(options, counters);
  workers.Submit(std::move(tasks), nullptr);
  workers.WaitFor(1, [&] {
    if (progress) progress(*counters);
  });
  return digests;
}

Digest ModelDigest(const std::vector<TensorDigest>& tensors) {
  std::vector<std::string> lines;
  for (const TensorDigest& digest : tensors) {
    lines.push_back(fmt::format("{} {} [{}] {}\n", digest.tensor->path,
                                InfoOf(digest.tensor->dtype).name,
                                fmt::join(digest.tensor->shape, ","), ToHex(digest.sha256)));
  }
  std::sort(lines.begin(), lines.end());
  Sha256 hash;
  for (const std::string& line : lines) hash.Update(line);
  return hash.Finish();
}

}  // namespace shardinit
