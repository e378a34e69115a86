#include "weft/kernels/cpu/simd.h"

#include <array>
#include <bit>
#include <cstddef>
#include <initializer_list>

namespace weft::cpu {
namespace {

// Each entry of the parts that is not null.
void add(SimdKernels& table, std::initializer_list<const SimdKernels*> parts) {
  using Pointers = std::array<void (*)(), sizeof(SimdKernels) / sizeof(void (*)())>;
  auto merged = std::bit_cast<Pointers>(table);
  for (const SimdKernels* part : parts) {
    const auto added = std::bit_cast<Pointers>(*part);
    for (std::size_t i = 0; i < merged.size(); ++i) {
      if (added[i]) merged[i] = added[i];
    }
  }
  table = std::bit_cast<SimdKernels>(merged);
}

struct Tables {
  SimdKernels level[3];

  Tables() {
    add(level[0],
        {&baseline::copy_functions, &baseline::elementwise_functions, &baseline::loss_functions,
         &baseline::norm_functions, &baseline::optim_functions, &baseline::reduce_functions});
    // A wider level keeps the narrower one's kernels where it has none of its own.
    level[1] = level[0];
    add(level[1], {&avx2::copy_functions, &avx2::elementwise_functions, &avx2::loss_functions,
                   &avx2::norm_functions, &avx2::optim_functions, &avx2::reduce_functions});
    level[2] = level[1];
    add(level[2], {&avx512::copy_functions, &avx512::elementwise_functions, &avx512::loss_functions,
                   &avx512::norm_functions, &avx512::optim_functions, &avx512::reduce_functions});
  }
};

}  // namespace

const SimdKernels& simd() {
  static const Tables tables;
  return tables.level[static_cast<int>(simd_level())];
}

}  // namespace weft::cpu
