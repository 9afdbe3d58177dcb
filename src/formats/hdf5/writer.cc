#include "formats/hdf5/writer.h"

#include <malloc.h>

#include <cstddef>
#include <map>

#include "base/interrupt.h"
#include "formats/hdf5/build.h"
#include "formats/hdf5/layout.h"
#include "formats/hdf5/memory_file.h"
#include "rng/stream.h"
#include "tensor/encode.h"

namespace shardinit::hdf5 {
namespace {

void SelectBox(hid_t space, const Box& box) {
  if (box.shape.empty()) return;  // A scalar is always selected whole.
  const std::vector<hsize_t> offset(box.offset.begin(), box.offset.end());
  const std::vector<hsize_t> shape(box.shape.begin(), box.shape.end());
  Require(H5Sselect_hyperslab(space, H5S_SELECT_SET, offset.data(), nullptr, shape.data(), nullptr),
          "select a box");
}

void WritePlanAttributes(hid_t file, const Plan& plan, const Digest& plan_sha256, Kinds& kinds) {
  AttributeWriter attributes(file, kinds);
  attributes.Integer(kFormatVersionName, plan.format_version);
  attributes.Integer(kContractVersionName, kContractVersion);
  attributes.Text(kEngine, plan.graph.engine);
  attributes.Natural(kSeed, plan.graph.seed);
  attributes.Integer(kWorldSize, plan.world_size());
  attributes.Texts(kMeshAxes, plan.graph.mesh.axes);
  attributes.Integers(kMeshShape, plan.graph.mesh.shape);
  attributes.Text(kPlanSha256, ToHex(plan_sha256));
}

}  // namespace

FileLayout LayOutRank(const Plan& plan, const RankPlan& rank, const Digest& plan_sha256) {
  const FileProperties properties(H5F_LIBVER_V18, static_cast<int64_t>(rank.shards.size()));
  MemoryFile memory;
  File file = memory.Create(properties);
  Kinds kinds;
  WritePlanAttributes(file, plan, plan_sha256, kinds);
  AttributeWriter attributes(file, kinds);
  attributes.Integer(kRank, rank.rank);
  attributes.Integers(kCoordinate, rank.coordinate);

  const PropertyList create = DatasetProperties();
  Require(H5Pset_layout(create, H5D_CONTIGUOUS), "set the layout");
  Require(H5Pset_alloc_time(create, H5D_ALLOC_TIME_EARLY), "allocate early");
  Require(H5Pset_fill_time(create, H5D_FILL_TIME_NEVER), "turn off filling");

  std::vector<FileBox> boxes;
  boxes.reserve(rank.shards.size());
  {
    GroupStack groups(file);
    std::string name;
    for (const Shard& shard : rank.shards) {
      ThrowIfInterrupted();
      const hid_t group = groups.Open(DatasetPath(*shard.tensor, shard.part), &name);
      Dataset dataset(H5Dcreate2(group, name.c_str(), kinds.ElementOf(shard.tensor->dtype()),
                                 SpaceOf(shard.box.shape), H5P_DEFAULT, create, H5P_DEFAULT),
                      "create a dataset");
      AttributeWriter about(dataset, kinds);
      about.Text(kPath, shard.tensor->path());
      about.Text(kDType, InfoOf(shard.tensor->dtype()).name);
      about.Integers(kGlobalShape, shard.tensor->shape());
      about.Integers(kOffset, shard.box.offset);
      const haddr_t offset = H5Dget_offset(dataset);
      if (offset == HADDR_UNDEF) Fail("allocate a dataset");
      boxes.push_back({shard.tensor, shard.box, static_cast<int64_t>(offset)});
      dataset.Close("close a dataset");
    }
  }
  CloseFile(file);
  return memory.Take(RankFile(rank.rank), std::move(boxes));
}

FileLayout LayOutIndex(std::string path, const Plan& plan, const Digest& plan_sha256) {
  // HDF5 1.10 introduced virtual datasets.
  const FileProperties properties(H5F_LIBVER_V110, static_cast<int64_t>(plan.graph.tensors.size()));
  // Otherwise the source lists of all datasets stay in memory to the end, 2 kB a box. Eviction
  // takes time for each dataset that is already in the file, so it is off if the lists are short.
  const bool long_lists = plan.boxes > 16 * static_cast<int64_t>(plan.graph.tensors.size());
  Require(H5Pset_evict_on_close(properties.access, long_lists), "keep the cache small");
  MemoryFile memory;
  File file = memory.Create(properties);
  Kinds kinds;
  WritePlanAttributes(file, plan, plan_sha256, kinds);
  {
    GroupStack groups(file);
    std::map<DType, PropertyList> properties_of;
    std::string name;
    for (const Tensor& tensor : plan.graph.tensors) {
      const hid_t group = groups.Open(DatasetPath(tensor), &name);
      const hid_t type = kinds.ElementOf(tensor.dtype());
      auto of = properties_of.find(tensor.dtype());
      if (of == properties_of.end()) {
        of = properties_of.emplace(tensor.dtype(), DatasetProperties()).first;
        // A missing piece must not look like plausible numbers.
        uint8_t missing[8];
        EncodeMissing(tensor.dtype(), missing);
        Require(H5Pset_fill_value(of->second, type, missing), "set the fill value");
      }
      const PropertyList& create = of->second;
      // This removes the boxes of the previous tensor from the list.
      Require(H5Pset_layout(create, H5D_CONTIGUOUS), "set the layout");
      const Dataspace whole = SpaceOf(tensor.shape());
      plan.ShardingOf(tensor).ForEachBox([&](int64_t rank, size_t part, const Box& box) {
        ThrowIfInterrupted();
        const Dataspace from = SpaceOf(box.shape);
        SelectBox(whole, box);
        Require(H5Pset_virtual(create, whole, RankFile(rank).c_str(),
                               DatasetPath(tensor, part).c_str(), from),
                "map a box");
      });
      Dataset dataset(H5Dcreate2(group, name.c_str(), type, SpaceOf(tensor.shape()), H5P_DEFAULT,
                                 create, H5P_DEFAULT),
                      "create a virtual dataset");
      AttributeWriter about(dataset, kinds);
      about.Text(kPath, tensor.path());
      about.Text(kDType, InfoOf(tensor.dtype()).name);
      about.Integers(kGlobalShape, tensor.shape());
      dataset.Close("close a virtual dataset");
    }
  }
  CloseFile(file);
  return memory.Take(std::move(path), {});
}

void GiveBackMemory(size_t datasets) {
  if (datasets < 10'000) return;
  H5garbage_collect();
#ifdef __GLIBC__
  malloc_trim(0);
#endif
}

}  // namespace shardinit::hdf5
