#include "weft/kernels/plan/choice_cache.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <thread>
#include <utility>

#include "weft/core/base/error.h"
#include "weft/core/runtime/file.h"

namespace weft {
namespace {

constexpr std::string_view kFormat = "weft choices 1 ";
constexpr std::size_t kMostMachine = 1024;
constexpr std::size_t kChecksum = 16;
static_assert(kFormat.size() + kMostMachine + 1 + kMostChoices * (kMostChoiceLine + 1) <=
                  kMostChoiceBytes,
              "a full file can be read again");

std::string first_line(std::string_view machine) {
  return std::string(kFormat) + std::string(machine) + "\n";
}

bool fits(std::string_view machine) {
  return machine.size() <= kMostMachine && machine.find('\n') == std::string_view::npos;
}

// Without the checksum in front; empty when it would not come back the same.
std::string line_of(const Choice& c) {
  if (c.key.empty() || c.name.empty() || !std::isfinite(c.ms) || std::signbit(c.ms)) return {};
  if (c.name.find(' ') != std::string::npos) return {};
  std::array<char, 32> ms{};
  const auto [end, error] = std::to_chars(ms.data(), ms.data() + ms.size(), c.ms);
  if (error != std::errc()) return {};
  std::string line = c.key + ' ' + c.name + ' ' + std::string(ms.data(), end);
  const bool broken = line.find('\n') != std::string::npos;
  return broken || kChecksum + 1 + line.size() > kMostChoiceLine ? std::string() : line;
}

std::optional<Choice> choice_of(std::string_view line) {
  const auto last = line.rfind(' ');
  if (last == std::string_view::npos || last == 0) return std::nullopt;
  const auto before = line.rfind(' ', last - 1);
  if (before == std::string_view::npos) return std::nullopt;
  Choice c{std::string(line.substr(0, before)),
           std::string(line.substr(before + 1, last - before - 1)), 0};
  const std::string_view ms = line.substr(last + 1);
  const auto [end, error] = std::from_chars(ms.data(), ms.data() + ms.size(), c.ms);
  if (error != std::errc() || end != ms.data() + ms.size()) return std::nullopt;
  // Read only what would be written.
  return line_of(c).empty() ? std::nullopt : std::optional(std::move(c));
}

// The text of a regular file that is not too large, else nothing. Neither waits for a pipe nor
// trusts the size it was told.
std::string read(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return {};
  std::string text;
  struct stat found{};
  if (::fstat(fd, &found) == 0 && S_ISREG(found.st_mode) &&
      found.st_size <= static_cast<off_t>(kMostChoiceBytes)) {
    text.resize(kMostChoiceBytes + 1);
    std::size_t size = 0;
    for (ssize_t n = 1; n > 0 && size < text.size(); size += n > 0 ? n : 0) {
      n = ::read(fd, text.data() + size, text.size() - size);
    }
    text.resize(size);
  }
  ::close(fd);
  return text;
}

// The lock dies with its owner. flock() itself knows no deadline.
int lock_file(const std::string& path, std::chrono::milliseconds longest) {
  const int flags = O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
  const int fd = ::open(path.c_str(), flags, 0666);
  if (fd < 0) return -1;
  const auto end = std::chrono::steady_clock::now() + longest;
  while (::flock(fd, LOCK_EX | LOCK_NB) != 0) {
    const bool held = errno == EWOULDBLOCK || errno == EINTR;
    if (!held || std::chrono::steady_clock::now() >= end) {
      ::close(fd);
      return -1;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return fd;
}

}  // namespace

std::string checksum(std::string_view text) {
  std::uint64_t sum = 0xcbf29ce484222325u;
  for (const char c : text) sum = (sum ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  std::string hex(kChecksum, '0');
  for (auto digit = hex.rbegin(); digit != hex.rend(); ++digit, sum >>= 4) {
    *digit = "0123456789abcdef"[sum & 15];
  }
  return hex;
}

std::vector<Choice> parse_choices(std::string_view text, std::string_view machine) {
  const std::string first = first_line(machine);
  if (text.size() > kMostChoiceBytes || !fits(machine) || !text.starts_with(first)) return {};
  text.remove_prefix(first.size());
  std::vector<Choice> choices;
  std::map<std::string, std::size_t, std::less<>> at;
  for (auto end = text.find('\n'); end != std::string_view::npos; end = text.find('\n')) {
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(end + 1);
    if (line.size() <= kChecksum || line[kChecksum] != ' ') continue;
    const std::string_view body = line.substr(kChecksum + 1);
    if (line.substr(0, kChecksum) != checksum(first + std::string(body))) continue;
    std::optional<Choice> choice = choice_of(body);
    if (!choice) continue;
    const auto [found, is_new] = at.emplace(choice->key, choices.size());
    if (is_new) {
      choices.push_back(std::move(*choice));
    } else {
      choices[found->second] = std::move(*choice);
    }
  }
  return choices;
}

std::string format_choices(const std::vector<Choice>& choices, std::string_view machine) {
  const std::string first = first_line(machine);
  std::string text = first;
  const std::size_t skipped = choices.size() - std::min(choices.size(), kMostChoices);
  for (std::size_t i = skipped; i < choices.size(); ++i) {
    const std::string body = line_of(choices[i]);
    if (body.empty()) continue;
    text += checksum(first + body) + ' ' + body + '\n';
  }
  return text;
}

ChoiceCache::Turn::Turn(ChoiceCache* cache, const std::string& machine,
                        std::chrono::milliseconds longest)
    : Turn(cache) {  // so the lock is let go also when what follows throws
  if (!cache || cache->folder_.empty()) return;
  std::error_code ignored;  // there is no lock then
  std::filesystem::create_directories(cache->folder_, ignored);
  lock_ = lock_file(cache->path(machine) + ".lock", longest);
  const std::lock_guard lock(cache->mutex_);
  cache->read_file(machine, cache->file(machine));
}

ChoiceCache::Turn::~Turn() {
  if (lock_ < 0) return;
  cache_->save();
  ::close(lock_);
}

ChoiceCache::ChoiceCache(std::string folder) : folder_(std::move(folder)) {}

ChoiceCache::~ChoiceCache() {
  // Another process may be writing at this moment.
  for (int attempt = 0; !save() && attempt < 3; ++attempt) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

std::string ChoiceCache::path(const std::string& machine) const {
  return folder_ + "/choices-" + checksum(machine) + ".txt";
}

ChoiceCache::File& ChoiceCache::file(const std::string& machine) {
  const auto [found, is_new] = files_.try_emplace(machine);
  if (is_new && !folder_.empty()) read_file(machine, found->second);
  return found->second;
}

void ChoiceCache::read_file(const std::string& machine, File& to) const {
  std::vector<Choice> choices = parse_choices(read(path(machine)), machine);
  choices.insert(choices.end(), to.unsaved.begin(), to.unsaved.end());
  for (const Choice& choice : choices) to.known.insert_or_assign(choice.key, choice);
}

std::optional<Choice> ChoiceCache::find(const std::string& machine, const std::string& key) {
  const std::lock_guard lock(mutex_);
  const auto& known = file(machine).known;
  const auto found = known.find(key);
  return found == known.end() ? std::nullopt : std::optional(found->second);
}

void ChoiceCache::add(const std::string& machine, Choice choice) {
  if (!fits(machine) || line_of(choice).empty()) return;
  const std::lock_guard lock(mutex_);
  File& to = file(machine);
  if (!folder_.empty()) to.unsaved.push_back(choice);
  std::string key = choice.key;
  to.known.insert_or_assign(std::move(key), std::move(choice));
}

bool ChoiceCache::save() noexcept {
  const std::lock_guard lock(mutex_);
  bool done = true;
  for (auto& [machine, file] : files_) done &= file.unsaved.empty() || merge(machine, file);
  return done;
}

bool ChoiceCache::merge(const std::string& machine, File& file) const noexcept {
  try {
    std::error_code ignored;  // the file that cannot be made then says it all
    std::filesystem::create_directories(folder_, ignored);
    AtomicFile to(path(machine));  // from here on no other process writes
    std::vector<Choice> choices = parse_choices(read(to.path()), machine);
    choices.insert(choices.end(), file.unsaved.begin(), file.unsaved.end());
    to.write(format_choices(choices, machine));
    to.commit();
    file.unsaved.clear();
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

std::string default_choice_folder() {
  if (const char* given = std::getenv("WEFT_CACHE")) {
    return given == std::string_view("off") ? "" : given;
  }
  // The XDG specification has relative paths ignored.
  const char* cache = std::getenv("XDG_CACHE_HOME");
  if (cache && *cache == '/') return std::string(cache) + "/weft";
  const char* home = std::getenv("HOME");
  return home && *home == '/' ? std::string(home) + "/.cache/weft" : "";
}

}  // namespace weft
