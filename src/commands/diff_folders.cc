#include "commands/diff_folders.h"

#include <fmt/format.h>

#include <atomic>
#include <cstring>
#include <map>
#include <vector>

#include "base/glob.h"
#include "base/interrupt.h"
#include "base/json.h"
#include "base/parallel.h"
#include "base/text.h"
#include "checkpoint/folder.h"
#include "commands/command.h"
#include "commands/folders.h"
#include "report/text.h"
#include "tensor/numbers.h"

namespace shardinit {
namespace {

constexpr int64_t kDiffBlock = 4 << 20;  // bytes that a thread compares at a time

// A path in either folder, and how its tensors differ.
struct Pair {
  std::string path;
  const Tensor *before, *after;  // null: the folder lacks the tensor
  std::string form;              // how type and shape differ; empty: they are equal
  std::atomic<int64_t> unequal{0};
  std::atomic<int64_t> first{-1};  // row-major index of a number that differs

  bool differs() const {
    return before == nullptr || after == nullptr || !form.empty() || unequal > 0;
  }
};
using Pairs = std::map<std::string, Pair>;

std::string Form(const Tensor& tensor) {
  return fmt::format("{} {}", InfoOf(tensor.dtype()).name, InShape(tensor.shape_in_numbers()));
}

// Adds the tensors that cannot be read from either folder. They count as different, except tensors
// without elements that are alike.
void AddUnread(const TensorFolder& before, const TensorFolder& after, const std::string& only,
               Pairs* pairs) {
  for (const TensorFolder* folder : {&before, &after}) {
    const TensorFolder& other = folder == &before ? after : before;
    for (const auto& [name, why] : folder->unread()) {
      if (!only.empty() && !PathMatches(only, name)) continue;
      const auto there = other.unread().find(name);
      const bool is_like = there != other.unread().end() && there->second == why;
      if (is_like && why.starts_with(kNoElements)) continue;
      (*pairs)[name].form = fmt::format("not compared: in {} it {}", Quote(folder->path()), why);
    }
  }
}

Pairs PairsOf(const Plan& before, const Plan& after, const std::string& only) {
  Pairs pairs;
  const auto add = [&](const Plan& plan, const Tensor* Pair::*side) {
    for (const Tensor& tensor : plan.graph.tensors) {
      if (!only.empty() && !PathMatches(only, tensor.path())) continue;
      pairs[std::string(tensor.path())].*side = &tensor;
    }
  };
  add(before, &Pair::before);
  add(after, &Pair::after);
  for (auto& [path, pair] : pairs) {
    if (pair.before == nullptr || pair.after == nullptr) continue;
    const std::string was = Form(*pair.before), is = Form(*pair.after);
    if (was != is) pair.form = fmt::format("{} → {}", was, is);
  }
  return pairs;
}

void CompareBlock(const TensorFolder& before, const TensorFolder& after, int64_t first,
                  int64_t count, Pair* pair) {
  const DType dtype = pair->before->dtype();
  const int64_t numbers = InfoOf(dtype).numbers;
  std::vector<uint8_t> left(static_cast<size_t>(count * InfoOf(dtype).bytes)), right(left.size());
  before.ElementsOf (*pair->before)(first, count, left.data());
  after.ElementsOf (*pair->after)(first, count, right.data());
  if (left == right) return;
  if (numbers > 1) {
    for (std::vector<uint8_t>* side : {&left, &right}) {
      std::vector<uint8_t> separate(static_cast<size_t>(count * numbers));
      SeparateNumbers(dtype, side->data(), count, separate.data());
      *side = std::move(separate);
    }
  }
  const auto size = static_cast<size_t>(NumberBytes(dtype));
  for (int64_t i = first * numbers; i < (first + count) * numbers; ++i) {
    const size_t at = static_cast<size_t>(i - first * numbers) * size;
    if (memcmp(&left[at], &right[at], size) == 0) continue;
    ++pair->unequal;
    int64_t lowest = pair->first;
    while ((lowest < 0 || i < lowest) && !pair->first.compare_exchange_weak(lowest, i)) continue;
  }
}

void CompareValues(const TensorFolder& before, const TensorFolder& after, const WorkOptions& work,
                   bool is_quiet, Pairs* pairs) {
  struct Block {
    Pair* pair;
    int64_t first, count;
  };
  std::vector<Block> blocks;
  int64_t bytes = 0;
  for (auto& [path, pair] : *pairs) {
    if (pair.before == nullptr || pair.after == nullptr || !pair.form.empty()) continue;
    const int64_t most = kDiffBlock / InfoOf(pair.before->dtype()).bytes;
    const int64_t elements = pair.before->elements();
    bytes += pair.before->bytes();
    for (int64_t first = 0; first < elements; first += most) {
      blocks.push_back({&pair, first, std::min(most, elements - first)});
    }
  }
  Progress progress(work.Mode(), "comparing", bytes, is_quiet);
  std::atomic<int64_t> done{0};
  ParallelFor(std::ssize(blocks), work.Jobs(), [&](int64_t b) {
    ThrowIfInterrupted();
    const Block& block = blocks[static_cast<size_t>(b)];
    CompareBlock(before, after, block.first, block.count, block.pair);
    progress.Update(done += block.count * InfoOf(block.pair->before->dtype()).bytes);
  });
  before.RequireUnchanged();
  after.RequireUnchanged();
}

std::string IndexText(int64_t place, const Shape& shape) {
  std::vector<int64_t> index(shape.size());
  for (size_t d = shape.size(); d-- > 0; place /= shape[d]) index[d] = place % shape[d];
  return InShape(index);
}

void PrintPairs(const Pairs& pairs, int64_t equal, bool values, bool json) {
  const int64_t unequal = std::ssize(pairs) - equal;
  if (json) {
    JsonWriter out;
    out.BeginObject(JsonWriter::kLines).Member("equal", unequal == 0);
    out.Member("values_compared", values).Member("equal_tensors", equal);
    out.Key("tensors").BeginArray(JsonWriter::kLines);
    for (const auto& [path, pair] : pairs) {
      if (!pair.differs()) continue;
      const bool both = pair.before != nullptr && pair.after != nullptr;
      out.BeginObject().Member("path", path);
      const bool is_unread = !both && !pair.form.empty();
      out.Member("kind", is_unread                ? "unread"
                         : both                   ? "changed"
                         : pair.before == nullptr ? "added"
                                                  : "removed");
      if (is_unread) out.Member("form", pair.form);
      if (both) out.Member("form", pair.form).Member("unequal_elements", pair.unequal.load());
      out.EndObject();
    }
    out.EndArray().EndObject();
    return Print(out.Finish());
  }
  std::string text;
  for (const auto& [path, pair] : pairs) {
    if (!pair.differs()) continue;
    if (pair.form.empty() && (pair.before == nullptr || pair.after == nullptr)) {
      text += fmt::format("{} {}\n", pair.before == nullptr ? "+" : "-", Escape(path));
    } else if (!pair.form.empty()) {
      text += fmt::format("~ {}\n  form: {}\n", Escape(path), Escape(pair.form));
    } else {
      text += fmt::format("~ {}\n  values: {} of {} differ, the first at {}\n", Escape(path),
                          Grouped(pair.unequal), Count(pair.before->numbers(), "element"),
                          IndexText(pair.first, pair.before->shape_in_numbers()));
    }
  }
  text += unequal == 0 ? fmt::format("no difference: {}", Count(equal, "tensor"))
                       : fmt::format("{} differ{}, {} equal", Count(unequal, "tensor"),
                                     unequal == 1 ? "s" : "", Grouped(equal));
  Print(text + (values ? "\n" : " in name, type and shape; `--values` compares the elements\n"));
}

}  // namespace

namespace {

// The requested part may exist in only one folder: the other folder may be a copy of the part.
std::pair<TensorFolder, TensorFolder> OpenBoth(const FolderDiff& diff) {
  const auto open = [&](const std::string& path) -> std::optional<TensorFolder> {
    try {
      return TensorFolder(path, diff.part);
    } catch (const Error& error) {
      if (diff.part.empty() || error.code() != ExitCode::kUsage) throw;
      return std::nullopt;
    }
  };
  std::optional<TensorFolder> before = open(diff.before), after = open(diff.after);
  if (!before && !after) return {TensorFolder(diff.before, diff.part), TensorFolder(diff.after)};
  if (!before) before.emplace(diff.before);
  if (!after) after.emplace(diff.after);
  return {*std::move(before), *std::move(after)};
}

}  // namespace

ExitCode DiffFolders(const FolderDiff& diff, const WorkOptions& work) {
  const auto [before, after] = OpenBoth(diff);
  SayFolder(before, diff.values);
  SayFolder(after, diff.values);
  Pairs pairs = PairsOf(before.plan(), after.plan(), diff.only);
  AddUnread(before, after, diff.only, &pairs);
  if (pairs.empty()) Matching(before.plan().graph.tensors, diff.only);  // throws: no tensor matches
  if (diff.values) CompareValues(before, after, work, diff.json, &pairs);
  int64_t equal = 0;
  for (const auto& [path, pair] : pairs) equal += !pair.differs();
  PrintPairs(pairs, equal, diff.values, diff.json);
  return equal == std::ssize(pairs) ? ExitCode::kOk : ExitCode::kDifferent;
}

}  // namespace shardinit
