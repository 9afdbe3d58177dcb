// The parts of the reader of plan.json.
#pragma once

#include <fmt/format.h>

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>

#include "base/error.h"
#include "graph/graph.h"

namespace shardinit {

// Throws Error (kRefused), which names the plan's file and what is wrong.
template <typename... T>
[[noreturn]] void RefusePlan(const std::string& path, fmt::format_string<T...> what, T&&... of) {
  throw Error(ExitCode::kRefused,
              fmt::format("`{}` is not a plan of this tool: {}", path,
                          fmt::format(what, std::forward<T>(of)...)),
              "give the plan.json as shardinit wrote it, unchanged");
}

// Reads how a tensor is drawn. Its path, type and shape have been read.
void ReadDraw(const nlohmann::json& in, const std::string& path, Tensor& tensor);

}  // namespace shardinit
