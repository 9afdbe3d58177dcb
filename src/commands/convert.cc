// Carries tensors that exist from one format to another: values move, and never change.
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>

#include "base/file.h"
#include "base/glob.h"
#include "base/json.h"
#include "base/talk.h"
#include "base/text.h"
#include "checkpoint/alike.h"
#include "checkpoint/copy.h"
#include "checkpoint/fit_names.h"
#include "checkpoint/folder.h"
#include "checkpoint/reshard.h"
#include "commands/command.h"
#include "commands/exporting.h"
#include "commands/folders.h"
#include "commands/options.h"
#include "export/export.h"
#include "formats/input.h"
#include "graph/stored/view.h"
#include "plan/load.h"
#include "plan/relayout.h"
#include "plan/reshard.h"
#include "report/text.h"

namespace shardinit {
namespace {

constexpr char kOwnFormat[] = "hdf5";  // a checkpoint of this tool
constexpr char kSafetensors[] = "safetensors";

struct ConvertOptions {
  explicit ConvertOptions(CLI::App& app) {
    TakesUrl(app.add_option("DIR", from, "Folder or file with tensors, in any format that is read"))
        ->required();
    exporting.AddTo(app, {kOwnFormat});
    AddPartOfFile(app, &part);
    AddText(app, "--spec", "SPEC", &spec.request.path,
            "Spec of the model, for layouts, a mesh and a sharding; default: the folder's "
            "config.json");
    AddText(app, "--from-layout", "NAME", &from_layout,
            "Layout of the spec that the folder has; default: `hub`, the names on the Hub");
    spec.AddLayoutTo(app, "Layout of the spec to write; default: `hub`, the names on the Hub");
    spec.AddOverridesTo(app);
    AddText(app, "--drop", "GLOB", &drop,
            "Leave out the tensors of DIR whose names match; repeatable")
        ->allow_extra_args(false);
    AddText(app, "--dtype", "TYPE", &dtype,
            "Round floating-point tensors to this type, but not those of 8 bits nor their scales");
    app.add_flag("--inexact", inexact,
                 "Change values as the layouts' trainers do, and say how many do not come back");
    AddRanks(app, &ranks);
    exporting.AddWorkTo(app, "copy and hash");
  }

  std::string from, from_layout, dtype, part;
  std::vector<std::string> drop;
  SpecOptions spec;  // its path is that of --spec
  ExportingOptions exporting;
  RankOptions ranks;
  bool inexact = false;

  bool has_layouts() const {
    return !from_layout.empty() || !spec.layout.empty() || !spec.request.path.empty();
  }
};

// The names on the Hub: those of the model, where the spec has no such layout.
constexpr char kHub[] = "hub";

// Returns the plan of a folder without the tensors that are dropped.
Plan WithoutDropped(const ConvertOptions& options, const TensorFolder& folder) {
  InitGraph graph = folder.plan().graph;
  for (const std::string& pattern : options.drop) {
    const auto matches = [&](const auto& path) { return PathMatches(pattern, path); };
    const auto& unread = folder.unread();
    if (std::none_of(graph.tensors.begin(), graph.tensors.end(),
                     [&](const Tensor& tensor) { return matches(tensor.path()); }) &&
        std::none_of(unread.begin(), unread.end(),
                     [&](const auto& tensor) { return matches(tensor.first); })) {
      throw Error(ExitCode::kUsage, fmt::format("no tensor matches `--drop {}`", pattern),
                  HintForPattern(pattern, folder.plan().graph.tensors));
    }
  }
  std::erase_if(graph.tensors, [&](const Tensor& tensor) {
    return MatchesAny(options.drop, std::string(tensor.path()));
  });
  if (graph.tensors.empty()) {
    throw Error(ExitCode::kUsage, "`--drop` leaves no tensor out of those that are to be copied",
                "use a pattern that matches fewer");
  }
  return MakePlan(std::move(graph));
}

// Returns the name of a layout that may not be given.
std::string LayoutOr(const std::string& layout) { return layout.empty() ? kHub : layout; }

// Loads the spec in a layout.
Plan LoadIn(const ConvertOptions& options, const TensorFolder& folder, const std::string& layout,
            bool says_warnings) {
  SpecOptions spec = options.spec;
  spec.says_warnings = says_warnings;
  spec.layout = LayoutOr(layout);
  spec.layout_is_optional = spec.layout == kHub;
  if (spec.request.path.empty()) {
    spec.request.path = folder.place() + "/config.json";
    const bool has_file = IsInputFolder(folder.place()) && InputExists(spec.request.path);
    std::string recorded;
    if (!has_file) recorded = ConfigIn(folder.place());
    if (!recorded.empty()) {
      spec.request.text = std::move(recorded);
    } else if (!has_file) {
      throw Error(ExitCode::kUsage,
                  fmt::format("`{}` has no config.json, so nothing says what a layout is of it",
                              options.from),
                  "give the model's spec, with `--spec`");
    }
    if (has_file && IsBucketUrl(folder.place()))
      spec.request.text = ReadInput(spec.request.path, 16 << 20);
  }
  return spec.Load();
}

// Says how many elements of a folder only pad its tensors: what they are is not looked at, and they
// are not copied.
void SayPadding(const TensorFolder& folder) {
  int64_t elements = 0, tensors = 0;
  for (const Tensor& tensor : folder.plan().graph.tensors) {
    int64_t padding = 0;
    if (!tensor.view()) continue;
    for (const Piece& piece : tensor.view()->pieces) {
      if (piece.source == Piece::kPadding) padding += piece.elements();
    }
    elements += padding;
    tensors += padding > 0;
  }
  if (elements == 0) return;
  Talk(fmt::format("shardinit: `{}`: {} of {} that its layout only pads with {} left out\n",
                   Escape(folder.path()), Count(elements, "element"), Count(tensors, "tensor"),
                   elements == 1 ? "is" : "are"));
}

// Throws Error (kUsage) if values change and nobody said that they may.
void RequireMayChange(const ConvertOptions& options, const std::vector<std::string>& changed) {
  if (changed.empty() || options.inexact) return;
  throw Error(ExitCode::kUsage,
              fmt::format("the values of {} change, such as those of `{}`: the layout's trainer "
                          "multiplies or adds to them, and rounding may lose bits",
                          Count(std::ssize(changed), "tensor"), changed.front()),
              "with `--inexact` they are changed, and the run says how many elements would not "
              "come back");
}

// Says what was changed, and what of it is lost.
void SayLosses(const Losses& losses) {
  if (losses.changed == 0) return;
  Talk(fmt::format(
      "shardinit: {} changed, as the layout's trainer has them; {} of these would not come back\n",
      Count(losses.changed, "element"), Grouped(losses.lost)));
}

// Returns the plan to write. The folder gets the plan that says how its tensors are related to the
// model's.
Plan NewPlanOf(const ConvertOptions& options, TensorFolder* folder) {
  Plan to = WithoutDropped(options, *folder);
  const SpecRequest& request = options.spec.request;
  if (options.has_layouts()) {
    std::set<std::string> there;
    for (const Tensor& tensor : folder->plan().graph.tensors)
      there.insert(std::string(tensor.path()));
    folder->Replace(std::move(to));
    const bool is_same = LayoutOr(options.from_layout) == LayoutOr(options.spec.layout);
    Plan from = LoadIn(options, *folder, options.from_layout, is_same);
    for (const std::string& said : FitNames(from, folder)) {
      Talk(fmt::format("shardinit: `{}`: {}\n", Escape(folder->path()), Escape(said)));
    }
    std::optional<Plan> other;
    if (!is_same) other = LoadIn(options, *folder, options.spec.layout, true);
    Relayout both =
        RelayoutOf(folder->plan(), std::move(from), std::move(other), [&](const std::string& path) {
          return there.contains(path) && MatchesAny(options.drop, path);
        });
    RequireMayChange(options, both.changed);
    folder->Replace(std::move(both.from));
    RequireAlike(*folder);
    SayPadding(*folder);
    return std::move(both.to);
  }
  if (!request.sets.empty() || !request.sources.empty()) {
    throw Error(ExitCode::kUsage, "`--set` and `--source` are for a spec, and none is given",
                "add `--spec SPEC`");
  }
  if (!request.sharding.empty()) {
    Diagnostics diagnostics;
    to = ShardAs(to, fmt::format("{} as a spec", options.from), request.mesh, request.sharding, "",
                 diagnostics);
    Talk(Render(diagnostics.all()));
  } else if (!request.mesh.empty()) {
    to = OnMesh(to, request.mesh, false,
                "give the spec, with `--spec SPEC`: its `uneven` may allow shorter last parts");
  }
  return to;
}

// Returns whether a tensor has the scales of others, which are of 8 or 4 bits.
bool IsScale(const Tensor& tensor) {
  return tensor.path().ends_with("_scale_inv") || tensor.path().ends_with("_scale") ||
         tensor.path().ends_with("_scales") || tensor.path().ends_with(".scales");
}

// Returns the type that was asked for.
DType AskedType(const ConvertOptions& options) {
  const auto dtype = FindDType(options.dtype);
  if (!dtype || !InfoOf(*dtype).is_float()) {
    throw Error(ExitCode::kUsage,
                fmt::format("`--dtype {}` is no floating-point type", options.dtype),
                "use `bf16`, `f32`, `f16` or `f64`");
  }
  return *dtype;
}

// Applies the scales of tensors of 8 and 4 bits, if another type was asked for. Returns how many
// tensors have that type now.
int64_t Widened(const ConvertOptions& options, TensorFolder* folder) {
  if (options.dtype.empty()) return 0;
  const DType dtype = AskedType(options);
  const auto is_dropped = [&](const std::string& path) { return MatchesAny(options.drop, path); };
  if (InfoOf(dtype).bytes == 1) {
    RequireReadable(folder->plan(), is_dropped);
    return 0;
  }
  return folder->Widen(dtype, is_dropped);
}

// Gives the tensors the type that was asked for, and says which change; `widened` have it already.
Plan Retyped(const ConvertOptions& options, Plan to, int64_t widened) {
  if (options.dtype.empty()) return to;
  const DType dtype = AskedType(options);
  int64_t changed = 0, kept = 0;
  Plan retyped = WithTypes(std::move(to), [&](const Tensor& tensor) {
    const DTypeInfo& info = InfoOf(tensor.dtype());
    if (tensor.dtype() == dtype) return dtype;
    const bool changes = info.is_float() && info.bytes > 1 && !IsScale(tensor);
    ++(changes ? changed : kept);
    return changes ? dtype : tensor.dtype();
  });
  if (widened > 0) {
    TalkUnlessQuiet(fmt::format("shardinit: {} with scales {} {}\n", Count(widened, "tensor"),
                                widened == 1 ? "becomes" : "become", options.dtype));
  }
  TalkUnlessQuiet(fmt::format("shardinit: {} become{} {}; {} of other types stay{}\n",
                              Count(changed, "tensor"), changed == 1 ? "s" : "", options.dtype,
                              Grouped(kept), kept == 1 ? "s" : ""));
  return retyped;
}

ExitCode WriteCheckpoint(const ConvertOptions& options, const TensorFolder& from, const Plan& to) {
  RequireModules(to);
  const Stopwatch time;
  const ExportingOptions& exporting = options.exporting;
  WorkCounters counters;
  Losses losses;
  const ReshardRequest request = {
      .from = &from,
      .to = &to,
      .folder = exporting.folder,
      .workers = exporting.work.Workers(true),
      .ranks = options.ranks.Some(to),
      .claim = ClaimOf(from, options.from_layout),
      .losses = &losses,
      .progress = exporting.work.Mode(),
      .is_quiet = exporting.json,
      .warn = [](const std::string& s) { Talk(fmt::format("shardinit: {}\n", Escape(s))); }};
  const GenerateResult result = Reshard(request, &counters);
  SayLosses(losses);
  // Ranks may hold nothing, and their files are written nevertheless.
  const bool was_there = result.written == 0 && result.complete;
  if (exporting.json) {
    JsonWriter out;
    out.BeginObject(JsonWriter::kLines).Member("name", to.graph.name);
    out.Member("folder", exporting.folder).Member("format", kOwnFormat);
    out.Member("tensors", to.graph.tensors.size()).Member("files", to.world_size());
    out.Member("bytes", to.bytes).Member("was_there", was_there);
    if (request.ranks) out.Member("complete", result.complete);
    out.Member("seconds", time.seconds()).EndObject();
    Print(out.Finish());
    return ExitCode::kOk;
  }
  TalkUnlessQuiet(
      was_there ? fmt::format("shardinit: `{}` was there already\n", Escape(exporting.folder))
      : result.written == 0
          ? std::string("shardinit: nothing was left to make of these ranks\n")
          : fmt::format("shardinit: wrote {}\n", InSpeed(result.bytes, time.seconds())));
  if (!result.complete) {
    PrintUnlessQuiet(
        fmt::format("{}: unfinished: other ranks are missing\n", Escape(exporting.folder)));
    return ExitCode::kOk;
  }
  PrintUnlessQuiet(fmt::format("{}: {} of {} in {}, {}\n", Escape(exporting.folder),
                               Count(std::ssize(to.graph.tensors), "tensor"), to.graph.name,
                               Count(to.world_size(), "file"), kOwnFormat));
  return ExitCode::kOk;
}

ExitCode RunConvert(const ConvertOptions& options) {
  const ExportingOptions& exporting = options.exporting;
  RequireFolderName(exporting.folder);
  const bool is_own = exporting.format == kOwnFormat;
  if (!is_own) FormatOf(exporting.format, {kOwnFormat});
  if (!MayHoldTensors(options.from)) {
    if (const auto wrong = WrongKind(options.from, "a folder of tensors")) throw *wrong;
  }
  TensorFolder folder(options.from, options.part);
  RequireOutside(exporting.folder, options.from, is_own);
  SayFolder(folder, !options.has_layouts());
  TakeRecord(&folder);
  RequireAllRead(folder, options.drop);
  const int64_t widened = Widened(options, &folder);
  const Plan to = Retyped(options, NewPlanOf(options, &folder), widened);
  const bool has_metadata = !folder.metadata().empty() && !options.has_layouts();
  if (has_metadata && exporting.format != kSafetensors) {
    Talk(
        fmt::format("shardinit: `{}`: only `--to {}` keeps what its files have in `__metadata__`, "
                    "such as {}\n",
                    Escape(options.from), kSafetensors, Quote(folder.metadata().begin()->first)));
  }
  if (is_own) return WriteCheckpoint(options, folder, to);
  ExportRequest request = exporting.Request();
  if (has_metadata) request.metadata = folder.metadata();
  Losses losses;
  FolderCopy copy(folder, to, &losses);
  request.source = &copy;
  AskFor(options.ranks, to, &request);
  request.claim = ClaimOf(folder, options.from_layout);
  const ExitCode code = RunExporting(exporting, to, std::move(request));
  SayLosses(losses);
  return code;
}

}  // namespace

extern const Command kConvert = {
    "convert", "Carry tensors that exist to another format or layout, value by value",
    Configure<RunConvert>};

}  // namespace shardinit
