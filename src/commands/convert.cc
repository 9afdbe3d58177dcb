// Converts existing tensors to another format. Only `--dtype` and layouts' conventions change
// values.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/talk.h"
#include "base/text.h"
#include "checkpoint/conversion.h"
#include "checkpoint/copy.h"
#include "checkpoint/folder.h"
#include "checkpoint/requantization.h"
#include "commands/command.h"
#include "commands/exporting.h"
#include "commands/folders.h"
#include "commands/options.h"
#include "report/text.h"
#include "spec/shipped.h"

namespace shardinit {
namespace {

constexpr char kSafetensors[] = "safetensors";

struct ConvertOptions {
  explicit ConvertOptions(CLI::App& app) {
    TakesUrl(app.add_option("DIR", from,
                            "Folder or file with tensors, in any supported format, or its URL"))
        ->required();
    exporting.AddTo(app, true);
    AddPartOfFile(app, &part);
    AddText(app, "--spec", "SPEC", &spec.request.path,
            "Spec of the model, for layouts, a mesh and a sharding; default: the folder's "
            "config.json");
    AddText(app, "--from-layout", "NAME", &from_layout,
            "The folder's layout, one of the spec's; default: `hub`, the names on the Hub");
    spec.AddLayoutTo(app, "Layout of the spec to write; default: `hub`, the names on the Hub");
    spec.AddOverridesTo(app);
    AddText(app, "--drop", "GLOB", &drop, "Skip tensors of DIR whose names match; repeatable")
        ->allow_extra_args(false);
    AddText(app, "--dtype", "TYPE", &dtype,
            "Round floating-point tensors to this type, except 8-bit tensors and their scales");
    app.add_flag(
        "--inexact", inexact,
        "Change values as the layouts' trainers do, and report how many cannot be restored");
    TakesUrl(AddText(app, "--quantize-like", "DIR", &like,
                     "Quantize the tensors as in this folder of the same model, with its scales"));
    app.add_flag("--fresh-scales", fresh_scales,
                 "With --quantize-like: compute new scales, as the library of the format does");
    app.add_flag("--no-extras", no_extras,
                 "Leave out the tokenizer and other files of a folder of safetensors files");
    AddRanks(app, &ranks);
    exporting.AddWorkTo(app, "copy and hash");
  }

  std::string from, from_layout, dtype, part, like;
  std::vector<std::string> drop;
  SpecOptions spec;  // its path is the value of --spec
  ExportingOptions exporting;
  RankOptions ranks;
  bool inexact = false, fresh_scales = false, no_extras = false;

  bool has_layouts() const {
    return !from_layout.empty() || !spec.layout.empty() || !spec.request.path.empty();
  }
};

// The layout with the Hub's names: the model's own names if the spec lacks such a layout.
constexpr char kHub[] = "hub";

// Returns `layout`, or kHub if it is empty.
std::string LayoutOr(const std::string& layout) { return layout.empty() ? kHub : layout; }

// Sets the mesh of a shipped spec to one rank, unless the user asked for a mesh or a sharding. The
// mesh of such a spec is an example, and files for its ranks would take longer to write.
void UseOneRank(SpecOptions* spec) {
  SpecRequest& request = spec->request;
  const bool is_asked = !request.mesh.empty() || !request.sharding.empty() ||
                        std::ranges::any_of(request.sets, [](const std::string& set) {
                          return set.starts_with("mesh");
                        });
  if (is_asked || request.text || !IsShipped(PathOfSpec({}, request.path))) return;
  SpecOptions quiet = *spec;
  quiet.says_warnings = false;
  const Mesh mesh = quiet.Load().graph.mesh;
  if (mesh.world_size() > 1) request.mesh = mesh.axes.front() + "=1";
}

// Loads the spec in a layout.
Plan LoadIn(const ConvertOptions& options, const TensorFolder& folder, const std::string& layout,
            bool says_warnings) {
  SpecOptions spec = options.spec;
  spec.says_warnings = says_warnings;
  spec.layout = layout;
  spec.layout_is_optional = spec.layout == kHub;
  if (spec.request.path.empty()) {
    std::optional<ConfigFile> config = FindConfigIn(folder.place());
    if (!config) {
      throw Error(ExitCode::kUsage,
                  fmt::format("`{}` has no config.json, so its layouts are unknown", options.from),
                  "give the model's spec, with `--spec`");
    }
    spec.request.path = std::move(config->path);
    spec.request.text = std::move(config->text);
  }
  spec.request.is_widened = folder.is_widened();
  UseOneRank(&spec);
  return spec.Load();
}

// Applies the mesh and the sharding of the options to a plan, without a spec.
Plan Sharded(const ConvertOptions& options, const Plan& plan) {
  const SpecRequest& request = options.spec.request;
  if (!request.sets.empty() || !request.sources.empty()) {
    throw Error(ExitCode::kUsage, "`--set` and `--source` need a spec, but none is given",
                "add `--spec SPEC`");
  }
  return ShardFolder(
      request, plan, options.from, "",
      "give the spec, with `--spec SPEC`: its `uneven` may allow shorter last parts");
}

// Returns the value of `--dtype`.
std::optional<DType> FindFloatType(const std::string& name) {
  if (name.empty()) return {};
  const auto dtype = FindDTypeOfSpecs(name);
  if (dtype && InfoOf(*dtype).is_float()) return dtype;
  throw Error(ExitCode::kUsage, fmt::format("`--dtype {}` is not a floating-point type", name),
              "use `bf16`, `f32`, `f16` or `f64`");
}

ConversionRequest RequestOf(const ConvertOptions& options) {
  ConversionRequest request = {.drop = options.drop,
                               .dtype = FindFloatType(options.dtype),
                               .is_inexact = options.inexact,
                               .from_layout = LayoutOr(options.from_layout),
                               .to_layout = LayoutOr(options.spec.layout)};
  if (options.has_layouts()) {
    request.load = [&](const TensorFolder& folder, const std::string& layout, bool warns) {
      return LoadIn(options, folder, layout, warns);
    };
  }
  request.shard = [&](const Plan& plan) { return Sharded(options, plan); };
  request.say = [](const std::string& sentence, bool is_minor) {
    (is_minor ? TalkUnlessQuiet : Talk)(fmt::format("shardinit: {}\n", sentence));
  };
  return request;
}

// Returns the `__metadata__` to write to safetensors files.
std::map<std::string, std::string> MetadataToKeep(const ConvertOptions& options,
                                                  const TensorFolder& folder) {
  if (folder.metadata().empty() || options.has_layouts()) return {};
  if (options.exporting.format == kSafetensors) return folder.metadata();
  Talk(fmt::format(
      "shardinit: `{}`: only `--to {}` keeps the `__metadata__` of its files, such as {}\n",
      Escape(folder.path()), kSafetensors, Quote(folder.metadata().begin()->first)));
  return {};
}

// The end of the claim of an export without other files.
constexpr char kNoExtras[] = "\nno extras";

// Returns the other files to write: a folder of safetensors files that is converted to such a
// folder keeps its tokenizer. The first folder that has a file provides it.
std::map<std::string, std::string> ExtrasToKeep(const ConvertOptions& options,
                                                const std::vector<const TensorFolder*>& folders) {
  if (options.no_extras || options.exporting.format != kSafetensors) return {};
  std::map<std::string, std::string> extras;
  for (const TensorFolder* const folder : folders) extras.merge(folder->ReadExtras());
  if (extras.empty()) return extras;
  std::vector<std::string> names;
  for (const auto& [name, text] : extras) names.push_back(Quote(name));
  TalkUnlessQuiet(fmt::format("shardinit: also copies {}; `--no-extras` leaves {} out\n",
                              fmt::join(names, ", "), names.size() == 1 ? "it" : "them"));
  return extras;
}

// Reports how many numbers are not the ones that the quantized folder represents.
void ReportNarrowingCounts(const Requantization& source, const std::string& like, bool is_fresh) {
  const NarrowingCounts& counts = source.counts();
  TalkUnlessQuiet(fmt::format(
      "shardinit: {} quantized as in `{}`; {}\n", Count(source.quantized(), "tensor"), Escape(like),
      is_fresh ? "the scales are new" : Count(counts.changed, "element") + " changed"));
  if (counts.rounded == 0) return;
  Talk(fmt::format("shardinit: {} rounded to the nearest code, {} of them from outside its range\n",
                   Count(counts.rounded, "element"), Grouped(counts.clipped)));
}

// Writes the model in the quantized form of another folder.
ExitCode Requantize(const ConvertOptions& options, ExportRequest request) {
  if (options.has_layouts() || !options.dtype.empty() || options.exporting.is_own()) {
    throw Error(ExitCode::kUsage,
                fmt::format("`--quantize-like` excludes {}",
                            options.exporting.is_own() ? "`--to hdf5`"
                            : !options.dtype.empty() ? "`--dtype`, since that folder has the types"
                                                     : "layouts and specs"),
                options.has_layouts() ? "convert to the names of that folder first" : "");
  }
  const auto open = [&](const std::string& path, const std::string& part) {
    return OpenToCopy(
        {.from = path, .to = options.exporting.folder, .part = part, .dropped = options.drop});
  };
  const TensorFolder from = open(options.from, options.part), like = open(options.like, "");
  Requantization source(from, like, options.drop, options.fresh_scales);
  const Plan to = Sharded(options, source.plan());
  request.metadata = MetadataToKeep(options, like);
  request.extras = ExtrasToKeep(options, {&from, &like});
  SelectRanks(options.ranks, to, &request);
  request.claim = fmt::format("{}\n{}", ClaimOf(from), ClaimOf(like));
  if (options.fresh_scales) request.claim += "\nfresh scales";
  if (options.no_extras) request.claim += kNoExtras;
  request.source = &source;
  const ExitCode code = RunExporting(options.exporting, to, std::move(request));
  ReportNarrowingCounts(source, options.like, options.fresh_scales);
  return code;
}

ExitCode RunConvert(const ConvertOptions& options) {
  const ExportingOptions& exporting = options.exporting;
  RequireFolderName(exporting.folder);
  ExportRequest request = exporting.Request();
  if (!MayHoldTensors(options.from)) {
    if (const auto wrong = WrongKind(options.from, "a folder of tensors")) throw *wrong;
  }
  if (options.fresh_scales && options.like.empty()) {
    throw Error(ExitCode::kUsage, "`--fresh-scales` needs `--quantize-like`",
                "name a folder in the form that the new folder should have");
  }
  if (!options.like.empty()) return Requantize(options, std::move(request));
  const ConversionRequest conversion = RequestOf(options);
  const auto [from, to] = PlanConversion(OpenToCopy({.from = options.from,
                                                     .to = exporting.folder,
                                                     .part = options.part,
                                                     .may_be_source = exporting.is_own(),
                                                     .dropped = options.drop,
                                                     .reads_values = !options.has_layouts()}),
                                         conversion);
  request.metadata = MetadataToKeep(options, from);
  FolderCopy copy(from, to, true);
  SelectRanks(options.ranks, to, &request);
  request.extras = ExtrasToKeep(options, {&from});
  request.claim = ClaimOf(from, options.from_layout);
  if (options.no_extras) request.claim += kNoExtras;
  return RunExporting(exporting, to, std::move(request), &copy);
}

}  // namespace

extern const Command kConvert = {
    "convert", "Convert existing tensors to another format or layout, value by value",
    Configure<RunConvert>};

}  // namespace shardinit
