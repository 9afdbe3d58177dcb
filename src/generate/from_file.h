// Gives the values of a tensor from a file, `init: {file: …}`: the file's bytes, unchanged.
#pragma once

#include <memory>

#include "base/checked_file.h"
#include "generate/filler.h"
#include "graph/graph.h"

namespace shardinit {

class FromFileFiller final : public Filler {
 public:
  FromFileFiller(const FromFile& from_file, const Tensor& tensor);

  // Throws Error as CheckedFile does, and kUsage for a bool that is neither 0 nor 1.
  void Fill(const Runs& runs, int64_t first, int64_t count, void* out) const override;

 private:
  const std::shared_ptr<const CheckedFile> file_;  // Null: nobody may ask for elements.
  const DType dtype_;
};

}  // namespace shardinit
