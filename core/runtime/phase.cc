#include "weft/core/runtime/phase.h"

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
#include <iterator>
#include <map>
#include <mutex>
#include <optional>
#include <system_error>
#include <type_traits>
#include <utility>

#include "weft/core/base/error.h"
#include "weft/core/runtime/thread_local.h"
#include "weft/core/runtime/thread_state.h"

namespace weft {
namespace {

constexpr const char* kOp = "phase";
constexpr const char* kFaultVariable = "WEFT_FAULT";
constexpr int kExitStatus = 3;
constexpr std::uint64_t kMagic = 0x3173757461747377;  // "wstatus1"

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
  Line program, operation;
};
static_assert(std::is_trivially_destructible_v<Page>);

void* map(int fd) {
  void* const memory = ::mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  return memory == MAP_FAILED ? nullptr : memory;
}

/// Null if no launcher reads it: there is none, or a program between closed the inherited
/// descriptor.
Page* launchers_page() {
  const char* text = std::getenv(StatusPage::kVariable);
  struct stat found{};
  if (!text || ::fstat(std::atoi(text), &found) != 0 || found.st_size != sizeof(Page)) return {};
  auto* const page = static_cast<Page*>(map(std::atoi(text)));
  return page && page->magic == kMagic ? page : nullptr;
}

Page* own_page() {
  static Page* const page = launchers_page();
  return page;
}

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
             "', expected KIND:rank=R[:step=N][:phase=PHASE] with KIND kill, stop, raise or exit "
             "and PHASE rendezvous, connect, forward, allreduce, allgather, reducescatter or save, "
             "as in kill:rank=1:step=5; "
             "unset it for a run without a fault");
}

std::string_view take_word(std::string_view& rest) {
  const std::size_t at = std::min(rest.find(':'), rest.size());
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

std::optional<Fault> own_fault() {
  const char* text = std::getenv(kFaultVariable);
  if (!text) return {};
  const Fault fault = Fault::parse(text);
  const char* restarts = std::getenv("TORCHELASTIC_RESTART_COUNT");
  return restarts && std::atoi(restarts) > 0 ? std::nullopt : std::optional(fault);
}

void strike(Fault::Kind kind, const char* phase) {
  switch (kind) {
    case Fault::Kind::kill: std::raise(SIGKILL); break;
    case Fault::Kind::stop: std::raise(SIGSTOP); break;
    case Fault::Kind::raise: WEFT_THROW(Internal, phase, "fault injected by ", kFaultVariable);
    case Fault::Kind::exit: ::_exit(kExitStatus);
  }
}

}  // namespace

std::string Status::describe() const {
  if (phase.empty() || operation.empty()) return phase + operation;
  return phase + " during " + operation;
}

StatusPage::StatusPage() : fd_(::memfd_create("weft status", MFD_CLOEXEC)) {
  if (fd_ >= 0 && ::ftruncate(fd_, sizeof(Page)) == 0) memory_ = map(fd_);
  const int error = errno;
  if (memory_) {
    new (memory_) Page;
    return;
  }
  if (fd_ >= 0) ::close(fd_);
  WEFT_THROW(Library, kOp, "cannot make memory to share: ", std::generic_category().message(error));
}

StatusPage::~StatusPage() {
  ::munmap(memory_, sizeof(Page));
  ::close(fd_);
}

Status StatusPage::read() const {
  const auto* const page = static_cast<const Page*>(memory_);
  return {page->program.text(), page->operation.text(), page->program.step()};
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
  constexpr std::array<std::pair<std::string_view, Kind>, 4> kinds = {
      {{"kill", Kind::kill}, {"stop", Kind::stop}, {"raise", Kind::raise}, {"exit", Kind::exit}}};
  // And what PhaseScope calls them.
  constexpr std::array<std::pair<std::string_view, std::string_view>, 7> phases = {
      {{"rendezvous", "rendezvous"},
       {"connect", "connect"},
       {"forward", "forward"},
       {"allreduce", "all_reduce"},
       {"allgather", "all_gather"},
       {"reducescatter", "reduce_scatter"},
       {"save", "save"}}};
  std::string_view rest = text;
  const auto* const kind =
      std::ranges::find(kinds, take_word(rest), [](auto& k) { return k.first; });
  if (kind == kinds.end()) refuse(text);
  Fault fault{.kind = kind->second, .rank = -1};
  while (!rest.empty()) {
    const std::string_view word = take_word(rest);
    const std::string_view name = word.substr(0, word.find('='));
    const std::string_view value = word.substr(std::min(name.size() + 1, word.size()));
    bool right = false;
    if (name == "rank" && fault.rank < 0) right = read_count(value, fault.rank);
    if (name == "step" && fault.step < 0) right = read_count(value, fault.step);
    if (name == "phase" && fault.phase.empty()) {
      const auto* const phase = std::ranges::find(phases, value, [](auto& p) { return p.first; });
      right = phase != phases.end();
      if (right) fault.phase = phase->second;
    }
    if (!right) refuse(text);
  }
  if (fault.rank < 0 || text.ends_with(':')) refuse(text);
  return fault;
}

void fault_point() { fault_point(*current); }

void fault_point(const char* phase) {
  if (!phase) return;
  static const auto& fault = *new const std::optional<Fault>(own_fault());
  if (!fault || fault->rank != thread_state().rank) return;
  if (fault->step >= 0 && fault->step != thread_state().step) return;
  if (fault->phase.empty() || fault->phase == phase) strike(fault->kind, phase);
}

}  // namespace weft
