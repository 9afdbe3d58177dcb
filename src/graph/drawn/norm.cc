#include "graph/drawn/norm.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/suggest.h"
#include "base/text.h"

namespace shardinit {
namespace {

NormProblem ProblemOf(const Tensor& norm, const Tensor& of) {
  if (std::holds_alternative<Norm>(of.distribution())) {
    return {fmt::format("`{}` contains norms itself", of.path()),
            "name a tensor with its own values"};
  }
  if (!InfoOf(of.dtype()).is_float()) {
    return {fmt::format("`{}` is {}, but norms are of floats", of.path(), InfoOf(of.dtype()).name),
            {}};
  }
  const Shape shape = WholeShapeOfNorms(norm.shape(), of.shape());
  bool good = shape.size() == of.shape().size();
  for (size_t d = 0; good && d < shape.size(); ++d) {
    good = shape[d] == 1 || shape[d] == of.shape()[d];
  }
  if (good) return {};
  return {fmt::format("`{}` has the shape [{}], but norms of `{}` have the shape [{}] with 1 for "
                      "each dimension that they are taken over",
                      norm.path(), fmt::join(norm.shape(), ", "), of.path(),
                      fmt::join(of.shape(), ", ")),
          "the norm of all elements may also have the shape []"};
}

}  // namespace

Shape WholeShapeOfNorms(Shape norms, const Shape& measured) {
  norms.resize(std::max(norms.size(), measured.size()), 1);
  return norms;
}

void BindNorms(std::vector<Tensor>& tensors,
               const std::function<void(size_t, const NormProblem&)>& report) {
  std::unordered_map<std::string_view, const Tensor*> by_path;  // empty until a norm is found
  for (size_t i = 0; i < tensors.size(); ++i) {
    const auto* const norm = std::get_if<Norm>(&tensors[i].distribution());
    if (norm == nullptr) continue;
    if (by_path.empty()) {
      for (const Tensor& tensor : tensors) by_path.emplace(tensor.path(), &tensor);
    }
    const auto of = by_path.find(norm->of);
    if (of == by_path.end()) {
      report(i, {fmt::format("no tensor is {}", Quote(norm->of)),
                 DidYouMean(norm->of, PathsOf(tensors))});
    } else if (const NormProblem problem = ProblemOf(tensors[i], *of->second);
               !problem.message.empty()) {
      report(i, problem);
    } else {
      tensors[i].set_measured(std::make_shared<Tensor>(*of->second));
    }
  }
}

}  // namespace shardinit
