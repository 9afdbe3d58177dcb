#include "sharding/devices.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/table.h"
#include "sharding/mesh.h"
#include "tensor/box.h"

namespace shardinit {
namespace {

// The orders come from MaxText (reshape_mesh_to_rings) and, for a tray of 2 x 4 chips of TPU v5e
// and v6e, from JAX (mesh_utils).
constexpr DeviceOrder kOrders[] = {
    {.name = "row_major"},
    {.name = "hybrid_ring_64x4", .devices = 256, .columns = 16, .block = 2, .has_shape = true},
    {.name = "hybrid_ring_32x8", .devices = 256, .columns = 16, .block = 4, .has_shape = true},
    {.name = "tray_ring", .devices = 8, .columns = 4, .block = 4},
};

int64_t Part(const DeviceLayout& layout, size_t axis) {
  return layout.slices.empty() ? 1 : layout.slices[axis];
}

}  // namespace

int64_t DeviceOrder::At(int64_t position) const {
  if (devices == 0) return position;
  const int64_t at = position / ring(), step = position % ring();
  const int64_t blocks = columns / block;  // side by side
  const bool is_lower = step >= block;
  const int64_t row = at / blocks * 2 + is_lower;
  return row * columns + at % blocks * block + (is_lower ? ring() - 1 - step : step);
}

std::span<const DeviceOrder> DeviceOrders() { return kOrders; }

const DeviceOrder* FindDeviceOrder(std::string_view name) { return FindNamed(kOrders, name); }

int64_t DeviceLayout::slice_count() const { return ElementCount(slices); }

DeviceMap::DeviceMap(const Mesh& mesh)
    : mesh_(mesh), devices_(mesh.world_size() / mesh.devices.slice_count()) {}

Device DeviceMap::At(int64_t rank) const {
  const DeviceLayout& layout = mesh_.devices;
  int64_t slice = 0, position = 0;
  for (size_t a = 0; a < mesh_.shape.size(); ++a) {
    const int64_t index = mesh_.IndexOf(rank, static_cast<int>(a));
    const int64_t parts = Part(layout, a), places = mesh_.shape[a] / parts;
    slice = slice * parts + (layout.inner ? index % parts : index / places);
    position = position * places + (layout.inner ? index / parts : index % places);
  }
  if (layout.ids) return {(*layout.ids)[static_cast<size_t>(rank)], slice};
  return {slice * devices_ + layout.order->At(position), slice};
}

std::string MisfitOf(const DeviceOrder& order, const Mesh& mesh) {
  if (order.devices == 0) return {};
  std::vector<int64_t> sizes;
  std::string text;
  int64_t devices = 1;
  for (size_t a = 0; a < mesh.shape.size(); ++a) {
    const int64_t places = mesh.shape[a] / Part(mesh.devices, a);
    devices *= places;
    if (places > 1) sizes.push_back(places);
    text += fmt::format("{}{}={}", a == 0 ? "" : ", ", mesh.axes[a], places);
  }
  std::ranges::sort(sizes);
  std::vector<int64_t> wanted = {order.ring(), order.devices / order.ring()};
  std::ranges::sort(wanted);
  if (devices == order.devices && (!order.has_shape || sizes == wanted)) return {};
  return fmt::format("`{}` needs slices of {} devices{}, but this mesh has slices of {} ({})",
                     order.name, order.devices,
                     order.has_shape ? fmt::format(", {} x {}", wanted[1], wanted[0]) : "", devices,
                     text);
}

}  // namespace shardinit
