#include "graph/config.h"

#include <nlohmann/json.hpp>

#include "base/json.h"
#include "base/overloaded.h"

namespace shardinit {
namespace {

using nlohmann::json;

class Binder {
 public:
  Binder(const Scope& names, Diagnostics& diagnostics) : names_(names), diagnostics_(diagnostics) {}

  json Bind(const ConfigSpec& spec) const {
    return std::visit(Overloaded{
                          [&](const ConfigSpec::Map& map) { return Bind(map); },
                          [&](const ConfigSpec::List& list) {
                            json array = json::array();
                            for (const ConfigSpec& item : list) array.push_back(Bind(item));
                            return array;
                          },
                          [&](const ExprPtr& expr) {
                            if (expr == nullptr) return json();
                            const auto value = Evaluate(*expr, names_, diagnostics_);
                            if (!value) return json();
                            return std::visit([](auto number) { return json(number); }, *value);
                          },
                          [](const auto& scalar) { return json(scalar); },
                      },
                      spec.value);
  }

  json Bind(const ConfigSpec::Map& map) const {
    json object = json::object();
    for (const auto& member : map) object[member.name.value] = Bind(member.value);
    return object;
  }

 private:
  const Scope& names_;
  Diagnostics& diagnostics_;
};

}  // namespace

std::string BindConfig(const ConfigSpec::Map& config, const Scope& names,
                       Diagnostics& diagnostics) {
  return Binder(names, diagnostics).Bind(config).dump();
}

}  // namespace shardinit
