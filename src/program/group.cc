#include "program/group.h"

#include <fmt/format.h>

#include <map>

namespace shardinit::program {
namespace {

std::string PathOf(const ProgramBox& one) {
  return one.part == 0 ? std::string(one.tensor->path())
                       : fmt::format("{}@{}", one.tensor->path(), one.part);
}

// Replaces the first number in a path and returns it: `layers.*.w` and 3.
std::pair<std::string, int64_t> WithoutNumber(const std::string& path) {
  for (size_t begin = 0; begin < path.size();) {
    const size_t end = std::min(path.find('.', begin), path.size());
    const std::string_view part(path.data() + begin, end - begin);
    // Skips numbers with leading zeros, because the name of a stack lists numbers without them.
    if (part.size() < 10 && part.find_first_not_of("0123456789") == part.npos && !part.empty() &&
        (part == "0" || part[0] != '0')) {
      return {path.substr(0, begin) + "*" + path.substr(end), std::stoll(std::string(part))};
    }
    begin = end + 1;
  }
  return {path, -1};
}

// Returns `3..60,62`.
std::string NumbersText(const std::vector<int64_t>& numbers) {
  std::string text;
  for (size_t i = 0, end; i < numbers.size(); i = end) {
    for (end = i + 1; end < numbers.size() && numbers[end] == numbers[end - 1] + 1;) ++end;
    text += fmt::format("{}{}", i == 0 ? "" : ",", numbers[i]);
    if (end > i + 1) text += fmt::format("{}{}", end == i + 2 ? "," : "..", numbers[end - 1]);
  }
  return text;
}

}  // namespace

std::vector<Group> GroupsOf(const Mesh& mesh, const std::vector<ProgramBox>& made,
                            const std::vector<TensorParts>& parts, bool stacked) {
  std::vector<Group> groups;
  std::map<std::string, size_t> places;
  for (size_t i = 0; i < made.size(); ++i) {
    const auto [name, number] = WithoutNumber(PathOf(made[i]));
    if (!stacked || number < 0) {
      groups.push_back({PathOf(made[i]), {i}, {}});
      continue;
    }
    const std::string key =
        fmt::format("{} {} {}", name, parts[i].kind, InText(made[i].tensor->partition(), mesh));
    const auto [it, is_new] = places.try_emplace(key, groups.size());
    if (is_new) groups.push_back({name, {}, {}});
    groups[it->second].made.push_back(i);
    groups[it->second].numbers.push_back(number);
  }
  // If two groups have the same name, or a group's numbers do not count from 0, the numbers are
  // added to the name.
  std::map<std::string, int> times;
  for (const Group& group : groups) ++times[group.name];
  for (Group& group : groups) {
    if (group.numbers.empty()) continue;
    bool all = times[group.name] == 1;
    for (size_t i = 0; i < group.numbers.size(); ++i) {
      all = all && group.numbers[i] == static_cast<int64_t>(i);
    }
    if (group.numbers.size() == 1) {
      group.name = PathOf(made[group.made[0]]);
      group.numbers.clear();
    } else if (!all) {
      group.name.replace(group.name.find('*'), 1,
                         fmt::format("{{{}}}", NumbersText(group.numbers)));
    }
  }
  return groups;
}

}  // namespace shardinit::program
