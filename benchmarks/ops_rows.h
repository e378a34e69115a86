// The workloads of `./weft bench ops`, most of them one operation. ops_peer.py has the same in
// PyTorch.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "weft/tensor/tensor.h"

namespace weft::bench {

/// One step of a workload; its result, or with backward the gradient of its first input, is what
/// the two libraries must agree on.
using OpsStep = std::function<Tensor()>;

/// "NAME_SHAPE"; "_fb" is forward and backward.
struct OpsRow {
  std::string name;
  std::function<OpsStep()> prepare;  ///< draws the inputs, in the order of ops_peer.py
};

const std::vector<OpsRow>& ops_rows();

}  // namespace weft::bench
