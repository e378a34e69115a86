#include "weft/core/runtime/phase.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <iterator>
#include <map>
#include <mutex>
#include <new>
#include <optional>
#include <system_error>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "weft/core/base/error.h"
#include "weft/core/runtime/black_box.h"
#include "weft/core/runtime/delay_observer.h"
#include "weft/core/runtime/log.h"
#include "weft/core/runtime/thread_local.h"
#include "weft/core/runtime/thread_state.h"

namespace weft {
namespace {

constexpr const char* kOp = "phase";
constexpr const char* kFaultVariable = "WEFT_FAULT";
constexpr int kExitStatus = 3;
constexpr std::uint64_t kMagic = 0x3373757461747377;  // "wstatus3"
constexpr char kTime = '#';                           // "all_reduce#2": the third one
constexpr const char* kPageName = "weft status";

constinit ThreadLocal<const char*> current;

/// A text that can be read as a whole at any time: one copy is written while the other one is
/// valid.
class Line {
 public:
  void write(std::string_view text, std::int64_t step) {
    const std::uint32_t next = 1 - latest_.load(std::memory_order_relaxed);
    Copy& copy = copies_[next];
    copy.step = step;
    copy.bytes = std::min(text.size(), sizeof copy.text);
    std::memcpy(copy.text, text.data(), copy.bytes);
    latest_.store(next, std::memory_order_release);
  }
  std::string text() const {
    const Copy& copy = latest();
    return {copy.text, std::min(copy.bytes, sizeof copy.text)};
  }
  std::int64_t step() const { return latest().step; }

 private:
  struct Copy {
    std::int64_t step = -1;
    std::size_t bytes = 0;
    char text[240] = {};
  };
  const Copy& latest() const { return copies_[latest_.load(std::memory_order_acquire) & 1]; }

  std::atomic<std::uint32_t> latest_{0};
  Copy copies_[2];
};
static_assert(std::atomic<std::uint32_t>::is_always_lock_free);

struct Page {
  std::uint64_t magic = kMagic;
  std::atomic<std::int32_t> process = 0;  // that writes it; 0: has not begun
  Line program, operation;
  // Left as it is, full of zeros, so that the launcher has no memory for what no rank has written.
  alignas(BlackBox) std::byte box[sizeof(BlackBox)];

  BlackBox& black_box() { return *std::launder(reinterpret_cast<BlackBox*>(box)); }
};
static_assert(std::is_trivially_destructible_v<Page>);

/// Null if it is no page, or the system refuses.
void* map(int fd, int access) {
  struct stat found{};
  if (::fstat(fd, &found) != 0 || found.st_size != sizeof(Page)) return nullptr;
  void* const memory = ::mmap(nullptr, sizeof(Page), access, MAP_SHARED, fd, 0);
  return memory == MAP_FAILED ? nullptr : memory;
}

void* map_page(int fd, int access) {
  void* const memory = map(fd, access);
  if (!memory || static_cast<const Page*>(memory)->magic == kMagic) return memory;
  ::munmap(memory, sizeof(Page));
  return nullptr;
}

/// Null if no launcher reads it: there is none, or a program between closed the inherited
/// descriptor.
Page* launchers_page() {
  const char* text = std::getenv(StatusPage::kVariable);
  auto* const page =
      text ? static_cast<Page*>(map_page(std::atoi(text), PROT_READ | PROT_WRITE)) : nullptr;
  if (!page) return nullptr;
  // A program that a rank starts inherits the rank's page, which is not its own.
  const int writer = page->process, me = ::getpid();
  if (writer != 0 && writer != me && (::kill(writer, 0) == 0 || errno == EPERM)) {
    ::munmap(page, sizeof(Page));
    return nullptr;
  }
  page->process = me;
  return page;
}

std::atomic<Page*>& own_page_place() {
  static std::atomic<Page*> page = launchers_page();
  return page;
}

Page* own_page() { return own_page_place().load(std::memory_order_acquire); }

// --- Busy ranks ----------------------------------------------------------------------------------

// Never destroyed: some threads read it until the process ends.
struct BusyRanks {
  std::mutex mutex;
  std::multimap<int, const char*> names;  // per rank, in the order in which they began

  static BusyRanks& instance() {
    static auto* const all = new BusyRanks;
    return *all;
  }
};

// --- Faults --------------------------------------------------------------------------------------

[[noreturn]] void refuse(std::string_view text) {
  WEFT_THROW(InvalidArgument, kOp, kFaultVariable, " is '", text,
             "', expected KIND:rank=R[:step=N][:phase=PHASE] with KIND kill, stop, raise, exit or "
             "delay=N with a unit, ms or s, and PHASE rendezvous, connect, forward, allreduce, "
             "allgather, reducescatter, save, vote, voted, optimizer, send, regroup, copy, deal or "
             "dealt, as in kill:rank=1:step=5 and delay=20ms:rank=1:phase=forward; with a number N "
             "behind it, as in allreduce2, the N-th time from 0 on; or link=A-B:RATE with two "
             "ranks and a positive number of kB/s, MB/s or GB/s, as in link=0-1:100MB/s; commas "
             "between several; unset it for a run without a fault");
}

std::string_view take_word(std::string_view& rest, char separator = ':') {
  const std::size_t at = std::min(rest.find(separator), rest.size());
  const std::string_view word = rest.substr(0, at);
  rest.remove_prefix(std::min(at + 1, rest.size()));
  return word;
}

template <class Number>
bool read_count(std::string_view text, Number& value) {
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  return error == std::errc() && stop == end && value >= 0;
}

/// "20ms" or "2s".
bool read_time(std::string_view text, std::chrono::milliseconds& time) {
  const std::size_t end = std::min(text.find_first_not_of("0123456789"), text.size());
  std::int32_t value = 0;
  if (!read_count(text.substr(0, end), value)) return false;
  time = text.substr(end) == "s" ? std::chrono::seconds(value) : std::chrono::milliseconds(value);
  return text.substr(end) == "s" || text.substr(end) == "ms";
}

// A word "link=..." is a fault of messages (comm/backend/thin_links.h).
std::vector<Fault> read_faults() {
  const char* text = std::getenv(kFaultVariable);
  if (!text) return {};
  std::vector<Fault> faults;
  std::string_view rest = text;
  if (rest.ends_with(',')) refuse(text);
  do {
    const std::string_view word = take_word(rest, ',');
    if (!word.starts_with("link=")) faults.push_back(Fault::parse(word));
  } while (!rest.empty());
  const char* restarts = std::getenv("TORCHELASTIC_RESTART_COUNT");
  return restarts && std::atoi(restarts) > 0 ? std::vector<Fault>() : faults;
}

/// Whether a fault point of this phase is the fault's. `passed`: those of its phase so far.
bool is_at(const Fault& fault, std::string_view phase, std::atomic<int>& passed) {
  if (fault.phase.empty() || fault.phase == phase) return true;
  const std::string_view name = std::string_view(fault.phase).substr(0, fault.phase.find(kTime));
  return name == phase && std::atoi(fault.phase.c_str() + name.size() + 1) == passed++;
}

void delay(std::chrono::milliseconds time) {
  const auto begin = std::chrono::steady_clock::now();
  std::this_thread::sleep_for(time);
  if (const auto tell = detail::delay_observer.load(std::memory_order_relaxed)) {
    tell(std::chrono::steady_clock::now() - begin);
  }
}

void strike(const Fault& fault, const char* phase) {
  switch (fault.kind) {
    case Fault::Kind::kill: std::raise(SIGKILL); break;
    case Fault::Kind::stop: std::raise(SIGSTOP); break;
    case Fault::Kind::raise: WEFT_THROW(Internal, phase, "fault injected by ", kFaultVariable);
    case Fault::Kind::exit: ::_exit(kExitStatus);
    case Fault::Kind::delay: delay(fault.delay);
  }
}

}  // namespace

std::string Status::describe() const {
  if (phase.empty() || operation.empty()) return phase + operation;
  return phase + " during " + operation;
}

StatusPage::StatusPage() : fd_(::memfd_create(kPageName, MFD_CLOEXEC)) {
  if (fd_ >= 0 && ::ftruncate(fd_, sizeof(Page)) == 0) memory_ = map(fd_, PROT_READ | PROT_WRITE);
  const int error = errno;
  if (memory_) {
    new (memory_) Page;
    return;
  }
  if (fd_ >= 0) ::close(fd_);
  WEFT_THROW(Library, kOp, "cannot make memory to share: ", std::generic_category().message(error));
}

std::unique_ptr<StatusPage> StatusPage::of_process(int pid) {
  const std::string folder = "/proc/" + std::to_string(pid) + "/fd", wanted = kPageName;
  std::error_code error;  // the process may be another user's, or end meanwhile
  for (std::filesystem::directory_iterator file(folder, error), end; !error && file != end;
       file.increment(error)) {
    std::error_code unreadable;
    const std::string target = std::filesystem::read_symlink(file->path(), unreadable).string();
    if (target.find("memfd:" + wanted) == std::string::npos) continue;
    const int fd = ::open(file->path().c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) continue;
    void* const memory = map_page(fd, PROT_READ);
    // A launcher has the pages of all its ranks, and a child that of its parent.
    if (memory && static_cast<const Page*>(memory)->process == pid) {
      return std::unique_ptr<StatusPage>(new StatusPage(fd, memory));
    }
    if (memory) ::munmap(memory, sizeof(Page));
    ::close(fd);
  }
  return nullptr;
}

StatusPage::~StatusPage() {
  ::munmap(memory_, sizeof(Page));
  ::close(fd_);
}

Status StatusPage::read() const {
  const auto* const page = static_cast<const Page*>(memory_);
  return {page->program.text(), page->operation.text(), page->program.step()};
}

const BlackBox& StatusPage::black_box() const { return static_cast<Page*>(memory_)->black_box(); }

void share_status() {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  if (own_page()) return;
  try {
    // Until the process ends.
    static const StatusPage& page = *new const StatusPage;
    auto* const memory = static_cast<Page*>(page.memory_);
    memory->process = ::getpid();
    own_page_place().store(memory, std::memory_order_release);
  } catch (const Error& error) {
    log_warning(error.what());
  }
}

BlackBox* own_black_box() {
  Page* const page = own_page();
  return page ? &page->black_box() : nullptr;
}

PhaseScope::PhaseScope(const char* name, bool is_operation)
    : before_(std::exchange(*current, name)),
      exceptions_(std::uncaught_exceptions()),
      is_operation_(is_operation) {}

PhaseScope::~PhaseScope() {
  *current = before_;
  if (std::uncaught_exceptions() == exceptions_) show(before_ && !is_operation_ ? before_ : "");
}

bool PhaseScope::seen() { return own_page() != nullptr; }

void PhaseScope::show(std::string_view text) const {
  Page* const page = own_page();
  if (!page) return;
  static std::mutex mutex;  // ranks may be threads of one process
  const std::lock_guard lock(mutex);
  (is_operation_ ? page->operation : page->program).write(text, thread_state().step);
  if (!is_operation_) page->black_box().set_phase(page->black_box().id_of(text));
}

BusyScope::BusyScope(const char* name) : phase_(name), rank_(thread_state().rank) {
  auto& [mutex, names] = BusyRanks::instance();
  const std::lock_guard lock(mutex);
  names.emplace(rank_, name);
}

BusyScope::~BusyScope() {
  auto& [mutex, names] = BusyRanks::instance();
  const std::lock_guard lock(mutex);
  names.erase(std::prev(names.upper_bound(rank_)));
}

const char* busy_with(int rank) {
  auto& [mutex, names] = BusyRanks::instance();
  const std::lock_guard lock(mutex);
  const auto after = names.upper_bound(rank);
  if (after == names.begin() || std::prev(after)->first != rank) return nullptr;
  return std::prev(after)->second;
}

Fault Fault::parse(std::string_view text) {
  constexpr std::array<std::pair<std::string_view, Kind>, 5> kinds = {{{"kill", Kind::kill},
                                                                       {"stop", Kind::stop},
                                                                       {"raise", Kind::raise},
                                                                       {"exit", Kind::exit},
                                                                       {"delay", Kind::delay}}};
  // And what PhaseScope calls them.
  constexpr std::array<std::pair<std::string_view, std::string_view>, 15> phases = {
      {{"rendezvous", "rendezvous"},
       {"connect", "connect"},
       {"forward", "forward"},
       {"allreduce", "all_reduce"},
       {"allgather", "all_gather"},
       {"reducescatter", "reduce_scatter"},
       {"vote", "vote"},
       {"voted", "voted"},
       {"optimizer", "optimizer step"},
       {"send", "send parameters"},
       {"regroup", "regroup"},
       {"copy", "copy state"},
       {"deal", "deal"},
       {"dealt", "dealt"},
       {"save", "save"}}};
  std::string_view rest = text;
  const std::string_view what = take_word(rest), kind_name = what.substr(0, what.find('='));
  const auto* const kind = std::ranges::find(kinds, kind_name, [](auto& k) { return k.first; });
  if (kind == kinds.end()) refuse(text);
  Fault fault{.kind = kind->second, .rank = -1};
  const bool delays = fault.kind == Kind::delay;
  const std::string_view time = what.substr(std::min(kind_name.size() + delays, what.size()));
  if (delays ? !read_time(time, fault.delay) : !time.empty()) refuse(text);
  while (!rest.empty()) {
    const std::string_view word = take_word(rest);
    const std::string_view name = word.substr(0, word.find('='));
    const std::string_view value = word.substr(std::min(name.size() + 1, word.size()));
    bool right = false;
    if (name == "rank" && fault.rank < 0) right = read_count(value, fault.rank);
    if (name == "step" && fault.step < 0) right = read_count(value, fault.step);
    if (name == "phase" && fault.phase.empty()) {
      // Its time, if it has one, stands behind the name.
      const std::string_view name = value.substr(0, value.find_first_of("0123456789"));
      const std::string_view time = value.substr(name.size());
      const auto* const phase = std::ranges::find(phases, name, [](auto& p) { return p.first; });
      std::int32_t count = 0;
      right = phase != phases.end() && (time.empty() || read_count(time, count));
      if (right) fault.phase = phase->second;
      if (right && !time.empty()) fault.phase += kTime + std::to_string(count);
    }
    if (!right) refuse(text);
  }
  if (fault.rank < 0 || text.ends_with(':')) refuse(text);
  return fault;
}

void fault_point() { fault_point(*current); }

void fault_point(const char* phase) {
  if (!phase) return;
  static const auto& faults = *new const std::vector<Fault>(read_faults());
  static auto* const passed = new std::vector<std::atomic<int>>(faults.size());
  for (std::size_t i = 0; i < faults.size(); ++i) {
    const Fault& fault = faults[i];
    if (fault.rank != thread_state().rank) continue;
    if (fault.step >= 0 && fault.step != thread_state().step) continue;
    if (is_at(fault, phase, (*passed)[i])) strike(fault, phase);
  }
}

}  // namespace weft
