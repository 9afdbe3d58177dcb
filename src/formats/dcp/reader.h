// Reads folders of torch.distributed.checkpoint that anyone may have written. It trusts nothing in
// them before it is checked.
#pragma once

#include "formats/format.h"

namespace shardinit::dcp {

extern const FormatReader kReader;

}  // namespace shardinit::dcp
