// Defines names that the writer and the readers of rank files share; see shardinit-format(5).
#pragma once

namespace shardinit::hdf5 {

// Attributes of a dataset.
inline constexpr char kPath[] = "path";
inline constexpr char kDType[] = "dtype";
inline constexpr char kGlobalShape[] = "global_shape";
inline constexpr char kOffset[] = "offset";

// Attributes of the file's root group.
inline constexpr char kFormatVersionName[] = "format_version";
inline constexpr char kContractVersionName[] = "contract_version";
inline constexpr char kEngine[] = "engine";
inline constexpr char kSeed[] = "seed";
inline constexpr char kRank[] = "rank";
inline constexpr char kWorldSize[] = "world_size";
inline constexpr char kMeshAxes[] = "mesh_axes";
inline constexpr char kMeshShape[] = "mesh_shape";
inline constexpr char kCoordinate[] = "coordinate";
inline constexpr char kPlanSha256[] = "plan_sha256";

// Datasets from this size on start at a multiple of kAlignment, so that O_DIRECT can write their
// data.
inline constexpr long long kAlignFrom = 65536;
inline constexpr long long kAlignment = 4096;

}  // namespace shardinit::hdf5
