// Turns a spec's initializer into the distribution of a tensor: resolves names, evaluates arguments
// and formulas.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "graph/drawn/expand.h"
#include "init/initializer.h"

namespace shardinit {

// Reports initializers of the spec that redefine a built-in name, and multipliers of unknown
// initializers.
void CheckInitNames(const ModelSpec& spec, Diagnostics& diagnostics);

class InitBinder {
 public:
  explicit InitBinder(Building& building);

  // Sets the tensor's distribution. If `shape` is null (wrong), checks only names and arguments.
  // Reports errors in a named initializer once.
  void Bind(const Leaf& leaf, const Shape* shape, Tensor* tensor);
  // Returns the fans that the spec gives the last bound tensor; nothing if they are wrong.
  const std::optional<FanSource>& fans() const { return fans_; }

 private:
  void Report(const InitSpec& init, const Span& place, const char* mistake);
  const InitSpec* FollowNames(const InitSpec& own);
  void BindMultipliers(const InitSpec& own);
  void BindMultiplier(const Named<ExprPtr>& multiplier, std::vector<std::string>* known);
  std::optional<Distribution> Lower(const InitSpec& init, const TensorSpec& tensor, DType dtype,
                                    const Shape* shape, const Fans* fans);
  std::optional<Distribution> LowerRow(const Initializer& row, const InitSpec& init,
                                       const TensorSpec& tensor, const Shape* shape,
                                       const Fans* fans);
  void ReportUnknownInit(const InitSpec& init);
  bool CheckParameters(const Initializer& row, const InitSpec& init);
  std::optional<std::vector<Argument>> BindArguments(const Initializer& row, const InitSpec& init,
                                                     const TensorSpec& tensor, const Shape* shape);
  std::optional<Argument> BindArgument(const Parameter& parameter, const Expr& expr,
                                       const TensorSpec& tensor, const Shape* shape);
  std::optional<Distribution> LowerExpression(const InitSpec& init, const TensorSpec& tensor,
                                              const Shape* shape);
  std::optional<Distribution> LowerFile(const InitSpec& init, DType dtype, const Shape* shape);
  bool CheckFile(const std::string& name, const Span& place, int64_t size, const Shape& shape,
                 DType dtype);
  std::optional<Distribution> LowerNorm(const InitSpec& init);
  // Defined in from_source.cc.
  std::optional<Distribution> LowerSource(const InitSpec& init, const TensorSpec& tensor,
                                          DType dtype, const Shape* shape);
  std::optional<Distribution> LowerRowsLike(const InitSpec& init, const Shape* shape);
  std::optional<Distribution> LowerParts(const InitSpec& init, const TensorSpec& tensor,
                                         DType dtype, const Shape* shape, const Fans* fans);
  std::optional<std::string> NameInSource(const PathSpec& path, const Span& place);
  SourceTensorPtr FindSource(const FromSourceSpec& from, std::string* name);
  // Like FindSource(), and notes that the tensor's values come from there.
  SourceTensorPtr TakeSource(const FromSourceSpec& from, std::string* name);
  bool CheckNotScaled(const Span& place, const SourceTensor& data, std::optional<DType> dtype);
  bool CheckSourceShape(const FromSourceSpec& from, const SourceTensor& data, const Shape& shape,
                        std::optional<size_t> but);
  std::optional<std::vector<ProgramPtr>> BindIndex(const FromSourceSpec& from,
                                                   const SourceTensor& data,
                                                   const TensorSpec& tensor, const Shape& shape);
  std::optional<int64_t> LengthOf(const InitSpec& part, size_t axis);
  SourceFinder SourcesOf(const Expr& expr);
  std::optional<Distribution> LowerFormula(const Initializer& initializer, Arguments arguments,
                                           const Shape& shape, Span span);
  std::optional<Distribution> Intern(std::shared_ptr<const Program> program);

  const Building& building_;
  Diagnostics& diagnostics_;
  SpecScope& names_;
  const Recorder& why_;
  std::optional<FanSource> fans_;
  std::string path_;                 // of the current tensor
  std::optional<size_t> part_axis_;  // axis of the tensor's parts while one of them is lowered
  bool of_tensor_ = false;  // Whether an error concerns only the current tensor, not all tensors
                            // with its initializer.
  std::unordered_map<std::string, const InitSpec*> inits_;
  std::unordered_set<const InitSpec*> bad_inits_;
  std::unordered_map<std::string, std::shared_ptr<const Program>> programs_;  // by text
  std::map<std::tuple<std::string, std::string, bool>, std::shared_ptr<const CheckedFile>>
      files_;  // by path, SHA-256, and whether it holds bools
};

}  // namespace shardinit
