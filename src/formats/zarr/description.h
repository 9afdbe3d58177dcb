// Reads the description of a zarr array: `.zarray` of zarr 2, or `zarr.json` of zarr 3.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/json.h"
#include "tensor/box.h"

namespace shardinit::zarr {

// The hint for arrays that shardinit does not read.
inline constexpr std::string_view kOrbaxLine =
    "write it with `ocp.PyTreeCheckpointer(use_ocdbt=False, use_compression=False).save(path, "
    "tree)`";

// Describes the chunks of an array and their keys.
struct Description {
  std::string dtype;  // the type's name in zarr 2, if shardinit supports the type
  Shape shape;
  Shape stored;                   // the shape of a key's value: a chunk, or a shard of chunks
  Shape chunk;                    // equal to `stored`, or an equal part of it
  std::string prefix, separator;  // of chunk keys: `c` and `/`
  bool is_zstd = false;           // true for chunks in zstd
  bool is_sharded = false;        // true if a key's value is a shard, with an index of its chunks
  bool index_is_first = false;    // true if the shard begins with its index
  nlohmann::json fill_value;      // of the elements of a missing chunk; null if unknown
};

// These parse the text of such a file. They return nullopt for a group, and throw Error (kRefused)
// if shardinit does not read the array. `where` names the array in messages.
std::optional<Description> ReadDescription2(const std::string& text, const std::string& where);
std::optional<Description> ReadDescription3(const std::string& text, const std::string& where);

[[noreturn]] void RefuseArray(const std::string& where, std::string_view what,
                              std::string_view hint = {});

}  // namespace shardinit::zarr
