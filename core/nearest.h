// Which known word was meant by one that is not known.
#pragma once

#include <string>
#include <vector>

namespace weft {

/// The known word nearest to `word` by edit distance, else the first of which it is the end or the
/// beginning ("--steps": "--limit-steps", "--nproc": "--nproc-per-node"), or nothing when none is
/// near.
std::string nearest(const std::string& word, const std::vector<std::string>& known);

}  // namespace weft
