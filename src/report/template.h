// Fills in the templates of report/templates/ and configs/jobs/, which are embedded in the program.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>

namespace shardinit {

using TemplateValues = std::map<std::string, std::string, std::less<>>;

// Returns the text of report/templates/NAME with each `{{name}}` replaced by its value. Further
// lines of a value are indented like the template's line. A line with only an empty value is
// removed.
std::string FillTemplate(std::string_view name, const TemplateValues& values);
// Does the same with configs/jobs/NAME.
std::string FillJobTemplate(std::string_view name, const TemplateValues& values);

}  // namespace shardinit
