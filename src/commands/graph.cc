#include <fmt/format.h>

#include <set>
#include <string_view>
#include <tuple>

#include "base/colour.h"
#include "base/json.h"
#include "base/result_file.h"
#include "commands/command.h"
#include "commands/graph_page.h"
#include "commands/graph_tensors.h"
#include "commands/options.h"
#include "graph/outline.h"
#include "report/text.h"

namespace shardinit {
namespace {

// The lines of a label in a drawing, which may be any text.
using Label = std::vector<std::string>;

// Writes the lines of a label as one Graphviz string.
std::string InQuotes(const Label& lines) {
  std::string text;
  for (const std::string& line : lines) {
    if (!text.empty()) text += "\\n";
    for (const char c : line) {
      if (c == '"' || c == '\\') text += '\\';
      text += c;
    }
  }
  return fmt::format("\"{}\"", text);
}

std::string NodeText(int64_t node, const Label& label, std::string_view shape) {
  return fmt::format("n{} [label={}{}{}];", node, InQuotes(label),
                     shape.empty() ? "" : ", shape=", shape);
}

// Writes drawings in Graphviz's language: boxes, clusters of boxes, and arrows between boxes.
class Graphviz {
 public:
  Graphviz(const std::string& name, const std::string& title)
      : out_(fmt::format("digraph {} {{\n", InQuotes({name}))) {
    AddLine(fmt::format("graph [label={}, labelloc=t, rankdir=LR, fontname=\"sans-serif\"];",
                        InQuotes({title})));
    AddLine("node [shape=box, fontname=\"sans-serif\", fontsize=10];");
    AddLine("edge [fontname=\"sans-serif\", fontsize=9];");
  }

  // Nodes and clusters added before EndCluster() are inside the cluster.
  void BeginCluster(const Label& label) {
    AddLine(fmt::format("subgraph cluster_{} {{", ++clusters_));
    ++level_;
    AddLine(fmt::format("label={};", InQuotes(label)));
  }

  void EndCluster() {
    --level_;
    AddLine("}");
  }

  // Returns the node's number. The node is a box, unless `shape` names another Graphviz shape.
  int64_t Node(const Label& label, std::string_view shape = {}) {
    AddLine(NodeText(++nodes_, label, shape));
    return nodes_;
  }

  // Adds a node outside all clusters.
  int64_t OuterNode(const Label& label, std::string_view shape) {
    outer_nodes_.push_back(NodeText(++nodes_, label, shape));
    return nodes_;
  }

  // Draws equal arrows only once.
  void Arrow(int64_t from, int64_t to, const std::string& label) {
    arrows_.emplace(from, to, label);
  }

  std::string Finish() {
    for (const std::string& node : outer_nodes_) AddLine(node);
    for (const auto& [from, to, label] : arrows_) {
      AddLine(fmt::format("n{} -> n{}{};", from, to,
                          label.empty() ? "" : fmt::format(" [label={}]", InQuotes({label}))));
    }
    return out_ + "}\n";
  }

 private:
  void AddLine(std::string_view text) { out_.append(2 * level_, ' ').append(text).append(1, '\n'); }

  std::string out_;
  std::vector<std::string> outer_nodes_;
  std::set<std::tuple<int64_t, int64_t, std::string>> arrows_;
  size_t level_ = 1;
  int64_t nodes_ = 0, clusters_ = 0;
};

struct GraphOptions {
  explicit GraphOptions(CLI::App& app) {
    spec.AddTo(app);
    spec.places = Places::kLeast;
    spec.AddLayoutTo(app, "Also show the tensors that this layout of the spec stores");
    AddOnly(app, &only);
    app.add_option("--depth", depth, "Open modules down to this level; default: all")
        ->type_name("N")
        ->check([](const std::string& text) {
          return text.empty() || text.find_first_not_of("0123456789") != text.npos || text == "0"
                     ? fmt::format("`{}` is not a number of levels", text)
                     : std::string();
        });
    app.add_flag("--dot", dot, "Write a drawing for Graphviz");
    AddText(app, "--html", "FILE", &html,
            "Also write a page of pictures: bytes, and a tree of modules");
    AddForce(app, &force);
    AddJson(app, &json);
  }

  SpecOptions spec;
  std::string only;
  int64_t depth = 0;  // 0: unlimited
  bool dot = false, force = false, json = false;
  std::string html;  // a file; empty: no page
};

std::string InJson(const Shown& shown) {
  const InitGraph& graph = shown.plan.graph;
  JsonWriter out;
  out.BeginObject(JsonWriter::kLines).Member("name", graph.name);
  out.MemberOrNull("layout", graph.drawn != nullptr, graph.layout);
  out.Member("seed", graph.seed).Member("engine", graph.engine);
  WriteMesh(graph.mesh, out);
  out.Key("logical").BeginArray(JsonWriter::kLines);
  for (const Tensor* tensor : shown.drawn) {
    WriteDrawn(*tensor, out.BeginObject());
    out.EndObject();
  }
  out.EndArray().Key("stored").BeginArray(JsonWriter::kLines);
  for (const Tensor* tensor : shown.stored) {
    WriteStored(*tensor, graph, out.BeginObject());
    if (!tensor->view()) out.Member("view", tensor->path());
    out.Member("bytes", tensor->bytes()).EndObject();
  }
  out.EndArray().EndObject();
  return out.Finish();
}

using TreeRows = std::vector<std::vector<std::string>>;

void AddTree(const Outline& outline, const GraphOptions& options, const Shown& shown, int64_t level,
             TreeRows* rows) {
  for (const Outline& member : outline.members) {
    const std::string indent(static_cast<size_t>(2 * level), ' ');
    const bool is_module = !member.members.empty();
    rows->push_back({indent + (is_module ? Paint(Role::kStrong, member.name) : member.name),
                     Grouped(member.count), InBytes(member.bytes)});
    if (!is_module) {
      const TensorText text = TextOf(member.tensors, shown);
      rows->back().insert(rows->back().end(),
                          {text.dtype, text.shape, text.partition, text.values});
    } else if (level + 1 != options.depth) {
      AddTree(member, options, shown, level + 1, rows);
    }
  }
}

std::string InTree(const Shown& shown, const GraphOptions& options) {
  const InitGraph& graph = shown.plan.graph;
  const auto table = [&](const Tensors& tensors, const char* what, const char* values) {
    TreeRows rows = {{what, "tensors", "size", "dtype", "shape", "partition", values}};
    AddTree(OutlineOf(tensors), options, shown, 0, &rows);
    // Only stored tensors have a partition.
    for (auto& row : rows) {
      if (graph.drawn && &tensors == &shown.drawn && row.size() > 5) row.erase(row.begin() + 5);
    }
    return "\n" + Table(rows, {false, true, true, false, false, false, false});
  };
  std::string text =
      HeadingOf(shown) + "\n" + table(shown.drawn, graph.drawn ? "drawn" : "tensor", "values");
  if (graph.drawn) text += table(shown.stored, "stored", "view");
  return text;
}

// Draws a graph for Graphviz: a cluster for each module, and arrows from drawn tensors, through the
// operations of views, to stored tensors.
class Drawing {
 public:
  Drawing(const Shown& shown, int64_t depth)
      : shown_(shown),
        depth_(depth),
        out_(shown.plan.graph.name, HeadingOf(shown)),
        node_of_(shown.plan.graph.logical().size(), -1) {}

  std::string Draw() {
    if (shown_.plan.graph.drawn) {
      DrawCluster("drawn", OutlineOf(shown_.drawn), 0);
      DrawCluster("stored: " + shown_.plan.graph.layout, OutlineOf(shown_.stored), 0);
    } else {
      DrawMembers(OutlineOf(shown_.drawn), 0);
    }
    return out_.Finish();
  }

 private:
  // Shortens expressions, which may be long.
  static std::string Shortened(const std::string& text) {
    constexpr size_t kLongest = 60;
    if (text.size() <= kLongest) return text;
    size_t end = kLongest - 3;
    while ((text[end] & 0xc0) == 0x80) --end;  // cuts between characters
    return text.substr(0, end) + "…";
  }

  void DrawCluster(const std::string& name, const Outline& outline, int64_t depth) {
    out_.BeginCluster({name, CountAndSize(outline)});
    DrawMembers(outline, depth);
    out_.EndCluster();
  }

  static std::string CountAndSize(const Outline& outline) {
    return fmt::format("{}, {}", Count(outline.count, "tensor"), InBytes(outline.bytes));
  }

  void DrawMembers(const Outline& outline, int64_t depth) {
    for (const Outline& member : outline.members) {
      if (member.members.empty()) {
        DrawTensors(member);
      } else if (depth + 1 != depth_) {
        DrawCluster(member.name, member, depth + 1);
      } else {
        NoteTensors(member, out_.Node({member.name, CountAndSize(member)}, "folder"), false);
      }
    }
  }

  void DrawTensors(const Outline& member) {
    const TensorText text = TextOf(member.tensors, shown_);
    const bool is_view = member.tensors.front()->view() != nullptr;
    std::vector<std::string> lines = {member.name};
    if (member.count > 1) lines.front() += fmt::format(" × {}", Grouped(member.count));
    lines.push_back(fmt::format("{} {}", text.dtype, text.shape));
    if (is_view || !shown_.plan.graph.drawn) lines.push_back(text.partition);
    if (!is_view) lines.push_back(Shortened(text.values));
    const int64_t node = out_.Node(lines);
    if (is_view) {
      DrawView(OutlineOfViews(member.tensors), node,
               shown_.CountTies(member.tensors) > 0 ? "tie" : "");
    }
    NoteTensors(member, node, true);
  }

  int64_t& NodeOf(const Tensor* drawn) {
    return node_of_[static_cast<size_t>(drawn - shown_.plan.graph.logical().data())];
  }

  // Records the nodes of drawn tensors. A collapsed stored module gets arrows from all tensors that
  // its tensors are made of.
  void NoteTensors(const Outline& outline, int64_t node, bool is_tensor) {
    for (const Outline& member : outline.members) NoteTensors(member, node, is_tensor);
    for (const Tensor* tensor : outline.tensors) {
      if (!tensor->view()) {
        NodeOf(tensor) = node;
      } else if (!is_tensor) {
        ForEachSource(tensor->view()->root, [&](size_t i) { out_.Arrow(node_of_[i], node, ""); });
      }
    }
  }

  void DrawView(const ViewOutline& view, int64_t to, const std::string& label) {
    for (const Tensor* tensor : view.tensors) out_.Arrow(NodeOf(tensor), to, label);
    if (view.operation == nullptr) return;
    const int64_t node =
        out_.OuterNode({std::string(view.operation->name) + view.arguments}, "ellipse");
    out_.Arrow(node, to, label);
    for (const ViewOutline& of : view.of) {
      DrawView(of, node, of.copies > 1 ? fmt::format("× {}", Grouped(of.copies)) : "");
    }
  }

  const Shown& shown_;
  const int64_t depth_;
  Graphviz out_;
  std::vector<int64_t> node_of_;  // by drawn tensor; -1: not shown
};

const ResultKind kGraphPage = {
    "--html",
    "page",
    {"<!DOCTYPE html>\n", "<meta name=\"generator\" content=\"shardinit graph\">"}};

void RunGraph(const GraphOptions& options) {
  if (options.dot && options.json) {
    throw Usage("`--dot` and `--json` exclude each other", "use one of them");
  }
  if (options.json && options.depth != 0) {
    throw Usage("`--depth` is for pictures, but `--json` writes every tensor",
                "leave one of them out");
  }
  const Plan plan = options.spec.Load();
  const Shown shown = Choose(plan, options.only);
  if (!options.html.empty()) {
    const ResultFile page(kGraphPage, options.html, options.force);
    page.Write(GraphPage(shown, options.depth));
  }
  Print(options.json  ? InJson(shown)
        : options.dot ? Drawing(shown, options.depth).Draw()
                      : InTree(shown, options));
}

}  // namespace

extern const Command kGraph = {"graph",
                               "Show the tensors of a model as a tree of its modules, or draw them",
                               Configure<RunGraph>};

}  // namespace shardinit
