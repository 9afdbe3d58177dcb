#include "formats/name_rows.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "base/json.h"

namespace shardinit {
namespace {

using Kind = NameRow::Kind;

constexpr NameRow kRows[] = {
    {Kind::kWrapper, "_orig_mod."},                   // torch.compile
    {Kind::kWrapper, "_fsdp_wrapped_module."},        // FullyShardedDataParallel
    {Kind::kWrapper, "_fpw_module."},                 // the same, before PyTorch 2
    {Kind::kWrapper, "_checkpoint_wrapped_module."},  // checkpoint_wrapper
    {Kind::kWrapper, "_forward_module."},             // Lightning
    {Kind::kWrapper, "module."},                      // DistributedDataParallel, DeepSpeed
    {Kind::kOldName, "gamma", "weight"},
    {Kind::kOldName, "beta", "bias"},
    {Kind::kOldName, "weight_g", "parametrizations.weight.original0"},
    {Kind::kOldName, "weight_v", "parametrizations.weight.original1"},
    {Kind::kBuffer, "attn.bias", {}, "11nn"},  // masks of GPT-2, GPT-J, GPT-Neo and GPT-NeoX
    {Kind::kBuffer, "attention.bias", {}, "11nn"},
    {Kind::kBuffer, "attn.masked_bias", {}, ""},
    {Kind::kBuffer, "attn.masked_bias", {}, "1"},
    {Kind::kBuffer, "attention.masked_bias", {}, ""},
    {Kind::kBuffer, "attention.masked_bias", {}, "1"},
    {Kind::kBuffer, "rotary_emb.inv_freq", {}, "n"},
    {Kind::kBuffer, "rotary_pos_emb.inv_freq", {}, "n"},
    {Kind::kBuffer, "position_ids", {}, "1n"},
    {Kind::kBuffer, "position_ids", {}, "n"},
    {Kind::kTied, "lm_head.weight", {}, kIfConfigTies},
    {Kind::kTied, "embed_out.weight", {}, kIfConfigTies},
    {Kind::kTied, "output_layer.weight", {}, kIfConfigTies},
    {Kind::kTied, "predictions.decoder.weight", {}, kIfConfigTies},
    {Kind::kTied, "predictions.decoder.bias", {}, kIfConfigTies},
    {Kind::kTied, "encoder.embed_tokens.weight"},  // T5, BART
    {Kind::kTied, "decoder.embed_tokens.weight"},
};

bool EndsIn(std::string_view name, std::string_view end) {
  return name == end || (name.size() > end.size() && name.ends_with(end) &&
                         name[name.size() - end.size() - 1] == '.');
}

}  // namespace

std::span<const NameRow> NameRows() { return kRows; }

const NameRow* FindNameRow(NameRow::Kind kind, std::string_view name) {
  const auto found = std::ranges::find_if(
      kRows, [&](const NameRow& row) { return row.kind == kind && EndsIn(name, row.text); });
  return found == std::end(kRows) ? nullptr : found;
}

bool IsBuffer(std::string_view name, const std::vector<int64_t>& shape) {
  return std::ranges::any_of(kRows, [&](const NameRow& row) {
    std::map<char, int64_t> extents = {{'1', 1}};
    return row.kind == Kind::kBuffer && EndsIn(name, row.text) &&
           std::ranges::equal(row.form, shape, [&](char letter, int64_t extent) {
             return extents.emplace(letter, extent).first->second == extent;
           });
  });
}

bool IsTokenTable(std::string_view name) {
  constexpr std::string_view kNames[] = {"embed_tokens.weight",    "wte.weight",
                                         "shared.weight",          "embed_in.weight",
                                         "word_embeddings.weight", "embeddings.weight"};
  return std::ranges::any_of(kNames, [&](std::string_view end) { return EndsIn(name, end); });
}

bool TiesHead(const std::string& config) {
  const auto json = nlohmann::json::parse(config, nullptr, false);
  if (!json.is_object()) return false;
  const auto text = json.find("text_config");
  for (const nlohmann::json& of : {json, text == json.end() ? nlohmann::json() : *text}) {
    if (of.is_object() && of.contains("tie_word_embeddings")) {
      return of["tie_word_embeddings"] == true;
    }
  }
  return true;
}

}  // namespace shardinit
