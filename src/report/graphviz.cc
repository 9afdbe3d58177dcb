#include "report/graphviz.h"

#include <fmt/format.h>

namespace shardinit {
namespace {

// Writes the lines of a label as one Graphviz string.
std::string InQuotes(const Graphviz::Label& lines) {
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

std::string NodeText(int64_t node, const Graphviz::Label& label, std::string_view shape) {
  return fmt::format("n{} [label={}{}{}];", node, InQuotes(label),
                     shape.empty() ? "" : ", shape=", shape);
}

}  // namespace

Graphviz::Graphviz(const std::string& name, const std::string& title)
    : out_(fmt::format("digraph {} {{\n", InQuotes({name}))) {
  AddLine(fmt::format("graph [label={}, labelloc=t, rankdir=LR, fontname=\"sans-serif\"];",
                      InQuotes({title})));
  AddLine("node [shape=box, fontname=\"sans-serif\", fontsize=10];");
  AddLine("edge [fontname=\"sans-serif\", fontsize=9];");
}

void Graphviz::BeginCluster(const Label& label) {
  AddLine(fmt::format("subgraph cluster_{} {{", ++clusters_));
  ++level_;
  AddLine(fmt::format("label={};", InQuotes(label)));
}

void Graphviz::EndCluster() {
  --level_;
  AddLine("}");
}

int64_t Graphviz::Node(const Label& label, std::string_view shape) {
  AddLine(NodeText(++nodes_, label, shape));
  return nodes_;
}

int64_t Graphviz::OuterNode(const Label& label, std::string_view shape) {
  outer_nodes_.push_back(NodeText(++nodes_, label, shape));
  return nodes_;
}

void Graphviz::Arrow(int64_t from, int64_t to, const std::string& label) {
  arrows_.emplace(from, to, label);
}

std::string Graphviz::Finish() {
  for (const std::string& node : outer_nodes_) AddLine(node);
  for (const auto& [from, to, label] : arrows_) {
    AddLine(fmt::format("n{} -> n{}{};", from, to,
                        label.empty() ? "" : fmt::format(" [label={}]", InQuotes({label}))));
  }
  return out_ + "}\n";
}

void Graphviz::AddLine(std::string_view text) {
  out_.append(2 * level_, ' ').append(text).append(1, '\n');
}

}  // namespace shardinit
