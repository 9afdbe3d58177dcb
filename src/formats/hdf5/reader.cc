#include "formats/hdf5/reader.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <exception>
#include <new>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/interrupt.h"
#include "base/json.h"
#include "base/parse_number.h"
#include "base/text.h"
#include "formats/hdf5/build.h"
#include "formats/hdf5/confine.h"
#include "formats/hdf5/descriptor_file.h"
#include "formats/hdf5/layout.h"

namespace shardinit::hdf5 {
namespace {

constexpr int kMaxDepth = 64;
constexpr int64_t kMaxObjects = 4'000'000;
constexpr size_t kMaxText = 4096;

template <typename... T>
[[noreturn]] void Refuse(fmt::format_string<T...> what, T&&... of) {
  throw Error(ExitCode::kRefused, fmt::format(what, std::forward<T>(of)...));
}

// An attribute, with the properties that decide whether it may be read.
struct OpenAttribute {
  OpenAttribute(hid_t object, const char* name)
      : attribute(H5Aopen(object, name, H5P_DEFAULT), "open an attribute"),
        type(H5Aget_type(attribute), "read a type"),
        space(H5Aget_space(attribute), "read a dataspace") {}

  H5S_class_t extent() const { return H5Sget_simple_extent_type(space); }
  bool IsShortText() const {
    return H5Tget_class(type) == H5T_STRING && H5Tis_variable_str(type) == 0 &&
           H5Tget_size(type) <= kMaxText;
  }
  void Read(hid_t memory_type, void* out) const {
    Require(H5Aread(attribute, memory_type, out), "read an attribute");
  }

  Attribute attribute;
  Datatype type;
  Dataspace space;
};

bool Has(hid_t object, const char* name) {
  const htri_t found = H5Aexists(object, name);
  Require(found, "look for an attribute");  // An attribute that cannot be read is not absent.
  return found > 0;
}

std::string ReadText(hid_t object, const char* name) {
  const OpenAttribute opened(object, name);
  if (!opened.IsShortText() || opened.extent() != H5S_SCALAR) {
    Refuse("the attribute `{}` is not a short text", name);
  }
  std::string text(H5Tget_size(opened.type), '\0');
  opened.Read(opened.type, text.data());
  return text.substr(0, text.find('\0'));
}

// Reads integers as a memory type `T`; clamps values that `T` lacks.
template <typename T>
std::vector<T> ReadList(hid_t object, const char* name, hid_t memory_type) {
  const OpenAttribute opened(object, name);
  if (opened.extent() == H5S_NULL) return {};
  const hssize_t count = H5Sget_simple_extent_npoints(opened.space);
  if (H5Tget_class(opened.type) != H5T_INTEGER || count < 0 || count > 32) {
    Refuse("the attribute `{}` is not a short list of integers", name);
  }
  std::vector<T> values(static_cast<size_t>(count));
  opened.Read(memory_type, values.data());
  return values;
}

std::vector<int64_t> ReadIntegers(hid_t object, const char* name) {
  return ReadList<int64_t>(object, name, H5T_NATIVE_INT64);
}

// Reads texts of equal length, padded with zero bytes: see AttributeWriter::Texts.
std::vector<std::string> ReadTexts(hid_t object, const char* name) {
  const OpenAttribute opened(object, name);
  if (opened.extent() == H5S_NULL) return {};
  const hssize_t count = H5Sget_simple_extent_npoints(opened.space);
  if (!opened.IsShortText() || count < 0 || count > 32) {
    Refuse("the attribute `{}` is not a short list of texts", name);
  }
  const size_t size = H5Tget_size(opened.type);
  std::string bytes(size * static_cast<size_t>(count), '\0');
  opened.Read(opened.type, bytes.data());
  std::vector<std::string> texts;
  for (size_t at = 0; at < bytes.size(); at += size) {
    const std::string text = bytes.substr(at, size);
    texts.push_back(text.substr(0, text.find('\0')));
  }
  return texts;
}

// Returns whether a selection is unlimited. HDF5 finds an unlimited extent by looking into all
// sources, whose names a file may generate (`w-%b.h5`). It opens them when it is asked for the
// dataset's dataspace.
bool IsUnlimited(hid_t selection) {
  if (H5Sget_select_type(selection) != H5S_SEL_HYPERSLABS ||
      H5Sis_regular_hyperslab(selection) <= 0) {
    return false;
  }
  hsize_t start[H5S_MAX_RANK], stride[H5S_MAX_RANK], count[H5S_MAX_RANK], block[H5S_MAX_RANK];
  Require(H5Sget_regular_hyperslab(selection, start, stride, count, block), "read a selection");
  for (int d = 0; d < H5Sget_simple_extent_ndims(selection); ++d) {
    if (count[d] == H5S_UNLIMITED || block[d] == H5S_UNLIMITED) return true;
  }
  return false;
}

void RefuseUnlimited(hid_t create, const std::string& path) {
  size_t sources = 0;
  Require(H5Pget_virtual_count(create, &sources), "read a list of sources");
  for (size_t i = 0; i < sources; ++i) {
    const Dataspace whole(H5Pget_virtual_vspace(create, i), "read a selection");
    const Dataspace source(H5Pget_virtual_srcspace(create, i), "read a selection");
    if (IsUnlimited(whole) || IsUnlimited(source)) {
      Refuse("{} refers to other files without end", Quote(path));
    }
  }
}

// Walks groups by hard links only; refuses soft and external links unread.
class Lister {
 public:
  Lister(JsonWriter& out, size_t most) : out_(out), most_(most) {}

  void Group(hid_t group, const std::string& path, int depth) {
    if (depth > kMaxDepth) Refuse("groups are nested over {} levels", kMaxDepth);
    for (const std::string& name : NamesIn(group)) {
      Link(group, fmt::format("{}/{}", path, name), name, depth);
    }
  }

 private:
  // Returns all names at once: to find the i-th name, HDF5 would sort them all.
  std::vector<std::string> NamesIn(hid_t group) {
    std::vector<std::string> names;
    const H5L_iterate_t add = [](hid_t, const char* name, const H5L_info_t*, void* to) {
      auto& all = *static_cast<std::vector<std::string>*>(to);
      all.emplace_back(name);
      const bool usable = !all.back().empty() && all.back().size() <= kMaxText;
      return usable && std::ssize(all) <= kMaxObjects ? 0 : 1;
    };
    const herr_t ended = H5Literate(group, H5_INDEX_NAME, H5_ITER_INC, nullptr, add, &names);
    Require(ended, "list a group");
    objects_ += std::ssize(names);
    if (objects_ > kMaxObjects) Refuse("there are over {} objects", kMaxObjects);
    if (ended > 0) Refuse("a link has no usable name");
    return names;
  }

  void Link(hid_t group, const std::string& path, const std::string& name, int depth) {
    H5L_info_t link;
    Require(H5Lget_info(group, name.c_str(), &link, H5P_DEFAULT), "read a link");
    if (link.type != H5L_TYPE_HARD) Refuse("{} is a link to elsewhere", Quote(path));
    H5O_info_t object;
    Require(H5Oget_info_by_name(group, name.c_str(), &object, H5P_DEFAULT), "read an object");
    if (object.type == H5O_TYPE_GROUP) {
      const hdf5::Group inner(H5Gopen2(group, name.c_str(), H5P_DEFAULT), "open a group");
      Group(inner, path, depth + 1);
    } else if (object.type == H5O_TYPE_DATASET) {
      const Dataset dataset(H5Dopen2(group, name.c_str(), H5P_DEFAULT), "open a dataset");
      Describe(dataset, path);
    } else {
      Refuse("{} is neither a group nor a dataset", Quote(path));
    }
  }

  void Describe(const Dataset& dataset, const std::string& path) {
    const PropertyList create(H5Dget_create_plist(dataset), "read dataset properties");
    const H5D_layout_t layout = H5Pget_layout(create);
    if (H5Pget_external_count(create) > 0) {
      Refuse("{} keeps its data in other files", Quote(path));
    }
    if (layout == H5D_VIRTUAL) RefuseUnlimited(create, path);
    const Dataspace space(H5Dget_space(dataset), "read a dataspace");
    const int rank = H5Sget_simple_extent_ndims(space);
    if (rank < 0 || rank > 32) Refuse("{} has no shape", Quote(path));
    std::vector<hsize_t> extents(static_cast<size_t>(rank));
    if (rank > 0) H5Sget_simple_extent_dims(space, extents.data(), nullptr);
    out_.BeginObject().Member("dataset", path);
    out_.Member("path", Has(dataset, kPath) ? ReadText(dataset, kPath) : "");
    out_.Member("dtype", Has(dataset, kDType) ? ReadText(dataset, kDType) : "");
    if (Has(dataset, kGlobalShape))
      out_.Member("global_shape", ReadIntegers(dataset, kGlobalShape));
    if (Has(dataset, kOffset)) out_.Member("offset", ReadIntegers(dataset, kOffset));
    out_.Member("shape", std::vector<int64_t>(extents.begin(), extents.end()));
    out_.Member("layout", layout == H5D_CONTIGUOUS ? "contiguous"
                          : layout == H5D_VIRTUAL  ? "virtual"
                          : layout == H5D_CHUNKED  ? "chunked"
                                                   : "compact");
    const haddr_t offset = layout == H5D_CONTIGUOUS ? H5Dget_offset(dataset) : HADDR_UNDEF;
    if (offset != HADDR_UNDEF) out_.Member("file_offset", static_cast<int64_t>(offset));
    out_.EndObject();
    if (out_.size() > most_) {
      Refuse("its list of datasets has over {} bytes, too much for a file of this size", most_);
    }
  }

  JsonWriter& out_;
  const size_t most_;
  int64_t objects_ = 0;
};

void Limit(int resource, rlim_t most, rlim_t hard = 0) {
  const rlimit limit = {most, std::max(most, hard)};
  setrlimit(static_cast<__rlimit_resource>(resource), &limit);
}

std::string Describe(DescriptorFile& input, size_t most) {
  const File file = input.Open();
  JsonWriter out;
  out.BeginObject(JsonWriter::kLines);
  for (const char* name : {kFormatVersionName, kContractVersionName, kSeed, kRank, kWorldSize}) {
    if (!Has(file, name)) continue;
    // A seed may be unsigned.
    if (name == std::string_view(kSeed)) {
      const auto seed = ReadList<uint64_t>(file, name, H5T_NATIVE_UINT64);
      if (seed.size() == 1) out.Member(name, seed[0]);
      continue;
    }
    const std::vector<int64_t> value = ReadIntegers(file, name);
    if (value.size() == 1) out.Member(name, value[0]);
  }
  for (const char* name : {kEngine, kPlanSha256}) {
    if (Has(file, name)) out.Member(name, ReadText(file, name));
  }
  if (Has(file, kMeshAxes)) out.Member(kMeshAxes, ReadTexts(file, kMeshAxes));
  for (const char* name : {kMeshShape, kCoordinate}) {
    if (Has(file, name)) out.Member(name, ReadIntegers(file, name));
  }
  out.Key("datasets").BeginArray(JsonWriter::kLines);
  const Group root(H5Gopen2(file, "/", H5P_DEFAULT), "open the root group");
  Lister(out, most).Group(root, "", 0);
  out.EndArray().EndObject();
  return out.Finish();
}

// An answer begins with a byte for its kind: a description, the reason for a refusal, or the errno
// of a failed read.
constexpr char kDescription = '+', kRefusal = '-', kFailure = '!';

// Does all of the child's work.
[[noreturn]] void Answer(int fd, int64_t size, int out, size_t most) {
  Limit(RLIMIT_CPU, 20, 21);  // The first limit sends SIGXCPU, the second SIGKILL.
  Limit(RLIMIT_FSIZE, 0);
  Limit(RLIMIT_CORE, 0);
  DescriptorFile input(fd, size);
  std::string answer;
  try {
#ifndef SHARDINIT_SANITIZED  // A sanitizer needs more memory, files and calls.
    // Nothing can be opened: no source, link, plugin or FIFO that the file names.
    Limit(RLIMIT_NOFILE, 0);
    Limit(RLIMIT_AS, rlim_t{1} << 30);
    Confine(out);
#endif
    answer = kDescription + Describe(input, most);
  } catch (const std::bad_alloc&) {
    // This allocates no memory. A text that would be too long was refused earlier.
    answer = kFailure + std::to_string(ENOMEM);
  } catch (const std::exception& e) {
    answer = input.error() != 0 ? kFailure + std::to_string(input.error())
                                : kRefusal + std::string(e.what());
  }
  for (size_t at = 0; at < answer.size();) {
    const ssize_t n = write(out, answer.data() + at, answer.size() - at);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    at += static_cast<size_t>(n);
  }
  _exit(0);
}

// Returns the most bytes of a description. A dataset of this tool takes more bytes in its file than
// in the description. But links that lead to the same groups repeatedly can make a text of any
// length.
size_t MostText(int64_t file_size) {
  return std::min(size_t{1} << 30, (size_t{1} << 20) + 4 * static_cast<size_t>(file_size));
}

// The bytes that came through the pipe, and how reading ended.
struct ChildAnswer {
  std::string text;
  bool is_whole = false;  // false if it has over `most` bytes or does not end in time
  int error = 0;          // errno if the pipe itself failed
};

ChildAnswer ReadAnswer(int in, size_t most, std::chrono::milliseconds time) {
  const auto end = std::chrono::steady_clock::now() + time;
  ChildAnswer answer;
  char buffer[1 << 16];
  while (PendingSignal() == 0) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        end - std::chrono::steady_clock::now());
    pollfd from = {in, POLLIN, 0};
    const int ready = left.count() > 0 ? poll(&from, 1, static_cast<int>(left.count())) : 0;
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) return answer;
    const ssize_t n = read(in, buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) answer.error = errno;
    if (n == 0) answer.is_whole = true;
    if (n <= 0 || answer.text.size() + static_cast<size_t>(n) > most) return answer;
    answer.text.append(buffer, static_cast<size_t>(n));
  }
  return answer;
}

}  // namespace

std::string DescribeFile(const std::string& path, std::chrono::milliseconds time) {
  const Fd fd = OpenToRead(path);
  struct stat info;
  if (fstat(fd.get(), &info) != 0) throw SystemError("read", path);
  const size_t most = MostText(info.st_size);
  const SignalsWait signals;  // Signals wait until the child has ended.
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) throw SystemError("read", path);
  const Fd in(ends[0]);
  Fd out(ends[1]);
  const pid_t child = fork();
  if (child < 0) throw SystemError("start a process to read", path);
  if (child == 0) {
    // If the parent is killed, the pipe has no reader left, and the child's write ends.
    close(in.get());
    Answer(fd.get(), info.st_size, out.get(), most);
  }
  out.Close();
  // The last dataset may exceed the limit by its own length, and the child refuses it.
  const ChildAnswer answered = ReadAnswer(in.get(), most + (size_t{1} << 20), time);
  const std::string& answer = answered.text;
  if (!answered.is_whole) kill(child, SIGKILL);
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  ThrowIfInterrupted();
  if (answered.error != 0) throw SystemError("read", path, answered.error);
  // The child's limits end it by other signals.
  if (answered.is_whole && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) {
    throw Error(ExitCode::kWorld, fmt::format("the process that reads `{}` was killed", path),
                "if memory was short, run the same command on a machine with more");
  }
  if (!answered.is_whole || !WIFEXITED(status) || answer.empty()) {
    Refuse("`{}` is refused: reading its structure crashed HDF5 or took too much", path);
  }
  if (answer[0] == kFailure) {
    throw SystemError("read", path, ParseNumber<int>(answer.substr(1)).value_or(EIO));
  }
  if (answer[0] != kDescription) Refuse("`{}` is refused: {}", path, answer.substr(1));
  // The file may control the child by now.
  if (!nlohmann::json::accept(answer.begin() + 1, answer.end())) {
    Refuse("`{}` is refused: reading it gave no description", path);
  }
  return answer.substr(1);
}

}  // namespace shardinit::hdf5
