// The numbers by which a backend's messages call ranks: those in the run, though the backend itself
// counts the ranks of its group from 0. Private to comm/.
#pragma once

#include <vector>

namespace weft::comm {

/// Sets the numbers for the backend that this thread makes or uses until the scope ends.
class RankNumbers {
 public:
  explicit RankNumbers(const std::vector<int>& numbers);
  ~RankNumbers();
  RankNumbers(const RankNumbers&) = delete;
  RankNumbers& operator=(const RankNumbers&) = delete;

 private:
  const std::vector<int>* const before_;
};

/// The number in the run of a rank of that backend; outside of all scopes `rank` itself.
int number_in_run(int rank);

}  // namespace weft::comm
