// Which of CUDA's devices are weft's, and their numbers.
#pragma once

#include <cuda_runtime_api.h>

#include <string>
#include <vector>

#include "weft/kernels/cuda/capability.h"

namespace weft::cuda {

/// weft's cuda:0, cuda:1 ... are the GPUs that this build has code for, in CUDA's order. Where the
/// build has code for all, which is the usual case, the numbers are CUDA's.
struct Gpus {
  std::vector<VisibleGpu> used;      ///< by weft's numbers
  std::string why_fewer;             ///< why these are not all; empty if they are, or nobody knows
  cudaError_t status = cudaSuccess;  ///< of counting them
};
/// Looked at once. Makes no context on any of them.
const Gpus& gpus();

/// CUDA's number of weft's cuda:`device`, and back; -1 if there is no such device.
int cuda_number(int device);
int device_of_number(int number);
/// Of a device that there is.
Capability capability_of(int device);

/// What nvcc compiled for, as --//tools/cuda:archs says it: "75,80+ptx". The build makes it.
const char* archs();

}  // namespace weft::cuda
