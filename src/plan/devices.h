// devices.json says which devices have the ranks of a checkpoint's mesh, unless rank r is simply on
// device r. It is no part of the plan: it decides no byte of a rank's file.
#pragma once

#include <string>
#include <string_view>

#include "sharding/mesh.h"

namespace shardinit {

class JsonWriter;

// The text is canonical; it is empty if there is nothing to say.
std::string WriteDeviceLayout(const Mesh& mesh);
// `mesh` has no device layout yet. Throws Error (kRefused) if the text is not such a file.
DeviceLayout ReadDeviceLayout(std::string_view text, const std::string& path, const Mesh& mesh);

// Writes the rank's member of `devices` in manifest.json and `plan --json`.
void WriteDevice(const DeviceMap& devices, const Mesh& mesh, int64_t rank, JsonWriter& out);

}  // namespace shardinit
