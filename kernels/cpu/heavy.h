// Matrix products and convolutions on the CPU: several ways to compute each (candidates), the
// fastest of which is found by timing, once per shape, and kept as a plan.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "weft/kernels/choices.h"
#include "weft/kernels/conv.h"
#include "weft/kernels/matmul.h"

namespace weft {

MatmulKernels cpu_matmul_kernels();
Conv2dKernels cpu_conv2d_kernels();

namespace cpu {

/// A plan that knows how to run itself. Made for the team size of the thread that made it.
class MatmulPlan : public Plan {
 public:
  std::string name;  ///< the candidate's, for benchmarks and messages
  virtual void run(const MatmulArgs& args, void* workspace) const = 0;
};

class ConvPlan : public Conv2dPlan {
 public:
  std::string name;
  virtual void run(const Conv2dArgs& args, void* workspace) const = 0;
};

/// One way to compute something. make() builds the plan for the calling thread's team and returns
/// null when the library behind it has nothing good for the shape.
template <class P>
struct Candidate {
  std::string name;
  std::function<std::unique_ptr<P>()> make;
};

/// All ways to compute `args`, the one a deterministic run takes first. plan() chooses among the
/// same list; tests force each of them.
std::vector<Candidate<MatmulPlan>> matmul_candidates(const MatmulArgs& args);
std::vector<Candidate<ConvPlan>> conv_candidates(const Conv2dArgs& args);

/// The chosen one, without looking for it among the plans of this process: what thread_state()
/// .choices remembers, else the fastest, else, where that is not to be timed, the first.
std::unique_ptr<MatmulPlan> choose_matmul(const MatmulArgs& args);
std::unique_ptr<ConvPlan> choose_conv(const Conv2dArgs& args);

/// Times every candidate of `args` anew, in the order of the list.
std::vector<Measured> measure_matmul(const MatmulArgs& args);
std::vector<Measured> measure_conv(const Conv2dArgs& args);

}  // namespace cpu
}  // namespace weft
