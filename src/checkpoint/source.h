// Opens folders of tensors from which a spec takes values: checkpoints, exports, and output of
// Hugging Face's tools or of trainers.
#pragma once

#include <memory>

#include "tensor/source.h"

namespace shardinit {

// Opens a source. Each tensor is hashed completely when it is first needed, and later reads must
// match: they are compared in cells. If the request has the digest of the folder, all tensors are
// hashed before any element is returned.
//
// A tensor must match its recorded digests, if there are any.
//
// Throws Error: kUsage if the folder does not exist or the request's file lists no digests;
// kRefused if the files are hostile or damaged; kDifferent as TensorFolder does.
std::shared_ptr<const SourceFolder> OpenSource(const SourceRequest& request);

}  // namespace shardinit
