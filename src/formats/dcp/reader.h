// Folders of torch.distributed.checkpoint that anyone may have written: nothing in them is trusted
// before it is checked.
#pragma once

#include "formats/format.h"

namespace shardinit::dcp {

extern const FormatReader kReader;

}  // namespace shardinit::dcp
