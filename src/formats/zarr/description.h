// Reads the description of an array: `.zarray` of zarr 2, or `zarr.json` of zarr 3.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/json.h"
#include "tensor/box.h"
#include "tensor/dtype.h"

namespace shardinit::zarr {

// This hint says what to do about arrays that are not read.
inline constexpr std::string_view kOrbaxLine =
    "write it with `ocp.PyTreeCheckpointer(use_ocdbt=False, use_compression=False).save(path, "
    "tree)`";

// What the chunks of an array look like, and where their keys are.
struct Description {
  std::string dtype;  // the type as zarr 2 writes it, if shardinit has it
  Shape shape;
  Shape stored;                   // the shape of what has a key: a chunk, or a shard of chunks
  Shape chunk;                    // equal to `stored`, or an equal part of it
  std::string prefix, separator;  // of the keys of chunks: `c/` and `/`
  bool is_zstd = false;           // how a chunk is compressed
  bool is_sharded = false;        // Whether a key has a shard, with an index of its chunks.
  bool index_is_first = false;    // where in the shard the index is
  nlohmann::json fill_value;      // of every element of a chunk that is not there; null: unknown
};

// Returns the description that the text of such a file gives; none if it describes a group. `where`
// names the array in messages. Throws Error (kRefused) if the array is none that is read.
std::optional<Description> ReadDescription2(const std::string& text, const std::string& where);
std::optional<Description> ReadDescription3(const std::string& text, const std::string& where);

[[noreturn]] void RefuseArray(const std::string& where, std::string_view what,
                              std::string_view hint = {});

}  // namespace shardinit::zarr
