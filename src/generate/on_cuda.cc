#include "generate/on_cuda.h"

#include <cstdint>
#include <span>
#include <variant>

#include "base/overloaded.h"
#include "generate/engines.h"
#include "init/sampled.h"
#include "tensor/encode.h"

namespace shardinit {

bool FillBoxOnCuda(const Tensor& tensor, const Box& box, const kernels::CudaMemory& to) {
  if (tensor.view()) return false;
  return std::visit(
      Overloaded{
          [&](const Constant& c) {
            uint8_t element[8];
            EncodeNumber(c.value, tensor.dtype(), element);
            kernels::RepeatOnCuda(std::span(element).first(InfoOf(tensor.dtype()).bytes),
                                  static_cast<uint64_t>(ElementCount(box.shape)), to);
            return true;
          },
          [&](const Sampled auto& d) {
            return FillEngineOf(*tensor.stream().engine).filler == nullptr &&
                   kernels::FillOnCuda(SamplerOf(d), tensor.stream(), Runs(tensor.shape(), box),
                                       tensor.dtype(), to);
          },
          [](const OneOf<Expression, Orthogonal, Sparse, Normalized, FromFile, FromSource, RowsLike,
                         Parts, Norm> auto&) { return false; },
      },
      tensor.distribution());
}

}  // namespace shardinit
