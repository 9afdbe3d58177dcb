#include "program/module.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <unordered_map>

#include "base/error.h"
#include "base/interrupt.h"
#include "program/annotation.h"
#include "program/group.h"

namespace shardinit {
namespace {

using namespace program;

// Returns the text in quotes, in MLIR's syntax.
std::string Quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\' || byte < 0x20 || byte >= 0x7F) {
      out += fmt::format("\\{:02X}", byte);
    } else {
      out += c;
    }
  }
  return out + "\"";
}

std::string TableText(const std::vector<uint32_t>& words, const Shape& shape) {
  const std::string type = TypeText(shape, DType::u32);
  std::string numbers;
  constexpr size_t kFew = 64;
  if (words.size() <= kFew && shape.size() == 2) {
    for (size_t i = 0; i < words.size(); ++i) {
      const bool starts = i % shape[1] == 0, ends = (i + 1) % shape[1] == 0;
      numbers +=
          fmt::format("{}{}{}{}", i == 0 ? "" : ", ", starts ? "[" : "", words[i], ends ? "]" : "");
    }
    return fmt::format("dense<[{}]> : {}", numbers, type);
  }
  for (const uint32_t word : words) numbers += fmt::format("{:08X}", __builtin_bswap32(word));
  return fmt::format("dense<\"0x{}\"> : {}", numbers, type);
}

// Returns the type of a result with its attributes.
std::string ResultText(const Plan& plan, const ProgramRequest& request, const std::string& type,
                       const std::string& name, const PartitionSpec& partition, bool stacked) {
  std::string attributes = fmt::format("jax.result_info = {}", Quoted(name));
  if (request.with_mhlo) {
    attributes +=
        fmt::format(", mhlo.sharding = \"{}\"", ShardingText(plan.graph.mesh, partition, stacked));
  }
  if (request.with_shardy) {
    attributes +=
        fmt::format(", sdy.sharding = {}", ShardyText(plan.graph.mesh, partition, stacked));
  }
  return fmt::format("{} {{{}}}", type, attributes);
}

std::string ArgumentText(const ProgramRequest& request, const std::string& name,
                         const std::string& type) {
  if (!request.with_mhlo) return fmt::format("{}: {}", name, type);
  return fmt::format("{}: {} {{mhlo.sharding = \"{{replicated}}\"}}", name, type);
}

std::string ModuleText(const Plan& plan, const ProgramRequest& request, const std::string& main,
                       const std::string& functions) {
  const int64_t devices = request.annotated() ? plan.world_size() : 1;
  return fmt::format(
      "module @{} attributes {{mhlo.num_partitions = {} : i32, mhlo.num_replicas = 1 : i32}} {{\n"
      "{}{}{}}}\n",
      Quoted(plan.graph.name), devices,
      request.with_shardy ? fmt::format("  {}\n", ShardyMeshText(plan.graph.mesh)) : "", main,
      functions);
}

// Throws if the text for the first `made` of `tensors` tensors exceeds the size limit of a program.
void RequireSize(size_t bytes, size_t made, size_t tensors) {
  if (bytes <= kLargestProgram) return;
  throw Usage(fmt::format("a program may have {} bytes, but {} of {} tensors take {} already",
                          kLargestProgram, made, tensors, bytes),
              "select some tensors with `--only`; tensors of equal shape and distribution are "
              "written once, and `--kinds` writes each kind to its own file");
}

// Returns the parts of all boxes. Each word of their tables becomes eight characters.
std::vector<TensorParts> PartsOfAll(const ProgramRequest& request) {
  std::vector<TensorParts> parts;
  size_t characters = 0;
  for (const ProgramBox& one : request.boxes) {
    ThrowIfInterrupted();
    parts.push_back(PartsOf(request.arithmetic, *one.tensor, one.box));
    for (const Table& table : parts.back().tables) characters += 8 * table.words.size();
    RequireSize(characters, parts.size(), request.boxes.size());
  }
  return parts;
}

// The functions of a module, one for each kind.
class Functions {
 public:
  explicit Functions(const ProgramRequest& request) : request_(request) {}

  struct Entry {
    std::string name;
    bool needs_zero;
    std::vector<Shape> arguments;
    std::string type;
  };

  // Returns the function of a kind; writes it if it is new.
  const Entry& Find(const ProgramBox& one, const TensorParts& parts) {
    const auto [it, is_new] = entries_.try_emplace(parts.kind);
    Entry& entry = it->second;
    if (is_new) {
      entry.name = fmt::format("kind_{}", entries_.size() - 1);
      WrittenFunction function = WriteFunction(request_.arithmetic, request_.annotated(),
                                               *one.tensor, one.box, entry.name);
      text += function.text;
      entry.needs_zero = function.needs_zero;
      for (const Table& table : parts.tables) {
        entry.arguments.push_back({table.rows(), table.columns});
      }
      entry.type = TypeText(one.box.shape, one.tensor->dtype());
      needs_zero |= entry.needs_zero;
    }
    return entry;
  }

  std::string text;
  bool needs_zero = false;

 private:
  const ProgramRequest& request_;
  std::unordered_map<std::string, Entry> entries_;
};

std::string CallText(const Functions::Entry& entry, const std::vector<std::string>& tables) {
  std::vector<std::string> names, types;
  if (entry.needs_zero) {
    names.emplace_back("%zero");
    types.emplace_back("tensor<ui32>");
  }
  for (size_t i = 0; i < tables.size(); ++i) {
    names.push_back(tables[i]);
    types.push_back(TypeText(entry.arguments[i], DType::u32));
  }
  return fmt::format("func.call @{}({}) : ({}) -> {}", entry.name, fmt::join(names, ", "),
                     fmt::join(types, ", "), entry.type);
}

// Returns a table of one tensor, or the tables of all tensors in a group, one after another.
std::vector<uint32_t> JoinedTable(const Group& group, const std::vector<TensorParts>& parts,
                                  size_t table) {
  std::vector<uint32_t> words;
  for (const size_t one : group.made) {
    const std::vector<uint32_t>& more = parts[one].tables[table].words;
    words.insert(words.end(), more.begin(), more.end());
  }
  return words;
}

Shape Stacked(int64_t count, Shape shape) {
  shape.insert(shape.begin(), count);
  return shape;
}

// Returns a loop that computes each of a group's boxes and puts it at its place in the stack.
std::string LoopText(const Group& group, size_t number, const Functions::Entry& entry,
                     const std::string& stacked_type, const Shape& shape, DType element) {
  const int64_t count = std::ssize(group.made);
  std::string body;
  std::vector<std::string> tables;
  for (size_t t = 0; t < entry.arguments.size(); ++t) {
    const Shape& one = entry.arguments[t];
    const Shape all = Stacked(count, one), slice = Stacked(1, one);
    body += fmt::format(
        "      %slice{0} = stablehlo.dynamic_slice %t{1}_{0}, %i, %none, %none, sizes = [1, {2}, "
        "{3}] : ({4}, tensor<i32>, tensor<i32>, tensor<i32>) -> {5}\n"
        "      %row{0} = stablehlo.reshape %slice{0} : ({5}) -> {6}\n",
        t, number, one[0], one[1], TypeText(all, DType::u32), TypeText(slice, DType::u32),
        TypeText(one, DType::u32));
    tables.push_back(fmt::format("%row{}", t));
  }
  const std::string slice_type = TypeText(Stacked(1, shape), element);
  std::string places = "%i", place_types = "tensor<i32>";
  for (size_t d = 0; d < shape.size(); ++d) {
    places += ", %none";
    place_types += ", tensor<i32>";
  }
  return fmt::format(
      "    %e{0} = stablehlo.constant dense<{1}> : {2}\n"
      "    %s{0} = stablehlo.constant dense<0> : tensor<i32>\n"
      "    %w{0}:2 = stablehlo.while(%i = %s{0}, %all = %e{0}) : tensor<i32>, {2}\n"
      "    cond {{\n"
      "      %count = stablehlo.constant dense<{3}> : tensor<i32>\n"
      "      %more = stablehlo.compare LT, %i, %count, SIGNED : (tensor<i32>, tensor<i32>) -> "
      "tensor<i1>\n"
      "      stablehlo.return %more : tensor<i1>\n"
      "    }} do {{\n"
      "      %none = stablehlo.constant dense<0> : tensor<i32>\n"
      "      %one = stablehlo.constant dense<1> : tensor<i32>\n"
      "{4}      %made = {5}\n"
      "      %slice = stablehlo.reshape %made : ({6}) -> {7}\n"
      "      %next = stablehlo.dynamic_update_slice %all, %slice, {8} : ({2}, {7}, {9}) -> {2}\n"
      "      %j = stablehlo.add %i, %one : tensor<i32>\n"
      "      stablehlo.return %j, %next : tensor<i32>, {2}\n"
      "    }}\n",
      number,
      element == DType::boolean    ? "false"
      : InfoOf(element).is_float() ? "0.0"
                                   : "0",
      stacked_type, count, body, CallText(entry, tables), entry.type, slice_type, places,
      place_types);
}

}  // namespace

std::vector<ProgramBox> ProgramBoxesOf(const Plan& plan, const std::vector<const Tensor*>& tensors,
                                       std::optional<int64_t> rank) {
  std::vector<ProgramBox> all;
  for (const Tensor* tensor : tensors) {
    if (!rank) {
      RequireAnnotation(plan.graph.mesh, *tensor);
      all.push_back({tensor, WholeOf(tensor->shape())});
      continue;
    }
    const std::vector<Box> boxes = plan.ShardingOf(*tensor).BoxesOn(*rank);
    for (size_t part = 0; part < boxes.size(); ++part) all.push_back({tensor, boxes[part], part});
  }
  return all;
}

std::string WriteProgram(const Plan& plan, const ProgramRequest& request) {
  const std::vector<ProgramBox>& made = request.boxes;
  const std::vector<TensorParts> parts = PartsOfAll(request);
  const std::vector<Group> groups = GroupsOf(plan.graph.mesh, made, parts, request.stacked);
  Functions functions(request);
  std::string body;
  std::vector<std::string> names, types, results;
  for (size_t g = 0; g < groups.size(); ++g) {
    const Group& group = groups[g];
    const ProgramBox& one = made[group.made.front()];
    const TensorParts& first = parts[group.made.front()];
    const Functions::Entry& entry = functions.Find(one, first);
    const bool stacked = group.made.size() > 1;
    const DType element = one.tensor->dtype();
    std::string type = entry.type;
    std::vector<std::string> tables;
    for (size_t t = 0; t < first.tables.size(); ++t) {
      const Shape one_table = {first.tables[t].rows(), first.tables[t].columns};
      const Shape shape = stacked ? Stacked(std::ssize(group.made), one_table) : one_table;
      tables.push_back(fmt::format("%t{}_{}", g, t));
      body += fmt::format("    {} = stablehlo.constant {}\n", tables.back(),
                          TableText(JoinedTable(group, parts, t), shape));
    }
    if (stacked) {
      type = TypeText(Stacked(std::ssize(group.made), one.box.shape), element);
      body += LoopText(group, g, entry, type, one.box.shape, element);
      names.push_back(fmt::format("%w{}#1", g));
    } else {
      body += fmt::format("    %x{} = {}\n", g, CallText(entry, tables));
      names.push_back(fmt::format("%x{}", g));
    }
    RequireSize(functions.text.size() + body.size(), g + 1, groups.size());
    types.push_back(type);
    results.push_back(
        ResultText(plan, request, type, group.name, one.tensor->partition(), stacked));
  }
  const bool takes_zero = request.arithmetic == Arithmetic::kSingle || functions.needs_zero;
  const std::string main = fmt::format(
      "  func.func public @main({}) -> ({}) {{\n{}    return {} : {}\n  }}\n",
      takes_zero ? ArgumentText(request, "%zero", "tensor<ui32>") : "",
      fmt::join(results, ",\n      "), body, fmt::join(names, ", "), fmt::join(types, ", "));
  return ModuleText(plan, request, main, functions.text);
}

ProgramKinds WriteProgramKinds(const Plan& plan, const ProgramRequest& request,
                               const ModuleVisitor& visit) {
  ProgramKinds out;
  std::unordered_map<std::string, size_t> places;
  std::vector<TensorParts> all = PartsOfAll(request);
  for (size_t i = 0; i < all.size(); ++i) {
    const ProgramBox& one = request.boxes[i];
    TensorParts& parts = all[i];
    const std::string partition =
        request.annotated() ? InText(one.tensor->partition(), plan.graph.mesh) : "";
    const auto [it, is_new] = places.try_emplace(parts.kind + partition, out.kinds.size());
    if (is_new) {
      Functions functions(request);
      const Functions::Entry& entry = functions.Find(one, parts);
      ProgramKind kind;
      kind.name = fmt::format("kind-{:03}", out.kinds.size());
      kind.dtype = InfoOf(one.tensor->dtype()).name;
      kind.shape = one.box.shape;
      kind.needs_zero = entry.needs_zero;
      kind.arguments = entry.arguments;
      for (const DimensionPartition& by : one.tensor->partition().dimensions) {
        auto& axes = kind.partition.emplace_back();
        for (const int axis : by.axes) axes.push_back(plan.graph.mesh.axes[axis]);
      }
      std::vector<std::string> arguments, tables;
      if (entry.needs_zero) arguments.push_back(ArgumentText(request, "%zero", "tensor<ui32>"));
      for (size_t t = 0; t < entry.arguments.size(); ++t) {
        tables.push_back(fmt::format("%t{}", t));
        arguments.push_back(
            ArgumentText(request, tables.back(), TypeText(entry.arguments[t], DType::u32)));
      }
      const std::string main = fmt::format(
          "  func.func public @main({}) -> ({}) {{\n    %x = {}\n    return %x : {}\n"
          "  }}\n",
          fmt::join(arguments, ", "),
          ResultText(plan, request, entry.type, "", one.tensor->partition(), false),
          CallText(entry, tables), entry.type);
      visit(kind.name, ModuleText(plan, request, main, functions.text));
      out.kinds.push_back(std::move(kind));
    }
    ProgramTensor tensor{std::string(one.tensor->path()), one.part, it->second, {}};
    for (Table& table : parts.tables) tensor.arguments.push_back(std::move(table.words));
    out.tensors.push_back(std::move(tensor));
  }
  return out;
}

}  // namespace shardinit
