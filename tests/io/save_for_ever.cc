// save_for_ever FILE FIRST: saves the same tensors with new values again and again, until a test
// kills it.
#include <unistd.h>

#include "weft/io/safetensors.h"
#include "weft/tensor/creation.h"

int main(int, char** argv) {
  using namespace weft;
  for (double value = std::atof(argv[2]);; ++value) {
    const io::NamedTensors tensors = {{"a", full({50'000}, value)},
                                      {"b", full({300}, value, DType::f64)}};
    if (value == std::atof(argv[2]) && ::write(STDOUT_FILENO, "", 1) != 1) return 1;
    io::save_safetensors(argv[1], tensors);
  }
}
