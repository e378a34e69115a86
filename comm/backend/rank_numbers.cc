#include "weft/comm/backend/rank_numbers.h"

#include <cstddef>
#include <utility>

#include "weft/core/runtime/thread_local.h"

namespace weft::comm {
namespace {

constinit ThreadLocal<const std::vector<int>*> current;

}  // namespace

RankNumbers::RankNumbers(const std::vector<int>& numbers)
    : before_(std::exchange(*current, &numbers)) {}

RankNumbers::~RankNumbers() { *current = before_; }

int number_in_run(int rank) {
  const std::vector<int>* const numbers = *current;
  return numbers ? numbers->at(static_cast<std::size_t>(rank)) : rank;
}

}  // namespace weft::comm
