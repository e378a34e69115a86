// Matrix products on the CPU.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "weft/kernels/cpu/candidates.h"
#include "weft/kernels/plan/matmul_problem.h"

namespace weft::cpu {

/// The problem of `args` with its batch folded into the rows where that is possible, and one value
/// for each stride that says nothing.
MatmulProblem folded(const MatmulArgs& args);

/// A plan that can run itself. It is made for the team size of the thread that made it, and runs
/// with that.
class MatmulPlan : public weft::MatmulPlan {
 public:
  std::string name;  ///< of the candidate, for benchmarks and messages
  const int team = num_threads();
  /// Leaves args.then to the caller.
  virtual void run(const MatmulArgs& args, void* workspace) const = 0;
};

/// All candidates for `args`. A deterministic run takes the first one that can be built. The plan
/// of the kernel table comes from the same list; tests force each of them.
std::vector<Candidate<MatmulPlan>> matmul_candidates(const MatmulArgs& args);

/// Chooses a candidate and builds its plan, without the plan cache: the one that is remembered,
/// else, with thread_state().benchmark, the fastest, else the first.
std::unique_ptr<MatmulPlan> choose_matmul(const MatmulArgs& args);

/// Times every candidate of `args` that can be built, in the order of the list.
std::vector<Measured> measure_matmul(const MatmulArgs& args);

// Add candidates: oneDNN's (none in a build without it), and weft's own loops.
void add_dnnl_matmul(const MatmulArgs& args, std::vector<Candidate<MatmulPlan>>& to);
void add_own_matmul(const MatmulArgs& args, std::vector<Candidate<MatmulPlan>>& to);

}  // namespace weft::cpu
