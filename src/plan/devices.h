// devices.json: what a checkpoint's mesh says of devices, where that is more than that rank r is on
// device r. No part of the plan: it decides no byte of a rank's file.
#pragma once

#include <string>
#include <string_view>

#include "sharding/mesh.h"

namespace shardinit {

class JsonWriter;

// Canonical; empty if there is nothing to say.
std::string WriteDeviceLayout(const Mesh& mesh);
// Of a mesh without one. Throws Error (kRefused) if the text is not such a file.
DeviceLayout ReadDeviceLayout(std::string_view text, const std::string& path, const Mesh& mesh);

// A member of `devices` in manifest.json and `plan --json`.
void WriteDevice(const DeviceMap& devices, const Mesh& mesh, int64_t rank, JsonWriter& out);

}  // namespace shardinit
