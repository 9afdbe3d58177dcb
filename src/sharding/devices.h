// Which device has which place in a mesh. Decides no value, no box and no file: ranks stay
// row-major coordinates, whatever device has them.
//
// Devices lie in slices, fast links (ICI) within one and slow ones (DCN) between them. Of an axis
// of n = s * m places, s parts lie on different slices and m places within each. Its index i is
//
//   outer: part i / m, place i % m      parts follow one another, as np.block joins slices in JAX
//                                       and MaxText
//   inner: part i % s, place i / s      places of one index follow one another, as torchprime has
//                                       them, so that each step along the axis crosses the slices
//
// The parts along all axes, row-major, are the number of the slice; the places, row-major, are a
// position in it, which an order maps to one of its devices. Device ids are those of slice 0, then
// those of slice 1, and so on.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace shardinit {

struct Mesh;

// Rings of physical neighbours: the devices of a slice are a grid, row-major by id, which is taken
// in blocks of two rows: each row-major among the others, and in it the upper row from left to
// right, then the lower one back.
struct DeviceOrder {
  std::string_view name;
  int64_t devices = 0;     // Of a slice; 0: any number, in the order of their ids.
  int64_t columns = 0;     // Of the grid.
  int64_t block = 0;       // Columns of a block.
  bool has_shape = false;  // The mesh within a slice must be rings x devices of a ring.

  int64_t ring() const { return 2 * block; }
  // The device at a position in the slice.
  int64_t At(int64_t position) const;
};

// The first one is the order of ids.
std::span<const DeviceOrder> DeviceOrders();
const DeviceOrder* FindDeviceOrder(std::string_view name);  // Null: there is none.

// What a mesh says of devices.
struct DeviceLayout {
  std::vector<int64_t>
      slices;  // Parts of each axis on different slices; empty: there is one slice.
  bool inner = false;
  const DeviceOrder* order = &DeviceOrders().front();
  // Instead of an order: the device of each rank. Shared, for it may be long.
  std::shared_ptr<const std::vector<int64_t>> ids = nullptr;

  int64_t slice_count() const;
  // Whether rank r is on device r of the one slice, which nobody needs to be told.
  bool IsPlain() const { return slice_count() == 1 && !ids && order == &DeviceOrders().front(); }
};

struct Device {
  int64_t id, slice;
};

inline constexpr int64_t kMaxDeviceId = (int64_t{1} << 31) - 1;  // As JAX has them.

// Where slices divide their axes and the order fits, the devices of the ranks of a mesh, which
// outlives this.
class DeviceMap {
 public:
  explicit DeviceMap(const Mesh& mesh);
  Device At(int64_t rank) const;

 private:
  const Mesh& mesh_;
  const int64_t devices_;  // Of a slice.
};

// What the order of devices needs, and that the slices of the mesh are something else; empty if
// they are that.
std::string MisfitOf(const DeviceOrder& order, const Mesh& mesh);

}  // namespace shardinit
