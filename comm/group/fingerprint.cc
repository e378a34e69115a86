#include "weft/comm/group/fingerprint.h"

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "weft/core/base/error.h"
#include "weft/core/runtime/thread_state.h"

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
std::string what_of(const Signature& signature) {
  std::string text = signature.call.name;
  if (signature.count >= 0) {
    text += detail::concat(" of ", signature.count, ' ',
                           signature.dtype ? to_string(*signature.dtype) : "bytes");
  }
  if (signature.reduce != ReduceOp::sum) text += std::string(", ") + to_string(signature.reduce);
  if (signature.root != 0) text += ", root " + std::to_string(signature.root);
  const Call& call = signature.call;
  if (!call.tag.empty()) text += " (" + call.tag + ')';
  if (call.same_module && call.path) text += " in " + module_path(call.path);
  return text;
}

// The part of a call that may differ between ranks, for messages.
std::string where_of(Call call) {
  if (call.same_module) call.path = nullptr;
  return place_of(call);
}

// FNV-1a over words instead of bytes. The upper half is folded in, since a product moves bits
// upwards only.
class Hash {
 public:
  void add(std::uint64_t word) {
    value_ = (value_ ^ word) * 0x100000001b3;
    value_ ^= value_ >> 32;
  }
  void add(std::string_view text) {
    add(text.size());
    for (const char c : text) add(static_cast<unsigned char>(c));
  }
  std::uint64_t value() const { return value_ | 1; }

 private:
  std::uint64_t value_ = 0xcbf29ce484222325;
};

}  // namespace

Signature signature_of(const Operation& operation) {
  Signature signature{.call = operation.call,
                      .reduce = operation.reduce,
                      .root = operation.root,
                      .peer = operation.peer};
  if (operation.memory) signature.count = static_cast<std::int64_t>(operation.memory->bytes);
  if (const Tensor& part = operation.part(); part.defined()) {
    signature.count = part.numel();
    signature.dtype = part.dtype();
  }
  return signature;
}

std::uint64_t fingerprint_of(const Signature& signature) {
  Hash hash;
  hash.add(static_cast<std::uint64_t>(signature.count));
  hash.add(signature.dtype ? static_cast<std::uint64_t>(*signature.dtype) + 1 : 0);
  if (signature.peer >= 0) return hash.value();
  hash.add(signature.call.name);
  hash.add(static_cast<std::uint64_t>(signature.call.number));
  hash.add(signature.call.tag);
  if (signature.call.same_module) hash.add(module_path(signature.call.path));
  hash.add(static_cast<std::uint64_t>(signature.root));
  hash.add(static_cast<std::uint64_t>(signature.reduce));
  return hash.value();
}

std::string describe(const Signature& signature) {
  return detail::concat("operation ", signature.call.number, ", ", what_of(signature),
                        where_of(signature.call));
}

LastCalls::LastCalls(const Signature& now, const Signature& before)
    : now{std::to_string(fingerprint_of(now)), describe(now)},
      before{std::to_string(fingerprint_of(before)), describe(before)} {}

std::string to_text(const LastCalls& calls) {
  return calls.now.number + ' ' + calls.now.text + '\n' + calls.before.number + ' ' +
         calls.before.text;
}

LastCalls last_calls_in(const std::string& text) {
  const std::size_t line = std::min(text.find('\n'), text.size());
  const auto one = [](const std::string& from) -> LastCalls::One {
    const std::size_t blank = std::min(from.find(' '), from.size());
    return {from.substr(0, blank), from.substr(std::min(blank + 1, from.size()))};
  };
  LastCalls calls;
  calls.now = one(text.substr(0, line));
  calls.before = one(text.substr(std::min(line + 1, text.size())));
  return calls;
}

void check_fingerprints(const Operation& operation, const Members& members, Backend& backend,
                        const Deadline& deadline) {
  Fingerprint mine;
  put(mine.what, what_of(signature_of(operation)));
  put(mine.where, where_of(operation.call));
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
