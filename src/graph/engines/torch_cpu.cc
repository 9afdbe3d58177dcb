#include "graph/engines/torch_cpu.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "base/exact_math.h"
#include "base/overloaded.h"
#include "base/parallel.h"
#include "kernels/torch_cpu.h"

namespace shardinit {
namespace {

constexpr PlacedArgument kPlace = {"the place in the stream", 0},
                         kSpare = {"the place of a number that is left over, or -1", -1},
                         kSize = {"the size of the draw", 0},
                         kElement = {"the number's place in the draw", 0}, kLow = {"low"},
                         kHigh = {"high"}, kMean = {"mean"}, kStd = {"std"}, kGain = {"gain"},
                         kLength = {"the number of elements", 1},
                         kStride = {"the distance of elements", 1}, kPower = {"the power", 1},
                         kRowPlace = {"the number's place", 0};

constexpr PlacedArgument
    kOfUniform[] = {kPlace, kElement, kLow, kHigh},
    kOfNormal[] = {kPlace, kSpare, kSize, kElement, kMean, kStd},
    kOfPairs[] = {kPlace, kSpare, kElement, kMean, kStd},
    kOfTruncated[] = {kPlace, kSpare, kSize, kElement, kMean, kStd, kLow, kHigh},
    kOfInteger[] = {kPlace, kElement, {"the size of the range", 1}}, kOfWord[] = {kPlace},
    kOfPermutation[] = {kPlace, kSize, kElement},
    kOfMatrix[] = {kPlace,   kSpare, {"the number of rows", 1}, {"the number of columns", 1},
                   kElement, kGain},
    kOfNormalSums[] = {kPlace, kSpare, kSize, kLength, kStride, kRowPlace, kPower, kMean, kStd},
    kOfUniformSums[] = {kPlace, kSize, kLength, kStride, kRowPlace, kPower, kLow, kHigh},
    kOfNormalSorted[] = {kPlace, kSpare, kSize, kLength, kElement, kMean, kStd},
    kOfUniformSorted[] = {kPlace, kSize, kLength, kElement, kLow, kHigh};

constexpr std::string_view kNormalNumber = "a number of Tensor.normal_";
constexpr std::string_view kPairedNumber =
    "a number of Tensor.normal_ in memory that is not contiguous";
constexpr std::string_view kTruncatedNumber = "a number of torch.nn.init.trunc_normal_";
constexpr std::string_view kUniformNumber = "a number of Tensor.uniform_";
// PyTorch uses the C library's functions for normal numbers in f64.
constexpr bool kInexact = true;
constexpr PlacedFunction kTorchFunctions[] = {
    {"torch_normal", kNormalNumber, kOfNormal, 3, kTorchNormal, DType::f32},
    {"torch_normal_bf16", kNormalNumber, kOfNormal, 3, kTorchNormal, DType::bf16},
    {"torch_normal_f16", kNormalNumber, kOfNormal, 3, kTorchNormal, DType::f16},
    {"torch_normal_f64", kNormalNumber, kOfNormal, 3, kTorchNormal, DType::f64, kInexact},
    {"torch_normal_sorted", "a number of Tensor.normal_, sorted", kOfNormalSorted, 4,
     kTorchNormalSorted, DType::f32},
    {"torch_normal_sums", "a sum of powers of numbers of Tensor.normal_", kOfNormalSums, 5,
     kTorchNormalSums, DType::f32, kInexact},
    {"torch_orthogonal", "an element of torch.nn.init.orthogonal_", kOfMatrix, 4, kTorchOrthogonal,
     DType::f32, kInexact},
    {"torch_pairs", kPairedNumber, kOfPairs, 2, kTorchPairs, DType::f32},
    {"torch_pairs_bf16", kPairedNumber, kOfPairs, 2, kTorchPairs, DType::bf16},
    {"torch_pairs_f16", kPairedNumber, kOfPairs, 2, kTorchPairs, DType::f16},
    {"torch_pairs_f64", kPairedNumber, kOfPairs, 2, kTorchPairs, DType::f64, kInexact},
    {"torch_permutation", "an element of torch.randperm", kOfPermutation, 2, kTorchPermutation,
     DType::f32},
    {"torch_randint", "a number of torch.randint", kOfInteger, 1, kTorchInteger, DType::f32},
    {"torch_trunc_normal", kTruncatedNumber, kOfTruncated, 3, kTorchTruncatedNormal, DType::f32},
    {"torch_trunc_normal_bf16", kTruncatedNumber, kOfTruncated, 3, kTorchTruncatedNormal,
     DType::bf16},
    {"torch_trunc_normal_f16", kTruncatedNumber, kOfTruncated, 3, kTorchTruncatedNormal,
     DType::f16},
    {"torch_trunc_normal_f64", kTruncatedNumber, kOfTruncated, 3, kTorchTruncatedNormal, DType::f64,
     kInexact},
    {"torch_uniform", kUniformNumber, kOfUniform, 1, kTorchUniform, DType::f32},
    {"torch_uniform_bf16", kUniformNumber, kOfUniform, 1, kTorchUniform, DType::bf16},
    {"torch_uniform_f16", kUniformNumber, kOfUniform, 1, kTorchUniform, DType::f16},
    {"torch_uniform_f64", kUniformNumber, kOfUniform, 1, kTorchUniform, DType::f64},
    {"torch_uniform_sorted", "a number of Tensor.uniform_, sorted", kOfUniformSorted, 3,
     kTorchUniformSorted, DType::f32},
    {"torch_uniform_sums", "a sum of powers of numbers of Tensor.uniform_", kOfUniformSums, 4,
     kTorchUniformSums, DType::f32, kInexact},
    {"torch_word", "a word of 32 bits of PyTorch's stream", kOfWord, 0, kTorchWord, DType::f32},
};

torch_cpu::TruncatedNormal CutOff(const TruncatedNormal& t) {
  return {t.mean, t.std, t.mean + t.low * t.std, t.mean + t.high * t.std};
}

std::string RefusalOfType(const Tensor& tensor) {
  switch (tensor.dtype()) {
    case DType::f32:
    case DType::bf16:
    case DType::f16:
    case DType::f64:
      return {};
    default:
      return fmt::format("PyTorch draws no {} numbers", InfoOf(tensor.dtype()).name);
  }
}

// `low` and `high` are in standard deviations from the mean.
std::string RefusalOfCutOffs(double low, double high) {
  if (low <= -0.5 && high >= 0.5) return {};  // at least 38 % are kept
  // Below 30 %, trunc_normal_ draws from a uniform distribution and keeps numbers by a logarithm.
  const double kept = exact::NormalCdf(high) - exact::NormalCdf(low);
  if (kept > 0.3) return {};
  return fmt::format(
      "the cut-offs must leave at least 30 % of the numbers, but leave {:.3g} %: PyTorch draws "
      "fewer in another way",
      100 * kept);
}

constexpr int32_t kLargestPermutation = 1 << 28;

std::string RefusalOfBounds(double low, double high) {
  return low <= high ? "" : fmt::format("`low` {} is above `high` {}", low, high);
}

std::string RefusalOfStd(double std) {
  return std >= 0 ? "" : fmt::format("`std` is {}, but must be at least 0", std);
}

// Returns why a draw of `size` elements does not have such rows.
std::string RefusalOfRows(double size, const TorchRows& rows, bool is_sum) {
  const auto each = static_cast<double>(rows.length) * static_cast<double>(rows.stride);
  if (each > size || std::fmod(size, each) != 0) {
    return fmt::format("{} elements are not a multiple of {} * {}", size, rows.length, rows.stride);
  }
  if (rows.power > 2) return fmt::format("the power is {}, but must be 1 or 2", rows.power);
  const double kept = is_sum ? size / static_cast<double>(rows.length) : size;
  if (kept < kLargestPermutation) return {};
  return fmt::format("{} numbers are too many; there may be less than {}", kept,
                     kLargestPermutation);
}

std::string RefusalOfTorchCall(const Program::PlacedCall& call) {
  const std::vector<double>& n = call.numbers;
  const auto rows = [&](size_t size, bool is_sum) {
    return RefusalOfRows(n[size], TorchRowsOf(call), is_sum);
  };
  const auto either = [](std::string why, std::string other) {
    return why.empty() ? std::move(other) : std::move(why);
  };
  switch (call.function->kind) {
    case kTorchUniform:
      return RefusalOfBounds(n[1], n[2]);
    case kTorchUniformSums:
    case kTorchUniformSorted:
      return either(rows(1, call.function->kind == kTorchUniformSums),
                    RefusalOfBounds(n[n.size() - 2], n.back()));
    case kTorchNormalSums:
    case kTorchNormalSorted:
      return either(rows(2, call.function->kind == kTorchNormalSums), RefusalOfStd(n.back()));
    case kTorchOrthogonal: {
      const OrthogonalSize size = TorchMatrixOf(call);
      if (size.operations <= kMaxOperations && size.bytes <= kMaxMatrixBytes) return {};
      return fmt::format("an orthogonal matrix of {} x {} is too large", n[2], n[3]);
    }
    case kTorchTruncatedNormal:
      if (!(n[4] > 0)) return fmt::format("`std` is {}, but must be above 0", n[4]);
      if (!(n[5] < n[6])) return fmt::format("`a` {} is not below `b` {}", n[5], n[6]);
      return RefusalOfCutOffs((n[5] - n[3]) / n[4], (n[6] - n[3]) / n[4]);
    case kTorchPermutation:
      if (n[1] < kLargestPermutation) return {};
      return fmt::format("a permutation of {} is too large; it may have less than {}", n[1],
                         kLargestPermutation);
    case kTorchNormal:
    case kTorchPairs:
      return RefusalOfStd(n.back());
    default:
      return {};
  }
}

std::string RefusalOfProgram(const Program& program) {
  if (!program.draws.empty()) {
    return "PyTorch has no such draws; write `torch_normal(…)` or another of its functions";
  }
  for (const Program::PlacedCall& call : program.placed) {
    if (std::string why = RefusalOfTorchCall(call); !why.empty()) return why;
  }
  return {};
}

std::string TorchRefusal(const Tensor& tensor) {
  if (HasPlace(tensor) && tensor.stream().position > kLastPlace) {
    return fmt::format("it begins after {} words, but places end at {}", tensor.stream().position,
                       kLastPlace);
  }
  return std::visit(
      Overloaded{
          [](const OneOf<Constant, FromFile, FromSource, Norm> auto&) { return std::string(); },
          [](const OneOf<RowsLike, Parts> auto& d) {
            return std::string(DrawsOf(d) > 0 ? kRandomRows : "");
          },
          [&](const OneOf<Uniform, Normal> auto&) { return RefusalOfType(tensor); },
          [&](const TruncatedNormal& t) {
            const std::string why = RefusalOfCutOffs(t.low, t.high);
            return why.empty() ? RefusalOfType(tensor) : why;
          },
          [](const Expression& e) { return RefusalOfProgram(*e.program); },
          [&](const Orthogonal& o) -> std::string {
            if (tensor.dtype() != DType::f32) {
              return fmt::format("of {}, but PyTorch generates them in f32",
                                 InfoOf(tensor.dtype()).name);
            }
            if (o.rows == 1 && std::popcount(o.columns) + 1 == std::ssize(tensor.shape()))
              return {};
            return "PyTorch uses the first dimension as rows and all others as columns";
          },
          [&](const Sparse&) -> std::string {
            if (tensor.shape()[0] < kLargestPermutation) return RefusalOfType(tensor);
            return fmt::format("it has {} rows, but may have less than {}", tensor.shape()[0],
                               kLargestPermutation);
          },
          [](const Normalized&) { return std::string("PyTorch has no such initializer"); },
      },
      tensor.distribution());
}

Stream AfterTensor(const Tensor& tensor, Places places) {
  if (!TorchRefusal(tensor).empty()) {
    Stream stream = tensor.stream();  // any place where no other tensor begins
    stream.position += static_cast<uint64_t>(tensor.elements());
    return stream;
  }
  const torch_cpu::Drawn drawn = TorchDrawsOf(tensor);
  const bool is_known = torch_cpu::IsOneRound(drawn) || places == Places::kFound;
  Stream stream = is_known ? kernels::AfterTorch(drawn, std::max(1, AvailableCores()))
                           : torch_cpu::StreamAfter(drawn);
  stream.is_least = stream.is_least || !is_known;
  if (std::holds_alternative<Sparse>(tensor.distribution())) {  // one permutation for each column
    stream.position += static_cast<uint64_t>((tensor.shape()[0] - 1) * tensor.shape()[1]);
  }
  return stream;
}

void AssignPlace(const Stream& stream, Tensor* tensor) {
  tensor->set_stream(stream);
  tensor->set_key(StreamPlace{stream.position, stream.spare});
}

void AssignTorch(uint64_t seed, std::vector<Tensor>& tensors, Places places) {
  const Tensor* before = nullptr;  // the last drawn tensor
  std::vector<Tensor*> tied;
  std::unordered_map<std::string_view, const Tensor*> drawn;
  for (Tensor& tensor : tensors) {
    if (tensor.view() || !IsRandom(tensor.distribution())) continue;
    tensor.set_stream({.key = kTorchCpu.key(seed, tensor.path()), .engine = &kTorchCpu});
    if (!HasPlace(tensor)) continue;
    if (DrawPathOf(tensor) != tensor.path()) {  // takes another tensor's numbers
      tied.push_back(&tensor);
      continue;
    }
    const auto* const place = std::get_if<StreamPlace>(&tensor.key());
    Stream stream = tensor.stream();
    if (place != nullptr && !place->is_relative) {
      stream.position = place->position;
      stream.spare = place->spare;
    } else {
      if (before != nullptr) stream = AfterTensor(*before, places);
      if (place != nullptr) stream.position += place->position;
    }
    AssignPlace(stream, &tensor);
    before = &tensor;
    drawn.emplace(tensor.path(), &tensor);
  }
  for (Tensor* tensor : tied) {
    const auto other = drawn.find(DrawPathOf(*tensor));
    if (other == drawn.end()) continue;  // a wrong `tie`, already reported
    AssignPlace(other->second->stream(), tensor);
  }
}

bool IsTorchInexact(const Tensor& tensor) {
  return std::visit(
      Overloaded{
          [](const Expression& e) { return e.program->inexact; },
          [](const Uniform&) { return false; },
          [](const OneOf<Orthogonal, Norm, RowsLike, Parts> auto&) { return true; },
          [&](const OneOf<Constant, Normal, TruncatedNormal, Sparse, Normalized, FromFile,
                          FromSource> auto&) { return tensor.dtype() == DType::f64; },
      },
      tensor.distribution());
}

}  // namespace

extern constinit const GraphEngine kGraphTorchCpu = {
    .engine = &kTorchCpu,
    .functions = kTorchFunctions,
    .refusal = TorchRefusal,
    .assign = AssignTorch,
    .inexact = IsTorchInexact,
};

torch_cpu::Drawn TorchDrawsOf(const Tensor& tensor) {
  using torch_cpu::Draw;
  const Draw draw =
      std::visit(Overloaded{
                     [](const Uniform& u) -> Draw {
                       return torch_cpu::Uniform{u.low, u.high};
                     },
                     [](const Normal& n) -> Draw {
                       return torch_cpu::Normal{n.mean, n.std};
                     },
                     [](const TruncatedNormal& t) -> Draw { return CutOff(t); },
                     [](const Orthogonal&) -> Draw {
                       return torch_cpu::Normal{0, 1};
                     },
                     [](const Sparse& s) -> Draw {
                       return torch_cpu::Normal{0, s.std};
                     },
                     [](const OneOf<Constant, Expression, Normalized, FromFile, FromSource,
                                    RowsLike, Parts, Norm> auto&) -> Draw {
                       Check(false, "draws of PyTorch for a tensor that has none");
                       return {};
                     },
                 },
                 tensor.distribution());
  return {draw, tensor.stream(), static_cast<uint64_t>(tensor.elements()), tensor.dtype()};
}

torch_cpu::Drawn TorchDrawsOf(const Program::PlacedCall& call, const Stream& stream) {
  const std::vector<double>& n = call.numbers;
  const auto whole = [&](size_t i) { return static_cast<uint64_t>(n[i]); };
  torch_cpu::Drawn drawn = {{}, stream, uint64_t{1} << 53, call.function->dtype};
  drawn.stream.position = whole(0);
  switch (static_cast<TorchKind>(call.function->kind)) {
    case kTorchUniformSums:
    case kTorchUniformSorted:
      drawn.elements = whole(1);
      [[fallthrough]];
    case kTorchUniform:
      drawn.draw = torch_cpu::Uniform{n[n.size() - 2], n.back()};
      return drawn;
    default:
      break;
  }
  if (n[1] >= 0) drawn.stream.spare = whole(1);
  drawn.in_pairs = call.function->kind == kTorchPairs;
  if (!drawn.in_pairs) drawn.elements = whole(2);
  const bool is_truncated = call.function->kind == kTorchTruncatedNormal;
  const auto parameters = std::span(n).last(is_truncated ? 4 : 2);
  if (parameters.size() == 4) {
    drawn.draw =
        torch_cpu::TruncatedNormal{parameters[0], parameters[1], parameters[2], parameters[3]};
  } else {
    drawn.draw = torch_cpu::Normal{parameters[0], parameters[1]};
  }
  return drawn;
}

TorchRows TorchRowsOf(const Program::PlacedCall& call) {
  const std::vector<double>& n = call.numbers;
  const auto whole = [&](size_t i) { return static_cast<uint64_t>(n[i]); };
  switch (static_cast<TorchKind>(call.function->kind)) {
    case kTorchNormalSums:
      return {whole(3), whole(4), static_cast<int>(n[5])};
    case kTorchUniformSums:
      return {whole(2), whole(3), static_cast<int>(n[4])};
    default:
      return {whole(call.function->kind == kTorchNormalSorted ? 3 : 2)};
  }
}

OrthogonalSize TorchMatrixOf(const Program::PlacedCall& call) {
  const auto rows = static_cast<int64_t>(call.numbers[2]),
             columns = static_cast<int64_t>(call.numbers[3]);
  return SizeOf(Orthogonal{.gain = 1, .rows = 1, .columns = 2}, Shape{rows, columns});
}

}  // namespace shardinit
