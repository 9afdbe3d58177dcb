#include "graph/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/json.h"
#include "base/overloaded.h"

namespace shardinit {
namespace {

using nlohmann::json;

json Bind(const ConfigSpec& spec, const Scope& names, Diagnostics& diagnostics) {
  return std::visit(
      Overloaded{
          [&](const ConfigSpec::Map& map) {
            json object = json::object();
            for (const auto& [name, value] : map) {
              object[name.value] = Bind(value, names, diagnostics);
            }
            return object;
          },
          [&](const ConfigSpec::List& list) {
            json array = json::array();
            for (const ConfigSpec& item : list) array.push_back(Bind(item, names, diagnostics));
            return array;
          },
          [&](const ExprPtr& expr) {
            const auto value =
                expr == nullptr ? std::nullopt : EvaluateVariable(*expr, names, diagnostics);
            if (!value) return json();
            json items = json::array();
            for (const VarItem& item : value->items) {
              items.push_back(std::visit([](const auto& scalar) { return json(scalar); }, item));
            }
            return value->is_list ? items : items[0];
          },
          [](const auto& scalar) { return json(scalar); },
      },
      spec.value);
}

// Lists with an entry for each layer, and names of classes. Transformers compares the number of
// entries with a field, or sizes tensors by it.
constexpr struct {
  const char *entries, *count;
} kCounted[] = {{"layer_types", "num_hidden_layers"},
                {"mlp_layer_types", "num_hidden_layers"},
                {"no_rope_layers", "num_hidden_layers"},
                {"id2label", "num_labels"}};

// Returns the period of a list that has at least two; 0 if it has no period.
size_t PeriodOf(const json& list) {
  for (size_t period = 1; 2 * period <= list.size(); ++period) {
    bool repeats = true;
    for (size_t i = period; i < list.size(); ++i) repeats = repeats && list[i] == list[i - period];
    if (repeats) return period;
  }
  return 0;
}

// Truncates or extends the lists that have an entry for each layer. Reports entries whose number
// still differs.
void FollowCounts(const ConfigSpec::Map& spec, json& config, Diagnostics& diagnostics) {
  for (const auto& [name, field] : kCounted) {
    const auto entries = config.find(name), count = config.find(field);
    if (entries == config.end() || count == config.end() || !count->is_number_integer() ||
        count->get<double>() < 0 || !entries->is_structured() ||
        entries->size() == count->get<size_t>())
      continue;
    const size_t wanted = count->get<size_t>();
    if (entries->is_array()) {
      const size_t period = PeriodOf(*entries);
      if (wanted > 0 && wanted < entries->size())
        entries->erase(entries->begin() + static_cast<std::ptrdiff_t>(wanted), entries->end());
      if (period > 0)
        while (entries->size() < wanted) entries->push_back((*entries)[entries->size() - period]);
      if (entries->size() == wanted) continue;
    }
    const auto written = std::ranges::find_if(
        spec, [&key = name](const auto& entry) { return entry.name.value == key; });
    diagnostics.Error(written->name.span,
                      fmt::format("`{}` of `config` has {} entries, but `{}` is {}", name,
                                  entries->size(), field, wanted),
                      fmt::format("set `config.{}`, too; null leaves it to Transformers", name));
  }
}

}  // namespace

std::string BindConfig(const ConfigSpec::Map& config, const std::vector<std::string>& float_fields,
                       const Scope& names, Diagnostics& diagnostics) {
  json bound = Bind({config}, names, diagnostics);
  FollowCounts(config, bound, diagnostics);
  // Transformers rejects integers in these fields.
  for (const std::string& field : float_fields) {
    const auto found = bound.find(field);
    if (found != bound.end() && found->is_number_integer()) *found = found->get<double>();
  }
  return bound.dump();
}

}  // namespace shardinit
