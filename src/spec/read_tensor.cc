// Reads the keys that only tensors have.
#include <fmt/format.h>

#include <string>
#include <string_view>

#include "base/text.h"
#include "spec/names.h"
#include "spec/parser.h"

namespace shardinit {
namespace {

std::string Count(size_t n, std::string_view one, std::string_view many = {}) {
  if (n == 1) return fmt::format("1 {}", one);
  return many.empty() ? fmt::format("{} {}s", n, one) : fmt::format("{} {}", n, many);
}

}  // namespace

void SpecParser::ReadShape(const SpecKey& key, const Node::Entry& entry, TensorSpec& tensor) {
  tensor.shape_span = entry.value->span;
  shape_is_list_ = IsSequence(entry, key.hint);
  if (shape_is_list_) tensor.shape = ReadExprList(entry, "a dimension");
}

void SpecParser::ReadTensorAxes(const SpecKey& key, const Node::Entry& entry, TensorSpec& tensor) {
  if (!IsSequence(entry, key.hint)) return;
  Located<std::vector<Located<std::string>>> axes = {{}, entry.value->span};
  for (const Node::Entry& item : entry.value->entries) {
    axes.value.push_back(item.value->IsNull() ? Located<std::string>{"", item.value->span}
                                              : ReadAxisName(*item.value, "logical axis"));
  }
  tensor.axes = std::move(axes);
}

void SpecParser::ReadShard(const SpecKey& key, const Node::Entry& entry, TensorSpec& tensor) {
  if (!IsSequence(entry, key.hint)) return;
  Located<std::vector<ShardSpec>> shard = {{}, entry.value->span};
  for (const Node::Entry& item : entry.value->entries)
    shard.value.push_back(ReadShardEntry(*item.value));
  tensor.shard = std::move(shard);
}

ShardSpec SpecParser::ReadShardEntry(const Node& node) {
  if (!node.IsMap()) return {ReadMeshAxisList(node)};
  ShardSpec by;
  ReadMap(node, node.span, "an entry of `shard`", kShardKeys, by);
  return by;
}

std::optional<StageSpec> SpecParser::ReadStage(const Node::Entry& entry) {
  StageSpec stage = {{}, entry.value->span};
  if (entry.value->IsNull()) return stage;
  if (!IsMap(entry, "give indices on mesh axes, such as `{pipe: 0}`")) return {};
  for (const Node::Entry& item : entry.value->entries) {
    auto& on = stage.value.emplace_back();
    on.name = ReadAxisName(*item.key, "mesh axis");
    if (item.value->IsSequence()) {
      on.value = ReadExprList(item, "an index");
      if (item.value->entries.empty()) {
        Error(*item.value, fmt::format("{} lists no index", Quote(item.key->text)),
              "list an index, or leave the tensor out with `when: 0`");
      }
    } else {
      on.value.push_back(ReadExpr(item));
    }
  }
  return stage;
}

void SpecParser::ReadKey(const Node::Entry& entry, TensorSpec& tensor) {
  if (entry.value->IsMap()) {
    tensor.key = ReadGivenKey(*entry.value);
  } else if (IsText(entry) && CheckKey(*entry.value, diagnostics())) {
    tensor.key = KeySpec(Text(*entry.value));
  }
}

void SpecParser::ReadTie(const Node::Entry& entry, TensorSpec& tensor) {
  if (IsText(entry) && CheckKey(*entry.value, diagnostics())) tensor.tie = Text(*entry.value);
}

void SpecParser::CheckFans(const TensorSpec& tensor) {
  if (!tensor.fans || !(tensor.in_axis || tensor.out_axis)) return;
  ErrorAt(
      tensor.fans->span,
      fmt::format("a tensor with `{}` cannot use `fans`", tensor.in_axis ? "in_axis" : "out_axis"),
      "remove one of the two");
}

void SpecParser::CheckRank(TensorSpec& tensor) {
  // Without a valid shape, nothing can be compared.
  if (tensor.shape_span.source == nullptr || !shape_is_list_) return;
  const size_t rank = tensor.shape.size();
  if (tensor.axes && tensor.axes->value.size() != rank) {
    tensor.wrong.Add("axes");
    ErrorAt(tensor.axes->span,
            fmt::format("`axes` has {}, but the shape has {}",
                        Count(tensor.axes->value.size(), "name"), Count(rank, "dimension")),
            "name one logical axis for each dimension; `null` for none");
    diagnostics().Note(tensor.shape_span, "the shape");
  }
  if (tensor.shard && tensor.shard->value.size() > rank) {
    ErrorAt(tensor.shard->span,
            fmt::format("`shard` has {}, but the shape has {}",
                        Count(tensor.shard->value.size(), "entry", "entries"),
                        Count(rank, "dimension")),
            "give at most one entry for each dimension");
    diagnostics().Note(tensor.shape_span, "the shape");
  }
}

}  // namespace shardinit
