// Matrix products and convolutions on the CPU. There are several ways (candidates) to compute each.
// A fixed rule takes one, or timing finds the fastest, once per shape. It is kept as a plan.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "weft/core/runtime/parallel.h"
#include "weft/kernels/conv.h"
#include "weft/kernels/matmul.h"
#include "weft/kernels/plan/choices.h"

namespace weft {

MatmulKernels cpu_matmul_kernels();
Conv2dKernels cpu_conv2d_kernels();

namespace cpu {

/// A plan that can run itself. It is made for the team size of the thread that made it, and runs
/// with that.
class MatmulPlan : public Plan {
 public:
  std::string name;  ///< the candidate's, for benchmarks and messages
  const int team = num_threads();
  virtual void run(const MatmulArgs& args, void* workspace) const = 0;
};

class ConvPlan : public Conv2dPlan {
 public:
  std::string name;
  const int team = num_threads();
  virtual void run(const Conv2dArgs& args, void* workspace) const = 0;
};

/// One way to compute a problem. make() builds the plan for the team of the calling thread. It
/// returns null if the library behind it has nothing good for the shape.
template <class P>
struct Candidate {
  std::string name;
  std::function<std::unique_ptr<P>()> make;
};

/// All candidates for `args`. A deterministic run takes the first one that can be built. plan()
/// chooses from the same list; tests force each of them.
std::vector<Candidate<MatmulPlan>> matmul_candidates(const MatmulArgs& args);
std::vector<Candidate<ConvPlan>> conv_candidates(const Conv2dArgs& args);

/// Chooses a candidate and builds its plan, without the plan cache: the one that is remembered,
/// else, with thread_state().benchmark, the fastest, else the first.
std::unique_ptr<MatmulPlan> choose_matmul(const MatmulArgs& args);
std::unique_ptr<ConvPlan> choose_conv(const Conv2dArgs& args);

/// Times every candidate of `args` that can be built, in the order of the list.
std::vector<Measured> measure_matmul(const MatmulArgs& args);
std::vector<Measured> measure_conv(const Conv2dArgs& args);

}  // namespace cpu
}  // namespace weft
