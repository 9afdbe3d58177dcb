#include "program/module.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>
#include <unordered_map>

#include "base/error.h"
#include "base/interrupt.h"
#include "program/annotation.h"
#include "program/tensor.h"

namespace shardinit {
namespace {

using namespace program;

// Returns the text in quotes, as MLIR writes it.
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
  const std::string type = TypeText(shape, Element::kU32);
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

std::string PathOf(const ProgramBox& one) {
  return one.part == 0 ? one.tensor->path : fmt::format("{}@{}", one.tensor->path, one.part);
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

// Throws if the text for the first `made` of `tensors` tensors is larger than a program may be.
void RequireSize(size_t bytes, size_t made, size_t tensors) {
  if (bytes <= kLargestProgram) return;
  throw Error(ExitCode::kUsage,
              fmt::format("a program may have {} bytes, but {} of {} tensors take {} already",
                          kLargestProgram, made, tensors, bytes),
              "take some of the tensors with `--only`; what is of one shape and distribution is "
              "written once, and `--kinds` writes each of these to a file of its own");
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

  // Returns the function of a kind; makes it if it is new.
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
      entry.type = TypeText(one.box.shape, ElementOf(one.tensor->dtype));
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
    types.push_back(TypeText(entry.arguments[i], Element::kU32));
  }
  return fmt::format("func.call @{}({}) : ({}) -> {}", entry.name, fmt::join(names, ", "),
                     fmt::join(types, ", "), entry.type);
}

// Replaces the first part of a path that is a number, and returns it: `layers.*.w` and 3.
std::pair<std::string, int64_t> WithoutNumber(const std::string& path) {
  for (size_t begin = 0; begin < path.size();) {
    const size_t end = std::min(path.find('.', begin), path.size());
    const std::string_view part(path.data() + begin, end - begin);
    if (part.size() < 10 && part.find_first_not_of("0123456789") == part.npos && !part.empty()) {
      return {path.substr(0, begin) + "*" + path.substr(end), std::stoll(std::string(part))};
    }
    begin = end + 1;
  }
  return {path, -1};
}

// Boxes that become one result.
struct Group {
  std::string name;
  std::vector<size_t> made;
  std::vector<int64_t> numbers;
};

// Returns `3..60,62`.
std::string NumbersText(const std::vector<int64_t>& numbers) {
  std::string text;
  for (size_t i = 0, end; i < numbers.size(); i = end) {
    for (end = i + 1; end < numbers.size() && numbers[end] == numbers[end - 1] + 1;) ++end;
    text += fmt::format("{}{}", i == 0 ? "" : ",", numbers[i]);
    if (end > i + 1) text += fmt::format("{}{}", end == i + 2 ? "," : "..", numbers[end - 1]);
  }
  return text;
}

std::vector<Group> GroupsOf(const Plan& plan, const std::vector<ProgramBox>& made,
                            const std::vector<TensorParts>& parts, bool stacked) {
  std::vector<Group> groups;
  std::map<std::string, size_t> places;
  for (size_t i = 0; i < made.size(); ++i) {
    const auto [name, number] = WithoutNumber(PathOf(made[i]));
    if (!stacked || number < 0) {
      groups.push_back({PathOf(made[i]), {i}, {}});
      continue;
    }
    const std::string key = fmt::format("{} {} {}", name, parts[i].kind,
                                        InText(made[i].tensor->partition, plan.graph.mesh));
    const auto [it, is_new] = places.try_emplace(key, groups.size());
    if (is_new) groups.push_back({name, {}, {}});
    groups[it->second].made.push_back(i);
    groups[it->second].numbers.push_back(number);
  }
  // If two groups have one name, or a group's numbers do not count from 0, the name gets the
  // numbers.
  std::map<std::string, int> times;
  for (const Group& group : groups) ++times[group.name];
  for (Group& group : groups) {
    if (group.numbers.empty()) continue;
    bool all = times[group.name] == 1;
    for (size_t i = 0; i < group.numbers.size(); ++i) {
      all = all && group.numbers[i] == static_cast<int64_t>(i);
    }
    if (group.numbers.size() == 1) {
      group.name = PathOf(made[group.made[0]]);
      group.numbers.clear();
    } else if (!all) {
      group.name.replace(group.name.find('*'), 1,
                         fmt::format("{{{}}}", NumbersText(group.numbers)));
    }
  }
  return groups;
}

// Returns a table of one tensor, or of all of a group, one after another.
std::vector<uint32_t> JoinedTable(const Group& group, const std::vector<TensorParts>& parts,
                                  size_t table) {
  std::vector<uint32_t> words;
  for (const size_t one : group.made) {
    const std::vector<uint32_t>& more = parts[one].tables[table].words;
    words.insert(words.end(), more.begin(), more.end());
  }
  return words;
}

// Returns a loop that makes each of a group's boxes and puts it at its place in the stack.
std::string LoopText(const Group& group, size_t number, const Functions::Entry& entry,
                     const std::string& stacked_type, const Shape& shape, Element element) {
  const int64_t count = std::ssize(group.made);
  std::string body;
  std::vector<std::string> tables;
  for (size_t t = 0; t < entry.arguments.size(); ++t) {
    const Shape& one = entry.arguments[t];
    const Shape all = {count, one[0], one[1]}, slice = {1, one[0], one[1]};
    body += fmt::format(
        "      %slice{0} = stablehlo.dynamic_slice %t{1}_{0}, %i, %none, %none, sizes = [1, {2}, "
        "{3}] : ({4}, tensor<i32>, tensor<i32>, tensor<i32>) -> {5}\n"
        "      %row{0} = stablehlo.reshape %slice{0} : ({5}) -> {6}\n",
        t, number, one[0], one[1], TypeText(all, Element::kU32), TypeText(slice, Element::kU32),
        TypeText(one, Element::kU32));
    tables.push_back(fmt::format("%row{}", t));
  }
  Shape slice = shape;
  slice.insert(slice.begin(), 1);
  const std::string slice_type = TypeText(slice, element);
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
      "{4}"
      "      %made = {5}\n"
      "      %slice = stablehlo.reshape %made : ({6}) -> {7}\n"
      "      %next = stablehlo.dynamic_update_slice %all, %slice, {8} : ({2}, {7}, {9}) -> {2}\n"
      "      %j = stablehlo.add %i, %one : tensor<i32>\n"
      "      stablehlo.return %j, %next : tensor<i32>, {2}\n"
      "    }}\n",
      number,
      element == Element::kI1                               ? "false"
      : NameOf(element).find('f') != std::string_view::npos ? "0.0"
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
      all.push_back({tensor, WholeOf(tensor->shape)});
      continue;
    }
    const std::vector<Box> boxes = plan.ShardingOf(*tensor).BoxesOn(*rank);
    for (size_t part = 0; part < boxes.size(); ++part) all.push_back({tensor, boxes[part], part});
  }
  return all;
}

std::string WriteProgram(const Plan& plan, const ProgramRequest& request) {
  const std::vector<ProgramBox> made = request.boxes;
  const std::vector<TensorParts> parts = PartsOfAll(request);
  const std::vector<Group> groups = GroupsOf(plan, made, parts, request.stacked);
  Functions functions(request);
  std::string body;
  std::vector<std::string> names, types, results;
  for (size_t g = 0; g < groups.size(); ++g) {
    const Group& group = groups[g];
    const ProgramBox& one = made[group.made.front()];
    const TensorParts& first = parts[group.made.front()];
    const Functions::Entry& entry = functions.Find(one, first);
    const bool stacked = group.made.size() > 1;
    const Element element = ElementOf(one.tensor->dtype);
    std::string type = entry.type;
    std::vector<std::string> tables;
    for (size_t t = 0; t < first.tables.size(); ++t) {
      Shape shape = {first.tables[t].rows(), first.tables[t].columns};
      if (stacked) shape.insert(shape.begin(), std::ssize(group.made));
      tables.push_back(fmt::format("%t{}_{}", g, t));
      body += fmt::format("    {} = stablehlo.constant {}\n", tables.back(),
                          TableText(JoinedTable(group, parts, t), shape));
    }
    if (stacked) {
      Shape shape = one.box.shape;
      shape.insert(shape.begin(), std::ssize(group.made));
      type = TypeText(shape, element);
      body += LoopText(group, g, entry, type, one.box.shape, element);
      names.push_back(fmt::format("%w{}#1", g));
    } else {
      body += fmt::format("    %x{} = {}\n", g, CallText(entry, tables));
      names.push_back(fmt::format("%x{}", g));
    }
    RequireSize(functions.text.size() + body.size(), g + 1, groups.size());
    types.push_back(type);
    results.push_back(ResultText(plan, request, type, group.name, one.tensor->partition, stacked));
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
        request.annotated() ? InText(one.tensor->partition, plan.graph.mesh) : "";
    const auto [it, is_new] = places.try_emplace(parts.kind + partition, out.kinds.size());
    if (is_new) {
      Functions functions(request);
      const Functions::Entry& entry = functions.Find(one, parts);
      ProgramKind kind;
      kind.name = fmt::format("kind-{:03}", out.kinds.size());
      kind.dtype = InfoOf(one.tensor->dtype).name;
      kind.shape = one.box.shape;
      kind.needs_zero = entry.needs_zero;
      kind.arguments = entry.arguments;
      for (const DimensionCut& cut : one.tensor->partition.cuts) {
        auto& axes = kind.partition.emplace_back();
        for (const int axis : cut.axes) axes.push_back(plan.graph.mesh.axes[axis]);
      }
      std::vector<std::string> arguments, tables;
      if (entry.needs_zero) {
        arguments.push_back(ArgumentText(request, "%zero", "tensor<ui32>"));
      }
      for (size_t t = 0; t < entry.arguments.size(); ++t) {
        tables.push_back(fmt::format("%t{}", t));
        arguments.push_back(
            ArgumentText(request, tables.back(), TypeText(entry.arguments[t], Element::kU32)));
      }
      const std::string main = fmt::format(
          "  func.func public @main({}) -> ({}) {{\n    %x = {}\n    return %x : {}\n"
          "  }}\n",
          fmt::join(arguments, ", "),
          ResultText(plan, request, entry.type, "", one.tensor->partition, false),
          CallText(entry, tables), entry.type);
      visit(kind.name, ModuleText(plan, request, main, functions.text));
      out.kinds.push_back(std::move(kind));
    }
    ProgramTensor tensor{one.tensor->path, one.part, it->second, {}};
    for (Table& table : parts.tables) tensor.arguments.push_back(std::move(table.words));
    out.tensors.push_back(std::move(tensor));
  }
  return out;
}

}  // namespace shardinit
