#include "bucket/tree.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "base/error.h"
#include "bucket/hub.h"
#include "bucket/web_folder.h"

namespace shardinit {
namespace {

// Returns whether a folder can contain a file or folder of this name.
bool IsName(std::string_view name) { return !name.empty() && name != "." && name != ".."; }

// Returns the prefix of all keys in the folder.
std::string BeginOf(const std::string& folder) { return folder.empty() ? "" : folder + "/"; }

bool IsWithin(const std::string& url, const std::string& folder) {
  return url == folder || url.starts_with(BeginOf(folder));
}

BucketTree::Parts ListBucket(const BucketUrl& url) {
  const auto store = std::make_shared<Store>(BucketUrl{url.bucket, ""});
  BucketTree::Parts parts{store->url().text(), url.prefix, {}, nullptr};
  parts.read = [store](const std::string& key, const ObjectInfo& object, int64_t offset,
                       int64_t bytes) { return store->GetRange(key, object.etag, offset, bytes); };
  store->List(BeginOf(url.prefix), [&](const std::string& key, const ObjectInfo& info) {
    parts.objects.emplace(key, info);
    return true;
  });
  if (url.prefix.empty() || !parts.objects.empty()) return parts;
  if (auto info = store->Head(url.prefix)) parts.objects.emplace(url.prefix, *std::move(info));
  return parts;
}

BucketTree::Parts List(const std::string& url) {
  if (IsBucketUrl(url)) return ListBucket(ParseBucketUrl(url));
  return url.starts_with(kHubScheme) ? ListHub(url) : ListWeb(url);
}

std::mutex trees_mutex;
std::vector<std::unique_ptr<BucketTree>> trees;

}  // namespace

BucketTree& BucketTree::Of(const std::string& url) {
  const std::lock_guard lock(trees_mutex);
  // Look before parsing: a listed name may be one that ParseBucketUrl() rejects.
  // The list of a web server's folder lacks files that its index does not name.
  const bool may_be_new = NamesWebFile(url) && !url.ends_with("/model.safetensors.index.json");
  for (const auto& tree : trees) {
    if (!IsWithin(url, tree->url_)) continue;
    if (!may_be_new || tree->asked_ == url || tree->Find(url) != nullptr) return *tree;
  }
  Parts parts = List(url);
  const auto same = std::ranges::find_if(
      trees, [&](const auto& tree) { return parts.root.empty() && tree->url_ == parts.base; });
  if (same != trees.end()) {
    // A second index adds files to its folder. The other files must keep their versions.
    Objects known = (*same)->parts_.objects;
    known.merge(parts.objects);
    parts.objects = std::move(known);
  }
  BucketTree& tree =
      **trees.insert(same, std::unique_ptr<BucketTree>(new BucketTree(std::move(parts))));
  tree.asked_ = url;
  return tree;
}

std::string BucketTree::Add(Objects objects, ReadRange read) {
  static int64_t added = 0;
  const std::lock_guard lock(trees_mutex);
  // No store allows an underscore at the start of a bucket's name.
  const BucketUrl url{fmt::format("_added-{}", ++added), ""};
  trees.push_back(std::unique_ptr<BucketTree>(
      new BucketTree({url.text(), "", std::move(objects), std::move(read)})));
  return url.text();
}

void BucketTree::Remove(const std::string& url) {
  const std::lock_guard lock(trees_mutex);
  std::erase_if(trees, [&](const auto& tree) { return tree->url_ == url; });
}

BucketTree::BucketTree(Parts parts)
    : parts_(std::move(parts)),
      url_(parts_.root.empty() ? parts_.base : parts_.base + "/" + parts_.root) {}

std::string BucketTree::KeyOf(std::string_view url) const {
  Check(url.starts_with(parts_.base), "a URL is of the place of its tree");
  url.remove_prefix(parts_.base.size());
  while (url.starts_with('/')) url.remove_prefix(1);
  while (url.ends_with('/')) url.remove_suffix(1);
  return std::string(url);
}

const ObjectInfo* BucketTree::Find(std::string_view url) const {
  const auto found = parts_.objects.find(KeyOf(url));
  return found == parts_.objects.end() ? nullptr : &found->second;
}

bool BucketTree::IsFolder(std::string_view url) const {
  const std::string begin = BeginOf(KeyOf(url));
  const auto first = parts_.objects.lower_bound(begin);
  return first != parts_.objects.end() && first->first.starts_with(begin);
}

void BucketTree::Walk(
    std::string_view url,
    const std::function<bool(const std::string& name, bool is_folder)>& visit) const {
  WalkBelow(BeginOf(KeyOf(url)), "", visit);
}

void BucketTree::WalkBelow(
    const std::string& folder, const std::string& prefix,
    const std::function<bool(const std::string& name, bool is_folder)>& visit) const {
  auto next = parts_.objects.lower_bound(folder);
  while (next != parts_.objects.end() && next->first.starts_with(folder)) {
    const std::string name = next->first.substr(folder.size());
    const size_t slash = name.find('/');
    if (slash == name.npos) {
      // Some tools create empty objects for folders.
      if (IsName(name)) visit(prefix + name, false);
      ++next;
      continue;
    }
    const std::string inner = name.substr(0, slash);
    if (IsName(inner) && visit(prefix + inner, true)) {
      WalkBelow(folder + inner + "/", prefix + inner + "/", visit);
    }
    next = parts_.objects.lower_bound(folder + inner + static_cast<char>('/' + 1));
  }
}

std::string BucketTree::Read(std::string_view url, int64_t offset, int64_t bytes) {
  const std::string key = KeyOf(url);
  return parts_.read(key, parts_.objects.at(key), offset, bytes);
}

}  // namespace shardinit
