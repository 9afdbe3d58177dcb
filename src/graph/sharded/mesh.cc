#include "graph/sharded/mesh.h"

#include <fmt/format.h>

#include <unordered_map>

#include "base/suggest.h"
#include "base/table.h"
#include "base/text.h"
#include "report/text.h"

namespace shardinit {
namespace {

constexpr size_t kMaxAxes = 32;

// Binds a spec's mesh in one pass.
class MeshBinder {
 public:
  explicit MeshBinder(Building& building) : building_(building), spec_(building.spec) {}

  Mesh Bind() {
    BindAxes();
    // Slices and devices can only be checked if all axes are known.
    if (!is_known_ || MayLack(spec_.mesh, spec_.wrong.Has("mesh"))) return std::move(mesh_);
    BindSlices();
    mesh_.devices.inner = spec_.slice_order && spec_.slice_order->value == "inner";
    if (spec_.devices) BindDevices(*spec_.devices);
    return std::move(mesh_);
  }

 private:
  void Error(const Span& span, std::string message, std::string hint = {}) {
    building_.diagnostics.Error(span, std::move(message), std::move(hint));
    is_known_ = false;
  }

  int64_t Evaluate(const Named<ExprPtr>& named, std::string_view what) {
    std::optional<int64_t> value;
    if (named.value) {
      value =
          EvaluateInteger(*named.value, building_.names, 1, kMaxWorldSize,
                          fmt::format("{} `{}`", what, named.name.value), building_.diagnostics);
    }
    is_known_ = is_known_ && value;
    return value.value_or(1);
  }

  void BindAxes() {
    int64_t size = 1;
    if (spec_.mesh.size() > kMaxAxes) {
      Error(spec_.mesh[kMaxAxes].name.span,
            fmt::format("the mesh has {} axes, but may have at most {}", spec_.mesh.size(),
                        kMaxAxes));
    }
    for (const auto& axis : spec_.mesh) {
      const int64_t extent = Evaluate(axis, "axis");
      mesh_.axes.push_back(axis.name.value);
      mesh_.shape.push_back(extent);
      if (size > kMaxWorldSize / extent) {
        Error(axis.name.span, fmt::format("the mesh has more than {} ranks", kMaxWorldSize));
        mesh_.shape.back() = 1;  // else products of axes would overflow
        continue;
      }
      size *= extent;
    }
  }

  void BindSlices() {
    std::vector<int64_t> slices(mesh_.axes.size(), 1);
    for (const auto& axis : spec_.slices) {
      if (axis.name.value.empty()) {
        is_known_ = false;
        continue;
      }
      const int64_t parts = Evaluate(axis, "slices of");
      const int at = mesh_.Find(axis.name.value);
      if (at < 0) {
        ReportUnknown("mesh axis", axis.name, mesh_.axes, building_.diagnostics);
        is_known_ = false;
      } else if (const int64_t extent = mesh_.shape[static_cast<size_t>(at)]; extent % parts != 0) {
        Error(axis.name.span,
              fmt::format("{} slices do not divide mesh axis `{}` ({})", parts, axis.name.value,
                          extent),
              "each slice has the same number of its places; `--set \"mesh.slices={}\"` makes one "
              "slice of all");
      } else {
        slices[static_cast<size_t>(at)] = parts;
      }
    }
    if (is_known_) mesh_.devices.slices = std::move(slices);
  }

  void BindDevices(const DevicesSpec& devices) {
    if (spec_.wrong.Has("devices") || !is_known_) return;
    if (devices.order.value.empty()) return BindIds(devices);
    const DeviceOrder* order = FindDeviceOrder(devices.order.value);
    if (order == nullptr) {
      const std::vector<std::string> names = NamesOf(DeviceOrders());
      const bool is_near = !Closest(devices.order.value, names).empty();
      Error(devices.order.span,
            fmt::format("unknown order of devices {}", Quote(devices.order.value)),
            DidYouMean(devices.order.value, names) +
                (is_near ? "" : "; the name of a file has a `.` or a `/`"));
    } else if (std::string misfit = MisfitOf(*order, mesh_); !misfit.empty()) {
      Error(
          devices.order.span, std::move(misfit),
          fmt::format("{}`slices` is the number of parts of an axis on different slices; for "
                      "another mesh, `--set mesh.devices=row_major`",
                      order->has_shape ? "the axes other than of size 1 must be these two; " : ""));
    } else {
      mesh_.devices.order = order;
    }
  }

  void BindIds(const DevicesSpec& devices) {
    auto ids = std::make_shared<std::vector<int64_t>>();
    std::unordered_map<int64_t, const Span*> places;
    for (const auto& id : devices.ids) {
      const auto [known, is_new] = places.emplace(id.value, &id.span);
      if (!is_new) {
        Error(id.span, fmt::format("device {} is at two places", id.value));
        building_.diagnostics.Note(*known->second, "the first one");
        return;
      }
      ids->push_back(id.value);
    }
    const int64_t listed = std::ssize(*ids), places_of_mesh = mesh_.world_size();
    if (listed != places_of_mesh) {
      Error(listed > places_of_mesh ? devices.ids[static_cast<size_t>(places_of_mesh)].span
                                    : devices.span,
            fmt::format("`devices` lists {}, but the mesh has {}", Count(listed, "device"),
                        Count(places_of_mesh, "rank")),
            "list the id of the device at each rank, in row-major order of coordinates");
      return;
    }
    mesh_.devices.ids = std::move(ids);
  }

  Building& building_;
  const ModelSpec& spec_;
  Mesh mesh_;
  bool is_known_ = true;
};

}  // namespace

Mesh BindMesh(Building& building) { return MeshBinder(building).Bind(); }

}  // namespace shardinit
