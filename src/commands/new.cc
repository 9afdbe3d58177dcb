// Writes a first spec, from flags or based on a shipped spec.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/suggest.h"
#include "base/table.h"
#include "base/talk.h"
#include "base/text.h"
#include "commands/command.h"
#include "commands/options.h"
#include "report/template.h"
#include "report/text.h"
#include "spec/include.h"
#include "spec/shipped.h"
#include "tensor/dtype.h"

namespace shardinit {
namespace {

// A flag that sets a variable.
struct SizeFlag {
  std::string_view name;  // of the variable
  const char *flags, *help;
  std::string_view otherwise;  // the variable's value without the flag
};

enum Size { kWidth, kHidden, kLayers, kHeads, kKvHeads, kHeadDim, kVocab, kAllSizes };

constexpr SizeFlag kSizeFlags[kAllSizes] = {
    {"d", "--width,--hidden", "The model's width; default 512", "512"},
    {"ff", "--ff", "Hidden units of an MLP; default 8/3 of the width, rounded up to 256s",
     "round_up(ceil_div(8 * d, 3), 256)"},
    {"layers", "--layers", "Layers; default 8", "8"},
    {"heads", "--heads", "Attention heads; default one for each 64 of the width", ""},
    {"kv_heads", "--kv-heads", "Heads of keys and values; default the same number", "heads"},
    {"head_dim", "--head-dim", "Size of a head; default the width, divided among the heads",
     "d / heads"},
    {"vocab", "--vocab", "Rows of the embedding table; default 32000", "32000"},
};

// A decoder's tensors use recipes' names of initializers. Without a recipe, the second name of a
// pair replaces the first.
constexpr std::pair<std::string_view, std::string_view> kUses[] = {
    {"embedding", "linear"}, {"query", "linear"},           {"key", "linear"},
    {"value", "linear"},     {"attention_out", "residual"}, {"mlp_gate", "linear"},
    {"mlp_up", "linear"},    {"mlp_down", "residual"},      {"norm", "ones"},
    {"head", "linear"}};

struct NewOptions {
  explicit NewOptions(CLI::App& app) {
    app.add_option("NAME", name, "The model's name; default model");
    AddText(app, "--from", "MODEL", &from, "Start from this shipped model");
    for (int i = 0; i < kAllSizes; ++i) {
      app.add_option(kSizeFlags[i].flags, sizes[i], kSizeFlags[i].help)
          ->type_name("N")
          ->check(WholeNumber(1, INT32_MAX, "a whole number from 1 to 2147483647"));
    }
    AddText(app, "--mesh", "AXIS=SIZE,...", &mesh, "Axes of the mesh, such as fsdp=8,tensor=2");
    AddText(app, "--sharding", "NAME|FILE|WORD", &sharding,
            "Use this sharding, such as torchtitan");
    AddText(app, "--dtype", "DTYPE", &dtype, "Element type; default bf16");
    AddText(app, "--init", "RECIPE", &init, "Use this recipe's initializers, such as megatron");
  }

  std::string name = "model", from, mesh, sharding, dtype, init;
  int64_t sizes[kAllSizes] = {};  // 0: not given
};

std::string Joined(const std::vector<std::string>& lines) {
  return fmt::to_string(fmt::join(lines, "\n"));
}

// A spec that is being written: its template, and the values to fill in.
struct Draft {
  const NewOptions& options;
  std::string_view file;
  TemplateValues values = {};
  std::vector<std::string> includes = {};
  bool has_shipped_sharding = false;

  SpecRequest Request() const {
    SpecRequest request{"<stdout>", {}, {}};
    request.text = FillTemplate(file, values);
    return request;
  }
};

// Returns a variable's value as a spec writes it: `{text: …}` for text, which expressions quote.
std::string WrittenText(const VarSpec& variable) {
  const std::string text = TextOf(variable);
  const std::string first = variable.items.empty() ? "" : TextOf(*variable.items[0]);
  const bool is_text = first.starts_with('\'') && first.find('\'', 1) + 1 == first.size();
  return is_text ? fmt::format("{{text: {}}}", text) : text;
}

// Returns the variables of a spec and of its includes, with their texts.
std::vector<std::pair<std::string, std::string>> VariablesOf(const SpecRequest& request) {
  Diagnostics diagnostics;
  const std::optional<ModelSpec> spec = LoadSpec(request, diagnostics);
  diagnostics.ThrowIfErrors();
  std::vector<std::pair<std::string, std::string>> variables;
  for (const auto& variable : spec->vars) {
    variables.emplace_back(variable.name.value, WrittenText(variable.value));
  }
  return variables;
}

// Returns the recipes that define every initializer that a decoder uses.
std::vector<std::string> RecipesOfDecoders() {
  constexpr std::string_view kFolder = "recipes/";
  std::vector<std::string> names;
  for (const ShippedSpec& spec : ShippedIn(kFolder)) {
    NodeStore store;
    Diagnostics diagnostics;
    const Node* const root = LoadTree(*FindShipped(spec.name), {}, store, diagnostics);
    const Node* const inits = root == nullptr ? nullptr : root->Find("init");
    if (inits != nullptr && std::ranges::all_of(kUses, [&](const auto& use) {
          return inits->Find(use.first) != nullptr;
        })) {
      names.push_back(spec.name.substr(kFolder.size()));
    }
  }
  return names;
}

// Returns whether this model is shipped. Names of other shipped files have a folder.
bool IsModel(const std::string& name) { return FindShipped(name) && !Contains(name, '/'); }

void SetIncludes(Draft* draft) {
  const NewOptions& options = draft->options;
  if (!options.from.empty()) {
    if (!IsModel(options.from)) {
      throw Usage(fmt::format("shardinit ships no model {}", Quote(options.from)),
                  HintForSpec(options.from));
    }
    draft->includes.push_back(options.from);
  } else if (IsModel(options.name)) {
    throw Usage(
        fmt::format("{} is a shipped model, but NAME must be a new name", Quote(options.name)),
        fmt::format("start from it with `shardinit new mine --from {}`, or take another name",
                    options.name));
  }
  if (!options.init.empty()) {
    const std::vector<std::string> recipes = RecipesOfDecoders();
    if (!Contains(recipes, options.init)) {
      const std::string closest = Closest(options.init, recipes);
      throw Usage(fmt::format("shardinit ships no recipe {} for decoders", Quote(options.init)),
                  closest.empty() ? fmt::format("one of `{}`", fmt::join(recipes, "`, `"))
                                  : fmt::format("did you mean `{}`?", closest));
    }
    draft->includes.push_back("recipes/" + options.init);
  }
  const std::string sharding = fmt::format("{}{}", kShippedShardings, options.sharding);
  draft->has_shipped_sharding = !options.sharding.empty() && FindShipped(sharding).has_value();
  if (draft->has_shipped_sharding) draft->includes.push_back(sharding);
  draft->values["include"] =
      draft->includes.empty() ? "# include: [recipes/megatron]  # `shardinit list` has more names."
                              : fmt::format("include: [{}]", fmt::join(draft->includes, ", "));
}

void SetInitializers(Draft* draft) {
  const bool has_recipe = !draft->options.init.empty();
  for (const auto& [use, own] : kUses) {
    draft->values[std::string(use)] = has_recipe ? use : own;
  }
  draft->values["initializers"] =
      has_recipe
          ? fmt::format("# The initializers come from recipes/{}.", draft->options.init)
          : "# Initializers by name; `residual` is for layers that add to the residual stream.\n"
            "init:\n"
            "  linear: {normal: {std: 0.02}}\n"
            "  residual: {normal: {std: 0.02 / sqrt(2 * layers)}}";
}

// Sets the variables of a decoder, and the assertions about them.
void SetVariables(Draft* draft) {
  const auto& sizes = draft->options.sizes;
  const int64_t width = sizes[kWidth] > 0 ? sizes[kWidth] : 512;
  int64_t heads = sizes[kHeads];
  if (heads == 0) {
    const int64_t unit = std::max<int64_t>(sizes[kKvHeads], 1);
    heads = std::max(width / 64 / unit, int64_t{1}) * unit;
    while (sizes[kHeadDim] == 0 && width % heads != 0 && heads > unit) heads -= unit;
  }
  if (sizes[kHeadDim] == 0 && width % heads != 0) {
    throw Usage(fmt::format("the width, {}, is not a multiple of {}, {}", width,
                            sizes[kHeads] > 0 ? "the number of heads" : "`--kv-heads`", heads),
                "use another number of heads, or set their size with `--head-dim`");
  }
  if (sizes[kKvHeads] > 0 && heads % sizes[kKvHeads] != 0) {
    throw Usage(
        fmt::format("`--heads {}` is not a multiple of `--kv-heads {}`", heads, sizes[kKvHeads]),
        "each head of keys and values must serve the same number of heads");
  }
  std::vector<std::string> lines;
  for (int i = 0; i < kAllSizes; ++i) {
    const int64_t size = i == kHeads ? heads : sizes[i];
    lines.push_back(fmt::format("{}: {}", kSizeFlags[i].name,
                                size > 0 ? fmt::to_string(size) : kSizeFlags[i].otherwise));
  }
  draft->values["variables"] = Joined(lines);
  draft->values["assertions"] = "- heads % kv_heads == 0";
  if (sizes[kHeadDim] == 0) draft->values["assertions"] += "\n- d % heads == 0";
}

// Sets the variables of a shipped model. Variables that no flag sets become comments. An axis of
// `--mesh` needs no variable.
void SetVariablesOfModel(const Mesh& mesh, Draft* draft) {
  const NewOptions& options = draft->options;
  const auto variables = VariablesOf(draft->Request());
  std::vector<std::string> given, others;
  for (const auto& [name, text] : variables) {
    if (!options.mesh.empty() && Contains(mesh.axes, name)) continue;
    const SizeFlag* const flag = FindNamed(kSizeFlags, name);
    const int64_t size = flag == nullptr ? 0 : options.sizes[flag - kSizeFlags];
    if (size > 0) given.push_back(fmt::format("  {}: {}", name, size));
    if (size == 0) others.push_back(fmt::format("#   {}: {}", name, text));
  }
  for (int i = 0; i < kAllSizes; ++i) {
    const std::string_view name = kSizeFlags[i].name;
    if (options.sizes[i] == 0 || std::ranges::any_of(variables, [&](const auto& variable) {
          return variable.first == name;
        })) {
      continue;
    }
    throw Usage(fmt::format("{} has no variable `{}`", options.from, name),
                "`shardinit new --from` without sizes shows its variables");
  }
  draft->values["variables"] =
      (given.empty() ? "# vars:\n" : "vars:\n" + Joined(given) + "\n") + Joined(others);
}

// Returns `{fsdp: 8, tensor: 2}`, or a list that replaces the axes of an included file.
std::string AxesOf(const Mesh& mesh, bool as_list) {
  std::vector<std::string> axes;
  for (size_t i = 0; i < mesh.axes.size(); ++i) {
    axes.push_back(
        fmt::format(fmt::runtime(as_list ? "{{{}: {}}}" : "{}: {}"), mesh.axes[i], mesh.shape[i]));
  }
  const std::string text = fmt::to_string(fmt::join(axes, ", "));
  return as_list ? "[" + text + "]" : "{" + text + "}";
}

// Returns the sharding rules of a decoder. One axis divides the work on the same tokens; the other
// axes share the remaining dimensions.
std::string DecoderRules(const Mesh& mesh) {
  constexpr std::string_view kOfWork[] = {"tensor", "tp", "model"};
  std::string work;
  std::vector<std::string> others;
  for (const std::string& axis : mesh.axes) {
    if (work.empty() && Contains(kOfWork, axis)) {
      work = axis;
    } else {
      others.push_back(axis);
    }
  }
  std::vector<std::string> lines = {
      "# Which mesh axis shards the dimensions with these names in `axes` of tensors.", "rules:"};
  const auto add = [&](std::string_view logical, const std::string& axes) {
    lines.push_back(fmt::format("  - {{{}: {}}}", logical, axes.empty() ? "null" : axes));
  };
  std::string rest = fmt::to_string(fmt::join(others, ", "));
  if (others.size() > 1) rest = "[" + rest + "]";
  for (const char* logical : {"vocab", "heads", "mlp", "table_columns"}) add(logical, work);
  for (const char* logical : {"embed", "table_rows"}) add(logical, rest);
  add("norm", "");
  return Joined(lines);
}

// Returns the requested mesh, or the mesh of the included files.
Mesh MeshOf(const Draft& draft) {
  SpecRequest request = draft.Request();
  request.mesh = draft.options.mesh;
  if (request.mesh.empty() && draft.options.from.empty() && !draft.has_shipped_sharding) {
    request.mesh = "fsdp=1,tensor=1";
  }
  Diagnostics diagnostics;
  return LoadPlan({request}, diagnostics).graph.mesh;
}

// Sets the mesh and how tensors are sharded over it.
void SetMesh(const Mesh& mesh, Draft* draft) {
  const NewOptions& options = draft->options;
  const bool has_mesh = !options.from.empty() || draft->has_shipped_sharding;  // an included one
  std::vector<std::string> lines = {
      "# The grid of ranks, the last axis fastest. `--mesh` gives it other sizes on the command "
      "line."};
  if (has_mesh && options.mesh.empty()) {
    lines.push_back(fmt::format("# mesh: {{axes: {}}}", AxesOf(mesh, true)));
  } else {
    lines.push_back(fmt::format("mesh: {{axes: {}}}", AxesOf(mesh, has_mesh)));
  }
  if (!options.sharding.empty() && !draft->has_shipped_sharding) {
    if (!options.from.empty()) lines.emplace_back("rules: null  # Replaces the model's rules.");
    lines.push_back(fmt::format("sharding: {}", options.sharding));
  } else if (!has_mesh) {
    lines.push_back("\n" + DecoderRules(mesh));
  }
  draft->values["mesh"] = Joined(lines);
}

// Returns the command line, for the first line of the spec.
std::string CommandLineOf(const NewOptions& options) {
  std::string line = "shardinit new " + options.name;
  const auto add = [&](std::string_view flag, const std::string& value) {
    if (!value.empty()) line += fmt::format(" {} {}", flag, value);
  };
  add("--from", options.from);
  for (int i = 0; i < kAllSizes; ++i) {
    const std::string_view flags = kSizeFlags[i].flags;
    if (options.sizes[i] > 0)
      add(flags.substr(0, flags.find(',')), fmt::to_string(options.sizes[i]));
  }
  add("--mesh", options.mesh);
  add("--sharding", options.sharding);
  add("--dtype", options.dtype);
  add("--init", options.init);
  return Escape(line);
}

void RunNew(const NewOptions& options) {
  if (!options.dtype.empty() && !FindDTypeOfSpecs(options.dtype)) {
    const auto meant = FindDTypeByOtherName(options.dtype);
    throw Usage(fmt::format("unknown dtype {}", Quote(options.dtype)),
                meant ? fmt::format("did you mean `{}`?", InfoOf(*meant).name)
                      : DidYouMean(options.dtype, DTypeNames()));
  }
  const bool is_own = options.from.empty();
  Draft draft = {options, is_own ? "new.yaml" : "new-from.yaml"};
  TemplateValues& values = draft.values;
  values = {{"title", "A spec."}, {"name", options.name}, {"variables", ""}, {"mesh", ""}};
  if (is_own) {
    values["dtype"] = options.dtype.empty() ? "bf16" : options.dtype;
  } else {
    values["dtype"] = options.dtype.empty() ? "# dtype: f32  # Instead of the model's."
                                            : "dtype: " + options.dtype;
  }
  SetIncludes(&draft);
  if (is_own) {
    SetInitializers(&draft);
    SetVariables(&draft);
  }
  const Mesh mesh = MeshOf(draft);
  if (!is_own) SetVariablesOfModel(mesh, &draft);
  SetMesh(mesh, &draft);
  // Load the output: it must be a valid spec.
  Diagnostics diagnostics;
  const Plan plan = LoadPlan({draft.Request()}, diagnostics);
  Talk(Render(diagnostics.all()));
  values["title"] = fmt::format("{}: {}, {}.\n# Made by `{}`.", options.name,
                                Count(std::ssize(plan.graph.tensors), "tensor"),
                                Count(plan.parameters, "parameter"), CommandLineOf(options));
  PrintExactly(FillTemplate(draft.file, values));
}

}  // namespace

extern const Command kNew = {"new", "Write a first spec, from flags or a shipped model",
                             Configure<RunNew>};

}  // namespace shardinit
