// Maps ranks to devices. The mapping does not affect values, boxes or files: ranks remain row-major
// coordinates, whichever device runs them.
//
// Devices are grouped into slices, with fast links (ICI) within a slice and slow ones (DCN) between
// slices. An axis of n = s * m places has s parts on different slices, with m places in each. Index
// i is at
//
//   outer: part i / m, place i % m      Parts are consecutive, as np.block joins slices in JAX and
//                                       MaxText.
//   inner: part i % s, place i / s      Parts alternate, as in torchprime, so that each step along
//                                       the axis crosses slices.
//
// The parts along all axes, row-major, are the number of the slice. The places, row-major, are a
// position in the slice, which an order maps to one of its devices. Device ids count through slice
// 0, then slice 1, and so on.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace shardinit {

struct Mesh;

// An order of a slice's devices that forms rings of physical neighbours. The devices are a grid,
// row-major by id, divided into blocks of two rows. The blocks are row-major. Within a block, the
// upper row goes from left to right, then the lower row goes back.
struct DeviceOrder {
  std::string_view name;
  int64_t devices = 0;     // in a slice; 0: any number, in the order of ids
  int64_t columns = 0;     // columns of the grid
  int64_t block = 0;       // columns of a block
  bool has_shape = false;  // The mesh within a slice must be rings x devices of a ring.

  int64_t ring() const { return 2 * block; }
  // Returns the device at a position in the slice.
  int64_t At(int64_t position) const;
};

// Returns all orders; the first is the order of ids.
std::span<const DeviceOrder> DeviceOrders();
const DeviceOrder* FindDeviceOrder(std::string_view name);  // null if unknown

// What a mesh specifies about devices.
struct DeviceLayout {
  std::vector<int64_t> slices;  // parts of each axis on different slices; empty for one slice
  bool inner = false;
  const DeviceOrder* order = &DeviceOrders().front();
  // The device of each rank; overrides the order. It is shared because it may be long.
  std::shared_ptr<const std::vector<int64_t>> ids = nullptr;

  int64_t slice_count() const;
  // Returns whether rank r is on device r of the only slice, which needs no explanation.
  bool IsPlain() const { return slice_count() == 1 && !ids && order == &DeviceOrders().front(); }
};

struct Device {
  int64_t id, slice;
};

inline constexpr int64_t kMaxDeviceId = (int64_t{1} << 31) - 1;  // JAX's limit

// Maps the ranks of a mesh to devices. The slices must divide their axes, the order must fit, and
// the mesh must outlive the map.
class DeviceMap {
 public:
  explicit DeviceMap(const Mesh& mesh);
  Device At(int64_t rank) const;

 private:
  const Mesh& mesh_;
  const int64_t devices_;  // in a slice
};

// Describes the order's requirement and the mesh's actual slices, or returns an empty text if the
// order fits.
std::string MisfitOf(const DeviceOrder& order, const Mesh& mesh);

}  // namespace shardinit
