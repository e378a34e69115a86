#include "weft/comm/group/fingerprint.h"

#include <algorithm>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "weft/core/base/error.h"

namespace weft::comm {
namespace {

// Texts that do not fit are cut off. The place is only for the message and is not compared: ranks
// may come from different lines.
struct Fingerprint {
  char what[192] = {};
  char where[64] = {};
};
static_assert(sizeof(Fingerprint) == 256);

template <std::size_t n>
void put(char (&to)[n], std::string_view text) {
  std::ranges::copy(text.substr(0, n), to);
}
template <std::size_t n>
std::string_view get(const char (&from)[n]) {
  const std::string_view all(from, n);
  return all.substr(0, all.find('\0'));
}

// "all_reduce of 10 f32, max (bucket 1)": usual values are left out.
std::string describe(const Operation& operation) {
  std::string text = operation.call.name;
  if (const Tensor& part = operation.part(); part.defined()) {
    text += " of " + std::to_string(part.numel()) + ' ' + to_string(part.dtype());
  }
  if (operation.memory) text += " of " + std::to_string(operation.memory->bytes) + " bytes";
  if (operation.reduce != ReduceOp::sum) text += std::string(", ") + to_string(operation.reduce);
  if (operation.root != 0) text += ", root " + std::to_string(operation.root);
  if (!operation.call.tag.empty()) text += " (" + operation.call.tag + ')';
  return text;
}

}  // namespace

void check_fingerprints(const Operation& operation, const Members& members, Backend& backend,
                        const Deadline& deadline) {
  Fingerprint mine;
  put(mine.what, describe(operation));
  put(mine.where, place_of(operation.call));
  std::vector<Fingerprint> all(members.ranks.size());
  const auto bytes = [](void* data, std::size_t size) {
    return Buffer{data, static_cast<std::int64_t>(size), DType::u8};
  };
  backend.all_gather(bytes(&mine, sizeof mine), bytes(all.data(), all.size() * sizeof mine),
                     deadline);

  const Fingerprint& first = all.front();
  const auto other = std::ranges::find_if(
      all, [&](const Fingerprint& print) { return get(print.what) != get(first.what); });
  if (other == all.end()) return;
  const int rank = members.number_in_run(static_cast<int>(other - all.begin()));
  WEFT_THROW(Comm, "process_group", "operation ", operation.call.number, ": rank ",
             members.ranks.front(), " calls ", get(first.what), get(first.where), ", rank ", rank,
             " calls ", get(other->what), get(other->where),
             "; all ranks must call the same operations in the same order");
}

}  // namespace weft::comm
