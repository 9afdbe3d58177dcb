#include "spec/file_kind.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <map>

#include "base/file.h"
#include "base/placeholder.h"

namespace shardinit {

constexpr FileKind kSpecKind = {
    "a spec", "`shardinit plan {0}` shows it, and `shardinit gen {0} -o DIR` makes its checkpoint"};
constexpr FileKind kConfigKind = {"a config.json of Hugging Face",
                                  "`shardinit import {} -o model.yaml` makes a spec of it; "
                                  "commands also take it in place of a spec"};
constexpr FileKind kPlanKind = {"the plan of a checkpoint",
                                "`shardinit diff {} SPEC` compares it with a spec; `shardinit "
                                "inspect DIR` shows the checkpoint's folder"};
constexpr FileKind kHdf5Kind = {"an HDF5 file", "`shardinit inspect {}` shows its contents"};
constexpr FileKind kSafetensorsKind = {
    "a safetensors file",
    "`shardinit inspect {}` shows it; `stats`, `digest`, `diff` and `convert` also take it"};
constexpr FileKind kTorchKind = {
    "a file of `torch.save`",
    "`shardinit inspect {}` shows it; `stats`, `digest`, `diff` and `convert` also take it"};

namespace {

constexpr FileKind kCheckpoint = {"a checkpoint",
                                  "`shardinit inspect {}` shows it; `verify`, `stats`, `diff`, "
                                  "`export`, `convert` and `reshard` also take it"};
constexpr FileKind kExport = {
    "an export",
    "`shardinit verify {0}` checks its bytes, and `shardinit verify {0} --spec SPEC` its values; "
    "`inspect`, `stats`, `digest`, `diff` and `convert` also take it"};
constexpr FileKind kModelFolder = {"a folder with a config.json", "name `{}/config.json` instead"};
constexpr FileKind kManifest = {"the manifest of a checkpoint",
                                "name the folder: `shardinit verify DIR`"};
constexpr FileKind kReceipt = {"the receipt of a rank",
                               "name the folder of the checkpoint: `shardinit verify DIR`"};
constexpr FileKind kRecord = {"the record of an export", "name the folder: `shardinit verify DIR`"};
constexpr FileKind kDigests = {"a list of digests",
                               "`shardinit digest SPEC --check {}` compares a spec with it"};
constexpr FileKind kAnswers = {"a file of known answers",
                               "`shardinit conformance {}` compares them with its own values"};
constexpr FileKind kIndex = {
    "the index of safetensors files",
    "`shardinit verify DIR --spec SPEC` compares their folder with a spec"};
constexpr FileKind kArchive = {"a ZIP archive", "unpack it, and name a file with tensors"};
constexpr FileKind kNumPy = {
    "a file of NumPy",
    "`safetensors.numpy.save_file(dict(numpy.load(\"{}\")), \"model.safetensors\")` writes a file "
    "that shardinit reads"};
constexpr FileKind kKeras = {
    "an archive of Keras",
    "unpack it: `shardinit inspect model.weights.h5` shows the weights in it"};
constexpr FileKind kGguf = {
    "a GGUF file", "no command reads it: name the safetensors files from which it was converted"};
constexpr FileKind kPython = {"Python source",
                              "`shardinit-capture torch MODULE:CALLABLE -o model.yaml` makes a "
                              "spec from the class or function that constructs the model"};

constexpr FileKind kSchema = {
    "a JSON schema",
    "editors read it; a spec names it in its first line: `# yaml-language-server: $schema={}`"};

constexpr size_t kHead = 64 << 10;  // bytes that KindOfPath reads of a file

// JSON files are recognized by their first key, then by a key that only they have. The first
// matching row wins.
constexpr struct {
  std::string_view first, key;  // empty `first`: any
  const FileKind* kind;
} kJsonKinds[] = {
    {"\"export_version\"", "", &kRecord},
    {"\"format_version\"", "\"metadata_sha256\"", &kReceipt},
    {"\"format_version\"", "\n \"plan_sha256\"", &kManifest},
    {"\"format_version\"", "", &kPlanKind},
    {"\"contract_version\"", "\"model_digest\"", &kDigests},
    {"\"contract_version\"", "\"vectors\"", &kAnswers},
    {"\"$schema\"", "", &kSchema},
    {"", "\"shardinit\"", &kSpecKind},
    {"", "\"weight_map\"", &kIndex},
    {"", "\"model_type\"", &kConfigKind},
};

bool IsSafetensors(std::string_view text) {
  // The length of a header, in eight bytes, is followed by a JSON object.
  return text.size() > 9 && text.substr(4, 4) == std::string_view("\0\0\0\0", 4) &&
         text.substr(8, 2) == "{\"";
}

// Recognizes an archive by the name of its first file, at byte 30 of its header.
const FileKind* KindOfArchive(std::string_view text) {
  if (text.size() < 30) return &kTorchKind;
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const std::string_view name = text.substr(30, byte(26) + size_t{256} * byte(27));
  if (name.ends_with(".npy")) return &kNumPy;
  if (name == "metadata.json" || name == "config.json" || name.ends_with(".h5")) return &kKeras;
  // PyTorch stores all files in one folder, such as data.pkl, data/0 and version.
  const std::string_view record = name.substr(std::min(name.find('/'), name.size()));
  const bool is_torch = record.starts_with("/data") || record == "/version";
  return is_torch ? &kTorchKind : &kArchive;
}

// Returns whether the text begins as in `torch.save` before it wrote archives: with a pickled
// number, written out in protocol 1.
bool IsOldTorch(std::string_view text) {
  return (text.starts_with('\x80') &&
          text.substr(0, 32).find("\x8a\nl\xfc\x9c\x46\xf9 j\xa8P\x19.") != text.npos) ||
         text.starts_with("L119547037146038801333356L\n.");
}

// Returns the first bytes of a file, without waiting for a writer. Empty if it cannot be read.
std::string HeadOf(const std::string& path) {
  const Fd fd = OpenAt(AT_FDCWD, path, O_RDONLY | O_NONBLOCK);
  struct stat info;
  if (!fd || fstat(fd.get(), &info) != 0 || !S_ISREG(info.st_mode)) return {};
  std::string head(std::min<size_t>(kHead, static_cast<size_t>(info.st_size)), '\0');
  return ReadAll(fd.get(), head.data(), head.size(), 0) ? head : std::string();
}

}  // namespace

const FileKind* KindOfText(std::string_view name, std::string_view text) {
  if (const Placeholder* found = FindPlaceholder(text)) {
    static std::map<const Placeholder*, FileKind> kinds;  // of the rows of one table
    return &kinds.try_emplace(found, FileKind{found->name, found->hint}).first->second;
  }
  if (text.starts_with("\x93NUMPY")) return &kNumPy;
  if (text.starts_with("GGUF")) return &kGguf;
  if (text.starts_with("\x89HDF\r\n\x1a\n")) return &kHdf5Kind;
  if (text.starts_with("PK\x03\x04")) return KindOfArchive(text);
  if (IsOldTorch(text)) return &kTorchKind;
  if (IsSafetensors(text)) return &kSafetensorsKind;
  if (name.ends_with(".py")) return &kPython;
  constexpr std::string_view kSpace = " \t\r\n";
  const size_t brace = std::min(text.find_first_not_of(kSpace), text.size());
  if (text.substr(brace).starts_with('{')) {
    const size_t first = std::min(text.find_first_not_of(kSpace, brace + 1), text.size());
    for (const auto& row : kJsonKinds) {
      if (text.substr(first).starts_with(row.first) && text.find(row.key) != text.npos)
        return row.kind;
    }
    return nullptr;
  }
  const bool is_spec = text.starts_with("shardinit:") || text.find("\nshardinit:") != text.npos;
  return is_spec ? &kSpecKind : nullptr;
}

const FileKind* KindOfPath(const std::string& path) try {
  if (!IsFolder(path)) return KindOfText(path, HeadOf(path));
  const auto holds = [&](std::string_view name) {
    return Exists(fmt::format("{}/{}", path, name));
  };
  if (holds(kPlanName)) return &kCheckpoint;
  if (holds(kExportName)) return &kExport;
  return holds("config.json") ? &kModelFolder : nullptr;
} catch (const Error&) {
  return nullptr;  // the caller that reads it reports the error
}

std::string HintOf(const FileKind& kind, std::string_view path) {
  if (path.starts_with('<')) path = "FILE";  // standard input
  return fmt::format(fmt::runtime(kind.hint), path);
}

Error WrongKind(const FileKind& kind, const std::string& path, std::string_view wanted) {
  return Usage(fmt::format("`{}` is {}, not {}", path, kind.name, wanted), HintOf(kind, path));
}

std::optional<Error> WrongKind(const std::string& path, std::string_view wanted) {
  const FileKind* kind = KindOfPath(path);
  if (kind == nullptr) return {};
  return WrongKind(*kind, path, wanted);
}

Error UnfinishedExport(const std::string& place) {
  return Usage(fmt::format("`{}` is an unfinished export: it has no {}", place, kExportName),
               "rerun the command that wrote it");
}

}  // namespace shardinit
