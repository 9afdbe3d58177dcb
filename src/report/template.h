// Fills in the files of report/templates/ and configs/jobs/, which are part of the program.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>

namespace shardinit {

using TemplateValues = std::map<std::string, std::string, std::less<>>;

// Returns the text of report/templates/NAME with values in the places of `{{their names}}`. What a
// value has after its first line is indented like the line that it stands in. A line that has
// nothing but an empty value is left out.
std::string FillTemplate(std::string_view name, const TemplateValues& values);
// Does the same with configs/jobs/NAME.
std::string FillJobTemplate(std::string_view name, const TemplateValues& values);

}  // namespace shardinit
