// What running training programs of this user do: `./weft top`.
#include <sys/ioctl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <ctime>
#include <exception>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "weft/core/base/error.h"
#include "weft/core/runtime/allocator.h"
#include "weft/core/runtime/file.h"
#include "weft/tools/top/snapshot.h"
#include "weft/tools/usage.h"

namespace weft::top {
namespace {

using Clock = std::chrono::steady_clock;

struct Options {
  std::string run;  // a program's name, a process, or the launcher of some; empty: all
  double interval = 1;
  bool once = false, json = false;
};

/// A process, with its rates if it was there a moment ago.
struct Row {
  Process process;
  std::optional<Rates> rates;
};

bool is_chosen(const Process& process, const std::string& run) {
  return run.empty() || run == process.program || run == std::to_string(process.pid) ||
         (process.rank && run == std::to_string(process.parent));
}

std::vector<Row> rows_of(const std::vector<Process>& now, const std::vector<Process>& before,
                         std::chrono::duration<double> between, const std::string& run) {
  std::vector<Row> rows;
  for (const Process& process : now) {
    if (is_chosen(process, run)) rows.push_back({process, rates(before, process, between)});
  }
  return rows;
}

std::string format(const char* pattern, auto... values) {
  char text[200];
  std::snprintf(text, sizeof text, pattern, values...);
  return text;
}

/// "1,234"; "0.52" for what is small.
std::string number(double value) {
  if (value < 100) return format(value < 10 ? "%.2f" : "%.1f", value);
  std::string digits = format("%.0f", value);
  for (std::size_t at = digits.size(); at > 3;) digits.insert(at -= 3, ",");
  return digits;
}

std::string percent(double part) { return format("%.0f %%", 100 * part); }

/// "parameters 4.00 MiB, gradients ...": those that there are, the largest first.
std::string owners(const DeviceMemory& memory) {
  std::vector<std::pair<std::int64_t, std::string>> parts;
  for (int owner = 0; owner < kMemoryOwners; ++owner) {
    const std::int64_t bytes = memory.in_use[static_cast<std::size_t>(owner)];
    if (bytes != 0) parts.emplace_back(bytes, to_string(static_cast<MemoryOwner>(owner)));
  }
  std::ranges::sort(parts, std::greater());
  std::string text;
  for (const auto& [bytes, name] : parts) {
    text +=
        (text.empty() ? ": " : ", ") + name + ' ' + readable_bytes(static_cast<std::size_t>(bytes));
  }
  return text;
}

/// The processors that the worker of a device keeps busy. Nothing if the device has none yet: a
/// program of one device computes in its main thread.
std::optional<double> busy(const Row& row, Device device) {
  if (!row.rates) return std::nullopt;
  const auto found = row.rates->threads.find("worker " + to_string(device));
  if (found == row.rates->threads.end()) return std::nullopt;
  return std::max(found->second, 0.0);
}

std::string phase_of(const Process& process) {
  std::string text = process.status.describe();
  if (text.empty()) text = "-";
  // Shorter waits are ordinary: others still compute.
  if (process.in_operation >= 2) text += " for " + format("%.0f s", process.in_operation);
  return text + (process.stopped ? " (stopped)" : "");
}

std::vector<std::string> screen(const std::vector<Row>& rows, const std::string& run) {
  std::vector<std::string> lines;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const Process& process = rows[i].process;
    const auto same_run = [&](const Process& other) {
      return process.rank && other.rank && process.parent == other.parent;
    };
    if (i == 0 || !same_run(rows[i - 1].process)) {
      if (i > 0) lines.emplace_back();
      const std::string launcher = process.rank ? program_of(process.parent) : "";
      lines.push_back(process.program + (process.rank
                                             ? format(": %d ranks of ", process.world_size) +
                                                   (launcher.empty() ? "a launcher" : launcher) +
                                                   format(", process %d", process.parent)
                                             : format(", process %d", process.pid)));
      // A rank that was started again has none.
      const auto faulty = std::find_if(
          rows.begin() + static_cast<std::ptrdiff_t>(i), rows.end(), [&](const Row& row) {
            return (&row == &rows[i] || same_run(row.process)) && !row.process.fault.empty();
          });
      if (faulty != rows.end()) lines.push_back("  WEFT_FAULT " + faulty->process.fault);
      lines.push_back("  rank  process     step   samples/s       sent/s   waits     cpu  phase");
    }
    const auto rate = [&](auto text) { return rows[i].rates ? text(*rows[i].rates) : "-"; };
    lines.push_back(
        format("  %4s  %7d  %7s  %10s  %11s  %6s  %6s  ",
               process.rank ? std::to_string(*process.rank).c_str() : "-", process.pid,
               process.status.step < 0 ? "-" : std::to_string(process.status.step).c_str(),
               rate([&](const Rates& r) {
                 return process.samples == 0 ? "-" : number(r.samples);  // it counts none
               }).c_str(),
               rate([](const Rates& r) {
                 return readable_bytes(static_cast<std::size_t>(r.sent));
               }).c_str(),
               rate([](const Rates& r) { return percent(r.waited); }).c_str(),
               rate([](const Rates& r) { return percent(r.cpu); }).c_str()) +
        phase_of(process));
    for (const DeviceMemory& memory : process.memory) {
      const std::optional<double> worker = busy(rows[i], memory.device);
      lines.push_back("        " + to_string(memory.device) + ' ' +
                      readable_bytes(static_cast<std::size_t>(memory.sum())) +
                      (memory.limit > 0
                           ? " of " + readable_bytes(static_cast<std::size_t>(memory.limit))
                           : "") +
                      (worker ? ", worker " + percent(*worker) : "") + owners(memory));
    }
  }
  if (rows.empty()) {
    lines.push_back(run.empty() ? "no program of weft is running that this user may look at"
                                : "'" + run + "' is not running, or not this user's");
  }
  return lines;
}

nlohmann::ordered_json to_json(const std::vector<Row>& rows) {
  using nlohmann::ordered_json;
  ordered_json list = ordered_json::array();
  const auto or_null = [](auto value) { return value ? ordered_json(*value) : ordered_json(); };
  for (const auto& [process, rates] : rows) {
    ordered_json devices = ordered_json::array();
    for (const DeviceMemory& memory : process.memory) {
      ordered_json in_use;
      for (int owner = 0; owner < kMemoryOwners; ++owner) {
        in_use[to_string(static_cast<MemoryOwner>(owner))] =
            memory.in_use[static_cast<std::size_t>(owner)];
      }
      devices.push_back({{"device", to_string(memory.device)},
                         {"in_use", memory.sum()},
                         {"limit", memory.limit > 0 ? ordered_json(memory.limit) : ordered_json()},
                         {"worker", or_null(busy({process, rates}, memory.device))},
                         {"by_owner", in_use}});
    }
    const auto rate = [&](auto member) {
      return rates ? ordered_json(rates.value().*member) : ordered_json();
    };
    list.push_back(
        {{"program", process.program},
         {"process", process.pid},
         {"launcher", process.rank ? ordered_json(process.parent) : ordered_json()},
         {"rank", or_null(process.rank)},
         {"ranks", process.world_size},
         {"fault", process.fault.empty() ? ordered_json() : ordered_json(process.fault)},
         {"step", process.status.step < 0 ? ordered_json() : ordered_json(process.status.step)},
         {"phase", process.status.phase},
         {"stopped", process.stopped},
         {"operation", process.status.operation},
         {"seconds_in_operation", process.in_operation},
         {"samples", process.samples},
         {"bytes_sent", process.sent},
         {"samples_per_s", rate(&Rates::samples)},
         {"bytes_sent_per_s", rate(&Rates::sent)},
         {"waited", rate(&Rates::waited)},
         {"cpu", rate(&Rates::cpu)},
         {"devices", devices}});
  }
  return list;
}

volatile std::sig_atomic_t interrupted = 0;

void sleep_until(Clock::time_point time) {
  // Short sleeps: Ctrl-C ends the program at once.
  while (!interrupted && Clock::now() < time) {
    std::this_thread::sleep_for(
        std::min<Clock::duration>(time - Clock::now(), std::chrono::milliseconds(50)));
  }
}

// Cuts the line, which is UTF-8, to so many characters.
void cut(std::string& line, int most) {
  for (std::size_t at = 0; at < line.size(); ++at) {
    const bool begins = (static_cast<unsigned char>(line[at]) & 0xC0U) != 0x80U;
    if (begins && most-- == 0) return line.resize(at);
  }
}

void draw(const std::vector<Row>& rows, const Options& options, bool is_first) {
  std::vector<std::string> lines = screen(rows, options.run);
  winsize window{};
  const bool is_terminal = ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &window) == 0 && window.ws_col > 0;
  if (!options.once) {
    const std::time_t now = std::time(nullptr);
    std::tm local{};
    ::localtime_r(&now, &local);
    lines.insert(lines.begin(),
                 {format("weft top, %02d:%02d:%02d, every %g s; Ctrl-C ends it", local.tm_hour,
                         local.tm_min, local.tm_sec, options.interval),
                  ""});
  }
  if (is_terminal && !options.once) {
    if (lines.size() >= window.ws_row && window.ws_row > 1) {
      lines.resize(window.ws_row - 1U);
      lines.back() = "... more than this screen has room for: ./weft top RUN shows one";
    }
    for (std::string& line : lines) cut(line, window.ws_col);
    std::fputs("\x1b[H\x1b[J", stdout);  // to the corner, and clear what is below
  } else if (!is_first) {
    std::puts("");
  }
  for (const std::string& line : lines) std::printf("%s\n", line.c_str());
  flush_stdout();
}

int run(const Options& options) {
  struct sigaction action{};
  action.sa_handler = [](int) { interrupted = 1; };
  ::sigaction(SIGINT, &action, nullptr);
  Watch watch;
  std::vector<Process> before = watch.look();
  Clock::time_point then = Clock::now();
  for (bool is_first = true; !interrupted; is_first = false) {
    sleep_until(then + std::chrono::duration_cast<Clock::duration>(
                           std::chrono::duration<double>(options.interval)));
    if (interrupted) break;
    std::vector<Process> now = watch.look();
    const Clock::time_point time = Clock::now();
    const std::vector<Row> rows = rows_of(now, before, time - then, options.run);
    if (options.json) {
      // A program's name may have any bytes.
      const std::string text = to_json(rows).dump(options.once ? 2 : -1, ' ', false,
                                                  nlohmann::json::error_handler_t::replace);
      std::printf("%s\n", text.c_str());
      flush_stdout();
    } else {
      draw(rows, options, is_first);
    }
    if (options.once) return rows.empty() && !options.run.empty() ? 1 : 0;
    before = std::move(now);
    then = time;
  }
  return 0;
}

}  // namespace
}  // namespace weft::top

int main(int argc, char** argv) {
  CLI::App app(
      "Watches the programs of weft that this user runs: what each rank does, its rates, "
      "and its memory by device and owner.",
      "top");
  weft::top::Options options;
  app.add_option("RUN", options.run,
                 "a program's name, its process, or its launcher's; else all that run");
  app.add_flag("--once", options.once, "look once, over one interval");
  app.add_flag("--json", options.json, "for programs: a list per look, in one line without --once");
  app.add_option("--interval", options.interval, "seconds between two looks")
      ->check(weft::tools::number_from(0.05, 3600))
      ->capture_default_str();
  app.allow_extras();
  app.footer(
      "samples/s  of training, by the rank, if the program counts them\n"
      "sent/s     bytes to other ranks, by all its groups\n"
      "waits      the time that its threads waited for operations between ranks, of 100 % each; "
      "on\n"
      "           a GPU with NCCL the device waits, which is not counted\n"
      "cpu        processor time of all its threads; worker: of a device's\n"
      "WEFT_FAULT faults on purpose: ranks that are slow or fail, links that are thin, and how\n"
      "Exit status: 0; 1 with --once if RUN is not running; 2 wrong usage or an error.");
  const auto run = [&]() -> int {
    try {
      app.parse(argc, argv);
      if (!app.remaining().empty()) {
        std::fprintf(stderr, "top: error: %s\n", weft::tools::about_unknown_argument(app).c_str());
        return 2;
      }
      return weft::top::run(options);
    } catch (const CLI::ParseError& error) {
      return app.exit(error) == 0 ? 0 : 2;
    } catch (const std::exception& error) {
      std::fprintf(stderr, "top: error: %s\n", error.what());
      return 2;
    }
  };
  return weft::tools::exit_status(app, run());
}
