#include "graph/stored/pad.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <tuple>

#include "base/checked_math.h"
#include "base/error.h"
#include "graph/stored/view.h"
#include "graph/validate.h"

namespace shardinit {
namespace {

int DepthOf(const ViewNode& node) {
  int depth = 0;
  for (const ViewNode& of : node.of) depth = std::max(depth, DepthOf(of));
  return node.operation == nullptr ? 0 : depth + 1;
}

// Pads the tensor for storage, or returns a problem.
std::optional<ViewProblem> PadTensor(const Mesh& mesh, double value, Tensor* tensor,
                                     PieceBudget* budget) {
  if (std::string misfit = MisfitOfPadding(value, tensor->dtype()); !misfit.empty()) {
    return ViewProblem{std::move(misfit), {}};
  }
  const ViewOperation& pad = *FindViewOperation("pad");
  ViewNode root = tensor->view()->root;
  Viewed viewed{{tensor->shape(), tensor->view()->pieces},
                tensor->partition(),
                std::vector<bool>(tensor->shape().size()),
                std::string(tensor->path())};
  for (size_t d = 0; d < tensor->shape().size(); ++d) {
    const DimensionPartition& by = tensor->partition().dimensions[d];
    const int64_t divisor = DivisorOf(by, mesh), extent = tensor->shape()[d];
    if (extent % divisor == 0) continue;
    if (SegmentsOf(by) > 1) {
      return ViewProblem{fmt::format("dimension {} of `{}` ({}) has segments, which padding at its "
                                     "end does not make equal",
                                     d, tensor->path(), extent),
                         "pad its parts in a layout, or use `uneven: chunk`"};
    }
    int64_t to = 0;
    if (__builtin_mul_overflow(CeilDiv(extent, divisor), divisor, &to)) {
      return ViewProblem{"this tensor would have more than 2^63 - 1 elements", ""};
    }
    ViewProblem problem;
    std::vector<ViewArgument> arguments = {static_cast<int64_t>(d), to, value};
    auto padded = Apply(pad, {std::move(viewed)}, arguments, budget, &problem);
    if (!padded) return problem;
    viewed = std::move(*padded);
    root = {.operation = &pad,
            .shape = viewed.arrangement.shape,
            .arguments = std::move(arguments),
            .of = {std::move(root)}};
  }
  if (DepthOf(root) > kMaxViewDepth) {
    return ViewProblem{
        fmt::format("with padding the view of `{}` has more than {} nested operations",
                    tensor->path(), kMaxViewDepth),
        ""};
  }
  tensor->Edit().shape = viewed.arrangement.shape;
  tensor->set_view(std::make_shared<View>(
      View{tensor->view()->drawn, std::move(root), std::move(viewed.arrangement.pieces)}));
  return {};
}

}  // namespace

bool IsPadded(const InitGraph& graph) {
  return graph.layout == kPaddedLayout &&  // a layout of the spec may have this name
         std::equal(graph.tensors.begin(), graph.tensors.end(), graph.drawn->begin(),
                    graph.drawn->end(),
                    [](const Tensor& a, const Tensor& b) { return a.path() == b.path(); });
}

std::vector<Tensor> StoredAsDrawn(const std::shared_ptr<const std::vector<Tensor>>& drawn) {
  std::vector<Tensor> stored;
  stored.reserve(drawn->size());
  FormPool forms;
  for (size_t i = 0; i < drawn->size(); ++i) {
    const Tensor& tensor = (*drawn)[i];
    ViewNode root{.tensor = i, .arguments = {}, .of = {}};
    Tensor& made = stored.emplace_back(tensor.path());
    made.Edit() = {.dtype = tensor.dtype(),
                   .shape = tensor.shape(),
                   .distribution = Constant{0},
                   .partition = tensor.partition()};
    forms.ShareForm(made);
    made.set_view(std::make_shared<View>(
        View{drawn, std::move(root), WholeTensor(static_cast<int64_t>(i), tensor.shape()).pieces}));
  }
  return stored;
}

void PadTensors(const Mesh& mesh, const Paddings& paddings, std::vector<Tensor>* stored,
                Diagnostics& diagnostics) {
  PieceBudget budget = kMaxPieces;
  int64_t bytes = 0;
  const Padding* padded = nullptr;  // of the last padded tensor
  // Places of errors; each is reported once for all tensors of a repeat.
  std::set<std::tuple<const Source*, uint32_t, uint32_t>> reported;
  for (size_t i = 0; i < stored->size(); ++i) {
    Tensor& tensor = (*stored)[i];
    if (const auto found = paddings.find(i); found != paddings.end()) {
      padded = &found->second;
      if (const auto problem = PadTensor(mesh, padded->value, &tensor, &budget)) {
        const Span& place = padded->place;
        if (reported.emplace(place.source, place.line, place.column).second) {
          diagnostics.Error(place, problem->message, problem->hint);
        }
      }
    }
    int64_t of_tensor = 0;
    if (__builtin_mul_overflow(tensor.elements(), InfoOf(tensor.dtype()).bytes, &of_tensor) ||
        __builtin_add_overflow(bytes, of_tensor, &bytes)) {
      // The bytes without padding were already checked.
      Check(padded != nullptr, "bytes that were not counted before");
      diagnostics.Error(padded->place, "with padding the model has more than 2^63 - 1 bytes");
      return;
    }
  }
}

}  // namespace shardinit
