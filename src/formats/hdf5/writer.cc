#include "formats/hdf5/writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <string_view>

#include "base/error.h"
#include "formats/hdf5/handle.h"
#include "formats/hdf5/layout.h"
#include "formats/hdf5/types.h"
#include "rng/stream.h"
#include "tensor/encode.h"

namespace shardinit::hdf5 {
namespace {

// What makes the bytes of a file the same everywhere: bounds that fix the
// format, and no times on anything.
struct FileProperties {
  FileProperties(H5F_libver_t high, int64_t datasets)
      : access(H5Pcreate(H5P_FILE_ACCESS), "make file properties"),
        create(H5Pcreate(H5P_FILE_CREATE), "make file properties") {
    Require(H5Pset_libver_bounds(access, H5F_LIBVER_V18, high), "set the format's version");
    Require(H5Pset_fclose_degree(access, H5F_CLOSE_SEMI), "set how files close");
    Require(H5Pset_alignment(access, kAlignFrom, kAlignment), "set the alignment");
    // Metadata in few large pieces costs half the space; no larger than needed,
    // so that small files stay small.
    const auto block = std::bit_ceil(static_cast<uint64_t>(std::clamp<int64_t>(
        datasets * 640, 2048, int64_t{1} << 20)));
    Require(H5Pset_meta_block_size(access, block), "set the metadata's block size");
    Require(H5Pset_obj_track_times(create, false), "turn off times");
#if H5_VERSION_GE(1, 10, 7)
    Require(H5Pset_file_locking(access, false, true), "turn off file locks");
#endif
  }
  PropertyList access, create;
};

// Opened again by its descriptor: a name could have been swapped meanwhile.
File CreateIn(int fd, const FileProperties& properties) {
  return {H5Fcreate(fmt::format("/proc/self/fd/{}", fd).c_str(), H5F_ACC_TRUNC, properties.create,
                    properties.access),
          "create an HDF5 file"};
}

void CloseFile(File& file) {
  Check(H5Fget_obj_count(file, H5F_OBJ_ALL) == 1, "an HDF5 object is still open");
  file.Close("close the HDF5 file");
}

class AttributeWriter {
 public:
  explicit AttributeWriter(hid_t object) : object_(object) {}

  void Text(const char* name, std::string_view text) {
    Datatype type(H5Tcopy(H5T_C_S1), "copy a type");
    Require(H5Tset_size(type, std::max<size_t>(1, text.size())), "size a text");
    Require(H5Tset_strpad(type, H5T_STR_NULLPAD), "pad a text");
    Require(H5Tset_cset(type, H5T_CSET_UTF8), "set a text's encoding");
    const std::string padded = text.empty() ? std::string(1, '\0') : std::string(text);
    Write(name, type, type, Dataspace(H5Screate(H5S_SCALAR), "make a dataspace"), padded.data());
  }

  void Integer(const char* name, int64_t value) {
    Write(name, H5T_STD_I64LE, H5T_NATIVE_INT64, Dataspace(H5Screate(H5S_SCALAR), "make a dataspace"),
          &value);
  }

  void Integers(const char* name, const std::vector<int64_t>& values) {
    Write(name, H5T_STD_I64LE, H5T_NATIVE_INT64, Line(values.size()), values.data());
  }

  // Each padded with zero bytes to the longest.
  void Texts(const char* name, const std::vector<std::string>& texts) {
    size_t longest = 1;
    for (const std::string& text : texts) longest = std::max(longest, text.size());
    Datatype type(H5Tcopy(H5T_C_S1), "copy a type");
    Require(H5Tset_size(type, longest), "size a text");
    Require(H5Tset_strpad(type, H5T_STR_NULLPAD), "pad a text");
    Require(H5Tset_cset(type, H5T_CSET_UTF8), "set a text's encoding");
    std::string bytes;
    for (const std::string& text : texts) bytes.append(text).append(longest - text.size(), '\0');
    Write(name, type, type, Line(texts.size()), bytes.data());
  }

 private:
  static Dataspace Line(size_t length) {
    // Nothing has no extent to write: an empty dataspace.
    if (length == 0) return {H5Screate(H5S_NULL), "make a dataspace"};
    const hsize_t extent = length;
    return {H5Screate_simple(1, &extent, nullptr), "make a dataspace"};
  }

  void Write(const char* name, hid_t file_type, hid_t memory_type, const Dataspace& space,
             const void* data) {
    Attribute attribute(H5Acreate2(object_, name, file_type, space, H5P_DEFAULT, H5P_DEFAULT),
                        "create an attribute");
    if (H5Sget_simple_extent_type(space) != H5S_NULL) {
      Require(H5Awrite(attribute, memory_type, data), "write an attribute");
    }
  }

  hid_t object_;
};

// Groups are made one by one, without times (H5Pset_create_intermediate_group
// would give them some), and stay open while the next dataset needs them.
class GroupStack {
 public:
  explicit GroupStack(hid_t file) : file_(file), create_(H5Pcreate(H5P_GROUP_CREATE), "make group properties") {
    Require(H5Pset_obj_track_times(create_, false), "turn off times");
  }

  // The group that holds `/a/b/name`, and `name` itself.
  hid_t Open(const std::string& dataset, std::string* name) {
    size_t start = 1, depth = 0;
    for (size_t slash; (slash = dataset.find('/', start)) != std::string::npos; start = slash + 1) {
      const std::string part = dataset.substr(start, slash - start);
      if (depth < open_.size() && open_[depth].first != part) open_.erase(open_.begin() + static_cast<ptrdiff_t>(depth), open_.end());
      if (depth == open_.size()) {
        const hid_t parent = depth == 0 ? file_ : static_cast<hid_t>(open_.back().second);
        const htri_t exists = H5Lexists(parent, part.c_str(), H5P_DEFAULT);
        if (exists < 0) Fail("look for a group");
        open_.emplace_back(part, exists ? Group(H5Gopen2(parent, part.c_str(), H5P_DEFAULT), "open a group")
                                        : Group(H5Gcreate2(parent, part.c_str(), H5P_DEFAULT, create_, H5P_DEFAULT),
                                                "create a group"));
      }
      ++depth;
    }
    open_.erase(open_.begin() + static_cast<ptrdiff_t>(depth), open_.end());
    *name = dataset.substr(start);
    return depth == 0 ? file_ : static_cast<hid_t>(open_.back().second);
  }

 private:
  hid_t file_;
  PropertyList create_;
  std::vector<std::pair<std::string, Group>> open_;
};

Dataspace SpaceOf(const Shape& shape) {
  if (shape.empty()) return {H5Screate(H5S_SCALAR), "make a dataspace"};
  const std::vector<hsize_t> extents(shape.begin(), shape.end());
  return {H5Screate_simple(static_cast<int>(extents.size()), extents.data(), nullptr),
          "make a dataspace"};
}

void SelectBox(hid_t space, const Box& box) {
  if (box.shape.empty()) return;  // A scalar is selected whole.
  const std::vector<hsize_t> offset(box.offset.begin(), box.offset.end());
  const std::vector<hsize_t> shape(box.shape.begin(), box.shape.end());
  Require(H5Sselect_hyperslab(space, H5S_SELECT_SET, offset.data(), nullptr, shape.data(), nullptr),
          "select a box");
}

void WritePlanAttributes(hid_t file, const Plan& plan, const Digest& plan_sha256) {
  AttributeWriter attributes(file);
  attributes.Integer(kFormatVersionName, kFormatVersion);
  attributes.Integer(kContractVersionName, kContractVersion);
  attributes.Text(kEngine, plan.graph.engine);
  attributes.Integer(kSeed, plan.graph.seed);
  attributes.Integer(kWorldSize, plan.world_size());
  attributes.Texts(kMeshAxes, plan.graph.mesh.axes);
  attributes.Integers(kMeshShape, plan.graph.mesh.shape);
  attributes.Text(kPlanSha256, ToHex(plan_sha256));
}

PropertyList DatasetProperties() {
  PropertyList create(H5Pcreate(H5P_DATASET_CREATE), "make dataset properties");
  Require(H5Pset_obj_track_times(create, false), "turn off times");
  return create;
}

// Calls with every rank that holds a box of its own of `tensor`, and the box.
template <typename F>
void ForEachBox(const Tensor& tensor, const Mesh& mesh, F visit) {
  // Only the axes that cut the tensor move; on all others the holder is at 0.
  std::vector<int> axes;
  for (const auto& cut : tensor.partition) axes.insert(axes.end(), cut.begin(), cut.end());
  std::sort(axes.begin(), axes.end());
  std::vector<int64_t> coordinate(mesh.shape.size(), 0);
  while (true) {
    const Box box = BoxAt(tensor.shape, tensor.partition, mesh, coordinate);
    if (!IsEmpty(box)) {
      int64_t rank = 0;
      for (size_t a = 0; a < coordinate.size(); ++a) rank = rank * mesh.shape[a] + coordinate[a];
      visit(rank, box);
    }
    size_t a = axes.size();
    while (a > 0 && ++coordinate[axes[a - 1]] == mesh.shape[axes[a - 1]]) coordinate[axes[--a]] = 0;
    if (a == 0) return;
  }
}

std::vector<int64_t> WriteRank(int fd, const Plan& plan, const RankPlan& rank,
                               const Digest& plan_sha256) {
  const FileProperties properties(H5F_LIBVER_V18, static_cast<int64_t>(rank.shards.size()));
  File file = CreateIn(fd, properties);
  WritePlanAttributes(file, plan, plan_sha256);
  AttributeWriter attributes(file);
  attributes.Integer(kRank, rank.rank);
  attributes.Integers(kCoordinate, rank.coordinate);

  const PropertyList create = DatasetProperties();
  Require(H5Pset_layout(create, H5D_CONTIGUOUS), "set the layout");
  Require(H5Pset_alloc_time(create, H5D_ALLOC_TIME_EARLY), "allocate early");
  Require(H5Pset_fill_time(create, H5D_FILL_TIME_NEVER), "turn off filling");

  std::vector<int64_t> offsets;
  offsets.reserve(rank.shards.size());
  {
    GroupStack groups(file);
    std::string name;
    for (const Shard& shard : rank.shards) {
      const hid_t group = groups.Open(DatasetPath(*shard.tensor), &name);
      Dataset dataset(H5Dcreate2(group, name.c_str(), TypeOf(shard.tensor->dtype),
                                 SpaceOf(shard.box.shape), H5P_DEFAULT, create, H5P_DEFAULT),
                      "create a dataset");
      AttributeWriter about(dataset);
      about.Text(kPath, shard.tensor->path);
      about.Text(kDType, InfoOf(shard.tensor->dtype).name);
      about.Integers(kGlobalShape, shard.tensor->shape);
      about.Integers(kOffset, shard.box.offset);
      const haddr_t offset = H5Dget_offset(dataset);
      if (offset == HADDR_UNDEF) Fail("allocate a dataset");
      offsets.push_back(static_cast<int64_t>(offset));
      dataset.Close("close a dataset");
    }
  }
  CloseFile(file);
  return offsets;
}

void WriteVirtual(int fd, const Plan& plan, const Digest& plan_sha256) {
  // Virtual datasets came with HDF5 1.10.
  const FileProperties properties(H5F_LIBVER_V110, static_cast<int64_t>(plan.graph.tensors.size()));
  File file = CreateIn(fd, properties);
  WritePlanAttributes(file, plan, plan_sha256);
  {
    GroupStack groups(file);
    std::string name;
    for (const Tensor& tensor : plan.graph.tensors) {
      const hid_t group = groups.Open(DatasetPath(tensor), &name);
      const Datatype type = TypeOf(tensor.dtype);
      const PropertyList create = DatasetProperties();
      // A missing piece must not read as plausible numbers.
      uint8_t missing[8];
      EncodeMissing(tensor.dtype, missing);
      Require(H5Pset_fill_value(create, type, missing), "set the fill value");
      const Dataspace whole = SpaceOf(tensor.shape);
      const std::string source = DatasetPath(tensor);
      ForEachBox(tensor, plan.graph.mesh, [&](int64_t rank, const Box& box) {
        const Dataspace from = SpaceOf(box.shape);
        SelectBox(whole, box);
        Require(H5Pset_virtual(create, whole, RankFile(rank).c_str(), source.c_str(), from),
                "map a box");
      });
      Dataset dataset(H5Dcreate2(group, name.c_str(), type, SpaceOf(tensor.shape), H5P_DEFAULT,
                                 create, H5P_DEFAULT),
                      "create a virtual dataset");
      AttributeWriter about(dataset);
      about.Text(kPath, tensor.path);
      about.Text(kDType, InfoOf(tensor.dtype).name);
      about.Integers(kGlobalShape, tensor.shape);
      dataset.Close("close a virtual dataset");
    }
  }
  CloseFile(file);
}

// HDF5 does not say which file it failed on.
template <typename F>
auto Naming(const std::string& path, F write) try {
  return write();
} catch (const Error& e) {
  throw Error(e.code(), fmt::format("cannot write `{}`: {}", path, e.what()), e.hint());
}

}  // namespace

std::vector<int64_t> WriteRankMetadata(int fd, const std::string& path, const Plan& plan,
                                       const RankPlan& rank, const Digest& plan_sha256) {
  return Naming(path, [&] { return WriteRank(fd, plan, rank, plan_sha256); });
}

void WriteIndex(int fd, const std::string& path, const Plan& plan, const Digest& plan_sha256) {
  Naming(path, [&] { WriteVirtual(fd, plan, plan_sha256); });
}

}  // namespace shardinit::hdf5
