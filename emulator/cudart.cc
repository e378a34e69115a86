// The functions of libcudart that weft calls. They refuse calls as the documentation of CUDA 13
// says.
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "emulator/emulator.h"
#include "emulator/prelude.h"
#include "emulator/streams.h"

using namespace emulator;

namespace {

bool is_device(int device) { return device >= 0 && device < options().devices; }

std::size_t round_up(std::size_t n, std::size_t step) { return (n + step - 1) / step * step; }

cudaError_t copy(Stream* stream, void* to, const void* from, std::size_t bytes, const char* name,
                 int to_device, int from_device) {
  // A copy from memory that is not page-locked reads it at once, into memory of the driver; a copy
  // to such memory makes the call wait. A recorded copy runs later and finds the content of that
  // time.
  const bool on_its_own = options().reaches_pageable || stream->recording;
  const bool reads_now = from_device == kOther && !on_its_own;
  const bool waits = (to_device == kOther || (to_device < 0 && from_device < 0)) && !on_its_own;
  std::shared_ptr<std::vector<char>> staged;
  if (reads_now && !options().counts) {
    const char* const begin = static_cast<const char*>(from);
    staged = std::make_shared<std::vector<char>>(begin, begin + bytes);
  }
  const int also = to_device >= 0 && to_device != stream->device       ? to_device
                   : from_device >= 0 && from_device != stream->device ? from_device
                                                                       : -1;
  const auto work = [=] {
    const auto size = static_cast<std::int64_t>(bytes);
    const Traffic traffic{from_device >= 0 ? size : 0, to_device >= 0 ? size : 0};
    statistics().add(statistics().copies, {.traffic = traffic, .name = "copy"});
    if (options().counts) {
      if (to_device < 0) std::memset(to, 0, bytes);
      return;
    }
    if (place_of(to, bytes) != to_device || (!staged && place_of(from, bytes) != from_device)) {
      fault("%s of %zu bytes: the memory is gone by the time it runs", name, bytes);
    }
    std::memmove(to, staged ? staged->data() : from, bytes);
  };
  const cudaError_t status = put(stream, {work, nullptr, nullptr, stream->device, also});
  if (waits && status == cudaSuccess) {
    run_all(stream);
    close_memory();
  }
  return status;
}

Event* event_of(cudaEvent_t handle) { return reinterpret_cast<Event*>(handle); }

// Whether the event is part of a recording. Asking for it, or waiting, makes that invalid.
bool is_captured(const Event& event) {
  if (is_recording(event.recorded_in)) event.recorded_in->invalid = true;
  return event.recorded_in;
}

// A library's kernel is found by params->kern, another one by params->func, as some of the real
// ones are. Each points to its name.
CUresult params_of_node(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS* params) {
  const auto& operation = *reinterpret_cast<const Operation*>(node);
  if (!operation.kernel) return CUDA_ERROR_INVALID_VALUE;
  const auto kernel = const_cast<char*>(operation.kernel);
  *params = {};
  if (operation.kernel == kLibraryKernel) {
    params->kern = reinterpret_cast<CUkernel>(kernel);
  } else {
    params->func = reinterpret_cast<CUfunction>(kernel);
  }
  return CUDA_SUCCESS;
}

template <class Handle>
CUresult name_of_handle(const char** name, Handle handle) {
  *name = reinterpret_cast<const char*>(handle);
  return CUDA_SUCCESS;
}

}  // namespace

extern "C" {

// --- Errors --------------------------------------------------------------------------------------

cudaError_t cudaGetLastError() { return take_error(false); }
cudaError_t cudaPeekAtLastError() { return take_error(true); }

const char* cudaGetErrorName(cudaError_t error) {
#define NAME(error) \
  case error: return #error
  switch (error) {
    NAME(cudaSuccess);
    NAME(cudaErrorInvalidValue);
    NAME(cudaErrorMemoryAllocation);
    NAME(cudaErrorInvalidConfiguration);
    NAME(cudaErrorInvalidDevice);
    NAME(cudaErrorNoDevice);
    NAME(cudaErrorInsufficientDriver);
    NAME(cudaErrorInvalidResourceHandle);
    NAME(cudaErrorNotReady);
    NAME(cudaErrorInvalidDeviceFunction);
    NAME(cudaErrorStreamCaptureUnsupported);
    NAME(cudaErrorStreamCaptureInvalidated);
    NAME(cudaErrorStreamCaptureUnjoined);
    NAME(cudaErrorStreamCaptureIsolation);
    NAME(cudaErrorStreamCaptureWrongThread);
    NAME(cudaErrorCapturedEvent);
    NAME(cudaErrorPeerAccessAlreadyEnabled);
    NAME(cudaErrorIllegalState);
    default: return "cudaErrorUnknown";
  }
#undef NAME
}
const char* cudaGetErrorString(cudaError_t error) { return cudaGetErrorName(error); }

// --- Devices -------------------------------------------------------------------------------------

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 0;
  if (options().driver < CUDART_VERSION / 1000 * 1000) return fail(cudaErrorInsufficientDriver);
  *count = options().devices;
  return *count ? cudaSuccess : fail(cudaErrorNoDevice);
}

cudaError_t cudaDriverGetVersion(int* version) {
  *version = options().driver;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  if (!is_device(device)) return fail(cudaErrorInvalidDevice);
  switch (attribute) {
    case cudaDevAttrPageableMemoryAccess: *value = options().reaches_pageable; break;
    case cudaDevAttrComputeCapabilityMajor: *value = options().capabilities[device][0]; break;
    case cudaDevAttrComputeCapabilityMinor: *value = options().capabilities[device][1]; break;
    default: return fail(cudaErrorInvalidValue);
  }
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int* device) {
  if (!options().devices) return fail(cudaErrorNoDevice);
  *device = current_device();
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  if (!is_device(device)) return fail(cudaErrorInvalidDevice);
  set_current_device(device);
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int device) {
  if (!is_device(device)) return fail(cudaErrorInvalidDevice);
  *p = {};
  std::snprintf(p->name, sizeof p->name, "emulated GPU");
  p->uuid.bytes[15] = static_cast<char>(device + 1);
  p->multiProcessorCount = 4;
  p->major = options().capabilities[device][0];
  p->minor = options().capabilities[device][1];
  p->totalGlobalMem = options().memory;
  p->maxThreadsPerBlock = 1024;
  return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  if (!is_device(device) || !is_device(peer)) return fail(cudaErrorInvalidDevice);
  *can = device != peer && options().peers;
  return cudaSuccess;
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags) {
  const Guard guard;
  static std::set<std::pair<int, int>> enabled;
  if (!is_device(peer) || flags || peer == current_device() || !options().peers) {
    return fail(cudaErrorInvalidValue);
  }
  const bool is_new = enabled.insert({current_device(), peer}).second;
  return is_new ? cudaSuccess : fail(cudaErrorPeerAccessAlreadyEnabled);
}

cudaError_t cudaDeviceSynchronize() {
  const Guard guard;
  if (spoils_recording() || prohibited()) return fail(cudaErrorStreamCaptureUnsupported);
  run_device(current_device());
  close_memory();
  return cudaSuccess;
}

// --- Memory --------------------------------------------------------------------------------------

cudaError_t cudaMalloc(void** p, std::size_t bytes) {
  const Guard guard;
  if (prohibited()) return fail(cudaErrorStreamCaptureUnsupported);
  *p = nullptr;
  if (bytes == 0) return cudaSuccess;
  *p = bytes > options().memory ? nullptr : allocate(bytes, device_with_context());
  return *p ? cudaSuccess : fail(cudaErrorMemoryAllocation);
}

cudaError_t cudaFree(void* p) {
  const Guard guard;
  if (!options().devices) return fail(cudaErrorNoDevice);
  device_with_context();
  if (prohibited()) return fail(cudaErrorStreamCaptureUnsupported);
  if (!p) return cudaSuccess;
  const int device = allocated_on(p);
  if (device < 0) return fail(cudaErrorInvalidValue);
  run_device(device);  // cudaFree waits for the device
  release(p);
  close_memory();
  return cudaSuccess;
}

cudaError_t cudaHostAlloc(void** p, std::size_t bytes, unsigned) {
  const Guard guard;
  if (prohibited()) return fail(cudaErrorStreamCaptureUnsupported);
  device_with_context();
  *p = bytes > options().memory ? nullptr : allocate(bytes, kPinned);
  return *p ? cudaSuccess : fail(cudaErrorMemoryAllocation);
}

cudaError_t cudaFreeHost(void* p) {
  const Guard guard;
  device_with_context();
  if (prohibited()) return fail(cudaErrorStreamCaptureUnsupported);
  if (!p) return cudaSuccess;
  if (allocated_on(p) != kPinned) return fail(cudaErrorInvalidValue);
  for (int device = 0; device < options().devices; ++device) run_device(device);
  release(p);
  close_memory();
  return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* p) {
  const Guard guard;
  device_with_context();
  *attributes = {};
  const int place = place_of(p, 0);
  attributes->type = place >= 0         ? cudaMemoryTypeDevice
                     : place == kPinned ? cudaMemoryTypeHost
                                        : cudaMemoryTypeUnregistered;
  attributes->device = place >= 0 ? place : place == kPinned ? 0 : -2;
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  const Guard guard;
  if (bytes == 0) return cudaSuccess;
  const int to_device = place_of(to, bytes), from_device = place_of(from, bytes);
  const bool to_is = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
  const bool from_is = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
  if (to_device == kNowhere || from_device == kNowhere || to_is != (to_device >= 0) ||
      from_is != (from_device >= 0)) {
    fault("cudaMemcpyAsync(%p (place %d), %p (place %d), %zu, kind %d)", to, to_device, from,
          from_device, bytes, static_cast<int>(kind));
  }
  if (to_device >= 0 && from_device >= 0 && to_device != from_device) {
    fault("cudaMemcpyAsync between devices");
  }
  return copy(stream_of(stream), to, from, bytes, "cudaMemcpyAsync", to_device, from_device);
}

cudaError_t cudaMemcpyPeerAsync(void* to, int to_device, const void* from, int from_device,
                                std::size_t bytes, cudaStream_t stream) {
  const Guard guard;
  if (bytes == 0) return cudaSuccess;
  if (place_of(to, bytes) != to_device || place_of(from, bytes) != from_device) {
    fault("cudaMemcpyPeerAsync: no memory of cuda:%d and cuda:%d", to_device, from_device);
  }
  return copy(stream_of(stream), to, from, bytes, "cudaMemcpyPeerAsync", to_device, from_device);
}

cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t handle) {
  const Guard guard;
  if (bytes == 0) return cudaSuccess;
  Stream* const stream = stream_of(handle);
  const int device = stream->device;
  if (place_of(to, bytes) != device) fault("cudaMemsetAsync(%p, %d, %zu)", to, value, bytes);
  const auto work = [=] {
    statistics().add(statistics().fills,
                     {.traffic = {0, static_cast<std::int64_t>(bytes)}, .name = "fill"});
    if (options().counts) return;
    if (place_of(to, bytes) != device) fault("cudaMemsetAsync: the memory is gone");
    std::memset(to, value, bytes);
  };
  return put(stream, {work, nullptr, nullptr, device, -1});
}

// --- Streams and recordings ----------------------------------------------------------------------

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  const Guard guard;
  if (flags != cudaStreamNonBlocking) fault("a stream that waits for the default one");
  *stream = reinterpret_cast<cudaStream_t>(new_stream());
  return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t handle) {
  const Guard guard;
  if (!handle) return fail(cudaErrorInvalidResourceHandle);
  stream_of(handle)->is_destroyed = true;
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  const Guard guard;
  Stream* const stream = stream_of(handle);
  if (stream->recording) {
    stream->recording->invalid = true;
    return fail(cudaErrorStreamCaptureUnsupported);
  }
  if (prohibited()) return fail(cudaErrorStreamCaptureUnsupported);
  run_all(stream);
  close_memory();
  return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event_handle, unsigned) {
  const Guard guard;
  Stream* const stream = stream_of(handle);
  const Event* const event = event_of(event_handle);
  if (event->recorded_in) {
    if (!is_recording(event->recorded_in) || stream->is_default ||
        (stream->recording && stream->recording != event->recorded_in)) {
      return fail(cudaErrorStreamCaptureIsolation);
    }
    stream->recording = event->recorded_in;
    stream->recording->streams.insert(stream);
    return cudaSuccess;
  }
  if (!event->last) return cudaSuccess;
  if (stream->recording) {
    stream->recording->invalid = true;
    return fail(cudaErrorStreamCaptureIsolation);
  }
  return put(stream, {nullptr, event->last, nullptr, stream->device, -1});
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  const Guard guard;
  device_with_context();
  const Recording* const recording = stream_of(stream)->recording;
  *status = !recording           ? cudaStreamCaptureStatusNone
            : recording->invalid ? cudaStreamCaptureStatusInvalidated
                                 : cudaStreamCaptureStatusActive;
  return cudaSuccess;
}

cudaError_t cudaStreamGetCaptureInfo(cudaStream_t handle, cudaStreamCaptureStatus* status,
                                     unsigned long long*, cudaGraph_t* graph,
                                     const cudaGraphNode_t**, const cudaGraphEdgeData**,
                                     std::size_t*) {
  const Guard guard;
  if (const cudaError_t error = cudaStreamIsCapturing(handle, status); error != cudaSuccess) {
    return error;
  }
  Recording* const recording = stream_of(handle)->recording;
  *graph = recording ? reinterpret_cast<cudaGraph_t>(&recording->operations) : nullptr;
  return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t handle, cudaStreamCaptureMode mode) {
  const Guard guard;
  device_with_context();
  Stream* const stream = stream_of(handle);
  if (stream->is_default) return fail(cudaErrorStreamCaptureUnsupported);
  if (stream->recording) return fail(cudaErrorIllegalState);
  begin_recording(stream, mode);
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t* graph) {
  const Guard guard;
  Stream* const stream = stream_of(handle);
  Recording* const recording = stream->recording;
  *graph = nullptr;
  if (!recording || recording->origin != stream) return fail(cudaErrorIllegalState);
  if (recording->mode != cudaStreamCaptureModeRelaxed &&
      recording->thread != std::this_thread::get_id()) {
    return fail(cudaErrorStreamCaptureWrongThread);
  }
  end_recording(recording);
  if (recording->invalid) return fail(cudaErrorStreamCaptureInvalidated);
  *graph = reinterpret_cast<cudaGraph_t>(new Graph(recording->operations));
  return cudaSuccess;
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  device_with_context();
  exchange_mode(*mode);
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  const Guard guard;
  if (!graph) return fail(cudaErrorInvalidValue);
  *exec = reinterpret_cast<cudaGraphExec_t>(
      new std::shared_ptr<Graph>(new Graph(*reinterpret_cast<Graph*>(graph))));
  return cudaSuccess;
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, std::size_t* count) {
  const Guard guard;
  auto& operations = *reinterpret_cast<Graph*>(graph);
  *count = operations.size();
  if (!nodes) return cudaSuccess;
  for (Operation& operation : operations) *nodes++ = reinterpret_cast<cudaGraphNode_t>(&operation);
  return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  const Guard guard;
  delete reinterpret_cast<Graph*>(graph);
  return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  const Guard guard;
  if (!exec) return fail(cudaErrorInvalidValue);
  delete reinterpret_cast<std::shared_ptr<Graph>*>(exec);
  return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t handle) {
  const Guard guard;
  const std::shared_ptr<Graph> graph = *reinterpret_cast<std::shared_ptr<Graph>*>(exec);
  Stream* const stream = stream_of(handle);
  const auto work = [graph, stream] {
    ++statistics().graphs;
    statistics().in_graph = true;
    run_recorded(*graph, stream);
    statistics().in_graph = false;
  };
  return put(stream, {work, nullptr, nullptr, stream->device, -1});
}

// --- The driver ----------------------------------------------------------------------------------

cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned version,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult* found) {
  static const std::map<std::string_view, void*> functions{
      {"cuGraphKernelNodeGetParams", reinterpret_cast<void*>(params_of_node)},
      {"cuFuncGetName", reinterpret_cast<void*>(name_of_handle<CUfunction>)},
      {"cuKernelGetName", reinterpret_cast<void*>(name_of_handle<CUkernel>)},
  };
  if (options().driver < static_cast<int>(version)) return fail(cudaErrorInvalidValue);
  const auto at = functions.find(symbol);
  if (at == functions.end()) fault("cudart: the driver's %s", symbol);
  *function = at->second;
  *found = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}

// --- Events --------------------------------------------------------------------------------------

namespace {
unsigned events_made = 0;
}
// For tests.
extern "C" unsigned weft_emulated_events() {
  const Guard guard;
  return events_made;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  const Guard guard;
  ++events_made;
  *event = reinterpret_cast<cudaEvent_t>(
      new Event{device_with_context(), !(flags & cudaEventDisableTiming), nullptr, nullptr});
  return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, 0); }

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  const Guard guard;
  device_with_context();
  delete event_of(event);
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t handle, cudaStream_t stream_handle) {
  const Guard guard;
  Event* const event = event_of(handle);
  Stream* const stream = stream_of(stream_handle);
  if (stream->device != event->device) return fail(cudaErrorInvalidResourceHandle);
  event->recorded_in = stream->recording;
  if (stream->recording) {
    event->last = nullptr;
    return cudaSuccess;
  }
  event->last = std::make_shared<Point>();
  event->last->stream = stream;
  return put(stream, {nullptr, nullptr, event->last, stream->device, -1});
}

cudaError_t cudaEventQuery(cudaEvent_t handle) {
  const Guard guard;
  device_with_context();
  Event* const event = event_of(handle);
  if (is_captured(*event)) return fail(cudaErrorCapturedEvent);
  if (prohibited()) return fail(cudaErrorStreamCaptureUnsupported);
  if (!event->last) return cudaSuccess;
  if (!event->last->passed && random_word() % 3 == 0) {  // so that it passes at last
    advance(event->last);
    close_memory();
  }
  return event->last->passed ? cudaSuccess : fail(cudaErrorNotReady);
}

cudaError_t cudaEventSynchronize(cudaEvent_t handle) {
  const Guard guard;
  device_with_context();
  Event* const event = event_of(handle);
  if (is_captured(*event)) return fail(cudaErrorCapturedEvent);
  if (prohibited()) return fail(cudaErrorStreamCaptureUnsupported);
  if (event->last) run_until(event->last);
  close_memory();
  return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t begin, cudaEvent_t end) {
  const Guard guard;
  device_with_context();
  const Event *a = event_of(begin), *b = event_of(end);
  if (!a->last || !b->last || !a->timed || !b->timed) return fail(cudaErrorInvalidResourceHandle);
  if (!a->last->passed || !b->last->passed) return fail(cudaErrorNotReady);
  *ms = static_cast<float>(b->last->time - a->last->time);
  return cudaSuccess;
}

// --- Kernels -------------------------------------------------------------------------------------

cudaError_t cudaLaunchKernel(const void* kernel, dim3 grid, dim3 block, void** arguments,
                             std::size_t shared, cudaStream_t handle) {
  const Guard guard;
  const Signature* const signature = signature_of(kernel);
  if (!signature) return fail(cudaErrorInvalidDeviceFunction);
  const std::uint64_t threads = std::uint64_t{block.x} * block.y * block.z;
  if (threads == 0 || threads > 1024 || block.z > 64 || grid.x == 0 || grid.y == 0 || grid.z == 0 ||
      grid.x > 0x7fffffff || grid.y > 65535 || grid.z > 65535 || shared > 48 << 10) {
    return fail(cudaErrorInvalidConfiguration);
  }
  Stream* const stream = stream_of(handle);
  if (stream->device != current_device()) {
    fault("%s: launched on cuda:%d for a stream of cuda:%d", name_of(kernel).c_str(),
          current_device(), stream->device);
  }
  // Every parameter is aligned to 16, whatever its type needs; before CUDA 12.1 a launch takes up
  // to 4096 bytes.
  std::size_t total = 0;
  for (int i = 0; i < signature->count; ++i) total += round_up(signature->sizes[i], 16);
  if (total > 4096) fault("%s: %zu bytes of parameters", name_of(kernel).c_str(), total);
  const std::shared_ptr<char> memory(static_cast<char*>(std::aligned_alloc(16, total + 16)),
                                     std::free);
  std::vector<void*> copies;
  char* to = memory.get();
  for (int i = 0; i < signature->count; ++i) {
    std::memcpy(to, arguments[i], signature->sizes[i]);
    copies.push_back(to);
    to += round_up(signature->sizes[i], 16);
  }
  const int device = stream->device;
  check_addresses(kernel, *signature, copies.data(), device);
  // Now, since later its memory may have been lent anew.
  Traffic traffic;
  if (options().traffic) traffic = traffic_of(kernel, *signature, grid, block, copies.data());
  const auto work = [=, keep = memory] {
    check_addresses(kernel, *signature, copies.data(), device);
    run_kernel(kernel, traffic, *signature, grid, block, copies.data(), device);
  };
  Operation operation{work, nullptr, nullptr, device, -1};
  operation.kernel = "weft::kernel";  // name_of() would take long
  return put(stream, std::move(operation));
}

}  // extern "C"
