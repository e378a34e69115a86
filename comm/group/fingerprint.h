// Finds ranks that call different operations. Private to comm/.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "weft/comm/group/operation.h"

namespace weft::comm {

/// What must be the same on all ranks.
struct Signature {
  Call call = {};
  std::int64_t count = -1;  ///< of numbers, or of bytes without a dtype; -1: none
  std::optional<DType> dtype = {};
  ReduceOp reduce = ReduceOp::sum;
  int root = 0, peer = -1;
};
Signature signature_of(const Operation& operation);

/// A number for Backend::set_fingerprint(). For a send or recv it depends only on dtype and count,
/// since its two ranks call different operations, count them separately, and may name them
/// differently: stages of a pipeline tag each with its own action, ">F0.1" and "<F1.1". For other
/// operations it depends on the whole call except the step and, unless the call asks for it, the
/// module, since ranks may call from different lines. Never 0.
std::uint64_t fingerprint_of(const Signature& signature);

/// "operation 3, all_reduce of 10 f32, max (bucket 1) at step 5 in layer3"
std::string describe(const Signature& signature);

/// What a failing rank tells another rank that was in another operation.
struct LastCalls {
  struct One {
    std::string number;  ///< the fingerprint; texts may differ for equal operations
    std::string text;
  };
  LastCalls() = default;
  LastCalls(const Signature& now, const Signature& before);
  One now, before;
};
std::string to_text(const LastCalls& calls);
/// The inverse; everything is empty for an empty text.
LastCalls last_calls_in(const std::string& text);

/// All ranks exchange 256 bytes that say what they are about to do. Throws Comm on all of them if
/// the fingerprints of two would differ: "operation 3: rank 0 calls all_reduce of 10 f32 (bucket
/// 1), rank 1 calls broadcast of 10 f32 (weights)". Not for send and recv.
void check_fingerprints(const Operation& operation, const Members& members, Backend& backend,
                        const Deadline& deadline);

}  // namespace weft::comm
