#include "graph/outline.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <unordered_map>

#include "report/text.h"

namespace shardinit {
namespace {

// The characters that end a number in text that is not a path.
constexpr std::string_view kNumberEnds = " =,()[]";

// Returns a text that is equal for views that differ only in numbers.
std::string FormOf(const ViewNode& node, const std::vector<Tensor>& drawn) {
  if (node.operation == nullptr) return WithoutNumbers(drawn[node.tensor].path());
  std::string form = fmt::format("{}(", node.operation->name);
  std::string last;
  size_t copies = 0;
  const auto add = [&] {
    if (copies > 0) form += fmt::format("{} {};", copies, last);
  };
  for (const ViewNode& of : node.of) {
    std::string next = FormOf(of, drawn);
    if (copies > 0 && next == last) {
      ++copies;
      continue;
    }
    add();
    last = std::move(next);
    copies = 1;
  }
  add();
  return form + ")";
}

class OutlineBuilder {
 public:
  Outline Build(const std::vector<const Tensor*>& tensors) {
    Module root;
    modules_.push_back({});
    std::unordered_map<std::string_view, size_t> by_path;
    for (const Tensor* tensor : tensors) {
      const std::string_view path = tensor->path();
      size_t module = 0;
      for (size_t begin = 0; begin <= path.size();) {
        const size_t end = std::min(path.find('.', begin), path.size());
        const auto [it, is_new] = by_path.try_emplace(path.substr(0, end), modules_.size());
        if (is_new) {
          modules_[module].members.push_back(modules_.size());
          modules_.push_back({.name = path.substr(begin, end - begin), .members = {}});
        }
        module = it->second;
        begin = end + 1;
      }
      modules_[module].tensor = tensor;
    }
    Outline outline = Make(0).outline;
    outline.name.clear();
    return outline;
  }

 private:
  struct Module {
    std::string_view name;
    std::vector<size_t> members;
    const Tensor* tensor = nullptr;
  };
  struct Made {
    Outline outline;
    size_t form;  // equal if two can be merged
  };

  size_t Number(std::string form) {
    return forms_.try_emplace(std::move(form), forms_.size()).first->second;
  }

  size_t FormOfTensor(const Tensor& tensor) {
    const std::string what = tensor.view() ? FormOf(tensor.view()->root, *tensor.view()->drawn)
                                           : WithoutNumbers(InText(tensor), kNumberEnds);
    std::string form =
        fmt::format("{} {} {}", InfoOf(tensor.dtype()).name, fmt::join(tensor.shape(), ","), what);
    for (const DimensionPartition& by : tensor.partition().dimensions) {
      form += fmt::format(" [{}/{}/{}]", fmt::join(by.axes, ","), by.segments,
                          fmt::join(by.nested, ","));
    }
    for (const Pin& pin : tensor.partition().pins) {
      form += fmt::format(" {}@{}", pin.axis, fmt::join(pin.indices, ","));
    }
    return Number(std::move(form));
  }

  static void Merge(Outline from, Outline* into) {
    into->count += from.count;
    into->bytes += from.bytes;
    into->tensors.insert(into->tensors.end(), from.tensors.begin(), from.tensors.end());
    for (size_t m = 0; m < from.members.size(); ++m)
      Merge(std::move(from.members[m]), &into->members[m]);
  }

  Made Make(size_t index) {
    const Module& module = modules_[index];
    Outline out{.name = std::string(module.name), .members = {}, .tensors = {}};
    if (module.tensor != nullptr) {
      out.tensors = {module.tensor};
      out.count = 1;
      out.bytes = module.tensor->bytes();
      return {std::move(out), FormOfTensor(*module.tensor)};
    }
    std::vector<std::vector<std::string_view>> names;  // names of each member's modules
    std::vector<size_t> forms;
    std::unordered_map<size_t, size_t> numbered;  // form → member
    for (const size_t m : module.members) {
      const std::string_view name = modules_[m].name;
      Made made = Make(m);
      out.count += made.outline.count;
      out.bytes += made.outline.bytes;
      if (name.find_first_not_of("0123456789") == name.npos) {
        const auto [it, is_new] = numbered.try_emplace(made.form, out.members.size());
        if (!is_new) {
          Merge(std::move(made.outline), &out.members[it->second]);
          names[it->second].push_back(name);
          continue;
        }
      }
      forms.push_back(made.form);
      out.members.push_back(std::move(made.outline));
      names.push_back({name});
    }
    std::string form;
    for (size_t m = 0; m < names.size(); ++m) {
      form += fmt::format("{}:{} ", fmt::join(names[m], ","), forms[m]);
      if (names[m].size() == 1) continue;
      // Only the first part of the member's name is the module's own name.
      const std::string rest = out.members[m].name.substr(names[m].front().size());
      out.members[m].name = AsOne(names[m]) + rest;
    }
    if (out.members.size() == 1 && index != 0) {
      Outline only = std::move(out.members.front());
      only.name = fmt::format("{}.{}", module.name, only.name);
      out = std::move(only);
    }
    return {std::move(out), Number(std::move(form))};
  }

  std::vector<Module> modules_;  // the first is the root
  std::unordered_map<std::string, size_t> forms_;
};

std::vector<std::string_view> PathsOf(const std::vector<const Tensor*>& tensors) {
  std::vector<std::string_view> paths;
  for (const Tensor* tensor : tensors) paths.push_back(tensor->path());
  return paths;
}

std::string ValuesAsOne(const std::vector<std::string>& texts) {
  return AsOne(std::vector<std::string_view>(texts.begin(), texts.end()), kNumberEnds);
}

ViewOutline OutlineOfNodes(const std::vector<const ViewNode*>& nodes,
                           const std::vector<Tensor>& drawn) {
  ViewOutline out{.operation = nodes.front()->operation, .arguments = {}, .tensors = {}, .of = {}};
  if (out.operation == nullptr) {
    for (const ViewNode* node : nodes) out.tensors.push_back(&drawn[node->tensor]);
    return out;
  }
  std::vector<std::string> arguments;
  for (const ViewNode* node : nodes) arguments.push_back(DescribeArguments(*node));
  out.arguments = ValuesAsOne(arguments);
  // All nodes have operands of the same forms at the same positions.
  std::vector<std::vector<size_t>> places;
  std::unordered_map<std::string, size_t> forms;
  for (size_t i = 0; i < nodes.front()->of.size(); ++i) {
    const auto [it, is_new] = forms.try_emplace(FormOf(nodes.front()->of[i], drawn), places.size());
    if (is_new) places.emplace_back();
    places[it->second].push_back(i);
  }
  for (const std::vector<size_t>& place : places) {
    std::vector<const ViewNode*> operands;
    for (const ViewNode* node : nodes) {
      for (const size_t i : place) operands.push_back(&node->of[i]);
    }
    out.of.push_back(OutlineOfNodes(operands, drawn));
    out.of.back().copies = std::ssize(place);
  }
  return out;
}

}  // namespace

Outline OutlineOf(const std::vector<const Tensor*>& tensors) {
  return OutlineBuilder().Build(tensors);
}

ViewOutline OutlineOfViews(const std::vector<const Tensor*>& stored) {
  std::vector<const ViewNode*> nodes;
  for (const Tensor* tensor : stored) nodes.push_back(&tensor->view()->root);
  return OutlineOfNodes(nodes, *stored.front()->view()->drawn);
}

std::string Describe(const ViewOutline& view) {
  std::string text = view.copies > 1 ? fmt::format("{} × ", Grouped(view.copies)) : "";
  if (view.operation == nullptr) return text + AsOne(PathsOf(view.tensors));
  text += fmt::format("{}{} of ", view.operation->name, view.arguments);
  if (view.of.size() == 1) return text + Describe(view.of.front());
  std::vector<std::string> operands;
  for (const ViewOutline& of : view.of) operands.push_back(Describe(of));
  return text + fmt::format("({})", fmt::join(operands, ", "));
}

std::string DescribeValues(const std::vector<const Tensor*>& drawn) {
  std::vector<std::string> texts;
  const Tensor* last = nullptr;
  for (const Tensor* tensor : drawn) {
    if (last == nullptr || NamedDistribution(*tensor) != NamedDistribution(*last)) {
      texts.push_back(InText(*tensor));
    }
    last = tensor;
  }
  return ValuesAsOne(texts);
}

}  // namespace shardinit
