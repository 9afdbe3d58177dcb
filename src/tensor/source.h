// Represents existing tensors whose values a spec uses. Commands find the code that reads them;
// this file serves the code that generates values from them.
#pragma once

#include <atomic>
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

// Why the elements of a tensor are not numbers of its model: other tensors scale them.
struct Scaled {
  std::string why = {};  // empty: they are numbers of the model
  bool is_read = false;  // whether the source can give the numbers (SourceRequest::widens)
};

// An existing tensor. All readers get the same elements, whose digest Check() returns, or an error.
// It is safe to use from several threads.
class SourceTensor {
 public:
  SourceTensor(std::string text, DType dtype, Shape shape, int64_t cell_bytes)
      : text_(std::move(text)),
        dtype_(dtype),
        shape_(std::move(shape)),
        cell_elements_(cell_bytes / InfoOf(dtype).bytes) {}
  virtual ~SourceTensor() = default;

  // Returns a number that no other object has.
  uint64_t id() const { return id_; }
  // Returns the tensor's description for messages: `` `w` of the source `base` ``.
  const std::string& text() const { return text_; }
  // Returns the (first) file that contains the tensor, or the folder if it is a checkpoint.
  virtual const std::string& file() const = 0;
  DType dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }
  int64_t elements() const { return ElementCount(shape_); }
  // Returns the number of elements in a cell, in row-major order; the last cell may have fewer.
  int64_t cell_elements() const { return cell_elements_; }

  virtual Scaled scaled() const { return {}; }

  // Reads the whole tensor, once, and returns the SHA-256 of its elements. Throws Error: kUsage if
  // the source is pinned and the elements differ; kWorld if they cannot be read.
  virtual Digest Check() const = 0;
  // Returns the numbers computed from the tensor under this name. The first caller computes them.
  std::shared_ptr<const std::vector<double>> Computed(
      const std::string& name, const std::function<std::vector<double>()>& compute) const {
    const std::lock_guard lock(mutex_);
    std::shared_ptr<const std::vector<double>>& numbers = computed_[name];
    if (numbers == nullptr) numbers = std::make_shared<const std::vector<double>>(compute());
    return numbers;
  }
  // Reads consecutive cells. Throws as Check() does, and kWorld if a cell has changed.
  virtual void ReadCells(int64_t first, int64_t count, void* out) const = 0;

 private:
  static inline std::atomic<uint64_t> ids_{0};
  const uint64_t id_ = ++ids_;
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
  // Returns null if the folder has no tensor of this name. Throws Error (kUsage) if the tensor has
  // a type that shardinit does not support.
  virtual SourceTensorPtr Find(const std::string& name) const = 0;
  virtual std::vector<std::string> Names() const = 0;
  // Returns the digest that pins all its tensors, in hexadecimal digits, or an empty text if the
  // source is not pinned.
  virtual std::string pin() const = 0;
  // Returns a sentence about something that users may not expect of the folder, or an empty text.
  virtual std::string warning() const { return {}; }
};

// A spec's statement about a source.
struct SourceRequest {
  std::string name;
  std::string folder;
  std::string part;      // of the files, the part that is the model; empty: the only one
  std::string digest;    // of the whole folder, or a file with digests; empty: not given
  bool is_file = false;  // whether `digest` is a file
  std::string place;     // where the user gave the digest, for messages
  std::string layout;    // of the spec of the model in the folder; empty: names as stored
  std::string spec;      // a file or a name; empty: the folder's config.json
  bool widens = false;   // whether quantized tensors become the tensors that they represent
};
// Opens a folder of tensors. Throws Error.
using SourceOpener = std::function<std::shared_ptr<const SourceFolder>(const SourceRequest&)>;

}  // namespace shardinit
