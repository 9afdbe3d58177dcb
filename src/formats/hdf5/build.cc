#include "formats/hdf5/build.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <string_view>

#include "base/error.h"
#include "formats/hdf5/layout.h"
#include "formats/hdf5/reader.h"

namespace shardinit::hdf5 {
namespace {

Datatype MakeText(size_t size) {
  Datatype type(H5Tcopy(H5T_C_S1), "copy a type");
  Require(H5Tset_size(type, size), "size a text");
  Require(H5Tset_cset(type, H5T_CSET_UTF8), "set a text's encoding");
  if (size != H5T_VARIABLE) Require(H5Tset_strpad(type, H5T_STR_NULLPAD), "pad a text");
  return type;
}

// Returns the value of the key in `known`, and makes it first if it is missing.
template <typename Key, typename Value, typename Make>
hid_t Find(std::map<Key, Value>& known, const Key& key, Make make) {
  const auto found = known.find(key);
  return found != known.end() ? found->second : known.emplace(key, make()).first->second;
}

}  // namespace

FileProperties::FileProperties(H5F_libver_t high, int64_t datasets)
    : access(H5Pcreate(H5P_FILE_ACCESS), "make file properties"),
      create(H5Pcreate(H5P_FILE_CREATE), "make file properties") {
  Require(H5Pset_libver_bounds(access, H5F_LIBVER_V18, high), "set the format's version");
  Require(H5Pset_fclose_degree(access, H5F_CLOSE_SEMI), "set how files close");
  Require(H5Pset_alignment(access, kAlignFrom, kAlignment), "set the alignment");
  // A few large metadata blocks cost half the space. Blocks are only as large as needed, so that
  // small files stay small.
  const auto block = std::bit_ceil(
      static_cast<uint64_t>(std::clamp<int64_t>(datasets * 640, 2048, int64_t{1} << 20)));
  Require(H5Pset_meta_block_size(access, block), "set the metadata's block size");
  Require(H5Pset_obj_track_times(create, false), "turn off times");
}

void CloseFile(File& file) {
  Check(H5Fget_obj_count(file, H5F_OBJ_ALL) == 1, "an HDF5 object is still open");
  file.Close("close the HDF5 file");
}

PropertyList DatasetProperties() {
  PropertyList create(H5Pcreate(H5P_DATASET_CREATE), "make dataset properties");
  Require(H5Pset_obj_track_times(create, false), "turn off times");
  return create;
}

Dataspace SpaceOf(const Shape& shape) {
  if (shape.empty()) return {H5Screate(H5S_SCALAR), "make a dataspace"};
  const std::vector<hsize_t> extents(shape.begin(), shape.end());
  return {H5Screate_simple(static_cast<int>(extents.size()), extents.data(), nullptr),
          "make a dataspace"};
}

hid_t Kinds::ElementOf(DType dtype) {
  return Find(elements_, dtype, [&] { return TypeOf(dtype); });
}

hid_t Kinds::TextOf(size_t size) {
  return Find(texts_, size, [&] { return MakeText(size); });
}

hid_t Kinds::Scalar() {
  if (!scalar_) scalar_.emplace(SpaceOf({}));
  return *scalar_;
}

hid_t Kinds::LineSpace(size_t length) {
  return Find(lines_, length, [&] {
    if (length == 0) return Dataspace(H5Screate(H5S_NULL), "make a dataspace");
    return SpaceOf({static_cast<int64_t>(length)});
  });
}

void AttributeWriter::Text(const char* name, std::string_view text) {
  const hid_t type = kinds_.TextOf(std::max<size_t>(1, text.size()));
  const std::string padded = text.empty() ? std::string(1, '\0') : std::string(text);
  Write(name, type, type, kinds_.Scalar(), padded.data());
}

void AttributeWriter::VariableText(const char* name, const std::string& text) {
  const hid_t type = kinds_.TextOf(H5T_VARIABLE);
  const char* start = text.c_str();
  Write(name, type, type, kinds_.Scalar(), &start);
}

void AttributeWriter::Integer(const char* name, int64_t value) {
  Write(name, H5T_STD_I64LE, H5T_NATIVE_INT64, kinds_.Scalar(), &value);
}

void AttributeWriter::Natural(const char* name, uint64_t value) {
  if (value <= std::numeric_limits<int64_t>::max()) {
    Integer(name, static_cast<int64_t>(value));
  } else {
    Write(name, H5T_STD_U64LE, H5T_NATIVE_UINT64, kinds_.Scalar(), &value);
  }
}

void AttributeWriter::Integers(const char* name, const std::vector<int64_t>& values) {
  const hid_t line = kinds_.LineSpace(values.size());
  Write(name, H5T_STD_I64LE, H5T_NATIVE_INT64, line, values.empty() ? nullptr : values.data());
}

void AttributeWriter::Texts(const char* name, const std::vector<std::string>& texts) {
  size_t longest = 1;
  for (const std::string& text : texts) longest = std::max(longest, text.size());
  const hid_t type = kinds_.TextOf(longest);
  std::string bytes;
  for (const std::string& text : texts) bytes.append(text).append(longest - text.size(), '\0');
  const hid_t line = kinds_.LineSpace(texts.size());
  Write(name, type, type, line, texts.empty() ? nullptr : bytes.data());
}

// `data` is null for an empty dataspace.
void AttributeWriter::Write(const char* name, hid_t file_type, hid_t memory_type, hid_t space,
                            const void* data) {
  Attribute attribute(H5Acreate2(object_, name, file_type, space, H5P_DEFAULT, H5P_DEFAULT),
                      "create an attribute");
  if (data != nullptr) Require(H5Awrite(attribute, memory_type, data), "write an attribute");
  attribute.Close("close an attribute");
}

GroupStack::GroupStack(hid_t file)
    : file_(file), create_(H5Pcreate(H5P_GROUP_CREATE), "make group properties") {
  Require(H5Pset_obj_track_times(create_, false), "turn off times");
}

hid_t GroupStack::Open(const std::string& dataset, std::string* name) {
  size_t start = 1, depth = 0;
  for (size_t slash; (slash = dataset.find('/', start)) != std::string::npos; start = slash + 1) {
    const std::string part = dataset.substr(start, slash - start);
    if (depth < open_.size() && open_[depth].first != part) {
      open_.erase(open_.begin() + static_cast<ptrdiff_t>(depth), open_.end());
    }
    if (depth == open_.size()) {
      const hid_t parent = depth == 0 ? file_ : static_cast<hid_t>(open_.back().second);
      const htri_t exists = H5Lexists(parent, part.c_str(), H5P_DEFAULT);
      if (exists < 0) Fail("look for a group");
      open_.emplace_back(
          part, exists ? Group(H5Gopen2(parent, part.c_str(), H5P_DEFAULT), "open a group")
                       : Group(H5Gcreate2(parent, part.c_str(), H5P_DEFAULT, create_, H5P_DEFAULT),
                               "create a group"));
    }
    ++depth;
  }
  open_.erase(open_.begin() + static_cast<ptrdiff_t>(depth), open_.end());
  *name = dataset.substr(start);
  return depth == 0 ? file_ : static_cast<hid_t>(open_.back().second);
}

namespace {

hid_t StandardType(DType dtype) {
  // HDF5's names are variables, which are set once HDF5 has started.
  const std::pair<DType, hid_t> types[] = {
      {DType::f32, H5T_IEEE_F32LE}, {DType::f64, H5T_IEEE_F64LE},   {DType::i8, H5T_STD_I8LE},
      {DType::i16, H5T_STD_I16LE},  {DType::i32, H5T_STD_I32LE},    {DType::i64, H5T_STD_I64LE},
      {DType::u8, H5T_STD_U8LE},    {DType::u16, H5T_STD_U16LE},    {DType::u32, H5T_STD_U32LE},
      {DType::u64, H5T_STD_U64LE},  {DType::boolean, H5T_STD_U8LE},
  };
  for (const auto& [known, type] : types) {
    if (known == dtype) return type;
  }
  return H5I_INVALID_HID;
}

}  // namespace

Datatype TypeOf(DType dtype) {
  if (const hid_t standard = StandardType(dtype); standard >= 0) {
    return {H5Tcopy(standard), "copy a type"};
  }
  const DTypeInfo& info = InfoOf(dtype);
  const size_t bits = 8 * static_cast<size_t>(info.bytes);
  const size_t mantissa = static_cast<size_t>(info.mantissa_bits);
  const size_t exponent = static_cast<size_t>(info.exponent_bits);
  Datatype type(H5Tcopy(H5T_IEEE_F32LE), "copy a type");
  Require(H5Tset_fields(type, bits - 1, mantissa, exponent, 0, mantissa), "set a type's fields");
  Require(H5Tset_precision(type, bits), "set a type's precision");
  Require(H5Tset_size(type, bits / 8), "set a type's size");
  Require(H5Tset_ebias(type, (size_t{1} << (exponent - 1)) - 1), "set a type's exponent bias");
  return type;
}

std::string LastReason() {
  std::string reason = "unknown reason";
  H5Ewalk2(
      H5E_DEFAULT, H5E_WALK_UPWARD,
      [](unsigned n, const H5E_error2_t* e, void* out) -> herr_t {
        if (n == 0 && e->desc != nullptr) *static_cast<std::string*>(out) = e->desc;
        return 0;
      },
      &reason);
  // The system's own reason is somewhere in a paragraph of addresses.
  constexpr std::string_view kMark = "error message = '";
  if (const size_t start = reason.find(kMark); start != reason.npos) {
    const size_t text = start + kMark.size();
    return reason.substr(text, reason.find('\'', text) - text);
  }
  return reason;
}

void Fail(const std::string& doing) {
  const std::string reason = LastReason();
  ExitCode code = ExitCode::kWorld;
  // These errors have their own code in SystemError().
  for (const int error : {EROFS, EOPNOTSUPP, ENOSYS}) {
    if (reason == strerror(error)) code = SystemError(doing, "", error).code();
  }
  throw Error(code, fmt::format("HDF5 cannot {}: {}", doing, reason));
}

void SetUpLibrary() {
  for (const char* name :
       {"HDF5_PLUGIN_PATH", "HDF5_PLUGIN_PRELOAD", "HDF5_VDS_PREFIX", "HDF5_EXT_PREFIX",
        "HDF5_EXTFILE_PREFIX", "HDF5_VOL_CONNECTOR", "HDF5_DRIVER", "HDF5_USE_FILE_LOCKING",
        "HDF5_DISABLE_VERSION_CHECK", "HDF5_PREFER_PARALLEL_NATIVE"}) {
    unsetenv(name);
  }
  // Without this, HDF5's own clean-up at exit would crash after a failed close.
  Require(H5dont_atexit(), "start HDF5");
  Require(H5open(), "start HDF5");
  Require(H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr), "silence HDF5");
  Require(H5PLset_loading_state(0), "forbid HDF5 plugins");
}

}  // namespace shardinit::hdf5
