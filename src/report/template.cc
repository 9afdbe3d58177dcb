#include "report/template.h"

#include <algorithm>

#include "base/embedded.h"
#include "base/error.h"

namespace shardinit {
namespace {

std::string Fill(std::span<const EmbeddedFile> files, std::string_view name,
                 const TemplateValues& values) {
  const auto file = std::find_if(files.begin(), files.end(),
                                 [&](const EmbeddedFile& other) { return other.path == name; });
  Check(file != files.end(), "a template that is not there");
  std::string_view rest = file->text;
  std::string filled;
  for (size_t open; (open = rest.find("{{")) != rest.npos;) {
    const size_t close = rest.find("}}", open);
    const auto value = values.find(rest.substr(open + 2, close - open - 2));
    Check(value != values.end(), "a place in a template that has no value");
    filled += rest.substr(0, open);
    const size_t line = filled.rfind('\n') + 1;
    const std::string indent(std::min(filled.find_first_not_of(' ', line), filled.size()) - line,
                             ' ');
    rest.remove_prefix(close + 2);
    if (value->second.empty() && indent.size() == filled.size() - line && rest.starts_with('\n')) {
      filled.resize(line);
      rest.remove_prefix(1);
      continue;
    }
    for (const char c : value->second) {
      filled += c;
      if (c == '\n') filled += indent;
    }
  }
  return filled.append(rest);
}

}  // namespace

std::string FillTemplate(std::string_view name, const TemplateValues& values) {
  return Fill(TemplateFiles(), name, values);
}

std::string FillJobTemplate(std::string_view name, const TemplateValues& values) {
  return Fill(JobFiles(), name, values);
}

}  // namespace shardinit
