#include "weft/tests/sizes/sizes.h"

#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <new>
#include <ostream>
#include <sstream>

#include "weft/autograd/ops.h"
#include "weft/core/base/error.h"
#include "weft/tensor/creation.h"
#include "weft/tensor/ops.h"
#include "weft/tests/core/sanitized.h"
#include "weft/tests/memory/heap_limit.h"

namespace weft::testing {
namespace {

constexpr std::int64_t kNumbers[] = {
    std::numeric_limits<std::int64_t>::min(),
    -1,
    0,
    1,
    std::int64_t{1} << 31,
    std::int64_t{1} << 32,
    std::int64_t{1} << 62,
    std::numeric_limits<std::int64_t>::max(),
};

// A call takes microseconds. One that counts up to such a huge number never ends. This is processor
// time, so it is the same on a busy machine. Sanitizers are much slower.
constexpr double kMostSeconds = 2, kMostSanitized = 20;
constexpr int kHangs = 60;

double cpu_seconds() {
  timespec now = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// The current call, for the signal handlers.
char current[512];

void die(int signal) {
  const char* const what = signal == SIGPROF ? "\nhangs: " : "\ndies: ";
  for (const char* text : {what, static_cast<const char*>(current), "\n"}) {
    if (write(STDERR_FILENO, text, std::strlen(text)) < 0) break;
  }
  std::signal(signal, SIG_DFL);
  if (signal == SIGPROF) std::abort();
  std::raise(signal);
}

void set_alarm(int seconds) {
  itimerval timer = {};
  timer.it_value.tv_sec = seconds;
  setitimer(ITIMER_PROF, &timer, nullptr);
}

std::string text_of(const Row& row, const Sizes::Values& values) {
  std::ostringstream out;
  out << row.declaration << " with";
  for (const std::vector<std::int64_t>& numbers : values) {
    out << ' ' << (numbers.size() > 1 ? "{" : "");
    for (std::size_t j = 0; j < numbers.size(); ++j) out << (j > 0 ? ", " : "") << numbers[j];
    out << (numbers.size() > 1 ? "}" : "");
  }
  return out.str();
}

/// Checks that all elements are in the storage, and reads them.
void check(const Tensor& x) {
  if (!x.defined()) return;
  using Wide = __int128;
  Wide numel = 1, first = x.offset(), last = x.offset();
  for (int d = 0; d < x.dim(); ++d) {
    const std::int64_t size = x.shape()[d], stride = x.strides()[d];
    ASSERT_GE(size, 0) << x.shape();
    numel *= size;
    ASSERT_LE(numel, std::numeric_limits<std::int64_t>::max()) << x.shape();
    (stride < 0 ? first : last) += (Wide{size} - 1) * stride;
  }
  ASSERT_EQ(x.numel(), static_cast<std::int64_t>(numel));
  if (numel == 0) return;
  ASSERT_TRUE(first >= 0 && (last + 1) * Wide{size_of(x.dtype())} <= Wide{x.storage()->bytes()})
      << x.shape() << " of strides " << x.strides() << " from " << x.offset() << " in "
      << x.storage()->bytes() << " bytes";
  constexpr std::int64_t kSmall = 4096;
  if (x.numel() > kSmall) return;
  EXPECT_EQ(std::ssize(x.to_vector<double>()), x.numel());
  if (x.requires_grad()) sum(x).backward({}, true);
}

void check_call(const Row& row, const Sizes::Values& values) {
  const std::string text = text_of(row, values);
  SCOPED_TRACE(text);
  std::snprintf(current, sizeof current, "%s", text.c_str());
  set_alarm(kHangs);
  const double begin = cpu_seconds();
  try {
    for (const Tensor& x : row.call(Sizes(values)).tensors) check(x);
  } catch (const Error&) {
  } catch (const std::exception& error) {
    ADD_FAILURE() << "throws " << typeid(error).name() << ": " << error.what();
  }
  EXPECT_LT(cpu_seconds() - begin, kSanitized ? kMostSanitized : kMostSeconds);
  set_alarm(0);
}

/// Tries all numbers, one argument at a time.
void check_one_by_one(const Row& row) {
  for (std::size_t i = 0; i < row.right.size(); ++i) {
    for (std::size_t j = 0; j < row.right[i].size(); ++j) {
      for (const std::int64_t number : kNumbers) {
        Sizes::Values values = row.right;
        values[i][j] = number;
        check_call(row, values);
      }
    }
  }
}

/// Tries the first number of an argument, on which sums and products depend, down to 0 modulo 2^64.
void check_first(const Row& row) {
  for (std::size_t i = 0; i < row.right.size(); ++i) {
    for (std::size_t count = 2; count <= row.right[i].size(); ++count) {
      for (const std::int64_t number : kNumbers) {
        Sizes::Values values = row.right;
        std::fill_n(values[i].begin(), count, number);
        check_call(row, values);
      }
    }
  }
}

/// Tries all pairs of numbers of two arguments.
void check_pairs(const Row& row) {
  for (std::size_t i = 0; i < row.right.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      for (const std::int64_t number : kNumbers) {
        for (const std::int64_t other : kNumbers) {
          Sizes::Values values = row.right;
          std::ranges::fill(values[i], number);
          std::ranges::fill(values[j], other);
          check_call(row, values);
        }
      }
    }
  }
}

}  // namespace

void PrintTo(const Row& row, std::ostream* out) { *out << row.declaration; }

void SizesTest::SetUp() {
  set_memory_limit(Device(), kMostBytes);
  for (const int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGABRT, SIGPROF}) {
    // A sanitizer reports more.
    if (signal == SIGPROF || !kSanitized) std::signal(signal, die);
  }
}

void SizesTest::TearDown() { set_memory_limit(Device(), 0); }

std::string name_of(const ::testing::TestParamInfo<Row>& info) {
  std::string name = info.param.declaration;
  for (char& c : name) {
    if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
  }
  return name;
}

Tensor ramp(const Shape& shape, DType dtype) {
  return raw::to(raw::reshape(arange(0, static_cast<double>(numel(shape))), shape), dtype);
}

Tensor leaf(const Shape& shape) {
  const Tensor x = ramp(shape);
  x.set_requires_grad();
  return x;
}

// The call itself is valid: it returns a result or throws on purpose.
TEST_P(SizesTest, GivesResultOrError) {
  const Row& row = GetParam();
  {
    SCOPED_TRACE(text_of(row, row.right));
    Result result;
    ASSERT_NO_THROW(result = row.call(Sizes(row.right)));
    for (const Tensor& x : result.tensors) check(x);
  }
  check_one_by_one(row);
  check_first(row);
  check_pairs(row);
}

}  // namespace weft::testing
