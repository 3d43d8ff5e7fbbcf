#include "server/tier/open_files.h"

#include <algorithm>
#include <utility>

#include "server/base/check.h"

namespace kvstream::tier {

OpenFile* OpenFiles::Find(const std::string& path) {
  const auto it = files_.find(path);
  return it == files_.end() ? nullptr : it->second.get();
}

OpenFile* OpenFiles::Insert(const std::string& path) {
  auto file = std::make_unique<OpenFile>();
  file->path = path;
  const auto [it, inserted] = files_.emplace(path, std::move(file));
  KV_CHECK(inserted);
  return it->second.get();
}

void OpenFiles::Acquire(OpenFile* file) {
  if (++file->users > 1) return;
  if (const auto it = idle_place_.find(file); it != idle_place_.end()) {
    idle_.erase(it->second);
    idle_place_.erase(it);
  }
}

std::unique_ptr<OpenFile> OpenFiles::Release(OpenFile* file) {
  KV_CHECK(file->users > 0);
  if (--file->users > 0) return nullptr;
  if (!file->forgotten) {
    idle_place_[file] = idle_.insert(idle_.end(), file);
    return nullptr;
  }
  const auto it = std::find_if(forgotten_.begin(), forgotten_.end(),
                               [file](const auto& f) { return f.get() == file; });
  KV_CHECK(it != forgotten_.end());
  std::unique_ptr<OpenFile> left = std::move(*it);
  forgotten_.erase(it);
  return left;
}

std::unique_ptr<OpenFile> OpenFiles::EvictIdle() {
  return idle_.empty() ? nullptr : Forget(idle_.front());
}

std::unique_ptr<OpenFile> OpenFiles::Forget(const std::string& path) {
  OpenFile* file = Find(path);
  return file == nullptr ? nullptr : Forget(file);
}

std::unique_ptr<OpenFile> OpenFiles::Forget(OpenFile* file) {
  if (file->forgotten) return nullptr;
  file->forgotten = true;
  const auto it = files_.find(file->path);
  std::unique_ptr<OpenFile> left = std::move(it->second);
  files_.erase(it);
  if (file->users > 0) {
    forgotten_.push_back(std::move(left));
    return nullptr;
  }
  if (const auto place = idle_place_.find(file); place != idle_place_.end()) {
    idle_.erase(place->second);
    idle_place_.erase(place);
  }
  return left;
}

std::vector<std::unique_ptr<OpenFile>> OpenFiles::ForgetAll() {
  std::vector<std::unique_ptr<OpenFile>> left;
  while (!files_.empty()) {
    std::unique_ptr<OpenFile> file = Forget(files_.begin()->second.get());
    if (file != nullptr) left.push_back(std::move(file));
  }
  return left;
}

}  // namespace kvstream::tier
