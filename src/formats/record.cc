#include "formats/record.h"

#include <fmt/format.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json.h"
#include "base/text.h"

namespace shardinit {
namespace {

using nlohmann::json;

[[noreturn]] void Refuse(const std::string& record, std::string_view what) {
  throw Error(ExitCode::kRefused,
              fmt::format("`{}` is not the record of an export: {}", record, what));
}

int64_t PlaceIn(const json& number, int64_t low, int64_t high, const std::string& record) {
  if (!number.is_number_unsigned() || number > high || number < low) {
    Refuse(record, fmt::format("a size or offset must be a whole number from {} to {}, not {}", low,
                               high, number.dump()));
  }
  return number;
}

// Returns a path within the folder: a record must not refer to files elsewhere.
std::string PathIn(const json& name, const std::string& record) {
  const std::string path = name.get<std::string>();
  const std::string parts = "/" + path + "/";
  if (path.empty() || parts.find("//") != parts.npos || parts.find("/./") != parts.npos ||
      parts.find("/../") != parts.npos || path.find('\0') != path.npos) {
    Refuse(record, fmt::format("its file {} is not in the folder", Quote(path)));
  }
  return path;
}

RecordedFile FileIn(const json& in, const std::string& record) {
  RecordedFile file{.path = PathIn(in.at("file"), record),
                    .size = PlaceIn(in.at("size"), 0, std::numeric_limits<int64_t>::max(), record),
                    .parts = {}};
  file.parts.push_back({"", 0, file.size, DigestIn(in.at("head_sha256"))});
  // Ends the last part here, and begins one that extends to the next part or to the end.
  const auto add = [&](const json& box, const char* place, const char* sha256) {
    RecordedFile::Part& last = file.parts.back();
    const int64_t offset = PlaceIn(box.at(place), last.offset, file.size, record);
    last.bytes = offset - last.offset;
    file.parts.push_back({box.at("path"), offset, file.size - offset, DigestIn(box.at(sha256))});
  };
  for (const json& box : in.at("boxes")) {
    add(box, "file_offset", "sha256");
    if (box.contains("tail_sha256")) add(box, "tail_offset", "tail_sha256");
    ++file.boxes;
  }
  return file;
}

}  // namespace

std::string WithDigest(std::string lines) {
  return fmt::format("{0} \"sha256\": \"{1}\"\n}}\n", lines, ToHex(Sha256Of(lines)));
}

bool HasOwnDigest(std::string_view record) {
  const size_t end = record.rfind("\n \"sha256\": ");
  return end != record.npos && WithDigest(std::string(record.substr(0, end + 1))) == record;
}

Record ReadRecord(std::string_view text, const std::string& path,
                  const std::function<void(const json& in)>& visit) {
  const json in = ParseJson(text, path);
  try {
    if (in.at("export_version") != kExportVersion) {
      Refuse(path, fmt::format("it has version {} instead of {}; export again, to another folder",
                               in.at("export_version").dump(), kExportVersion));
    }
    if (visit) visit(in);
    if (!HasOwnDigest(text)) {
      Refuse(path, "it is damaged: its digest does not match the lines before it");
    }
    Record record = {FindFormat(in.at("format").get<std::string>()), {}};
    if (record.format == nullptr)
      Refuse(path, fmt::format("this version cannot read format {}", in.at("format").dump()));
    for (const json& file : in.at("files")) record.files.push_back(FileIn(file, path));
    return record;
  } catch (const json::exception& e) {
    Refuse(path, ComplaintOf(e));
  }
}

}  // namespace shardinit
