// Feeds fuzz_spec.cc's inputs, and a fifth part as numbers, to the C interface. Each must give a
// message, or a spec whose tensors have boxes and whose parts equal those parts of the whole.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "fuzz/clean_text.h"
#include "fuzz/split.h"
#include "library/shardinit.h"

namespace shardinit {
namespace {

void Need(bool holds) {
  if (!holds) abort();
}

// Releases a message; there must be one if and only if the call failed.
void Take(shardinit_status status, char* message) {
  Need((status == SHARDINIT_OK) == (message == nullptr));
  Need(status == SHARDINIT_OK || status == SHARDINIT_ERROR_USAGE ||
       status == SHARDINIT_ERROR_WORLD);
  if (message != nullptr) {
    Need(*message != 0);
    NeedCleanText(message);
  }
  shardinit_free(message);
}

// Turns bytes into an endless sequence of numbers.
class Numbers {
 public:
  explicit Numbers(const std::string& bytes) : bytes_(bytes) {}

  int64_t Next() {
    const auto byte = [&] {
      return bytes_.empty() ? 0 : static_cast<uint8_t>(bytes_[at_++ % bytes_.size()]);
    };
    const int64_t kind = byte(), small = byte();
    return kind < 200 ? small % 17 : kind < 230 ? -small : (int64_t{1} << (small % 63)) - 1;
  }

 private:
  const std::string bytes_;
  size_t at_ = 0;
};

using Ints = std::vector<int64_t>;

// Fills the part and compares it with `whole`, which has been filled.
void TryPart(const shardinit_spec* spec, int64_t index, const std::vector<uint64_t>& whole,
             const Ints& offset, const Ints& shape, int64_t extra) {
  const shardinit_tensor& tensor = *shardinit_tensor_at(spec, index);
  int64_t elements = 1;
  bool is_within = true;
  for (size_t d = 0; d < shape.size(); ++d) {
    is_within = is_within && offset[d] >= 0 && shape[d] >= 0 && offset[d] <= tensor.shape[d] &&
                shape[d] <= tensor.shape[d] - offset[d];
    if (is_within) elements *= shape[d];
  }
  const size_t element = static_cast<size_t>(tensor.element_bytes);
  const size_t bytes = (is_within ? static_cast<size_t>(elements) : 1) * element;
  std::vector<uint64_t> out(bytes / 8 + 1 + static_cast<size_t>(extra > 0));
  char* message = nullptr;
  const size_t given = bytes + (extra > 0 ? 1 : 0);
  const shardinit_status status = shardinit_fill(spec, index, offset.data(), shape.data(),
                                                 out.data(), given, extra == 0 ? 1 : 0, &message);
  Take(status, message);
  // An empty part may succeed or fail: shardinit.h does not specify it.
  if (!is_within || extra > 0) return Need(status == SHARDINIT_ERROR_USAGE);
  if (status != SHARDINIT_OK) return Need(elements == 0);
  for (int64_t i = 0; i < elements; ++i) {
    int64_t rest = i, place = 0, stride = 1;
    for (size_t d = shape.size(); d-- > 0;) {
      place += (offset[d] + rest % shape[d]) * stride;
      rest /= shape[d];
      stride *= tensor.shape[d];
    }
    Need(memcmp(reinterpret_cast<const char*>(out.data()) + static_cast<size_t>(i) * element,
                reinterpret_cast<const char*>(whole.data()) + static_cast<size_t>(place) * element,
                element) == 0);
  }
}

void TryTensor(const shardinit_spec* spec, int64_t index, int64_t ranks, Numbers& numbers) {
  const shardinit_tensor& tensor = *shardinit_tensor_at(spec, index);
  Need(shardinit_find(spec, tensor.path) == index);
  if (tensor.elements > 4096) return;  // Larger tensors may be slow.
  const auto dimensions = static_cast<size_t>(tensor.dimensions);
  std::vector<uint64_t> whole(static_cast<size_t>(tensor.bytes) / 8 + 1);
  char* message = nullptr;
  shardinit_status status = shardinit_fill(spec, index, nullptr, nullptr, whole.data(),
                                           static_cast<size_t>(tensor.bytes), 2, &message);
  Take(status, message);
  if (status != SHARDINIT_OK) return;
  Ints offset(dimensions), shape(dimensions);
  for (size_t d = 0; d < dimensions; ++d) offset[d] = numbers.Next(), shape[d] = numbers.Next();
  TryPart(spec, index, whole, offset, shape, numbers.Next() % 2);
  constexpr int64_t kMost = 3;
  Ints offsets(kMost * dimensions + 1), shapes(kMost * dimensions + 1);
  int64_t count = 0;
  const int64_t rank = numbers.Next();
  status =
      shardinit_boxes(spec, index, rank, offsets.data(), shapes.data(), kMost, &count, &message);
  Take(status, message);
  Need((status == SHARDINIT_OK) == (rank >= 0 && rank < ranks));
  for (int64_t box = 0; status == SHARDINIT_OK && box < std::min(count, kMost); ++box) {
    const auto begin = box * static_cast<int64_t>(dimensions);
    const auto end = begin + static_cast<int64_t>(dimensions);
    TryPart(spec, index, whole, Ints(offsets.begin() + begin, offsets.begin() + end),
            Ints(shapes.begin() + begin, shapes.begin() + end), 0);
  }
}

}  // namespace
}  // namespace shardinit

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace shardinit;
  const std::vector<std::string> parts = SplitInput(data, size, 5);
  const char* const sets[] = {parts[1].c_str()};
  const shardinit_source source = {.struct_size = sizeof source,
                                   .path = "spec",
                                   .text = parts[0].data(),
                                   .text_size = parts[0].size(),
                                   .sets = sets,
                                   .set_count = size_t{!parts[1].empty()},
                                   .mesh = parts[2].c_str(),
                                   .layout = parts[3].c_str(),
                                   .is_plan = 0,
                                   .is_folder = 0,
                                   .files = nullptr,
                                   .is_manifest = 0,
                                   .is_record = 0};
  shardinit_spec* spec = nullptr;
  char* message = nullptr;
  const shardinit_status status = shardinit_open(&source, &spec, &message);
  Take(status, message);
  if (status != SHARDINIT_OK) {
    Need(spec == nullptr);
    return 0;
  }
  const shardinit_info& info = *shardinit_describe(spec);
  int64_t ranks = 1;
  for (int32_t d = 0; d < info.mesh_dimensions; ++d) ranks *= info.mesh_shape[d];
  Numbers numbers(parts[4]);
  for (int64_t i = 0; i < std::min<int64_t>(info.tensor_count, 20); ++i) {
    TryTensor(spec, i, ranks, numbers);
  }
  Need(shardinit_tensor_at(spec, info.tensor_count) == nullptr);
  Need(shardinit_tensor_at(spec, -1) == nullptr &&
       shardinit_find(spec, parts[4].c_str()) < info.tensor_count);
  shardinit_close(spec);
  return 0;
}
