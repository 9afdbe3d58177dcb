// Feeds any bytes to the readers of shardinit's files; the first byte selects the kind of file.
// Each reader must refuse the file, or read it such that writing it gives the same bytes.
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/text.h"
#include "bucket/credentials.h"
#include "bucket/profile.h"
#include "bucket/url.h"
#include "bucket/xml.h"
#include "checkpoint/manifest.h"
#include "checkpoint/receipt.h"
#include "export/record.h"
#include "formats/dcp/unpickle.h"
#include "formats/foreign_names.h"
#include "formats/format.h"
#include "formats/safetensors/file.h"
#include "generate/digests.h"
#include "generate/known_answers.h"
#include "plan/plan.h"
#include "tensor/box.h"

namespace shardinit {
namespace {

// Receipts are tried with this plan.
constexpr char kPlan[] = R"({
 "format_version": 1,
 "contract_version": 1,
 "name": "x",
 "engine": "philox4x32",
 "seed": 0,
 "mesh": {"axes": ["a"], "shape": [2]},
 "replicas": "dedupe",
 "tensors": [
  {"path": "a.w", "dtype": "bf16", "global_shape": [5, 7], "partition_spec": [["a"], []], "init": {"normal": {"mean": 0, "std": 0.02}}},
  {"path": "b", "dtype": "f32", "global_shape": [], "partition_spec": [], "init": {"constant": {"value": 1}}}
 ]
}
)";

void TryPlanFile(const std::string& text) {
  if (WritePlan(ReadPlan(text, "plan.json")) != text) abort();
}

void TryReceipt(const std::string& text) {
  static const Plan plan = ReadPlan(kPlan, "plan.json");
  static const RankPlan rank = PlanRank(plan, 0);
  const Receipt receipt = ReadReceipt(text, "rank.json", rank);
  for (size_t i = 0; i < rank.shards.size(); ++i) {
    const int64_t end = receipt.offsets[i] + rank.shards[i].bytes();
    if (receipt.offsets[i] < 0 || end > receipt.size) abort();
  }
  const bool is_own = WriteReceipt(rank, receipt) == text;
  if (ReadWritten(text, "rank.json", rank).has_value() != is_own) abort();
}

void TryManifest(const std::string& text) {
  std::optional<FileEntry> index;
  ClaimedIndex(text, &index);
}

void TrySafetensors(const std::string& text) {
  static const std::string path = "/dev/shm/shardinit-fuzz-" + std::to_string(getpid());
  std::ofstream(path, std::ios::binary) << text;
  int64_t end = -1;
  safetensors::Metadata metadata;
  for (const safetensors::Entry& entry : safetensors::ReadHeader(path, &metadata)) {
    if (entry.bytes < 0 || (end >= 0 && entry.offset != end)) abort();
    end = entry.offset + entry.bytes;
  }
  if (end >= 0 && end != static_cast<int64_t>(text.size())) abort();
}

// Checks that all pieces that were read are within the file.
void TryTorchFile(const std::string& text) {
  static const std::string path = "/dev/shm/shardinit-fuzz-" + std::to_string(getpid()) + ".pt";
  std::ofstream(path, std::ios::binary) << text;
  const Contents contents = kTorchReader.read_file(path, {});
  for (const auto& [name, holding] : contents.tensors) {
    const DTypeInfo* const dtype = FindDType(kTorchReader.dtype, holding.dtype);
    for (const FilePiece& piece : holding.pieces) {
      const int64_t bytes = ElementCount(piece.box.shape) * dtype->bytes;
      if (piece.offset < 0 || piece.offset + bytes > static_cast<int64_t>(text.size())) abort();
    }
  }
}

void TryRecord(const std::string& text) {
  for (const RecordedFile& file : ReadRecord(WithDigest(text), "shardinit-export.json").files) {
    int64_t end = 0;
    for (const RecordedFile::Part& part : file.parts) {
      if (part.offset != end || part.bytes < 0) abort();
      end += part.bytes;
    }
    if (end != file.size) abort();
  }
}

// Checks that the elements of a store's answer are within it and in order.
void TryXml(const std::string& text) {
  const char* end = text.data();
  for (const std::string_view object : XmlElements(text, "Contents")) {
    if (object.data() < end || object.data() + object.size() > text.data() + text.size()) abort();
    end = object.data() + object.size();
    XmlText(object, "Key");
  }
  TimeOf(XmlText(text, "Expiration"));
}

void TryBucketUrl(const std::string& text) {
  if (!IsBucketUrl(text)) return;
  const BucketUrl url = ParseBucketUrl(text);
  const BucketUrl again = ParseBucketUrl(url.text());
  if (again.bucket != url.bucket || again.prefix != url.prefix) abort();
}

void TryDigests(const std::string& text) {
  static const std::string path = "/dev/shm/shardinit-fuzz-" + std::to_string(getpid()) + ".json";
  std::ofstream(path, std::ios::binary) << text;
  ModelDigest(ReadDigests(path).tensors);
}

void TryProfile(const std::string& text) {
  static const std::string path = "/dev/shm/shardinit-fuzz-" + std::to_string(getpid()) + ".ini";
  std::ofstream(path, std::ios::binary) << text;
  setenv("AWS_CONFIG_FILE", path.c_str(), 1);
  setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null", 1);
  for (const auto& [key, value] : ReadProfile().all) {
    const bool is_line = value.find('\n') == value.npos;  // Lines of a longer value are trimmed.
    if (key.empty() || (is_line && text.find(value) == text.npos)) abort();
  }
}

// Requires a number for each element, and a box within its tensor. Computes small tensors.
void TryKnownAnswers(const std::string& text) {
  ReadKnownAnswers(text, "answers.json", [](const KnownAnswer& answer) {
    if (std::ssize(answer.bits) != ElementCount(answer.box.shape)) abort();
    for (size_t d = 0; d < answer.tensor.shape().size(); ++d) {
      if (answer.box.shape[d] > answer.tensor.shape()[d] - answer.box.offset[d]) abort();
    }
    const Tensor* const measured = answer.tensor.measured().get();
    const auto is_small = [](const Tensor& tensor) { return tensor.elements() <= 4096; };
    if (is_small(answer.tensor) && (measured == nullptr || is_small(*measured))) MakeBits(answer);
  });
}

void TryPickle(const std::string& text) { dcp::ReadPickle(text, ".metadata"); }

}  // namespace
}  // namespace shardinit

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace shardinit;
  if (size == 0) return 0;
  const std::string text(reinterpret_cast<const char*>(data) + 1, size - 1);
  try {
    switch (data[0]) {
      case 'p':
        TryPlanFile(text);
        break;
      case 'r':
        TryReceipt(text);
        break;
      case 'm':
        TryManifest(text);
        break;
      case 's':
        TrySafetensors(text);
        break;
      case 'e':
        TryRecord(text);
        break;
      case 't':
        TryTorchFile(text);
        break;
      case 'k':
        TryPickle(text);
        break;
      case 'x':
        TryXml(text);
        break;
      case 'u':
        TryBucketUrl(text);
        break;
      case 'd':
        TryDigests(text);
        break;
      case 'a':
        TryProfile(text);
        break;
      case 'v':
        TryKnownAnswers(text);
        break;
    }
  } catch (const Error& e) {
    if (FindBadText(RenderError(e.what(), e.hint()))) abort();
  }
  return 0;
}
