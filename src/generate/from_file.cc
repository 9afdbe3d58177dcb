// Reads the values of a tensor from a file, `init: {file: …}`: the file's bytes, unchanged.
#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "base/checked_file.h"
#include "base/error.h"
#include "generate/filler.h"

namespace shardinit {
namespace {

// If short runs are at most this many bytes apart, reading the bytes in between takes less time
// than reading each run separately.
constexpr int64_t kNear = 4096;
constexpr int64_t kSpan = 256 << 10;  // bytes read at a time in that case

class FromFileFiller final : public Filler {
 public:
  FromFileFiller(const FromFile& from_file, const Tensor& tensor)
      : file_(from_file.file), dtype_(tensor.dtype()) {}

  // Throws Error as CheckedFile does, and kUsage for a bool that is neither 0 nor 1.
  void Fill(const Runs& runs, int64_t first, int64_t count, void* out) const override {
    Check(file_ != nullptr, "values of a plan that was read, and not made of a spec");
    const CheckedFile::Reader file(*file_);
    const int64_t bytes = InfoOf(dtype_).bytes;
    auto* at = static_cast<uint8_t*>(out);
    std::vector<uint8_t> span;
    for (int64_t left = count; left > 0;) {
      const int64_t run = first / runs.length(), column = first % runs.length();
      const int64_t start = (runs.Start(run) + column) * bytes;
      const int64_t length = std::min(left, runs.length() - column);
      const int64_t stride = runs.stride() * bytes;
      int64_t made = length;
      if (column == 0 && length == runs.length() && stride >= length * bytes && stride <= kNear) {
        const int64_t rows = std::min({left / length, runs.EndOfStride(run) - run, kSpan / stride});
        span.resize(static_cast<size_t>((rows - 1) * stride + length * bytes));
        file.Read(start, static_cast<int64_t>(span.size()), span.data());
        for (int64_t row = 0; row < rows; ++row) {
          std::memcpy(at + row * length * bytes, &span[static_cast<size_t>(row * stride)],
                      static_cast<size_t>(length * bytes));
        }
        made = rows * length;
      } else {
        file.Read(start, length * bytes, at);
      }
      first += made;
      left -= made;
      at += made * bytes;
    }
  }

 private:
  const std::shared_ptr<const CheckedFile> file_;  // Null: no caller may request elements.
  const DType dtype_;
};

}  // namespace

std::unique_ptr<const Filler> MakeFiller(const FromFile& distribution, const Tensor& tensor) {
  return std::make_unique<FromFileFiller>(distribution, tensor);
}

}  // namespace shardinit
