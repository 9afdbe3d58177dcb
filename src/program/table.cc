#include "program/table.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstring>

#include "base/error.h"
#include "base/overloaded.h"
#include "generate/fill.h"
#include "init/sampled.h"
#include "program/engine.h"

namespace shardinit::program {
namespace {

// Orthogonal matrices up to this size are written as their values.
constexpr int64_t kMaxWrittenElements = 1 << 16;
// This limit is larger, because the elements of files have no other form.
constexpr int64_t kMaxFileElements = 1 << 21;

[[noreturn]] void Refuse(const std::string& what) {
  throw Usage(what, "leave it out with `--only`, and take it from `gen`");
}

// Appends the elements of a file, each as words, the low one first.
void AppendElements(const Tensor& tensor, std::vector<uint32_t>* words) {
  if (tensor.elements() > kMaxFileElements) {
    Refuse(
        fmt::format("`{}` has its {} elements from a file, but a program can only have such "
                    "tensors of up to {}",
                    tensor.path(), tensor.elements(), kMaxFileElements));
  }
  const auto bytes = static_cast<size_t>(InfoOf(tensor.dtype()).bytes);
  const auto count = static_cast<size_t>(tensor.elements());
  std::vector<uint8_t> elements(count * bytes);
  FillBox(tensor, WholeOf(tensor.shape()), 1, elements.data());
  for (size_t i = 0; i < count; ++i) {
    uint32_t word[2] = {};
    std::memcpy(word, &elements[i * bytes], bytes);
    words->insert(words->end(), word, word + WordsOf(tensor.dtype()));
  }
}

// Appends a tensor's row of the table, in the order in which WriteElement() reads the words.
void AppendRow(const Tensor& tensor, std::vector<uint32_t>* words) {
  const auto append = [&](const auto& more) {
    words->insert(words->end(), more.begin(), more.end());
  };
  if (IsRandom(tensor.distribution()) &&
      !std::holds_alternative<Orthogonal>(tensor.distribution())) {
    words->push_back(static_cast<uint32_t>(tensor.stream().key));
    words->push_back(static_cast<uint32_t>(tensor.stream().key >> 32));
  }
  std::visit(
      Overloaded{
          [&](const Sampled auto& d) { append(SamplerWords(SamplerOf(d))); },
          [&](const Sparse& s) { append(SamplerWords(MakeNormal(0, s.std))); },
          [&](const Orthogonal&) {
            if (tensor.elements() > kMaxWrittenElements) {
              Refuse(
                  fmt::format("`{}` is an orthogonal matrix of {} elements, but a program can only "
                              "have such matrices, as values, of up to {}",
                              tensor.path(), tensor.elements(), kMaxWrittenElements));
            }
            Tensor whole = tensor;
            whole.Edit().dtype = DType::f32;
            std::vector<uint32_t> bits(static_cast<size_t>(whole.elements()));
            FillBox(whole, WholeOf(whole.shape()), 1, bits.data());
            append(bits);
          },
          [&](const OneOf<FromFile, FromSource> auto&) { AppendElements(tensor, words); },
          [&](const Norm& n) {
            if (std::holds_alternative<Sparse>(tensor.measured()->distribution())) {
              Refuse(fmt::format("`{}` has norms of the sparse `{}`, which programs cannot make",
                                 tensor.path(), n.of));
            }
            ProgramEngineOf(*tensor.measured()->stream().engine);
            AppendRow(*tensor.measured(), words);
          },
          [&](const OneOf<RowsLike, Parts> auto& d) {
            Refuse(fmt::format("`{}` has {}, which programs cannot make", tensor.path(),
                               std::string_view(d.kName)));
          },
          [&](const Expression& e) {
            if (e.program->sources.empty()) return;
            Refuse(
                fmt::format("`{}` computes with elements of the source `{}`, which programs lack",
                            tensor.path(), e.program->sources.front().source));
          },
          [](const OneOf<Constant, Normalized> auto&) {},
      },
      tensor.distribution());
}

}  // namespace

std::string KindOf(const Tensor& tensor) {
  std::string kind = fmt::format("{} ", tensor.shape());
  return kind +
         std::visit(Overloaded{
                        // The table contains the parameters of these.
                        [](const Sampled auto& d) { return std::string(d.kName); },
                        [](const OneOf<Orthogonal, FromFile, FromSource> auto& d) {
                          return std::string(d.kName);
                        },
                        [&](const Norm&) {
                          return fmt::format("norms of {} {}",
                                             InfoOf(tensor.measured()->dtype()).name,
                                             KindOf(*tensor.measured()));
                        },
                        [](const Sparse& s) { return fmt::format("sparse {}", s.zeros); },
                        [](const OneOf<Constant, Expression, Normalized, RowsLike, Parts> auto& d) {
                          return InText(Distribution(d));
                        },
                    },
                    tensor.distribution());
}

Table TableOf(const std::vector<const Tensor*>& tensors) {
  Table table;
  for (const Tensor* tensor : tensors) {
    ProgramEngineOf(*tensor->stream().engine);
    AppendRow(*tensor, &table.words);
  }
  table.columns = std::ssize(table.words) / std::ssize(tensors);
  return table;
}

}  // namespace shardinit::program
