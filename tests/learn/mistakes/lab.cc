// An exercise whose solutions make the mistakes that belong to no single exercise: the judge should
// survive them, and say what happened.
#include <signal.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include "weft/core/base/error.h"
#include "weft/learn/judge/all_reduce.h"
#include "weft/learn/judge/lab.h"
#include "weft/learn/judge/ranks.h"
#include "weft/tensor/ops.h"

namespace weft::learn {
namespace {

using OfGroup = void (*)(comm::ProcessGroup& group);

// A solution may use group memory.
void right_of_group(comm::ProcessGroup& group) {
  const Tensor x = group.empty({4});
  raw::fill_(x, 3);
  group.all_reduce(x).wait();
  require(x.to_vector<float>()[3] == 3.0f * static_cast<float>(group.size()), "the sum is wrong");
}

struct Solution {
  Solution(AllReduce f) : of_messages(f) {}
  Solution(AllReduce f, OfGroup g) : of_messages(f), of_group(g) {}

  AllReduce of_messages;
  OfGroup of_group = right_of_group;
};

std::string judge(Solution f) {
  for (const int n : {1, 2, 3}) check_all_reduce(f.of_messages, n, 4);
  for (const int n : {1, 2, 3}) {
    begin_case(detail::concat("a group of ", n));
    on_groups(n, f.of_group);
  }
  within_patience("the loop", [] {});
  return "nothing to learn";
}

void yours(Messages&, std::span<float>) { not_yet("everything"); }

// Everything to everybody; in the order of the ranks.
void right(Messages& me, std::span<float> x) {
  std::vector<float> sum(x.size()), coming(x.size());
  for (int r = 0; r < me.size(); ++r) {
    for (int to = 0; to < me.size(); ++to) {
      if (me.rank() == r && to != r) me.send(to, x);
    }
    if (me.rank() != r) me.receive(r, coming);
    for (std::size_t i = 0; i < x.size(); ++i) sum[i] += me.rank() == r ? x[i] : coming[i];
  }
  std::ranges::copy(sum, x.begin());
}

void throws(Messages& me, std::span<float>) {
  if (me.rank() == 1) throw std::out_of_range("part 7 of 4");
}
void throws_a_number(Messages& me, std::span<float>) {
  if (me.rank() == 1) throw 3;
}

// As weft refuses a call: the line of its sources is not the learner's.
void refused(Messages& me, std::span<float>) {
  if (me.rank() != 1) return;
  within("part 7", [] { WEFT_THROW(Shape, "copy_", "3 numbers into 2"); });
}

// As libstdc++ in a solution, whose standard containers check their indices.
void beyond_a_vector(Messages& me, std::span<float>) {
  if (me.rank() != 1) return;
  std::cerr << "this was before\n"
               "bits/stl_vector.h:1123: std::vector<...>::operator[](size_type) [with ...]: "
               "Assertion '__n < this->size()' failed.\n";
  std::abort();
}

volatile std::uintptr_t nowhere = 64;
void crashes(Messages& me, std::span<float> x) {
  if (me.size() == 3 && me.rank() == 2) *reinterpret_cast<volatile int*>(nowhere) = 3;
  right(me, x);
}

[[gnu::noinline]] int deep(volatile int* x) { return *x < 0 ? 0 : deep(x) + deep(x); }
void overflows(Messages& me, std::span<float>) {
  volatile int x = 3;
  if (me.rank() == 1) deep(&x);
}

void hoards(Messages& me, std::span<float> x) {
  if (me.rank() == 1) throw std::bad_alloc();  // as new does; sanitizers do not survive a real one
  right(me, x);
}

void divides(Messages& me, std::span<float>) {
  if (me.rank() == 1) ::raise(SIGFPE);
}
void aborts(Messages& me, std::span<float>) {
  if (me.rank() == 1) std::abort();
}
void exits(Messages& me, std::span<float>) {
  if (me.rank() == 1) std::_Exit(7);
}

void before_x(Messages& me, std::span<float> x) {
  if (me.rank() == 1) x.data()[-1] = 3;
  right(me, x);
}
void behind_x(Messages& me, std::span<float> x) {
  if (me.rank() == 1) x.data()[x.size()] = 3;
  right(me, x);
}

// Catches what ends it, and goes on.
void catches(Messages& me, std::span<float> x) {
  for (int i = 0; i < 3; ++i) {
    try {
      if (me.rank() == 1) throw std::runtime_error("first");
      if (me.size() > 1) me.receive(1 - me.rank(), x);
    } catch (...) {
      if (i == 0 && me.rank() == 1) throw;
    }
  }
}

void prints(Messages& me, std::span<float> x) {
  for (int i = 0; i < 100'000; ++i) std::cout << "rank " << me.rank() << " is here\n";
  std::cout << "this was last\n";
  x[0] = 0;
}

// Of which only the failing case counts.
void prints_in_each_case(Messages& me, std::span<float> x) {
  if (me.size() == 1) std::cout << std::string(3000, 'a');
  right(me, x);
  if (me.size() == 1 || me.rank() == 1) return;
  std::cout << "this is of 2 ranks\n";
  x[0] = 0;
}

void says_and_crashes(Messages& me, std::span<float> x) {
  std::cout << "this was before";
  crashes(me, x);
}

void loops(Messages& me, std::span<float>) {
  volatile bool ready = me.rank() == 0;
  while (!ready) {
  }
}

void one_waits(Messages& me, std::span<float> x) {
  if (me.rank() == 0 && me.size() > 1) me.receive(1, x);
}
void other_sizes(Messages& me, std::span<float> x) {
  if (me.rank() == 0 && me.size() > 1) me.send(1, x.first(3));
  if (me.rank() == 1) me.receive(0, x);
}
void to_itself(Messages& me, std::span<float> x) { me.send(me.rank(), x); }
void to_nobody(Messages& me, std::span<float> x) {
  if (me.size() > 1) me.send(me.rank() + 1, x);
}

void two_groups(comm::ProcessGroup& group) { group.duplicate(); }

// It has not returned, though it has used what its group calls last.
void waits_after_empty(comm::ProcessGroup& group) {
  const Tensor x = group.empty({4});
  if (group.rank() == 0) group.all_reduce(x).wait();
}

const std::vector<WrongOne<Solution>> kWrong = {
    {"throws", throws, "rank 1 threw an exception: part 7 of 4"},
    {"throws_a_number", throws_a_number, "rank 1 threw something that is no std::exception"},
    {"refused", refused, "rank 1 threw an exception: [copy_] 3 numbers into 2 in part 7"},
    {"beyond_a_vector", beyond_a_vector,
     "rank 1 crashed (SIGABRT): an index of a std::vector or std::span lies beyond its end"},
    {"crashes", crashes, "rank 2 crashed (SIGSEGV)"},
    {"overflows", overflows,
     "rank 1 crashed (SIGSEGV): it read or wrote where there is no memory. Is an index or a size "
     "off, does a function call itself for ever, or is something used that no longer lives"},
    {"hoards", hoards, "rank 1: it asked for more than the 2 GiB of memory"},
    {"divides", divides, "an integer was divided by 0"},
    {"aborts", aborts,
     "rank 1 crashed (SIGABRT): see the last line that it printed. Often an index is out of range "
     "(in C++ -1 % 3 is -1)"},
    {"exits", exits, "exit(7)"},
    {"before_x", before_x, "rank 1 wrote outside of x: to x[-1] of an x of 4"},
    {"behind_x", behind_x, "rank 1 wrote outside of x: to x[4] of an x of 4"},
    {"catches", catches, "rank 1 threw an exception: first"},
    {"prints", prints, "bytes before these are not shown]"},
    {"prints_at_last", prints, "  | this was last"},
    {"prints_in_each_case", prints_in_each_case, "  | this is of 2 ranks"},
    {"says_and_crashes", says_and_crashes, "  | this was before"},
    {"loops", loops, "rank 1 has sent and received nothing yet"},
    {"one_waits", one_waits, "rank 0 waits for 4 numbers from rank 1, which has returned"},
    {"other_sizes", other_sizes,
     "rank 0 sends 3 numbers to rank 1, which expects 4 numbers: do both mean the same part of x? "
     "The room for what comes must be as long as that part"},
    {"to_itself", to_itself,
     "rank 0 sends to itself: what is its own is already there, and a single rank has nobody to "
     "talk to"},
    {"to_nobody", to_nobody, "rank 1 sends to rank 2, but the ranks are 0 to 1"},
    {"two_groups", {right, two_groups}, "one group is enough here"},
    {"waits_after_empty", {right, waits_after_empty}, "from rank 1, which has returned"},
};

}  // namespace
}  // namespace weft::learn

int main(int argc, char** argv) {
  using namespace weft::learn;
  return run_lab(argc, argv, "mistakes", judge, yours, right, kWrong);
}
