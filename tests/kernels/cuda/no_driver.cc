// A driver without a GPU. cuDNN asks for these functions before it compiles a plan's kernels, and
// loads what it compiled on each of the driver's devices: here on none.
extern "C" {

int cuDeviceGetCount(int* count) {
  *count = 0;
  return 100;  // CUDA_ERROR_NO_DEVICE
}

#define X(name) \
  int name() { return 100; }
X(cuCtxGetCurrent)
X(cuCtxGetDevice)
X(cuCtxGetLimit)
X(cuCtxPopCurrent)
X(cuCtxPushCurrent)
X(cuDeviceGet)
X(cuDeviceGetAttribute)
X(cuDevicePrimaryCtxRelease)
X(cuDevicePrimaryCtxReset)
X(cuDevicePrimaryCtxRetain)
X(cuDriverGetVersion)
X(cuFuncGetAttribute)
X(cuFuncSetAttribute)
X(cuGetErrorName)
X(cuGetErrorString)
X(cuGetExportTable)
X(cuInit)
X(cuKernelGetAttribute)
X(cuKernelSetAttribute)
X(cuLaunchCooperativeKernel)
X(cuLaunchKernel)
X(cuLaunchKernelEx)
X(cuLibraryGetKernel)
X(cuLibraryLoadData)
X(cuLibraryLoadFromFile)
X(cuLibraryUnload)
X(cuLinkAddData)
X(cuLinkAddData_v2)
X(cuLinkAddFile_v2)
X(cuLinkComplete)
X(cuLinkCreate)
X(cuLinkCreate_v2)
X(cuLinkDestroy)
X(cuMemcpyDtoH_v2)
X(cuModuleGetFunction)
X(cuModuleGetGlobal_v2)
X(cuModuleLoadData)
X(cuModuleLoadDataEx)
X(cuModuleLoadFatBinary)
X(cuModuleUnload)
X(cuOccupancyMaxActiveBlocksPerMultiprocessor)
X(cuOccupancyMaxPotentialClusterSize)
X(cuStreamGetCtx)
X(cuStreamSynchronize)
X(cuTensorMapEncodeTiled)
#undef X

}  // extern "C"
