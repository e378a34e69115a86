// Turns a plan of parallelize into layers: which modules it names, and how each is cut.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "weft/nn/cut.h"
#include "weft/nn/module.h"
#include "weft/parallel/parallel_styles.h"

namespace weft::parallel {

/// A module that computes with parts. A HeadParallel makes two: the attention and its out_proj.
struct PartLayer {
  enum class Kind { column, heads, row, words, sequence, dropout };

  nn::ModuleBase module;
  std::string path, name;  ///< name: the path, or the type of the outermost module
  Kind kind;
  Layout input = Replicate{}, output = Replicate{};
  /// The parameters and their cuts, the weight first; a bias that is added after a sum is not cut.
  std::vector<std::pair<Tensor, nn::Cut>> parameters = {};
};

std::string to_string(const Layout& layout);
/// The plan on one line.
std::string to_string(const ParallelPlan& plan);

/// The layers of the plan, for rank `rank` of n. Throws as parallelize().
std::vector<PartLayer> layers_of(const nn::ModuleBase& module, const ParallelPlan& plan, int rank,
                                 int n);

/// Whether modules of this type cannot compute with a part of the sequence: they compute an element
/// from others, as attention does, or draw random numbers for several at once.
bool mixes_elements(const std::string& type);
/// Throws InvalidArgument if a Dropout of the module draws only a part already.
void check_draws_all(const char* op, const nn::ModuleBase& dropout, const std::string& name);

/// The module's own parameter of this name; undefined if it has none.
Tensor own_parameter(const nn::ModuleBase& module, const std::string& name);

}  // namespace weft::parallel
