// Opens folders of tensors from which a spec takes values: checkpoints, exports and what Hugging
// Face's tools or trainers wrote.
#pragma once

#include <memory>

#include "checkpoint/folder.h"
#include "tensor/source.h"

namespace shardinit {

// Each tensor of the folder is hashed whole when it is first needed, and what is read of it later
// must be what was hashed: it is compared in cells. If the request has the digest of the folder,
// all of its tensors are hashed then, before anybody gets an element.
//
// A tensor of which digests are recorded must have them.
//
// Throws Error: kUsage if there is no such folder, or the file of the request lists no digests;
// kRefused if what is there is hostile or damaged; kDifferent as TensorFolder does.
std::shared_ptr<const SourceFolder> OpenSource(const SourceRequest& request);

}  // namespace shardinit
