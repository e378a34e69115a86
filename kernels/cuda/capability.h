// The GPUs for which a build has code. Only arithmetic, so that it is tested without a GPU.
#pragma once

#include <compare>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace weft::cuda {

/// CUDA's compute capability: 7.5 is {7, 5}.
struct Capability {
  int major = 0, minor = 0;
  friend auto operator<=>(const Capability&, const Capability&) = default;
};
/// "7.5"
std::string to_string(const Capability& capability);

/// What nvcc has compiled for.
struct BuiltFor {
  std::vector<Capability> code;  ///< machine code
  std::vector<Capability> ptx;   ///< PTX, which the driver compiles
};
/// Reads "75,80,90+ptx": machine code for each, and PTX where the text says so. Throws Internal for
/// another text.
BuiltFor parse_built_for(std::string_view text);
/// "7.5, 8.0 and all from 8.0 on"
std::string to_string(const BuiltFor& built);

/// Machine code runs on GPUs of its major version that have its minor version or a later one; PTX
/// runs on its capability and all later ones.
bool has_code_for(const Capability& capability, const BuiltFor& built);

/// The least capability with which a CUDA toolkit (CUDART_VERSION) and cuDNN (cudnnGetVersion())
/// work.
Capability least_capability(int cuda_version, std::size_t cudnn_version);

struct VisibleGpu {
  int number = 0;  ///< CUDA's number of the GPU
  Capability capability;
};
/// Why some of the GPUs are not used, and what to do; empty if all are used. `least` is the least
/// capability of the libraries.
std::string why_not_used(const std::vector<VisibleGpu>& gpus, const BuiltFor& built,
                         const Capability& least);

}  // namespace weft::cuda
