#include "weft/comm/group/operation.h"

#include <algorithm>
#include <functional>
#include <string_view>
#include <utility>

#include "weft/comm/backend/thin_links.h"
#include "weft/comm/store/member.h"
#include "weft/core/base/error.h"
#include "weft/core/runtime/thread_local.h"

namespace weft::comm {
namespace {

constinit ThreadLocal<TagText> current_tag;

Members numbered(std::vector<int> numbers, int place, int generation) {
  Members members{.rank = place, .ranks = std::move(numbers), .generation = generation};
  members.me = detail::concat("rank ", members.number_in_run(place), " (", place,
                              " of the group of ", list_of(members.ranks), ')');
  return members;
}

}  // namespace

TagText& tag_of_thread() { return *current_tag; }

Members Members::of_run(int rank, int size, const Generation& generation) {
  constexpr const char* op = "process_group";
  WEFT_CHECK(size >= 1, InvalidArgument, op, "a group of ", size, " ranks; needs at least 1");
  WEFT_CHECK(rank >= 0 && rank < size, InvalidArgument, op, "rank ", rank, " of ", size,
             "; ranks count from 0 to ", size - 1);
  for (const ThinLink& link : thin_links()) {
    // Not checked for a run of one rank, which has no links but may serve for comparison, nor for
    // one that has lost ranks, which was checked when all were there.
    WEFT_CHECK(size == 1 || generation.number > 0 || std::max(link.a, link.b) < size,
               InvalidArgument, op, "WEFT_FAULT names the link ", link.a, '-', link.b,
               ", expected two of the run's ranks, 0 to ", size - 1);
  }
  const std::vector<int>& numbers = generation.ranks;
  Members members{
      .rank = rank, .generation = generation.number, .me = "rank " + std::to_string(rank)};
  for (int r = 0; r < size; ++r) members.ranks.push_back(r);
  if (numbers.empty() || numbers == members.ranks) return members;
  const bool increase = std::ranges::adjacent_find(numbers, std::greater_equal()) == numbers.end();
  WEFT_CHECK(std::ssize(numbers) == size && increase && numbers.front() >= 0, InvalidArgument, op,
             "the numbers of ", size, " ranks are given as ", list_of(numbers),
             "; each needs one, and they increase");
  return numbered(numbers, rank, generation.number);
}

Members Members::some(const std::vector<int>& chosen, int place, const std::string& name) const {
  std::vector<int> numbers;
  for (const int r : chosen) numbers.push_back(number_in_run(r));
  Members members = numbered(std::move(numbers), place, generation);
  members.label = label;  // of all ranks of this group
  if (members.size() < size()) {
    members.label = detail::concat(name, name.empty() ? "" : " of ", list_of(members.ranks));
  }
  return members;
}

std::string to_string(const Call& call) {
  std::string text = call.name;
  text += ' ' + std::to_string(call.number);
  if (!call.tag.empty()) text += " (" + call.tag + ')';
  return text;
}

std::string place_of(const Call& call) {
  std::string text;
  if (call.step >= 0) text += " at step " + std::to_string(call.step);
  if (call.path) text += " in " + module_path(call.path);
  return text;
}

// Operations run with the state of their caller, except what belongs only to the caller's thread.
// They use one core: their additions mostly wait for memory and for other ranks, and the caller's
// threads use the other cores.
void Operation::set_caller() {
  caller = thread_state();
  caller.path = interned_path();
  caller.num_threads = 1;
  caller.generators = nullptr;
  caller.multiply_adds = nullptr;
  call.tag = current_tag->text;
  call.same_module = current_tag->same_module;
  call.step = caller.step;
  call.path = caller.path;
}

const Tensor& Operation::part() const {
  if (!x.defined() || !y.defined()) return x.defined() ? x : y;
  return y.numel() < x.numel() ? y : x;
}

Buffer buffer_of(const Tensor& x) {
  if (!x.defined()) return {nullptr, 0, DType::u8};
  return {x.raw_data(), x.numel(), x.dtype()};
}

}  // namespace weft::comm
