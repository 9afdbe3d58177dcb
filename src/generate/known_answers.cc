#include "generate/known_answers.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <variant>

#include "base/checked_file.h"
#include "base/error.h"
#include "base/json.h"
#include "base/overloaded.h"
#include "base/sha256.h"
#include "base/text.h"
#include "expr/program.h"
#include "generate/fill.h"
#include "init/distribution.h"
#include "plan/read.h"
#include "report/text.h"
#include "rng/stream.h"
#include "tensor/dtype.h"
#include "tensor/source.h"

namespace shardinit {
namespace {

using nlohmann::json;

// The lists in a file. The second has tensors that depend on other tensors.
constexpr std::string_view kVectors = "vectors", kOfTensors = "vectors_of_tensors";

// A tensor of a source, whose elements are in the answer.
class AnsweredTensor final : public SourceTensor {
 public:
  AnsweredTensor(std::string text, const std::string& file, DType dtype, Shape shape,
                 std::vector<uint8_t> bytes)
      : SourceTensor(std::move(text), dtype, std::move(shape), kCell),
        file_(file),
        bytes_(std::move(bytes)) {}

  const std::string& file() const override { return file_; }
  Digest Check() const override { return Sha256Of({AsText(), bytes_.size()}); }
  void ReadCells(int64_t first, int64_t count, void* out) const override {
    const auto begin = static_cast<size_t>(first * kCell);
    std::memcpy(out, bytes_.data() + begin,
                std::min(bytes_.size() - begin, static_cast<size_t>(count * kCell)));
  }

 private:
  static constexpr int64_t kCell = 4096;  // bytes

  const char* AsText() const { return reinterpret_cast<const char*>(bytes_.data()); }

  const std::string file_;
  const std::vector<uint8_t> bytes_;
};

// Reads the answers of a file in order.
class AnswerReader {
 public:
  explicit AnswerReader(const std::string& path) : path_(path) {}

  // Reads an answer of the list.
  KnownAnswer Read(std::string_view list, const json& in) {
    if (list_ != list) number_ = 0;
    list_ = list;
    ++number_;
    name_.clear();
    try {
      name_ = in.at("name").get<std::string>();
      KnownAnswer answer{.name = name_, .tensor = ReadOnlyTensor(in, path_)};
      const Tensor& tensor = answer.tensor;
      answer.box = ReadBox(in, tensor);
      answer.bits = ReadBits(in.at("bits").get<std::string>(), tensor.dtype(), answer.box.shape);
      RequireWholes(tensor.distribution());
      if (list == kVectors) RequireNoOthers(tensor.distribution());
      if (list == kOfTensors) AddTensors(in.at("tensors"), answer.tensor);
      answer.file = AddFile(in, answer.tensor);
      return answer;
    } catch (const RefusedPlan& e) {
      Refuse("{}", e.why());
    } catch (const json::exception& e) {
      Refuse("{}", ComplaintOf(e));
    }
  }

  // Refuses the whole file.
  [[noreturn]] void RefuseAll(std::string_view why) const {
    throw Error(ExitCode::kRefused, fmt::format("`{}` has no answers of this form: {}", path_, why),
                "write it like `shardinit conformance --vectors`; shardinit-values(7) describes "
                "each member");
  }

 private:
  Box ReadBox(const json& in, const Tensor& tensor) const {
    Box box{in.at("offset").get<Shape>(), in.at("shape").get<Shape>()};
    const size_t rank = tensor.shape().size();
    bool fits = box.offset.size() == rank && box.shape.size() == rank;
    for (size_t d = 0; fits && d < rank; ++d) {
      fits = box.offset[d] >= 0 && box.shape[d] >= 1 && box.shape[d] <= tensor.shape()[d] &&
             box.offset[d] <= tensor.shape()[d] - box.shape[d];
    }
    if (!fits) {
      Refuse("`shape` {} at `offset` {} is not a box of `global_shape` {}", InShape(box.shape),
             InShape(box.offset), InShape(tensor.shape()));
    }
    return box;
  }

  std::vector<uint64_t> ReadBits(std::string_view text, DType dtype, const Shape& shape) const {
    const size_t digits = static_cast<size_t>(InfoOf(dtype).bytes) * 2;
    const int64_t count = ElementCount(shape);
    std::vector<uint64_t> bits;
    for (size_t at = 0; at < text.size(); at += digits + 1) {
      const std::string_view word = text.substr(at, text.find(' ', at) - at);
      uint64_t number = 0;
      const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number, 16);
      if (word.size() != digits || error != std::errc() || end != word.data() + digits) {
        Refuse("element {} of `bits` is {}, but {} has {} hexadecimal digits", bits.size(),
               Quote(word), InfoOf(dtype).name, digits);
      }
      bits.push_back(number);
    }
    if (std::ssize(bits) != count) {
      Refuse("`bits` has {}, but `shape` {} has {}", Count(std::ssize(bits), "element"),
             InShape(shape), Grouped(count));
    }
    return bits;
  }

  // Refuses a distribution that uses elements of other tensors.
  void RequireNoOthers(const Distribution& distribution) const {
    bool has_others = std::holds_alternative<Norm>(distribution);
    ForEachSource(distribution, [&](const auto&...) { has_others = true; });
    if (has_others) {
      Refuse("its elements come from other tensors; such answers belong in the list `{}`",
             kOfTensors);
    }
  }

  // Gives the tensor the source tensors that its elements depend on.
  void AddTensors(const json& in, Tensor& tensor) {
    sources_.clear();
    for (const json& other : in) {
      if (other.contains("path")) continue;  // The tensor already has it.
      const auto source = other.at("source").get<std::string>();
      const auto name = other.at("tensor").get<std::string>();
      const auto dtype = FindDType(other.at("dtype").get<std::string>());
      if (!dtype) Refuse("no `dtype` is {}", other.at("dtype").dump());
      const auto shape = other.at("shape").get<Shape>();
      RequireExtents(shape);
      const std::vector<uint64_t> words =
          ReadBits(other.at("bits").get<std::string>(), *dtype, shape);
      const auto size = static_cast<size_t>(InfoOf(*dtype).bytes);
      std::vector<uint8_t> bytes(words.size() * size);
      for (size_t i = 0; i < words.size(); ++i) std::memcpy(&bytes[i * size], &words[i], size);
      const bool is_new =
          sources_
              .try_emplace({source, name},
                           std::make_shared<AnsweredTensor>(
                               fmt::format("{} of the source {}", Quote(name), Quote(source)),
                               path_, *dtype, shape, std::move(bytes)))
              .second;
      if (!is_new) Refuse("{} of the source {} is given twice", Quote(name), Quote(source));
    }
    tensor.Edit().distribution = WithSources(tensor.distribution(), tensor.shape());
    if (tensor.measured() != nullptr) {
      RequireWholes(tensor.measured()->distribution());
      if (std::holds_alternative<FromFile>(tensor.measured()->distribution())) {
        Refuse("{}, whose norms are taken, has the elements of a file",
               Quote(tensor.measured()->path()));
      }
      auto measured = std::make_shared<Tensor>(*tensor.measured());
      measured->Edit().distribution = WithSources(measured->distribution(), measured->shape());
      tensor.set_measured(measured);
    }
  }

  // Refuses a shape that does not fit in memory.
  void RequireExtents(const Shape& shape) const {
    int64_t elements = 1;
    for (const int64_t extent : shape) {
      if (extent < 1 || __builtin_mul_overflow(elements, extent, &elements)) {
        Refuse("no tensor has the shape {}", InShape(shape));
      }
    }
  }

  SourceTensorPtr FindSource(const std::string& source, const std::string& tensor) const {
    const auto found = sources_.find({source, tensor});
    if (found != sources_.end()) return found->second;
    Refuse("`tensors` has no {} of the source {}", Quote(tensor), Quote(source));
  }

  // Refuses a source tensor that does not have this shape, ignoring dimension `but`.
  void RequireShape(const SourceTensor& data, const Shape& shape,
                    std::optional<size_t> but = {}) const {
    bool is_equal = data.shape().size() == shape.size() && (!but || *but < shape.size());
    for (size_t d = 0; is_equal && d < shape.size(); ++d) {
      is_equal = d == but || data.shape()[d] == shape[d];
    }
    if (!is_equal) {
      Refuse("{} is {}, which does not fit {}", data.text(), InShape(data.shape()), InShape(shape));
    }
  }

  // Refuses a number of indices that does not match the dimensions of a source tensor.
  void RequireIndices(const SourceTensor& data, size_t count) const {
    if (count == data.shape().size()) return;
    Refuse("{} is {}, but its index has {}", data.text(), InShape(data.shape()),
           Count(static_cast<int64_t>(count), "expression"));
  }

  ProgramPtr WithSources(const ProgramPtr& program) const {
    if (program->sources.empty()) return program;
    auto bound = std::make_shared<Program>(*program);
    for (Program::SourceCall& call : bound->sources) {
      call.data = FindSource(call.source, call.tensor);
      if (call.number == SourceNumber::kElement) RequireIndices(*call.data, call.index.size());
    }
    return bound;
  }

  // Returns the distribution of a tensor of this shape with the source tensors that it names.
  Distribution WithSources(Distribution distribution, const Shape& shape) const {
    std::visit(
        Overloaded{
            [&](FromSource& from) {
              from.data = FindSource(from.source, from.tensor);
              if (!from.index.empty()) {
                RequireIndices(*from.data, from.index.size());
              } else if (!from.data->shape().empty()) {  // A scalar fills all shapes.
                RequireShape(*from.data, shape);
              }
              for (ProgramPtr& program : from.index) program = WithSources(program);
            },
            [&](RowsLike& like) {
              like.data = FindSource(like.source, like.tensor);
              const auto axis = static_cast<size_t>(like.axis);
              RequireShape(*like.data, shape, axis);
              if (like.rows > like.data->shape()[axis]) {
                Refuse("`rows` is {}, but {} is {}", like.rows, like.data->text(),
                       InShape(like.data->shape()));
              }
            },
            [&](Expression& expression) { expression.program = WithSources(expression.program); },
            [&](Parts& parts) {
              PartList list;
              for (const Part& part : parts.of->parts) {
                list.parts.push_back(
                    {part.length, WithSources(part.distribution, ShapeOf(part, parts, shape))});
              }
              parts.of = std::make_shared<const PartList>(std::move(list));
            },
            [](OneOf<Constant, Uniform, Normal, TruncatedNormal, Orthogonal, Sparse, Normalized,
                     FromFile, Norm> auto&) {},
        },
        distribution);
    return distribution;
  }

  // Refuses parts that depend on something that an answer cannot contain.
  void RequireWholes(const Distribution& distribution) const {
    const auto* const parts = std::get_if<Parts>(&distribution);
    if (parts == nullptr) return;
    for (const Part& part : parts->of->parts) {
      if (std::holds_alternative<FromFile>(part.distribution) ||
          std::holds_alternative<Norm>(part.distribution)) {
        Refuse("a part has the elements of a file, or norms, which only whole tensors have");
      }
    }
  }

  // Gives the tensor the file that its values come from, if any.
  Fd AddFile(const json& in, Tensor& tensor) const {
    auto* from_file = std::get_if<FromFile>(&tensor.Edit().distribution);
    if (from_file == nullptr) return {};
    const std::string content = FromDigits(in.at("file").get<std::string>());
    if (std::ssize(content) != tensor.bytes() || ToHex(Sha256Of(content)) != from_file->sha256) {
      Refuse("`file` has {} with the SHA-256 {}, but the tensor needs {} with {}",
             Count(std::ssize(content), "byte"), ToHex(Sha256Of(content)), tensor.bytes(),
             from_file->sha256);
    }
    Fd file = FileInMemory(content, "the `file` of " + Quote(name_));
    from_file->file = std::make_shared<const CheckedFile>(
        fmt::format("/proc/self/fd/{}", file.get()), tensor.bytes(), from_file->sha256,
        Quote(name_), tensor.dtype() == DType::boolean);
    return file;
  }

  std::string FromDigits(std::string_view digits) const {
    std::string bytes(digits.size() / 2, '\0');
    for (size_t i = 0; i < bytes.size(); ++i) {
      uint8_t byte = 0;
      const char* const at = digits.data() + 2 * i;
      const auto [end, error] = std::from_chars(at, at + 2, byte, 16);
      if (error != std::errc() || end != at + 2) Refuse("`file` has no hexadecimal digits");
      bytes[i] = static_cast<char>(byte);
    }
    if (digits.size() % 2 != 0) Refuse("`file` ends with half a byte");
    return bytes;
  }

  template <typename... T>
  [[noreturn]] void Refuse(fmt::format_string<T...> what, T&&... of) const {
    RefuseAll(fmt::format("number {} of `{}`{}: {}", number_, list_,
                          name_.empty() ? std::string() : ", " + Quote(name_),
                          fmt::format(what, std::forward<T>(of)...)));
  }

  const std::string& path_;
  std::string_view list_;
  int64_t number_ = 0;  // of the answer in the list
  std::string name_;
  std::map<std::pair<std::string, std::string>, SourceTensorPtr> sources_;
};

}  // namespace

void ReadKnownAnswers(std::string_view text, const std::string& path,
                      const std::function<void(const KnownAnswer& answer)>& visit) {
  AnswerReader reader(path);
  bool is_known = false;
  int64_t count = 0;
  // Answers of another version are not compared. The version precedes them.
  const auto check_version = [&](const json& top) {
    if (std::exchange(is_known, true)) return;
    if (!top.is_object() || !top.contains("contract_version")) {
      reader.RefuseAll("it does not begin with `contract_version`");
    }
    if (top.at("contract_version") != kContractVersion) {
      reader.RefuseAll(fmt::format("its `contract_version` is {}, but this tool makes {}",
                                   top.at("contract_version").dump(), kContractVersion));
    }
  };
  const json top =
      ParseJson(text, path, [&](const json& before, const std::string& key, const json& element) {
        if (key != kVectors && key != kOfTensors) return false;
        check_version(before);
        visit(reader.Read(key == kVectors ? kVectors : kOfTensors, element));
        ++count;
        return true;
      });
  check_version(top);
  const auto is_list = [&](std::string_view list) {
    return top.contains(list) && top.at(list).is_array();
  };
  if (!is_list(kVectors) && !is_list(kOfTensors)) {
    reader.RefuseAll(fmt::format("it has no list `{}`", kVectors));
  }
  if (count == 0) reader.RefuseAll(fmt::format("its list `{}` is empty", kVectors));
}

std::vector<uint64_t> MakeBits(const KnownAnswer& answer) {
  const BoxFiller filler(answer.tensor, answer.box);
  const auto size = static_cast<size_t>(filler.element_bytes());
  std::vector<uint64_t> bits(answer.bits.size());
  std::vector<uint64_t> aligned(bits.size());  // Elements are packed without alignment in it.
  filler.Fill(0, filler.elements(), aligned.data());
  const auto* bytes = reinterpret_cast<const uint8_t*>(aligned.data());
  for (size_t i = 0; i < bits.size(); ++i) std::memcpy(&bits[i], bytes + i * size, size);
  return bits;
}

}  // namespace shardinit
