// Tensors that exist, whose values a spec takes. What reads them is found by commands; here is what
// makes values of them.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/sha256.h"
#include "tensor/box.h"
#include "tensor/dtype.h"

namespace shardinit {

// One tensor. All who read it get the same elements, whose digest is Check()'s, or an error. It is
// safe to use from several threads.
class SourceTensor {
 public:
  SourceTensor(std::string text, DType dtype, Shape shape, int64_t cell_bytes)
      : text_(std::move(text)),
        dtype_(dtype),
        shape_(std::move(shape)),
        cell_elements_(cell_bytes / InfoOf(dtype).bytes) {}
  virtual ~SourceTensor() = default;

  // Says which it is, for messages: `` `w` of the source `base` ``.
  const std::string& text() const { return text_; }
  // Returns the file that has it, or the first of them; of a checkpoint, its folder.
  virtual const std::string& file() const = 0;
  DType dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }
  int64_t elements() const { return ElementCount(shape_); }
  // Elements are read in cells of so many, in row-major order; the last cell may have fewer.
  int64_t cell_elements() const { return cell_elements_; }

  // Reads the whole tensor, once, and returns the SHA-256 of its elements. Throws Error: kUsage if
  // the source is pinned and has others; kWorld if they cannot be read.
  virtual Digest Check() const = 0;
  // Returns the numbers that were computed of the tensor under this name; the first caller computes
  // them.
  std::shared_ptr<const std::vector<double>> Computed(
      const std::string& name, const std::function<std::vector<double>()>& compute) const {
    const std::lock_guard lock(mutex_);
    std::shared_ptr<const std::vector<double>>& numbers = computed_[name];
    if (numbers == nullptr) numbers = std::make_shared<const std::vector<double>>(compute());
    return numbers;
  }
  // Reads cells that follow one another. Throws as Check() does, and kWorld if one is no longer as
  // it was.
  virtual void ReadCells(int64_t first, int64_t count, void* out) const = 0;

 private:
  const std::string text_;
  const DType dtype_;
  const Shape shape_;
  const int64_t cell_elements_;
  mutable std::mutex mutex_;
  mutable std::map<std::string, std::shared_ptr<const std::vector<double>>> computed_;
};
using SourceTensorPtr = std::shared_ptr<const SourceTensor>;

// A folder of tensors.
class SourceFolder {
 public:
  virtual ~SourceFolder() = default;
  // Returns null if the folder has no tensor of this name. Throws Error (kUsage) if it has one of a
  // type that shardinit does not have.
  virtual SourceTensorPtr Find(const std::string& name) const = 0;
  virtual std::vector<std::string> Names() const = 0;
  // Returns the digest of all its tensors that they are held to, in hexadecimal digits; empty if
  // the source is not pinned.
  virtual std::string pin() const = 0;
  // A sentence about something that users may not expect of the folder; empty: nothing.
  virtual std::string warning() const { return {}; }
};

// A spec says this of a source.
struct SourceRequest {
  std::string name;
  std::string folder;
  std::string part;      // of the files, which is the model; empty: the only one
  std::string digest;    // of the whole folder, or a file with digests; empty: none is given
  bool is_file = false;  // Whether `digest` is a file.
  std::string place;     // where the user gave the digest, for messages
  std::string layout;    // of the spec of the model that is in the folder; empty: names as stored
  std::string spec;      // a file or a name; empty: the folder's config.json
};
// Opens a folder of tensors. Throws Error.
using SourceOpener = std::function<std::shared_ptr<const SourceFolder>(const SourceRequest&)>;

}  // namespace shardinit
