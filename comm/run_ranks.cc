// Ranks as threads of this process.
#include <algorithm>
#include <cstddef>
#include <exception>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "weft/comm/backend/backends.h"
#include "weft/comm/group/process_group.h"
#include "weft/comm/store/failure.h"
#include "weft/core/base/error.h"
#include "weft/core/runtime/capture.h"
#include "weft/core/runtime/cores.h"
#include "weft/core/runtime/parallel.h"
#include "weft/core/runtime/thread_name.h"
#include "weft/core/runtime/thread_state.h"
#include "weft/core/trace/trace.h"

namespace weft::comm {
namespace {

constexpr const char* kOp = "run_ranks";

struct RankError {
  int rank;
  std::exception_ptr error;
  bool by_others;  // PeerFailed or Comm: another rank's error as this rank sees it
};

// Must be called in a catch block.
bool is_by_others() {
  try {
    throw;
  } catch (const Error& error) {
    return error.code() == ErrorCode::PeerFailed || error.code() == ErrorCode::Comm;
  } catch (...) {
    return false;
  }
}

std::string text_of_caught() {
  try {
    throw;
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    return "an exception of unknown type";
  }
}

// Whether `text` names the rank; "rank 11" does not name "rank 1".
bool names(std::string_view text, std::string_view rank) {
  for (std::size_t at = 0; (at = text.find(rank, at)) != text.npos;) {
    at += rank.size();
    if (at == text.size() || text[at] < '0' || text[at] > '9') return true;
  }
  return false;
}

// Must be called in a catch block. Like rethrow_within(), unless the error already names the rank,
// as a group's errors do.
[[noreturn]] void rethrow_naming(const std::string& rank) {
  try {
    throw;
  } catch (const Error& error) {
    if (names(error.what(), rank)) throw;
  } catch (...) {
  }
  rethrow_within(rank);
}

class Ranks {
 public:
  Ranks(int n, const std::function<void(ProcessGroup&)>& f, const ProcessGroupOptions& options)
      : size_(n), f_(f), options_(options), state_(thread_state()) {
    // Each rank has its own generators and its own counts per thread.
    state_.num_threads = std::max(1, num_threads() / n);
    state_.generators = nullptr;
    state_.multiply_adds = nullptr;
  }

  void run(int rank) noexcept {
    leave_thread_unbound();
    const std::string name = "rank " + std::to_string(rank);
    set_thread_name(name);
    try {
      const ThreadStateGuard as_caller(state_);
      thread_state().rank = rank;
      try {
        run_in_group(rank);
      } catch (...) {
        rethrow_naming(name);
      }
    } catch (...) {
      const std::lock_guard lock(mutex_);
      errors_.push_back({rank, std::current_exception(), is_by_others()});
    }
  }

  void rethrow_first() const {
    if (errors_.empty()) return;
    const auto own =
        std::ranges::find_if(errors_, [](const RankError& error) { return !error.by_others; });
    std::rethrow_exception((own == errors_.end() ? errors_.front() : *own).error);
  }

 private:
  void run_in_group(int rank) {
    ProcessGroup group(thread_backend(), store_.duplicate(), rank, size_, options_);
    try {
      f_(group);
    } catch (...) {
      // Before the other ranks can notice the failure.
      if (is_by_others()) {
        group.store()->erase(lives_key(rank));
      } else {
        note_end(*group.store(), {rank, text_of_caught(), "", thread_state().step});
      }
      group.abort();
      throw;
    }
  }

  const int size_;
  const std::function<void(ProcessGroup&)>& f_;
  const ProcessGroupOptions options_;
  ThreadState state_;
  MemoryStore store_;
  std::mutex mutex_;
  std::vector<RankError> errors_;  // in the order of time
};

}  // namespace

void run_ranks(int n, const std::function<void(ProcessGroup& group)>& f,
               const ProcessGroupOptions& options) {
  WEFT_CHECK(n >= 1, InvalidArgument, kOp, "got ", n, " ranks, needs at least 1");
  graph::check_not_capturing(kOp, "what other threads do would not be part of the step");
  Ranks ranks(n, f, options);
  // No rank begins before all threads have started.
  std::promise<bool> all_started;
  const std::shared_future<bool> go = all_started.get_future().share();
  std::vector<std::thread> threads;
  std::string refused;
  try {
    for (int rank = 0; rank < n; ++rank) {
      threads.emplace_back([&ranks, go, rank] {
        if (go.get()) ranks.run(rank);
      });
    }
  } catch (const std::system_error& error) {
    refused = error.what();
  }
  all_started.set_value(refused.empty());
  for (std::thread& thread : threads) thread.join();
  WEFT_CHECK(refused.empty(), Library, kOp, "cannot start ", n, " threads: ", refused,
             "; the process or its user is at the limit of threads");
  ranks.rethrow_first();
}

}  // namespace weft::comm
