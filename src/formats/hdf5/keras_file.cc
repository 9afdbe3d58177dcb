#include <span>

#include "base/error.h"
#include "formats/hdf5/build.h"
#include "formats/hdf5/memory_file.h"
#include "formats/hdf5/writer.h"

namespace shardinit::hdf5 {
namespace {

// A bool is an enumeration of bytes. A bf16 is two untyped bytes, and Keras's attribute `dtype`
// names the type: h5py would read HDF5's own bf16 as f32, 100 times slower.
Datatype NumPyTypeOf(DType dtype) {
  if (dtype == DType::bf16) {
    Datatype type(H5Tcreate(H5T_OPAQUE, 2), "make a type");
    Require(H5Tset_tag(type, ""), "set a type's tag");
    return type;
  }
  if (dtype == DType::boolean) {
    Datatype type(H5Tenum_create(H5T_STD_I8LE), "make a type");
    for (const int8_t value : {int8_t{0}, int8_t{1}}) {
      Require(H5Tenum_insert(type, value == 0 ? "FALSE" : "TRUE", &value), "set a type's values");
    }
    return type;
  }
  return TypeOf(dtype);
}

// `alignment` applies to everything that is allocated. Small datasets share no block with anything.
FileProperties PropertiesFor(const std::vector<FileBox>& boxes, hsize_t alignment) {
  FileProperties properties(H5F_LIBVER_V18, static_cast<int64_t>(boxes.size()));
  Require(H5Pset_alignment(properties.access, 1, alignment), "set the alignment");
  Require(H5Pset_small_data_block_size(properties.access, 0), "set the data's block size");
  return properties;
}

// Creates the datasets without allocating storage.
void CreateDatasets(MemoryFile& memory, const std::vector<FileBox>& boxes, DatasetNames names) {
  File file = memory.Create(PropertiesFor(boxes, 1));
  const PropertyList create = DatasetProperties();
  Require(H5Pset_layout(create, H5D_CONTIGUOUS), "set the layout");
  Require(H5Pset_alloc_time(create, H5D_ALLOC_TIME_LATE), "allocate late");
  Require(H5Pset_fill_time(create, H5D_FILL_TIME_NEVER), "turn off filling");
  {
    GroupStack groups(file);
    Kinds kinds;
    std::string name;
    for (const FileBox& box : boxes) {
      const hid_t group = groups.Open(names(*box.tensor), &name);
      Dataset dataset(H5Dcreate2(group, name.c_str(), NumPyTypeOf(box.tensor->dtype()),
                                 SpaceOf(box.box.shape), H5P_DEFAULT, create, H5P_DEFAULT),
                      "create a dataset");
      if (box.tensor->dtype() == DType::bf16)
        AttributeWriter(dataset, kinds).VariableText("dtype", "bfloat16");
      dataset.Close("close a dataset");
    }
  }
  CloseFile(file);
}

// Allocates storage by writing the first element. Returns its offset.
int64_t Allocate(hid_t file, const FileBox& box, const std::string& name) {
  Dataset dataset(H5Dopen2(file, name.c_str(), H5P_DEFAULT), "open a dataset");
  const Dataspace space(H5Dget_space(dataset), "read a dataspace");
  if (const std::vector<hsize_t> first(box.box.shape.size(), 0), one(first.size(), 1);
      !first.empty()) {
    Require(H5Sselect_hyperslab(space, H5S_SELECT_SET, first.data(), nullptr, one.data(), nullptr),
            "select an element");
  }
  const uint64_t zero = 0;
  Require(
      H5Dwrite(dataset, NumPyTypeOf(box.tensor->dtype()), SpaceOf({}), space, H5P_DEFAULT, &zero),
      "allocate a dataset");
  const haddr_t offset = H5Dget_offset(dataset);
  if (offset == HADDR_UNDEF) Fail("allocate a dataset");
  dataset.Close("close a dataset");
  return static_cast<int64_t>(offset);
}

// Allocates storage for all boxes, after the existing contents.
void Allocate(MemoryFile& memory, std::span<FileBox> boxes, DatasetNames names,
              const FileProperties& properties) {
  File file = memory.Open(properties);
  for (FileBox& box : boxes) box.offset = Allocate(file, box, names(*box.tensor));
  CloseFile(file);
}

}  // namespace

FileLayout LayOutKerasFile(std::string path, std::vector<FileBox> boxes, DatasetNames names) {
  MemoryFile memory;
  CreateDatasets(memory, boxes, names);
  SortByAlignment(&boxes);
  // The first box is on a page and the others follow without gaps. HDF5 has one alignment while the
  // file is open, so open it twice.
  constexpr hsize_t kPage = 4096;
  Allocate(memory, {boxes.data(), 1}, names, PropertiesFor(boxes, kPage));
  Allocate(memory, std::span(boxes).subspan(1), names, PropertiesFor(boxes, 1));
  int64_t end = boxes[0].offset;
  for (const FileBox& box : boxes) {
    Check(box.offset == end, "HDF5 left a gap between datasets");
    end += BytesOf(box);
  }
  Check(memory.size() == end, "HDF5 wrote after the datasets");
  FileLayout file = memory.Take(std::move(path), std::move(boxes));
  file.head.resize(static_cast<size_t>(file.boxes[0].offset));
  for (const FileText& text : std::exchange(file.texts, {})) {
    text.bytes.copy(file.head.data() + text.offset, text.bytes.size());
  }
  return file;
}

}  // namespace shardinit::hdf5
