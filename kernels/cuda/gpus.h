// The CUDA devices that weft uses, and their numbers.
#pragma once

#include <cuda_runtime_api.h>

#include <string>
#include <vector>

#include "weft/kernels/cuda/capability.h"

namespace weft::cuda {

/// weft's cuda:0, cuda:1 ... are the GPUs for which this build has code, in CUDA's order. If the
/// build has code for all of them, which is usual, the numbers are CUDA's.
struct Gpus {
  std::vector<VisibleGpu> used;      ///< by weft's numbers
  std::string why_fewer;             ///< why some are missing; empty if none is, or if unknown
  cudaError_t status = cudaSuccess;  ///< of the call that counted them
};
/// Determined once. Makes no context on any GPU.
const Gpus& gpus();

/// CUDA's number of weft's cuda:`device`, and back; -1 if there is no such device.
int cuda_number(int device);
int device_of_number(int number);
/// The device must exist.
Capability capability_of(int device);

/// What nvcc has compiled for, in the form of --//tools/cuda:archs: "75,80+ptx". The build makes
/// it.
const char* archs();

}  // namespace weft::cuda
