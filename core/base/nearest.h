// Finds the known word that an unknown one probably means.
#pragma once

#include <string>
#include <vector>

namespace weft {

/// The known word nearest to `word` by edit distance; else the first known word that ends or begins
/// with it ("--steps": "--limit-steps", "--nproc": "--nproc-per-node"); else nothing.
std::string nearest(const std::string& word, const std::vector<std::string>& known);

}  // namespace weft
