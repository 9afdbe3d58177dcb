// Turns a spec's initializer into the distribution of a tensor: follows names, evaluates arguments
// and formulas.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "graph/drawn/expand.h"
#include "graph/explanation.h"
#include "init/initializer.h"

namespace shardinit {

// Reports initializers of the spec that have the name of one of the tool's own.
void CheckInitNames(const ModelSpec& spec, Diagnostics& diagnostics);

class InitBinder {
 public:
  explicit InitBinder(Building& building);

  // Gives the tensor its distribution. `shape` is null if it is wrong: then only names and
  // arguments are checked. `notes` may be null. Mistakes in a named initializer are reported once.
  void Bind(const Leaf& leaf, const Shape* shape, InitNotes* notes, Tensor* tensor);

 private:
  template <typename F>
  void Report(const InitSpec* init, F report);
  std::optional<Distribution> Lower(const InitSpec& init, const TensorSpec& tensor, DType dtype,
                                    const Shape* shape, const Fans* fans, InitNotes* notes);
  std::optional<Argument> BindArgument(const Parameter& parameter, const Expr& expr,
                                       const TensorSpec& tensor, const Shape* shape);
  std::optional<Distribution> LowerExpression(const InitSpec& init, const TensorSpec& tensor,
                                              const Shape* shape, InitNotes* notes);
  std::optional<Distribution> LowerFile(const InitSpec& init, DType dtype, const Shape* shape,
                                        InitNotes* notes);
  std::optional<Distribution> LowerNorm(const InitSpec& init, InitNotes* notes);
  std::optional<Distribution> LowerFormula(const Initializer& initializer, Arguments arguments,
                                           const Shape& shape, Span span);
  std::optional<Distribution> Intern(std::shared_ptr<const Program> program);

  const ModelSpec& spec_;
  Diagnostics& diagnostics_;
  SpecScope& names_;
  std::unordered_map<std::string, const InitSpec*> inits_;
  std::unordered_set<const InitSpec*> bad_inits_;
  std::unordered_map<std::string, std::shared_ptr<const Program>> programs_;  // by text
  std::map<std::tuple<std::string, std::string, bool>, std::shared_ptr<const CheckedFile>>
      files_;  // by path, SHA-256, and whether it holds bools
};

}  // namespace shardinit
