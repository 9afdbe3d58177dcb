// Reads from plan.json how tensors are drawn.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>

#include "base/json.h"
#include "base/overloaded.h"
#include "base/sha256.h"
#include "base/text.h"
#include "graph/validate.h"
#include "init/initializer.h"
#include "plan/read.h"
#include "rng/sampler.h"
#include "rng/stream.h"
#include "spec/names.h"

namespace shardinit {
namespace {

using nlohmann::json;

// Reads the distribution of a tensor.
class DistributionReader {
 public:
  DistributionReader(const Tensor& tensor, const std::string& path)
      : tensor_(tensor), shape_(tensor.shape()), path_(path) {}

  Distribution Read(const json& init) const {
    if (!init.is_object() || init.size() != 1) {
      RefuseInit("it does not name one initializer");
    }
    const Distribution read = ReadAs<Distribution>(init.begin().key(), init.begin().value());
    std::visit([&](const auto& each) { CheckMembers(each); }, read);
    return read;
  }

 private:
  template <typename Variant, size_t i = 0>
  Distribution ReadAs(const std::string& name, const json& in) const {
    if constexpr (i < std::variant_size_v<Variant>) {
      using D = std::variant_alternative_t<i, Variant>;
      if (name != D::kName) return ReadAs<Variant, i + 1>(name, in);
      D distribution;
      ForEachMember(distribution, [&](const auto& member, auto& value) {
        ReadValue(in.at(std::string(member.key)), &value);
      });
      return distribution;
    }
    RefuseInit("unknown initializer {}", Quote(name));
  }

  void ReadValue(const json& in, double* value) const { in.get_to(*value); }
  void ReadValue(const json& in, int64_t* value) const {
    in.get_to(*value);
    axis_ = *value;
  }
  void ReadValue(const json& in, std::string* value) const { in.get_to(*value); }
  void ReadValue(const json& in, DimensionSet* value) const {
    *value = 0;
    for (const json& number : in) {
      const int64_t d = number;
      if (d < 0 || d >= std::ssize(shape_)) {
        RefuseInit("it names dimension {}, but the tensor has {}", d, shape_.size());
      }
      *value |= DimensionSet{1} << d;
    }
  }
  void ReadValue(const json& in, std::vector<ProgramPtr>* value) const {
    for (const json& each : in) ReadValue(each, &value->emplace_back());
  }
  void ReadValue(const json& in, PartsPtr* value) const {
    PartList list;
    for (const json& each : in) {
      Tensor part = tensor_;
      const int64_t length = each.at("length"), axis = axis_;
      if (axis < 0 || axis >= std::ssize(shape_) || length < 0) {
        RefuseInit("it has a part of length {} along dimension {}", length, axis);
      }
      part.Edit().shape[static_cast<size_t>(axis)] = length;
      list.parts.push_back({length, DistributionReader(part, path_).Read(each.at("init"))});
    }
    *value = std::make_shared<const PartList>(std::move(list));
  }
  void ReadValue(const json& in, ProgramPtr* value) const {
    *value = CompileCanonical(in.get<std::string>(), shape_);
    if (*value == nullptr) {
      RefuseInit("its expression is wrong, or is not written as this tool writes it");
    }
  }

  // Initializers with the same names and arguments know the allowed values.
  template <OneOf<Constant, Uniform, Normal, TruncatedNormal> D>
  void CheckMembers(const D& distribution) const {
    std::vector<Argument> arguments;
    ForEachMember(distribution, [&](const auto&, double value) {
      arguments.push_back({value, {}});
    });
    Diagnostics diagnostics;
    const auto lowered = FindInitializer(D::kName)->lower(arguments, Fans(), diagnostics);
    if (!lowered) RefuseInit("{}", diagnostics.all().front().message);
    if (*lowered != Distribution(distribution)) RefuseInit("its numbers give another distribution");
  }
  void CheckMembers(const Expression&) const {}
  void CheckMembers(const Orthogonal& o) const {
    const OrthogonalSize size = SizeOf(o, shape_);
    if (!IsValidScale(o.gain) || (o.rows & o.columns) != 0 || o.columns == 0 ||
        (o.rows & -o.rows) > (o.columns & -o.columns) || o.rows == 0 ||
        size.operations > kMaxOperations || size.bytes > kMaxMatrixBytes) {
      RefuseInit("no orthogonal matrix of {} × {} with the gain {} can be made", size.rows,
                 size.columns, o.gain);
    }
  }
  void CheckMembers(const Sparse& s) const {
    if (shape_.size() != 2 || shape_[0] > kMaxSparseRows || s.zeros < 0 || s.zeros > shape_[0] ||
        s.std < 0 || !IsValidScale(s.std)) {
      RefuseInit("no tensor of the shape [{}] can have {} zeros in each column and std {}",
                 fmt::join(shape_, ", "), s.zeros, s.std);
    }
  }
  void CheckMembers(const Normalized& n) const {
    if (n.axis < 0 || n.axis >= std::ssize(shape_) || !(n.length > 0) || !IsValidScale(n.length)) {
      RefuseInit("no tensor of the shape [{}] can have vectors of length {} along dimension {}",
                 fmt::join(shape_, ", "), n.length, n.axis);
    }
  }

  void CheckMembers(const Norm&) const {}  // CheckTensors() checks it after all tensors are read
  void CheckMembers(const RowsLike& r) const {
    if (r.source.empty() || r.tensor.empty() || r.axis < 0 || r.axis >= std::ssize(shape_) ||
        r.rows < 1 || r.std < 0 || !IsValidScale(r.std)) {
      RefuseInit("no rows can be like {} rows along dimension {}, with std {}", r.rows, r.axis,
                 r.std);
    }
  }
  void CheckMembers(const Parts& p) const {
    if (p.axis < 0 || p.axis >= std::ssize(shape_)) {
      RefuseInit("it has parts along dimension {}, but the tensor has {}", p.axis, shape_.size());
    }
    const int64_t side = shape_[static_cast<size_t>(p.axis)];
    int64_t length = 0;
    for (const Part& part : p.of->parts) {
      if (std::holds_alternative<Parts>(part.distribution)) RefuseInit("a part has parts");
      if (part.length > side - length) {
        RefuseInit("its parts have more than the {} indices of dimension {}", side, p.axis);
      }
      length += part.length;
    }
    if (length != side) {
      RefuseInit("its parts have {} of the {} indices of dimension {}", length, side, p.axis);
    }
  }
  void CheckMembers(const FromSource& s) const {
    if (s.source.empty() || s.tensor.empty()) RefuseInit("it names no tensor of a source");
  }
  void CheckMembers(const FromFile& f) const {
    Digest digest;
    if (!FromHex(f.sha256, &digest)) {
      RefuseInit("`sha256` must be 64 hexadecimal digits, not {}", Quote(f.sha256));
    }
  }

  template <typename... T>
  [[noreturn]] void RefuseInit(fmt::format_string<T...> what, T&&... of) const {
    RefusePlan(path_, "the `init` of `{}`: {}", tensor_.path(),
               fmt::format(what, std::forward<T>(of)...));
  }

  const Tensor& tensor_;

  const Shape& shape_;
  const std::string& path_;
  mutable int64_t axis_ = -1;  // the last number that was read; for parts, their axis
};

// Reads a key that is not a path: two words, or a place in a stream.
void ReadGivenKey(const json& in, const std::string& path, Tensor& tensor) {
  const auto number = [&](const json& value) {
    if (!value.is_number_unsigned() || value.get<uint64_t>() > kLastPlace) {
      RefusePlan(path, "the engine cannot draw `{}` with this key", tensor.path());
    }
    return value.get<uint64_t>();
  };
  if (in.contains("position")) {
    tensor.set_key(StreamPlace{number(in.at("position")),
                               in.contains("spare") ? number(in.at("spare")) : kNoSpare});
    return;
  }
  if (!in.contains("words"))
    RefusePlan(path, "the engine cannot draw `{}` with this key", tensor.path());
  uint64_t words[2];
  for (const size_t i : {0, 1}) {
    words[i] = number(in.at("words").at(i));
    if (words[i] >> 32 != 0)
      RefusePlan(path, "the engine cannot draw `{}` with this key", tensor.path());
  }
  tensor.set_key(KeyWords{words[1] << 32 | words[0]});
}

}  // namespace

void ReadDraw(const json& in, const std::string& path, Tensor& tensor) {
  tensor.Edit().distribution = DistributionReader(tensor, path).Read(in.at("init"));
  if (const Misfit misfit = MisfitOf(tensor.distribution(), tensor.dtype()); !misfit.what.empty()) {
    RefusePlan(path, "the values of `{}` {}", tensor.path(), misfit.what);
  }
  if (in.contains("kind")) {
    if (in.at("kind") != kBufferKind)
      RefusePlan(path, "the `kind` of `{}` must be `{}`", tensor.path(), kBufferKind);
    tensor.Edit().is_buffer = true;
  }
  if (in.contains("key") && in.at("key").is_object()) {
    ReadGivenKey(in.at("key"), path, tensor);
  } else if (in.contains("key")) {
    const auto key = in.at("key").get<std::string>();
    if (FindBadText(key)) {
      RefusePlan(path, "the engine cannot draw `{}` with this key", tensor.path());
    }
    tensor.set_key(DrawPath{key});
  }
}

}  // namespace shardinit
