#include "formats/ranks.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/text.h"
#include "formats/input.h"

namespace shardinit {
namespace {

constexpr char kGather[] =
    "save the model with `torch.distributed.checkpoint`, or gather it on one rank; if each rank "
    "saved the whole model, rename one file so that its name has no rank";
constexpr char kMegatron[] =
    "name the folder of all ranks, or save them with `--ckpt-format torch_dist`";
constexpr char kDeepSpeed[] =
    "run `python zero_to_fp32.py . OUT` in the folder of the run, which writes the model to OUT";
constexpr char kZero[] = "name the folder, whose files are read together";
constexpr char kMeta[] =
    "join them with `convert_llama_weights_to_hf.py` of Transformers, and read its output";

// How trainers name the files or folders of ranks. A number follows `before`.
struct RankName {
  std::string_view before, end;  // The name also ends with `end`.
  std::string_view hint;
};
constexpr RankName kRankNames[] = {
    {"mp_rank_", "_states.pt", kDeepSpeed},
    {"-model_", "_states.pt", kDeepSpeed},
    {"layer_", "-model_states.pt", kDeepSpeed},
    {"zero_pp_rank_", "_states.pt", kZero},
    {"mp_rank_", "", kMegatron},
    {"consolidated.", ".pth", kMeta},
    {"model_part-", "", kGather},
    {"tp_rank_", "", kGather},
    {"-shard", "", kGather},
    {"rank_", "", kGather},
    {"rank-", "", kGather},
    {"rank", "", kGather},
};

bool IsNumber(char c) { return (c >= '0' && c <= '9') || c == '_'; }

// Returns the number's position if the name fits the row, else npos.
size_t NumberIn(std::string_view name, const RankName& row) {
  const size_t at = name.find(row.before);
  const size_t number = at + row.before.size();
  if (at == name.npos || number >= name.size() || name[number] < '0' || name[number] > '9') {
    return name.npos;
  }
  return name.ends_with(row.end) ? number : name.npos;
}

std::string_view AfterNumber(std::string_view name, size_t number) {
  while (number < name.size() && IsNumber(name[number])) ++number;
  return name.substr(number);
}

// Returns the names in the folder that differ from `name` only in their number.
std::vector<std::string> SiblingsOf(const std::string& folder, const std::string& name,
                                    size_t number) {
  std::vector<std::string> siblings = NamesIn(folder);
  std::erase_if(siblings, [&](const std::string& other) {
    return other == name || other.size() <= number || other[number] < '0' || other[number] > '9' ||
           other.compare(0, number, name, 0, number) != 0 ||
           AfterNumber(other, number) != AfterNumber(name, number);
  });
  return siblings;
}

[[noreturn]] void Refuse(const std::string& path, const std::string& why, std::string_view hint) {
  throw Error(ExitCode::kRefused,
              fmt::format("`{}` contains one part of the model: {}", Escape(path), why),
              std::string(hint));
}

// Refuses `path` if `named`, which is `path` or its folder, has siblings for other ranks.
void RequireNoSiblings(const std::string& path, const std::string& named,
                       const std::string& within) {
  const std::string name = NameOf(named), folder = FolderOf(named);
  for (const RankName& row : kRankNames) {
    const size_t number = NumberIn(name, row);
    if (number == name.npos) continue;
    std::vector<std::string> siblings = SiblingsOf(folder, name, number);
    std::erase_if(siblings, [&](const std::string& sibling) {
      return !InputExists(fmt::format("{}/{}{}", folder, sibling, within));
    });
    if (siblings.empty()) continue;
    // `lora_rank8.pt` next to `lora_rank16.pt` does not mean a rank of a run: those begin with 0.
    const auto is = [&](const std::string& each, std::string_view wanted) {
      const size_t end = each.find_first_not_of("0123456789", number);
      const std::string_view digits = std::string_view(each).substr(number, end - number);
      return digits.substr(std::min(digits.find_first_not_of('0'), digits.size() - 1)) == wanted;
    };
    const auto has = [&](std::string_view wanted) {
      return is(name, wanted) || std::any_of(siblings.begin(), siblings.end(),
                                             [&](const auto& each) { return is(each, wanted); });
    };
    if (row.end.empty() && row.hint == kGather && !(has("0") && has("1"))) continue;
    constexpr size_t kMost = 4;
    const size_t more = siblings.size() - std::min(siblings.size(), kMost);
    siblings.resize(siblings.size() - more);
    for (std::string& sibling : siblings) sibling = Quote(sibling);
    Refuse(path,
           fmt::format("others are in {}{}", fmt::join(siblings, ", "),
                       more > 0 ? fmt::format(" and {} more", more) : ""),
           row.hint);
  }
}

const Shape* ShapeOf(const Contents& contents, const std::string& name) {
  const auto found = contents.tensors.find(name);
  return found == contents.tensors.end() || found->second.shape.size() > 2 ? nullptr
                                                                           : &found->second.shape;
}

// Returns the width of attention's output matrix in the whole model: from `params.json`, or `dim`.
int64_t WidthOf(const std::string& path, int64_t dim) {
  constexpr size_t kLimit = 1 << 20;
  std::string text;
  if (!ReadInputIfExists(FolderOf(path) + "/params.json", kLimit, &text)) return dim;
  const nlohmann::json params = nlohmann::json::parse(text, nullptr, false);
  if (!params.is_object()) return dim;
  const auto value = [&](const char* key) {
    const nlohmann::json found = params.value(key, nlohmann::json());
    return found.is_number_unsigned() && found <= (1 << 20) ? found.get<int64_t>() : 0;
  };
  const int64_t width = value("n_heads") * value("head_dim");
  return width > 0 ? width : dim;
}

// Refuses Meta's files if they have only some rows or columns of matrices. Their norms are whole.
void RequireWholeMatrices(const std::string& path, const Contents& contents) {
  const Shape* const norm = ShapeOf(contents, "norm.weight");
  if (!NameOf(path).starts_with("consolidated.") || norm == nullptr || norm->size() != 1) return;
  const int64_t dim = norm->front();
  const struct {
    const char* name;
    int64_t columns;
  } wanted[] = {{"tok_embeddings.weight", dim},
                {"layers.0.attention.wo.weight", WidthOf(path, dim)}};
  for (const auto& [name, columns] : wanted) {
    const Shape* const shape = ShapeOf(contents, name);
    if (shape == nullptr || shape->size() != 2 || shape->back() == columns) continue;
    Refuse(path, fmt::format("{} has {} of {} columns", Quote(name), shape->back(), columns),
           kMeta);
  }
}

// Refuses FSDP's flat parameters: each joins several tensors, whose shapes no file has.
void RequireNoFlatParameters(const std::string& path, const Contents& contents) {
  for (const auto& [name, holding] : contents.tensors) {
    const std::string_view last = std::string_view(name).substr(name.rfind('.') + 1);
    if (last.starts_with("_flat_param") || last.starts_with("flat_param")) {
      Refuse(path, fmt::format("{} is a flat parameter of FSDP", Quote(name)),
             "load it with FSDP, and save it as `StateDictType.FULL_STATE_DICT`");
    }
  }
}

}  // namespace

void RequireAllRanks(const std::string& path, const Contents& contents) {
  RequireNoFlatParameters(path, contents);
  if (IsInputFolder(path)) {
    for (const auto& [name, holding] : contents.tensors) {
      if (holding.file.starts_with("model-rank-")) {
        Refuse(path, fmt::format("{} is the part of one vLLM rank", Quote(holding.file)),
               "convert the original model that vLLM loaded");
      }
    }
    return;
  }
  const std::string folder = FolderOf(path);
  RequireNoSiblings(path, path, "");
  if (folder != "." && folder.find('/') != folder.npos) {
    RequireNoSiblings(path, folder, "/" + NameOf(path));
  }
  RequireWholeMatrices(path, contents);
}

}  // namespace shardinit
