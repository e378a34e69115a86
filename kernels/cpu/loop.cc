#include "weft/kernels/cpu/loop.h"

#include "weft/kernels/cpu/loops/copy.h"

namespace weft::cpu {

void gather(std::int64_t bytes, std::int64_t rows, std::int64_t n, const char* from,
            std::int64_t step, std::int64_t row_step, char* to) {
  const CopyLoops& loops = copy_loops();
  if (bytes == 4 && row_step == 1 && step > 1 && rows > 1)
    return loops.transpose4(n, rows, from, step, to, n);
  loops.moves(bytes).tile(rows, n, from, step, row_step, to, 1, n);
}

void scatter(std::int64_t bytes, std::int64_t rows, std::int64_t n, const char* from, char* to,
             std::int64_t step, std::int64_t row_step) {
  copy_loops().moves(bytes).tile(rows, n, from, 1, n, to, step, row_step);
}

}  // namespace weft::cpu
