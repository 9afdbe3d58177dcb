// The parts of the reader of plan.json.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "graph/graph.h"

namespace shardinit {

// These throw Error (kRefused), which names the plan's file and what is wrong. `what` of
// RefuseTensor has `{}` for the path of the tensor.
[[noreturn]] void RefusePlan(const std::string& path, std::string_view what);
[[noreturn]] void RefuseTensor(const std::string& path, std::string_view what,
                               const Tensor& tensor);

// Reads how a tensor is drawn. Its path, type and shape have been read.
void ReadDraw(const nlohmann::json& in, const std::string& path, Tensor& tensor);

}  // namespace shardinit
