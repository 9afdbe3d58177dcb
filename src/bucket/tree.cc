#include "bucket/tree.h"

#include <fmt/format.h>

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "base/error.h"

namespace shardinit {
namespace {

// Returns whether a folder can contain a file or folder of this name.
bool IsName(std::string_view name) { return !name.empty() && name != "." && name != ".."; }

// Returns the prefix of all keys in the folder.
std::string BeginOf(const std::string& folder) { return folder.empty() ? "" : folder + "/"; }

bool IsWithin(const std::string& url, const std::string& folder) {
  return url == folder || url.starts_with(BeginOf(folder));
}

std::mutex trees_mutex;
std::vector<std::unique_ptr<BucketTree>> trees;

}  // namespace

BucketTree& BucketTree::Of(const std::string& url) {
  const std::lock_guard lock(trees_mutex);
  // Look before parsing: a listed name may be one that ParseBucketUrl() rejects.
  for (const auto& tree : trees) {
    if (IsWithin(url, tree->url_)) return *tree;
  }
  trees.push_back(std::unique_ptr<BucketTree>(new BucketTree(ParseBucketUrl(url))));
  return *trees.back();
}

std::string BucketTree::Add(Objects objects, ReadRange read) {
  static int64_t added = 0;
  const std::lock_guard lock(trees_mutex);
  // No store allows an underscore at the start of a bucket's name.
  const BucketUrl url{fmt::format("_added-{}", ++added), ""};
  trees.push_back(
      std::unique_ptr<BucketTree>(new BucketTree(url, std::move(objects), std::move(read))));
  return url.text();
}

void BucketTree::Remove(const std::string& url) {
  const std::lock_guard lock(trees_mutex);
  std::erase_if(trees, [&](const auto& tree) { return tree->url_ == url; });
}

BucketTree::BucketTree(const BucketUrl& url, Objects objects, ReadRange read)
    : bucket_(BucketUrl{url.bucket, ""}.text()),
      url_(url.text()),
      root_(url.prefix),
      objects_(std::move(objects)),
      read_(std::move(read)) {}

BucketTree::BucketTree(const BucketUrl& url) : BucketTree(url, {}, nullptr) {
  const auto store = std::make_shared<Store>(BucketUrl{url.bucket, ""});
  read_ = [store](const std::string& key, const ObjectInfo& object, int64_t offset, int64_t bytes) {
    return store->GetRange(key, object.etag, offset, bytes);
  };
  store->List(BeginOf(root_), [&](const std::string& key, const ObjectInfo& info) {
    objects_.emplace(key, info);
    return true;
  });
  if (root_.empty() || !objects_.empty()) return;
  if (auto info = store->Head(root_)) objects_.emplace(root_, *std::move(info));
}

std::string BucketTree::KeyOf(std::string_view url) const {
  Check(url.starts_with(bucket_), "a URL is of the bucket of its tree");
  url.remove_prefix(bucket_.size());
  while (url.starts_with('/')) url.remove_prefix(1);
  while (url.ends_with('/')) url.remove_suffix(1);
  return std::string(url);
}

const ObjectInfo* BucketTree::Find(std::string_view url) const {
  const auto found = objects_.find(KeyOf(url));
  return found == objects_.end() ? nullptr : &found->second;
}

bool BucketTree::IsFolder(std::string_view url) const {
  const std::string begin = BeginOf(KeyOf(url));
  const auto first = objects_.lower_bound(begin);
  return first != objects_.end() && first->first.starts_with(begin);
}

void BucketTree::Walk(
    std::string_view url,
    const std::function<bool(const std::string& name, bool is_folder)>& visit) const {
  WalkBelow(BeginOf(KeyOf(url)), "", visit);
}

void BucketTree::WalkBelow(
    const std::string& folder, const std::string& prefix,
    const std::function<bool(const std::string& name, bool is_folder)>& visit) const {
  auto next = objects_.lower_bound(folder);
  while (next != objects_.end() && next->first.starts_with(folder)) {
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
    next = objects_.lower_bound(folder + inner + static_cast<char>('/' + 1));
  }
}

std::string BucketTree::Read(std::string_view url, int64_t offset, int64_t bytes) {
  const std::string key = KeyOf(url);
  return read_(key, objects_.at(key), offset, bytes);
}

}  // namespace shardinit
