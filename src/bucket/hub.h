// Lists and reads a model on the Hub of Hugging Face: `hf://ORG/MODEL[@REVISION]`.
#pragma once

#include <string>

#include "bucket/tree.h"

namespace shardinit {

// Lists the whole model of a URL in one commit. Its files are then read from this commit only, and
// must be the files of the list. Throws Error: kUsage if the model cannot be read with the user's
// settings, kRefused if the list has a name or size that no model has, else kWorld.
BucketTree::Parts ListHub(const std::string& url);

}  // namespace shardinit
