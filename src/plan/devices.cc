#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json.h"
#include "plan/plan.h"

namespace shardinit {
namespace {

using nlohmann::json;

constexpr std::string_view kOuter = "outer", kInner = "inner";

[[noreturn]] void RefuseDevices(const std::string& path, std::string_view what) {
  throw Error(ExitCode::kRefused, fmt::format("`{}` is not a list of devices: {}", path, what),
              "`shardinit gen` with the spec, options and folder as before rewrites it");
}

std::vector<int64_t> ReadDeviceIds(const json& in, const std::string& path, const Mesh& mesh) {
  const auto ids = in.get<std::vector<int64_t>>();
  if (std::ssize(ids) != mesh.world_size()) {
    RefuseDevices(path, fmt::format("it lists {} devices, but the mesh has {} ranks", ids.size(),
                                    mesh.world_size()));
  }
  auto sorted = ids;
  std::sort(sorted.begin(), sorted.end());
  if (sorted.front() < 0 || sorted.back() > kMaxDeviceId ||
      std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end()) {
    RefuseDevices(path, fmt::format("it lists a device twice, or one whose id is not from 0 to {}",
                                    kMaxDeviceId));
  }
  return ids;
}

DeviceLayout ReadLayout(const json& in, const std::string& path, Mesh mesh) {
  DeviceLayout& layout = mesh.devices;
  layout.slices = in.at("slices").get<std::vector<int64_t>>();
  bool fits = layout.slices.size() == mesh.shape.size();
  for (size_t a = 0; fits && a < layout.slices.size(); ++a) {
    fits = layout.slices[a] >= 1 && mesh.shape[a] % layout.slices[a] == 0;
  }
  if (!fits) RefuseDevices(path, "its slices do not divide the mesh axes");
  layout.inner = in.at("slice_order") == kInner;
  const json& devices = in.at("devices");
  if (devices.is_array()) {
    layout.ids = std::make_shared<std::vector<int64_t>>(ReadDeviceIds(devices, path, mesh));
    return layout;
  }
  layout.order = FindDeviceOrder(devices.get<std::string>());
  if (layout.order == nullptr)
    RefuseDevices(path, fmt::format("unknown order of devices {}", devices.dump()));
  if (const std::string misfit = MisfitOf(*layout.order, mesh); !misfit.empty()) {
    RefuseDevices(path, misfit);
  }
  return layout;
}

}  // namespace

std::string WriteDeviceLayout(const Mesh& mesh) {
  const DeviceLayout& layout = mesh.devices;
  if (layout.IsPlain()) return {};
  JsonWriter out;
  out.BeginObject(JsonWriter::kLines).Member("format_version", kFormatVersion);
  out.Member("slices",
             layout.slices.empty() ? std::vector<int64_t>(mesh.shape.size(), 1) : layout.slices);
  out.Member("slice_order", layout.inner ? kInner : kOuter).Key("devices");
  layout.ids ? out.Value(*layout.ids) : out.Value(layout.order->name);
  out.EndObject();
  return out.Finish();
}

DeviceLayout ReadDeviceLayout(std::string_view text, const std::string& path, const Mesh& mesh) {
  try {
    Mesh read = mesh;
    read.devices = ReadLayout(ParseJson(text, path), path, mesh);
    if (WriteDeviceLayout(read) != text)
      RefuseDevices(path, "it is not written as this tool writes");
    return read.devices;
  } catch (const json::exception& e) {
    RefuseDevices(path, ComplaintOf(e));
  }
}

void WriteDevice(const DeviceMap& devices, const Mesh& mesh, int64_t rank, JsonWriter& out) {
  const Device device = devices.At(rank);
  out.BeginObject().Member("id", device.id).Member("slice", device.slice);
  out.Member("coordinate", mesh.CoordinateOf(rank)).Member("rank", rank).EndObject();
}

}  // namespace shardinit
