#include <fmt/format.h>

#include <functional>
#include <optional>

#include "base/file.h"
#include "base/folder.h"
#include "base/json.h"
#include "base/new_file.h"
#include "base/result_file.h"
#include "commands/command.h"
#include "commands/options.h"
#include "program/module.h"

namespace shardinit {
namespace {

struct ProgramOptions {
  explicit ProgramOptions(CLI::App& app) {
    spec.AddTo(app);
    spec.AddLayoutTo(app);
    AddOnly(app, &only);
    AddRank(app, &rank, "Only the boxes of this rank, for one device");
    app.add_flag("--stack", stack, "Stack matching layers into one tensor, generated in a loop");
    app.add_flag("--kinds", kinds,
                 "A module for each kind of tensor, and a list of the tensors of each");
    app.add_option("--arith", arithmetic,
                   "How f32 is computed: f32, mixed (takes an argument that is 0) or f64")
        ->type_name("f32|f64")
        ->capture_default_str();
    CLI::Option* annotate = app.add_option("--annotate", annotations,
                                           "Which annotations describe the sharding of results")
                                ->type_name("mhlo|sdy|both")
                                ->capture_default_str();
    app.add_flag("--portable", portable, "Only StableHLO, for a portable artifact: --annotate mhlo")
        ->excludes(annotate);
    AddText(app, "-o,--output", "PATH", &out,
            "File, or with --kinds a folder; default: standard output");
    AddForce(app, &force);
  }

  SpecOptions spec;
  std::string out, only, arithmetic = "f32", annotations = "both";
  int64_t rank = -1;
  bool stack = false, kinds = false, portable = false, force = false;
};

std::string InJson(const Plan& plan, const ProgramRequest& request, int64_t rank,
                   const ProgramKinds& program) {
  JsonWriter out;
  out.BeginObject(JsonWriter::kLines);
  out.Member("contract_version", kContractVersion).Member("name", plan.graph.name);
  out.Member("engine", plan.graph.engine).Member("seed", plan.graph.seed);
  WriteMesh(plan.graph.mesh, out);
  out.MemberOrNull("rank", !request.annotated(), rank);
  out.Key("kinds").BeginArray(JsonWriter::kLines);
  for (const ProgramKind& kind : program.kinds) {
    out.BeginObject().Member("file", kind.name + ".mlir").Member("dtype", kind.dtype);
    out.Member("shape", kind.shape).Member("takes_zero", kind.needs_zero);
    out.Member("partition", kind.partition).Member("tables", kind.arguments).EndObject();
  }
  out.EndArray().Key("tensors").BeginArray(JsonWriter::kLines);
  for (const ProgramTensor& tensor : program.tensors) {
    out.BeginObject().Member("path", tensor.path);
    if (tensor.part > 0) out.Member("part", tensor.part);
    out.Member("kind", tensor.kind).Member("tables", tensor.arguments).EndObject();
  }
  out.EndArray().EndObject();
  return out.Finish();
}

using FileVisitor = std::function<void(const std::string& name, std::string_view text)>;

// Generates the files of `--kinds` one at a time, and calls `visit` with each.
void WriteKinds(const Plan& plan, const ProgramRequest& request, int64_t rank,
                const FileVisitor& visit) {
  const ProgramKinds program = WriteProgramKinds(
      plan, request,
      [&](const std::string& name, std::string_view module) { visit(name + ".mlir", module); });
  visit("program.json", InJson(plan, request, rank, program));
}

// Returns whether the folder holds exactly this program. Throws Error (kConflict) if it holds
// something else instead of one of the files.
bool HoldsProgram(const std::string& folder, const Plan& plan, const ProgramRequest& request,
                  int64_t rank) {
  if (!Exists(folder) || IsEmptyFolder(folder)) return false;
  WriteKinds(plan, request, rank, [&](const std::string& name, std::string_view text) {
    std::string there;
    if (IsFolder(folder) && ReadIfFile(folder + "/" + name, text.size(), &there).empty() &&
        there == text) {
      return;
    }
    throw Conflict(fmt::format("`{}` exists and holds something else", folder));
  });
  MakeFolder(folder);  // syncs the folder's name, in case a killed run did not
  return true;
}

// Writes the folder, which gets its name when complete. If equal runs write it at once, one run
// names it.
void WriteFolder(const std::string& path, const Plan& plan, const ProgramRequest& request,
                 int64_t rank) {
  if (HoldsProgram(path, plan, request, rank)) return NewFolder::RemoveLeftOvers(path);
  NewFolder folder(path);
  WriteKinds(plan, request, rank, [&](const std::string& name, std::string_view text) {
    NewFile file(folder.folder(), name);
    file.Append(text);
    file.Commit();
  });
  if (folder.Commit() || HoldsProgram(path, plan, request, rank)) return;
  throw Conflict(fmt::format("`{}` has appeared meanwhile", path));
}

void RunProgram(const ProgramOptions& options) {
  ChoiceOf("--arith", options.arithmetic, {"f32", "f64"});
  ChoiceOf("--annotate", options.annotations, {"mhlo", "sdy", "both"});
  if (options.kinds && options.stack) {
    throw Usage("`--kinds` and `--stack` exclude each other", "use one of them");
  }
  const bool printed = options.out.empty() || options.out == "-";
  if (options.kinds && printed) {
    throw Usage("`--kinds` writes a folder of modules", "name it with `-o DIR`");
  }
  const Plan plan = options.spec.LoadToMake();
  std::optional<ResultFile> out;
  if (!options.kinds && !printed) {
    out.emplace(
        ResultKind{"-o", "program", {"module @\"", "\" attributes {mhlo.num_partitions = "}},
        options.out, options.force);
  }
  ProgramRequest request;
  request.stacked = options.stack;
  if (options.arithmetic == "f64") request.arithmetic = program::Arithmetic::kDouble;
  if (options.rank == -1) {
    request.with_mhlo = options.annotations != "sdy";
    request.with_shardy = options.annotations != "mhlo" && !options.portable;
  } else {
    CheckRank(options.rank, plan);
  }
  request.boxes =
      ProgramBoxesOf(plan, Matching(plan.graph.tensors, options.only),
                     request.annotated() ? std::nullopt : std::optional<int64_t>(options.rank));
  if (options.kinds) {
    WriteFolder(options.out, plan, request, options.rank);
  } else if (out) {
    out->Write(WriteProgram(plan, request));
  } else {
    PrintExactly(WriteProgram(plan, request));
  }
}

}  // namespace

extern const Command kProgram = {
    "program", "Write the init graph as a StableHLO program that XLA runs", Configure<RunProgram>};

}  // namespace shardinit
