// Declares the parts of the reader of plan.json.
#pragma once

#include <fmt/format.h>

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "graph/graph.h"

namespace shardinit {

// Thrown for a plan, or one of its tensors, that this program cannot have written.
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

// Thrown for a file of a checkpoint that another release of this program wrote.
class UnknownVersion : public Error {
 public:
  // The versions are copied from the file; a missing one is empty.
  UnknownVersion(const std::string& path, std::string_view format, std::string_view contract);
};

// Throws UnknownVersion if the text of a checkpoint's file begins with versions that this program
// does not know. Accepts text without versions.
void RequireKnownVersion(std::string_view text, const std::string& path);

// Throws RefusedPlan, which names the plan's file and the error.
template <typename... T>
[[noreturn]] void RefusePlan(const std::string& path, fmt::format_string<T...> what, T&&... of) {
  throw RefusedPlan(path, fmt::format(what, std::forward<T>(of)...));
}

// Read what plan.json and manifest.json write in the same way: the members of a tensor that drawn
// and stored ones have in common, the seed in `in`, and a mesh. Throw as ReadOnlyTensor() does.
Tensor ReadTensor(const nlohmann::json& in, const std::string& path);
uint64_t ReadSeed(const nlohmann::json& in, const std::string& path);
Mesh ReadMesh(const nlohmann::json& in, const std::string& path);

// Reads how a tensor is drawn. The caller has already read its path, type and shape.
void ReadDraw(const nlohmann::json& in, const std::string& path, Tensor& tensor);

// Reads a drawn tensor from an object with the tensor's members in plan.json and the model's
// `engine` and `seed`. The list `tensors` has the model's other tensors, of which only those with a
// `path` count. Throws RefusedPlan, or an exception of the JSON library.
Tensor ReadOnlyTensor(const nlohmann::json& in, const std::string& path);

}  // namespace shardinit
