// Reads Megatron-LM's older checkpoints, which have a folder for each rank, and joins the ranks.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "base/error.h"
#include "base/parse_number.h"
#include "base/text.h"
#include "formats/dcp/saved.h"
#include "formats/input.h"
#include "report/text.h"

namespace shardinit {
namespace dcp {
namespace {

constexpr char kRankFile[] = "model_optim_rng.pt";

// The ends of names of tensors that tensor parallelism splits in dimension 0, in dimension 1, and
// not at all.
constexpr size_t kWhole = 2;
using Names = std::vector<std::string_view>;
const Names kSplits[] = {{".linear_qkv.weight", ".linear_qkv.bias", ".linear_fc1.weight",
                          ".linear_fc1.bias", ".word_embeddings.weight", "output_layer.weight"},
                         {".linear_proj.weight", ".linear_fc2.weight"},
                         {".linear_proj.bias", ".linear_fc2.bias", "layernorm.weight",
                          "layernorm.bias", ".layer_norm_weight", ".layer_norm_bias",
                          ".router.weight", ".router.expert_bias", ".position_embeddings.weight"}};

constexpr std::string_view kLayers = "decoder.layers.", kExperts = ".local_experts.";

// Splits `.local_experts.3.linear_fc1` after the first `begin` into its number and its end.
std::optional<std::pair<int64_t, std::string_view>> NumberAfter(std::string_view name,
                                                                std::string_view begin) {
  const size_t at = name.find(begin);
  if (at == name.npos || (begin == kLayers && at > 0)) return std::nullopt;
  const std::string_view rest = name.substr(at + begin.size());
  const auto number = ParseNumber<int64_t>(rest.substr(0, rest.find('.')));
  if (!number || *number < 0 || *number > (1 << 20)) return std::nullopt;
  return std::pair(*number, rest.substr(std::min(rest.find('.'), rest.size())));
}

// Returns the dimension that tensor parallelism splits, kWhole, or more if it is not known.
size_t SplitDimension(std::string_view name) {
  const auto split = std::ranges::find_if(kSplits, [&](const Names& ends) {
    return std::ranges::any_of(ends, [&](std::string_view end) { return name.ends_with(end); });
  });
  return static_cast<size_t>(split - std::begin(kSplits));
}

class RankFolders {
 public:
  RankFolders(const std::string& folder, std::vector<std::string> names)
      : folder_(folder), names_(std::move(names)) {}

  Contents Read(const std::string& part) {
    ReadTorchFile(PathIn(names_.front()), [&](const Value& root, const FindStorage&) {
      tensor_ = Degree(root, "tensor_model_parallel_size");
      pipeline_ = Degree(root, "pipeline_model_parallel_size");
      expert_ = Degree(root, "expert_model_parallel_size");
      RequireKnown(root);
    });
    if (names_.size() == 1 && tensor_ * pipeline_ * expert_ == 1) {
      return ReadModelFile(PathIn(names_.front()), part);
    }
    if (!part.empty() && part != ".") {
      throw Usage(fmt::format("`{}` has no part {} with tensors", Escape(folder_), Quote(part)),
                  fmt::format("leave out `{}`", kPartOption));
    }
    const int64_t ranks = tensor_ * pipeline_ * expert_;
    for (int64_t i = 0; i < ranks; ++i) {
      const Rank rank{i % tensor_, i / tensor_ / expert_, i / tensor_ % expert_};
      std::string name = fmt::format("mp_rank_{:02}", rank.tensor);
      if (pipeline_ > 1) name += fmt::format("_{:03}", rank.pipeline);
      if (expert_ > 1) name += fmt::format("_{:03}", rank.expert);
      Need(std::ranges::binary_search(names_, name), "{} is missing", Quote(name));
      ReadTorchFile(PathIn(name), [&](const Value& root, const FindStorage& find) {
        ReadRank(rank, root, name + "/" + kRankFile, find);
      });
    }
    Need(ranks == std::ssize(names_), "it has {} folders of ranks instead of {}", names_.size(),
         ranks);
    Join();
    return std::move(contents_);
  }

 private:
  struct Rank {
    int64_t tensor, pipeline, expert;
  };

  template <typename... T>
  void Need(bool is, fmt::format_string<T...> what, T&&... of) const {
    if (is) return;
    throw Error(ExitCode::kRefused,
                fmt::format("cannot read `{}` as a checkpoint of Megatron-LM: {}", Escape(folder_),
                            fmt::format(what, std::forward<T>(of)...)),
                "load all ranks in Megatron-LM, and save them with `--ckpt-format torch_dist`");
  }

  std::string PathIn(const std::string& name) const {
    return fmt::format("{}/{}/{}", folder_, name, kRankFile);
  }

  int64_t Degree(const Value& root, const char* name) const {
    const Value* const size = MemberOf(root.Find("args"), name);
    if (size == nullptr || size->kind == Value::Kind::kNone) return 1;
    const int64_t degree = NaturalOf(size, PathIn(names_.front()), name);
    Need(degree >= 1 && degree <= std::ssize(names_), "`args.{}` is {}, but it has {} folders",
         name, degree, names_.size());
    return degree;
  }

  // Refuses runs whose ranks are joined in other ways.
  void RequireKnown(const Value& root) {
    const Value* const args = root.Find("args");
    const Value* const layout = MemberOf(args, "pipeline_model_parallel_layout");
    Need(layout == nullptr || layout->kind == Value::Kind::kNone || pipeline_ == 1,
         "`args.pipeline_model_parallel_layout` orders its layers");
    const Value* const of_experts = MemberOf(args, "expert_tensor_parallel_size");
    Need(of_experts == nullptr || of_experts->kind != Value::Kind::kInt ||
             of_experts->number == tensor_,
         "`args.expert_tensor_parallel_size` differs from {}", tensor_);
    if (const Value* experts = MemberOf(args, "num_experts");
        expert_ > 1 || (experts != nullptr && experts->kind == Value::Kind::kInt)) {
      const int64_t all = NaturalOf(experts, PathIn(names_.front()), "args.num_experts");
      Need(all % expert_ == 0, "{} ranks do not divide {} experts", expert_, all);
      experts_ = all / expert_;
    }
    const Value* const untied = MemberOf(args, "untie_embeddings_and_output_weights");
    is_tied_ = untied != nullptr && untied->kind == Value::Kind::kBool && untied->number == 0;
    const Value* const gated = MemberOf(args, "swiglu");
    is_gated_ = gated == nullptr || gated->number != 0;
  }

  void ReadRank(const Rank& rank, const Value& root, const std::string& file,
                const FindStorage& find) {
    const std::string path = folder_ + "/" + file;
    const Value* const iteration = root.Find("iteration");
    const int64_t number = iteration != nullptr ? iteration->number : 0;
    if (chunks_per_rank_ == 0) iteration_ = number;
    Need(number == iteration_, "{} is of iteration {} instead of {}", Quote(file), number,
         iteration_);
    int64_t chunks = 0;
    for (; chunks < 1 << 10; ++chunks) {
      const Value* const model = chunks == 0 && root.Find("model") != nullptr
                                     ? root.Find("model")
                                     : root.Find(fmt::format("model{}", chunks));
      if (model == nullptr) break;
      ForEach(model, path, "model", [&](const std::string& name, const Value& value) {
        if (name.ends_with("_extra_state")) {
          return contents_.others["_extra_state"].Add(PartEntry{.keys = {name}});
        }
        Need(IsTensor(value), "{} in {} is not a tensor", Quote(name), Quote(file));
        if (name.ends_with(".experts.weight1") || name.ends_with(".experts.weight2")) {
          return AddGrouped(rank, &chunks_[{chunks, rank.pipeline}], name, value, file, find);
        }
        Add(rank, &chunks_[{chunks, rank.pipeline}], name, LocateTensor(value, name, path, find),
            file);
      });
    }
    Need(chunks > 0 && (chunks_per_rank_ == 0 || chunks == chunks_per_rank_),
         "{} has {} parts of the model instead of {}", Quote(file), chunks, chunks_per_rank_);
    chunks_per_rank_ = chunks;
    if (const Value* optimizer = root.Find("optimizer")) {
      CountTensors(*optimizer, path, {}, &contents_.others["optimizer"]);
    }
  }

  struct Chunk {
    std::map<std::string, TensorInFolder> tensors;  // by name, with the chunk's layer numbers
    std::set<int64_t> layers;
  };

  // Adds each expert of a matrix that joins a rank's experts. They are stored transposed.
  void AddGrouped(const Rank& rank, Chunk* chunk, const std::string& name, const Value& value,
                  const std::string& file, const FindStorage& find) {
    const std::string path = folder_ + "/" + file;
    SavedTensor one = TensorOf(value, path);
    const Shape shape = one.shape;
    const DTypeInfo* const dtype = FindDType(&ForeignNames::torch, one.dtype);
    const bool is_first = name.back() == '1';
    Need(experts_ > 0 && dtype != nullptr && shape.size() == 2 && ElementCount(shape) > 0 &&
             one.strides == Shape{shape[1], 1} && shape[is_first ? 1 : 0] % experts_ == 0,
         "{} in {} is {} {}, not a contiguous matrix of {} experts", Quote(name), Quote(file),
         one.dtype, InShape(shape), experts_);
    const int64_t hidden = shape[is_first ? 0 : 1], width = shape[is_first ? 1 : 0] / experts_;
    one.shape = is_first ? Shape{width, hidden} : Shape{hidden, width};
    one.strides = {1, one.shape[0]};
    const Stored stored = find(one.storage);
    one.storage_bytes = std::min(one.storage_bytes, stored.bytes);
    for (int64_t e = 0; e < experts_; ++e, one.first += hidden * width) {
      const std::string expert =
          fmt::format("{}{}{}.linear_fc{}.weight", name.substr(0, name.rfind(".weight")), kExperts,
                      e, is_first ? 1 : 2);
      TensorInFolder holding{file, one.dtype, one.shape, {}};
      holding.pieces = PiecesOf(one, dtype->bytes, WholeOf(one.shape), path, stored.offset, path);
      Add(rank, chunk, expert, std::move(holding), file);
    }
  }

  // Compares a rank's copy of a part of a tensor with an earlier rank's.
  void Compare(const Rank& rank, const Chunk& chunk, const std::string& name,
               const TensorInFolder& copy) const {
    const auto found = chunk.tensors.find(name);
    Need(found != chunk.tensors.end(), "the first rank lacks {}", Quote(name));
    const TensorInFolder& whole = found->second;
    const size_t d = SplitDimension(name);
    Box box = WholeOf(copy.shape);
    Shape shape = whole.shape;
    if (tensor_ > 1 && d < shape.size()) {
      shape[d] /= tensor_;
      box.offset[d] = rank.tensor * shape[d];
    }
    Need(copy.shape == shape && copy.dtype == whole.dtype, "{} is {} {} instead of {} {}",
         Quote(name), copy.dtype, InShape(copy.shape), whole.dtype, InShape(shape));
    RequireReplica(name, whole, box, copy);
  }

  // Adds a rank's part of a tensor to the parts of earlier ranks.
  void Add(const Rank& rank, Chunk* chunk, std::string name, TensorInFolder holding,
           const std::string& file) {
    const bool is_expert = name.find(".experts.") != name.npos;
    if (rank.expert > 0 && !is_expert) return Compare(rank, *chunk, name, holding);
    if (is_expert && expert_ > 1) {
      const auto expert = NumberAfter(name, kExperts);
      Need(expert && expert->first < experts_, "{} is not one of {} experts", Quote(name),
           experts_);
      name = fmt::format("{}{}{}", name.substr(0, name.find(kExperts) + kExperts.size()),
                         rank.expert * experts_ + expert->first, expert->second);
    }
    if (const auto layer = NumberAfter(name, kLayers)) chunk->layers.insert(layer->first);
    Need(name.starts_with(kLayers) || name.find(".layers.") == name.npos ||
             pipeline_ * chunks_per_rank_ <= 1,
         "{} is not in `decoder.layers`", Quote(name));
    holding.file = file;
    const auto [there, is_new] = chunk->tensors.try_emplace(name, std::move(holding));
    if (tensor_ == 1) return Need(is_new, "it has {} twice", Quote(name));
    const size_t d = SplitDimension(name);
    Need(d < std::size(kSplits), "{} may be whole or a part of a tensor", Quote(name));
    TensorInFolder& whole = there->second;
    Need(d == kWhole || d < whole.shape.size(), "{} has the shape {}", Quote(name),
         InShape(whole.shape));
    if (is_new) {
      Need(rank.tensor == 0, "the first rank lacks {}", Quote(name));
      if (d == kWhole) return;
      int64_t* const extent = &whole.shape[d];
      Need(std::max(*extent, ElementCount(whole.shape)) < (int64_t{1} << 59) / tensor_,
           "{} has the shape {}", Quote(name), InShape(whole.shape));
      *extent *= tensor_;
      return;
    }
    Shape shape = whole.shape;
    if (d != kWhole) shape[d] /= tensor_;
    Need(holding.shape == shape && holding.dtype == whole.dtype, "{} is {} {} instead of {} {}",
         Quote(name), holding.dtype, InShape(holding.shape), whole.dtype, InShape(shape));
    if (d == kWhole) return RequireReplica(name, whole, WholeOf(shape), holding);
    for (FilePiece& piece : holding.pieces) {
      piece.box.offset[d] = rank.tensor * shape[d];
      whole.pieces.push_back(std::move(piece));
    }
  }

  // Numbers the layers of all chunks: virtual stages repeat the stages of the pipeline.
  void Join() {
    int64_t before = 0;
    for (auto& [place, chunk] : chunks_) {
      const auto layers = std::ssize(chunk.layers);
      Need(layers == 0 || *chunk.layers.rbegin() == layers - 1, "stage {} has no layer {}",
           place.second, layers - 1);
      for (auto& [name, holding] : chunk.tensors) {
        if (name == "output_layer.weight" && is_tied_ && pipeline_ > 1) {
          contents_.others["tied copies"].Add(TensorEntry({name}, holding.shape, nullptr));
          continue;
        }
        const auto layer = NumberAfter(name, kLayers);
        const std::string joined =
            layer ? fmt::format("decoder.layers.{}{}", before + layer->first, layer->second) : name;
        if (!holding.pieces.empty()) RequireWhole(joined, holding, folder_);
        Need(contents_.tensors.emplace(joined, std::move(holding)).second, "it has {} twice",
             Quote(joined));
      }
      before += layers;
    }
    if (tensor_ > 1 && is_gated_) {
      contents_.findings.Add(
          {NameOf(folder_), "",
           fmt::format("the rows of `linear_fc1` are in the order of {0} tensor-parallel ranks, as "
                       "in the layout `megatron` with the mesh axis `tensor={0}`",
                       tensor_)});
    }
  }

  const std::string& folder_;
  const std::vector<std::string> names_;
  Contents contents_;
  int64_t tensor_ = 1, pipeline_ = 1, expert_ = 1;
  int64_t iteration_ = 0;
  int64_t experts_ = 0;          // on each rank
  int64_t chunks_per_rank_ = 0;  // 0 before the first rank
  bool is_tied_ = false, is_gated_ = true;
  std::map<std::pair<int64_t, int64_t>, Chunk> chunks_;  // by virtual stage and stage
};

std::optional<Contents> ReadRankFolders(const std::string& folder, const std::string& part) {
  std::vector<std::string> names;
  for (const std::string& name : NamesIn(folder)) {
    if (name.starts_with("mp_rank_") && IsInputFolder(folder + "/" + name)) names.push_back(name);
  }
  if (names.empty()) return std::nullopt;
  return RankFolders(folder, std::move(names)).Read(part);
}

}  // namespace
}  // namespace dcp

extern const FormatReader kMegatronReader = {
    .what = "Megatron-LM files",
    .dtype = &ForeignNames::torch,
    .read = dcp::ReadRankFolders,
};

}  // namespace shardinit
