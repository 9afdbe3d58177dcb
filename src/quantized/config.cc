#include "quantized/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "base/json.h"
#include "base/text.h"

namespace shardinit {
namespace {

using nlohmann::json;

constexpr char kQuantization[] = "quantization_config", kTextConfig[] = "text_config";
constexpr char kLeaveOut[] = "leave out `--dtype` to copy it unchanged";
constexpr int64_t kMostInBlock = 1 << 30;

json MemberOf(const json& in, std::string_view key) {
  const auto found = in.is_object() ? in.find(key) : in.end();
  return in.is_object() && found != in.end() ? *found : json();
}

// Returns a member of the config. Configs of models with images, such as Kimi K2.5, may have it in
// their text_config.
json MemberOfModel(const json& config, std::string_view key) {
  json own = MemberOf(config, key), of_text = MemberOf(MemberOf(config, kTextConfig), key);
  if (own.is_null()) return of_text;
  if (!of_text.is_null() && of_text != own) {
    ThrowUnreadable(
        fmt::format("config.json and its {} must have the same {}, but differ", kTextConfig, key));
  }
  return own;
}

// Returns a whole number from 1 to kMostInBlock.
std::optional<int64_t> SizeIn(const json& in) {
  // JSON's own comparison treats a large 64-bit number as negative.
  if (!in.is_number_unsigned() || in == 0 || in.get<uint64_t>() > kMostInBlock) return {};
  return in.get<int64_t>();
}

std::optional<std::pair<int64_t, int64_t>> BlockIn(const json& in) {
  if (!in.is_array() || in.size() != 2) return {};
  const auto rows = SizeIn(in[0]), columns = SizeIn(in[1]);
  if (!rows || !columns) return {};
  return std::pair(*rows, *columns);
}

void AddModelTypes(const json& config, std::set<std::string>* types) {
  if (const json type = MemberOf(config, "model_type"); type.is_string()) types->insert(type);
  if (!config.is_object()) return;
  for (const json& inner : config) {
    if (inner.is_object()) AddModelTypes(inner, types);
  }
}

// Calls `visit` with the settings for weights of each group of compressed-tensors.
template <typename Visit>
void ForEachGroup(const json& quantization, Visit visit) {
  const json groups = MemberOf(quantization, "config_groups");
  if (!groups.is_object()) return;
  for (const auto& [name, group] : groups.items()) {
    const json weights = MemberOf(group, "weights");
    if (weights.is_object()) visit(weights);
  }
}

// Throws if the numbers were not only rounded, but also rotated, reordered or compressed.
void RequireOnlyRounded(const json& quantization) {
  const json transform = MemberOf(quantization, "transform_config");
  if (!transform.is_null() && !transform.empty()) {
    ThrowUnreadable(
        "transform_config of config.json rotates the numbers, which shardinit does not undo");
  }
  const json sparsity = MemberOf(MemberOf(quantization, "sparsity_config"), "format");
  if (!sparsity.is_null() && sparsity != "dense") {
    ThrowUnreadable(
        fmt::format("sparsity_config of config.json has the format {}, which shardinit does "
                    "not read",
                    Quote(sparsity.dump())));
  }
  ForEachGroup(quantization, [](const json& weights) {
    const json order = MemberOf(weights, "actorder");
    if (order.is_null() || order == false || order == "weight" || order == "static") return;
    ThrowUnreadable(
        fmt::format("actorder of config.json is {}: shardinit does not read numbers in "
                    "another order",
                    Quote(order.dump())));
  });
}

}  // namespace

void ThrowUnreadable(const std::string& why) {
  throw Unreadable(ExitCode::kUsage, "the model cannot be widened: " + why, kLeaveOut);
}

void ThrowUnreadable(const std::string& path, const std::string& why) {
  throw Unreadable(ExitCode::kUsage, fmt::format("`{}` cannot be widened: {}", path, why),
                   kLeaveOut);
}

QuantizationConfig::QuantizationConfig(const std::string& text) {
  constexpr std::string_view kMethods[] = {"fp8",      "mxfp4", "mxfp8", "compressed-tensors",
                                           "modelopt", "gptq",  "awq",   "bitsandbytes"};
  const json config = json::parse(text, nullptr, false);
  AddModelTypes(config, &model_types_);
  for (const char* key : {kQuantization, "compression_config", "quantization"}) {
    const json of = MemberOfModel(config, key);
    if (of.is_null()) continue;
    const json method = MemberOf(of, "quant_method");
    const bool is_usual = key == std::string_view(kQuantization);
    if (is_usual && method.is_null()) continue;
    if (is_usual && method.is_string() &&
        std::ranges::find(kMethods, method.get<std::string>()) != std::end(kMethods)) {
      method_ = method;
      continue;
    }
    ThrowUnreadable(fmt::format("{} of config.json is {}, which shardinit does not support", key,
                                method.is_null()
                                    ? std::string("there")
                                    : fmt::format("quant_method is {}", Quote(method.dump()))));
  }
  json_ = std::make_shared<json>(MemberOfModel(config, kQuantization));
  RequireOnlyRounded(*json_);
}

bool QuantizationConfig::is_there() const { return !json_->is_null(); }

bool QuantizationConfig::IsTrue(std::string_view key) const {
  return MemberOf(*json_, key) == true;
}

int64_t QuantizationConfig::Number(std::string_view key) const {
  return SizeIn(MemberOf(*json_, key)).value_or(0);
}

std::string QuantizationConfig::Text(std::string_view key) const {
  const json member = MemberOf(*json_, key);
  std::string text = member.is_string() ? member.get<std::string>() : "";
  std::transform(text.begin(), text.end(), text.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  });
  return text;
}

bool QuantizationConfig::HasBlock() const {
  return json_->is_object() && json_->contains("weight_block_size");
}

std::pair<int64_t, int64_t> QuantizationConfig::Block(const std::string& path) const {
  const json size = MemberOf(*json_, "weight_block_size");
  if (!HasBlock()) {
    ThrowUnreadable(
        path,
        "there is no config.json next to it with a weight_block_size under quantization_config");
  }
  const auto block = BlockIn(size);
  if (!block) {
    ThrowUnreadable(
        path,
        fmt::format("weight_block_size of config.json must be two sizes, but is {}", size.dump()));
  }
  return *block;
}

std::set<int64_t> QuantizationConfig::Bits() const {
  std::set<int64_t> bits;
  ForEachGroup(*json_, [&](const json& weights) {
    if (const auto size = SizeIn(MemberOf(weights, "num_bits"))) bits.insert(*size);
  });
  return bits;
}

std::set<bool> QuantizationConfig::AreSymmetric() const {
  std::set<bool> symmetric;
  ForEachGroup(*json_, [&](const json& weights) {
    symmetric.insert(MemberOf(weights, "symmetric") != false);
  });
  return symmetric;
}

std::set<std::pair<int64_t, int64_t>> QuantizationConfig::Blocks(int64_t rows,
                                                                 int64_t columns) const {
  std::set<std::pair<int64_t, int64_t>> blocks;
  ForEachGroup(*json_, [&](const json& weights) {
    const json strategy = MemberOf(weights, "strategy"), size = MemberOf(weights, "group_size");
    const auto group = SizeIn(size);
    if (strategy == "block") {
      const auto block = BlockIn(MemberOf(weights, "block_structure"));
      if (block) blocks.emplace(std::min(block->first, rows), std::min(block->second, columns));
    } else if (strategy == "group" || strategy == "tensor_group" || (strategy.is_null() && group)) {
      // Unlike blocks, groups must divide the columns.
      const int64_t of = group ? std::min(*group, columns) : 0;
      if (of > 0 && columns % of == 0) blocks.emplace(1, of);
    } else if (strategy == "channel" || (strategy.is_null() && size == -1)) {
      blocks.emplace(1, columns);
    } else if (strategy == "tensor" || strategy.is_null()) {
      blocks.emplace(rows, columns);
    }
  });
  return blocks;
}

std::string WithQuantization(const std::string& config, const std::string& like) {
  auto parsed = json::parse(config, nullptr, false);
  if (!parsed.is_object()) return like;
  const auto from = json::parse(like, nullptr, false);
  const json own = MemberOf(from, kQuantization);
  const json of_text = MemberOf(MemberOf(from, kTextConfig), kQuantization);
  if (!own.is_null()) parsed[kQuantization] = own;
  const bool has_text = MemberOf(parsed, kTextConfig).is_object();
  if (!of_text.is_null()) (has_text ? parsed[kTextConfig] : parsed)[kQuantization] = of_text;
  return parsed.dump();
}

std::string WithoutQuantization(const std::string& config) {
  auto parsed = json::parse(config, nullptr, false);
  if (!parsed.is_object()) return config;
  parsed.erase(kQuantization);
  const auto of_text = parsed.find(kTextConfig);
  if (of_text != parsed.end() && of_text->is_object()) of_text->erase(kQuantization);
  return parsed.dump();
}

}  // namespace shardinit
