#include "weft/tools/top/snapshot.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <numeric>
#include <sstream>
#include <string_view>
#include <tuple>
#include <utility>

#include "weft/core/runtime/black_box.h"

namespace weft::top {
namespace {

namespace fs = std::filesystem;

/// Empty if it cannot be read: processes end at any time.
std::string read_all(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::optional<int> to_int(std::string_view text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::optional<std::string> text_of(const std::string& environment, std::string_view name) {
  for (std::size_t at = 0; at < environment.size();) {
    const std::size_t end = std::min(environment.find('\0', at), environment.size());
    const std::string_view entry = std::string_view(environment).substr(at, end - at);
    if (entry.starts_with(name) && entry.substr(name.size()).starts_with('=')) {
      return std::string(entry.substr(name.size() + 1));
    }
    at = end + 1;
  }
  return std::nullopt;
}

std::optional<int> number_of(const std::string& environment, std::string_view name) {
  const std::optional<std::string> text = text_of(environment, name);
  return text ? to_int(*text) : std::nullopt;
}

/// A run that its launcher has started again is without faults on purpose.
std::string fault_of(const std::string& environment) {
  const bool restarted = number_of(environment, "TORCHELASTIC_RESTART_COUNT").value_or(0) > 0;
  return restarted ? "" : text_of(environment, "WEFT_FAULT").value_or("");
}

struct Stat {
  bool stopped = false;
  int parent = 0;
  double cpu = 0;
  std::int64_t started = 0;
};

/// The part of /proc/PID/stat, proc(5), behind the name, which may contain spaces and parentheses.
std::optional<Stat> read_stat(const fs::path& path) {
  const std::string text = read_all(path);
  const std::size_t name_end = text.rfind(')');
  if (name_end == std::string::npos) return std::nullopt;
  std::istringstream rest(text.substr(name_end + 1));
  const std::vector<std::string> fields{std::istream_iterator<std::string>(rest), {}};
  if (fields.size() < 20) return std::nullopt;
  static const auto ticks = static_cast<double>(::sysconf(_SC_CLK_TCK));
  // Fields 3, 4, 14, 15 and 22 of the manual page.
  return Stat{fields[0] == "T", std::stoi(fields[1]),
              (std::stod(fields[11]) + std::stod(fields[12])) / ticks, std::stoll(fields[19])};
}

std::map<std::string, double> read_threads(const fs::path& folder) {
  std::map<std::string, double> threads;
  std::error_code error;
  for (fs::directory_iterator thread(folder / "task", error), end; !error && thread != end;
       thread.increment(error)) {
    std::string name = read_all(thread->path() / "comm");
    if (name.ends_with('\n')) name.pop_back();
    if (const auto stat = read_stat(thread->path() / "stat")) threads[name] += stat->cpu;
  }
  return threads;
}

std::vector<DeviceMemory> read_memory(const BlackBox& box) {
  std::vector<DeviceMemory> found;
  for (const DeviceType type : {DeviceType::cpu, DeviceType::cuda}) {
    for (int index = 0; index < kMaxDevices; ++index) {
      DeviceMemory memory{.device = Device(type, index)};
      const BlackBox::Memory& shown = box.memory(memory.device);
      std::ranges::transform(shown.in_use, memory.in_use.begin(),
                             [](const auto& bytes) { return bytes.load(); });
      memory.limit = shown.limit;
      if (memory.sum() != 0 || memory.limit != 0) found.push_back(memory);
    }
  }
  return found;
}

/// For how many seconds the oldest operation that has not ended has been running; 0: none runs.
double longest_running(const BlackBox& box) {
  const std::int64_t now = steady_ns(std::chrono::steady_clock::now());
  std::int64_t longest = 0;
  for (const BlackBox::Found& operation : box.operations()) {
    if (operation.end_ns < 0) longest = std::max(longest, now - operation.begin_ns);
  }
  return static_cast<double>(longest) * 1e-9;
}

}  // namespace

std::int64_t DeviceMemory::sum() const {
  return std::accumulate(in_use.begin(), in_use.end(), std::int64_t{0});
}

std::string program_of(int pid) {
  const std::string line = read_all("/proc/" + std::to_string(pid) + "/cmdline");
  return fs::path(line.substr(0, line.find('\0'))).filename();
}

std::vector<Process> Watch::look() {
  std::vector<Process> found;
  decltype(pages_) pages;
  std::error_code error;
  for (fs::directory_iterator folder("/proc", error), end; !error && folder != end;
       folder.increment(error)) {
    const fs::path& path = folder->path();
    const std::optional<int> pid = to_int(path.filename().native());
    const std::optional<Stat> stat = pid ? read_stat(path / "stat") : std::nullopt;
    if (!stat) continue;
    const std::pair key(*pid, stat->started);
    std::unique_ptr<StatusPage> page = std::move(pages_[key]);
    if (!page) page = StatusPage::of_process(*pid);
    if (!page) continue;
    const std::string environment = read_all(path / "environ");
    const BlackBox& box = page->black_box();
    found.push_back({.pid = *pid,
                     .parent = stat->parent,
                     .started = stat->started,
                     .program = program_of(*pid),
                     .rank = number_of(environment, "RANK"),
                     .world_size = number_of(environment, "WORLD_SIZE").value_or(1),
                     .fault = fault_of(environment),
                     .stopped = stat->stopped,
                     .status = page->read(),
                     .in_operation = longest_running(box),
                     .samples = box.sums().samples,
                     .sent = box.sums().sent,
                     .waited_ns = box.sums().waited_ns,
                     .cpu = stat->cpu,
                     .threads = read_threads(path),
                     .memory = read_memory(box)});
    pages[key] = std::move(page);
  }
  pages_ = std::move(pages);
  std::ranges::sort(found, {}, [](const Process& process) {
    // Ranks of one launcher stand together; a process without one stands alone.
    return std::tuple(process.rank ? process.parent : process.pid, process.rank, process.pid);
  });
  return found;
}

std::optional<Rates> rates(const std::vector<Process>& before, const Process& now,
                           std::chrono::duration<double> between) {
  const auto then = std::ranges::find_if(before, [&](const Process& process) {
    return process.pid == now.pid && process.started == now.started;
  });
  if (then == before.end() || between.count() <= 0) return std::nullopt;
  const double seconds = between.count();
  Rates found{.samples = static_cast<double>(now.samples - then->samples) / seconds,
              .sent = static_cast<double>(now.sent - then->sent) / seconds,
              .waited = static_cast<double>(now.waited_ns - then->waited_ns) * 1e-9 / seconds,
              .cpu = (now.cpu - then->cpu) / seconds};
  for (const auto& [name, cpu] : now.threads) {
    const auto earlier = then->threads.find(name);
    found.threads[name] = (cpu - (earlier == then->threads.end() ? 0 : earlier->second)) / seconds;
  }
  return found;
}

}  // namespace weft::top
