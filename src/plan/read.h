// The parts of the reader of plan.json.
#pragma once

#include <fmt/format.h>

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "graph/graph.h"

namespace shardinit {

// This is thrown of a plan, or of one of its tensors, that this tool cannot have written.
class RefusedPlan : public Error {
 public:
  RefusedPlan(const std::string& path, std::string why)
      : Error(ExitCode::kRefused, fmt::format("`{}` is not a plan of this tool: {}", path, why),
              "give the plan.json as shardinit wrote it, unchanged"),
        why_(std::move(why)) {}
  const std::string& why() const { return why_; }

 private:
  std::string why_;
};

// This is thrown of a file of a checkpoint that another release of this tool wrote.
class UnknownVersion : public Error {
 public:
  // The versions are as the file has them; one that it lacks is empty.
  UnknownVersion(const std::string& path, std::string_view format, std::string_view contract);
};

// Throws UnknownVersion if the text of a file of a checkpoint begins with other versions than this
// tool knows. A text that has none is not refused here.
void RequireKnownVersion(std::string_view text, const std::string& path);

// Throws RefusedPlan, which names the plan's file and what is wrong.
template <typename... T>
[[noreturn]] void RefusePlan(const std::string& path, fmt::format_string<T...> what, T&&... of) {
  throw RefusedPlan(path, fmt::format(what, std::forward<T>(of)...));
}

// Reads how a tensor is drawn. Its path, type and shape have been read.
void ReadDraw(const nlohmann::json& in, const std::string& path, Tensor& tensor);

// Reads a drawn tensor from an object that has the members of the tensor in plan.json, and the
// model's `engine` and `seed`. The model has no other tensors but those of the list `tensors` that
// have a `path`. Throws RefusedPlan, or an exception of the JSON library.
Tensor ReadOnlyTensor(const nlohmann::json& in, const std::string& path);

}  // namespace shardinit
