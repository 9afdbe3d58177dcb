#include "graph/config.h"

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

}  // namespace

std::string BindConfig(const ConfigSpec::Map& config, const Scope& names,
                       Diagnostics& diagnostics) {
  return Bind({config}, names, diagnostics).dump();
}

}  // namespace shardinit
