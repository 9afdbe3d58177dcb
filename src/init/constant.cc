#include "init/initializer.h"

namespace shardinit {
namespace {

constexpr Parameter kValue[] = {{"value", "the value of every element", {}}};

}  // namespace

extern const Initializer kZeros = {
    .name = "zeros",
    .description = "all elements 0",
    .lower = [](Arguments, const Fans&, Diagnostics&) -> std::optional<Distribution> {
      return Constant{0};
    },
};

extern const Initializer kOnes = {
    .name = "ones",
    .description = "all elements 1",
    .lower = [](Arguments, const Fans&, Diagnostics&) -> std::optional<Distribution> {
      return Constant{1};
    },
};

extern const Initializer kConstant = {
    .name = "constant",
    .description = "all elements `value`",
    .parameters = kValue,
    .lower = [](Arguments a, const Fans&, Diagnostics&) -> std::optional<Distribution> {
      return Constant{a[0].value};
    },
};

// `lower` is null, because lowering needs the file.
extern const Initializer kFile = {
    .name = "file",
    .description =
        "the elements of a file, row-major and little-endian: its path, relative to "
        "that of the spec, and the SHA-256 of its bytes",
};

// `lower` is null, because lowering needs the other tensor.
extern const Initializer kNorm = {
    .name = "norms",
    .description =
        "Euclidean norms of another tensor's elements, over the dimensions that are 1 "
        "here, as the `weight_g` of torch.nn.utils.weight_norm",
};

}  // namespace shardinit
