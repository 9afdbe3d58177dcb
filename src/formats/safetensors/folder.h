// Reads a folder of safetensors files, whoever wrote them.
#pragma once

#include "formats/format.h"

namespace shardinit::safetensors {

extern const FormatReader kReader;

}  // namespace shardinit::safetensors
