#include "generate/known_answers.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>
#include <variant>

#include "base/checked_file.h"
#include "base/error.h"
#include "base/json.h"
#include "base/sha256.h"
#include "base/text.h"
#include "generate/fill.h"
#include "init/distribution.h"
#include "plan/read.h"
#include "report/text.h"
#include "rng/stream.h"
#include "tensor/dtype.h"

namespace shardinit {
namespace {

using nlohmann::json;

// Reads the answers of a file, in turn.
class AnswerReader {
 public:
  explicit AnswerReader(const std::string& path) : path_(path) {}

  KnownAnswer Read(const json& in) {
    ++number_;
    name_.clear();
    try {
      name_ = in.at("name").get<std::string>();
      KnownAnswer answer{.name = name_, .tensor = ReadOnlyTensor(in, path_)};
      const Tensor& tensor = answer.tensor;
      answer.box = ReadBox(in, tensor);
      answer.bits = ReadBits(in.at("bits").get<std::string>(), tensor, answer.box);
      answer.file = AddValues(in, answer.tensor);
      return answer;
    } catch (const RefusedPlan& e) {
      Refuse("{}", e.why());
    } catch (const json::exception& e) {
      Refuse("{}", ComplaintOf(e));
    }
  }

  int64_t count() const { return number_; }

  // Refuses the whole file.
  [[noreturn]] void RefuseAll(std::string_view why) const {
    throw Error(ExitCode::kRefused, fmt::format("`{}` has no answers of this form: {}", path_, why),
                "write it as `shardinit conformance --vectors` does; shardinit-values(7) says what "
                "each member is");
  }

 private:
  Box ReadBox(const json& in, const Tensor& tensor) const {
    Box box{in.at("offset").get<Shape>(), in.at("shape").get<Shape>()};
    const size_t rank = tensor.shape.size();
    bool fits = box.offset.size() == rank && box.shape.size() == rank;
    for (size_t d = 0; fits && d < rank; ++d) {
      fits = box.offset[d] >= 0 && box.shape[d] >= 1 && box.shape[d] <= tensor.shape[d] &&
             box.offset[d] <= tensor.shape[d] - box.shape[d];
    }
    if (!fits) {
      Refuse("`shape` {} from `offset` {} on is no box of `global_shape` {}", InShape(box.shape),
             InShape(box.offset), InShape(tensor.shape));
    }
    return box;
  }

  std::vector<uint64_t> ReadBits(std::string_view text, const Tensor& tensor,
                                 const Box& box) const {
    const size_t digits = static_cast<size_t>(InfoOf(tensor.dtype).bytes) * 2;
    const int64_t count = ElementCount(box.shape);
    std::vector<uint64_t> bits;
    for (size_t at = 0; at < text.size(); at += digits + 1) {
      const std::string_view word = text.substr(at, text.find(' ', at) - at);
      uint64_t number = 0;
      const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number, 16);
      if (word.size() != digits || error != std::errc() || end != word.data() + digits) {
        Refuse("element {} of `bits` is {}, but {} has {} hexadecimal digits", bits.size(),
               Quote(word), InfoOf(tensor.dtype).name, digits);
      }
      bits.push_back(number);
    }
    if (std::ssize(bits) != count) {
      Refuse("`bits` has {}, but `shape` {} has {}", Count(std::ssize(bits), "element"),
             InShape(box.shape), Grouped(count));
    }
    return bits;
  }

  // Gives the tensor the file that its values are taken from, if they are.
  Fd AddValues(const json& in, Tensor& tensor) const {
    bool has_all = !std::holds_alternative<Norm>(tensor.distribution);
    ForEachSource(tensor.distribution, [&](const auto&...) { has_all = false; });
    if (const auto* parts = std::get_if<Parts>(&tensor.distribution)) {
      for (const Part& part : parts->of->parts) {
        has_all &= !std::holds_alternative<FromFile>(part.distribution) &&
                   !std::holds_alternative<Norm>(part.distribution);
      }
    }
    if (!has_all) Refuse("its elements are those of other tensors, which an answer does not have");
    auto* from_file = std::get_if<FromFile>(&tensor.distribution);
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
        Quote(name_), tensor.dtype == DType::boolean);
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
    RefuseAll(fmt::format("number {} of `vectors`{}: {}", number_,
                          name_.empty() ? std::string() : ", " + Quote(name_),
                          fmt::format(what, std::forward<T>(of)...)));
  }

  const std::string& path_;
  int64_t number_ = 0;
  std::string name_;
};

}  // namespace

void ReadKnownAnswers(std::string_view text, const std::string& path,
                      const std::function<void(const KnownAnswer& answer)>& visit) {
  AnswerReader reader(path);
  bool is_known = false;
  // Answers of another version are not compared; the version stands before them.
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
        if (key != "vectors") return false;
        check_version(before);
        visit(reader.Read(element));
        return true;
      });
  check_version(top);
  if (!top.contains("vectors") || !top.at("vectors").is_array()) {
    reader.RefuseAll("it has no list `vectors`");
  }
  if (reader.count() == 0) reader.RefuseAll("its list `vectors` is empty");
}

std::vector<uint64_t> MakeBits(const KnownAnswer& answer) {
  const BoxFiller filler(answer.tensor, answer.box);
  const auto size = static_cast<size_t>(filler.element_bytes());
  std::vector<uint64_t> bits(answer.bits.size());
  std::vector<uint64_t> aligned(bits.size());  // Elements lie close together in it.
  filler.Fill(0, filler.elements(), aligned.data());
  const auto* bytes = reinterpret_cast<const uint8_t*>(aligned.data());
  for (size_t i = 0; i < bits.size(); ++i) std::memcpy(&bits[i], bytes + i * size, size);
  return bits;
}

}  // namespace shardinit
