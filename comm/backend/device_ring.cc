#include "weft/comm/backend/device_ring.h"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <thread>
#include <utility>

#include "weft/comm/backend/reduce.h"
#include "weft/core/base/error.h"
#include "weft/core/runtime/thread_state.h"
#include "weft/kernels/backend.h"
#include "weft/kernels/elementwise_list.h"

namespace weft::comm {
namespace {

constexpr char kName[] = "nccl-ring";
// A message and the launch of an addition cost some microseconds whatever their size, so they are
// larger than on the host; the scratch memory is as large.
constexpr std::size_t kDeviceChunkBytes = std::size_t{16} << 20;
// A stream has room for some 1000 launches, and a host that finds it full waits in the driver,
// beyond any deadline. So no more than twice as many messages are queued, with their additions.
constexpr int kMessagesBetweenEvents = 64;

View flat(void* data, std::int64_t count, DType dtype) {
  const Shape shape{count};
  return {data, dtype, shape, contiguous_strides(shape)};
}

// A boolean sum or maximum means "any".
CompareOp boolean_op(ReduceOp op) {
  return op == ReduceOp::sum || op == ReduceOp::max ? CompareOp::logical_or
                                                    : CompareOp::logical_and;
}

BinaryOp binary_op(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum:
    case ReduceOp::avg: return BinaryOp::add;
    case ReduceOp::product: return BinaryOp::mul;
    case ReduceOp::min: return BinaryOp::minimum;
    case ReduceOp::max: return BinaryOp::maximum;
  }
  WEFT_THROW(Internal, kName, "no such reduction");
}

// What it queues on the stream runs in order, so scratch memory is used again at once.
class DeviceArithmetic final : public Arithmetic {
 public:
  explicit DeviceArithmetic(const Stream& stream) : stream_(stream) {}

  std::size_t chunk_bytes() const override { return kDeviceChunkBytes; }

  std::byte* scratch(std::size_t bytes) override {
    if (!scratch_ || scratch_->bytes() < bytes) scratch_ = allocate(bytes);
    return static_cast<std::byte*>(scratch_->data());
  }

  void copy(const Buffer& to, const Buffer& from) override {
    if (to.data == from.data) return;
    runtime(device()).copy(to.data, device(), from.data, device(), from.bytes(), stream_);
  }

  void reduce_into(const Buffer& into, const void* from, ReduceOp op) override {
    if (into.count == 0) return;
    const View x = flat(into.data, into.count, into.dtype);
    const View y = flat(const_cast<void*>(from), into.count, into.dtype);
    if (into.dtype == DType::boolean) return kernels().compare(stream_, boolean_op(op), x, y, x);
    // The order of operands matters: of two equal numbers the kernels take the second, and the host
    // takes `into`.
    kernels().binary(stream_, binary_op(op), y, x, x);
  }

  void finish_reduce(const Buffer& x, ReduceOp op, int ranks) override {
    if (op != ReduceOp::avg || x.count == 0) return;
    WEFT_CHECK(
        x.dtype != DType::bf16 || static_cast<float>(bf16(static_cast<float>(ranks))) == ranks,
        Unsupported, kName, "avg of bf16: got ", ranks,
        " ranks, a number that bf16 does not have; use sum and divide");
    if (!divisor_) divisor_ = allocate(sizeof(double));
    const View n = flat(divisor_->data(), 1, x.dtype);
    kernels().fill(stream_, ranks, n);
    const View numbers = flat(x.data, x.count, x.dtype);
    const View everywhere{n.data, n.dtype, numbers.shape, Strides{0}};
    kernels().binary(stream_, BinaryOp::div, numbers, everywhere, numbers);
  }

 private:
  Device device() const { return stream_.device; }
  const ElementwiseKernels& kernels() const { return weft::backend(device()).kernels.elementwise; }

  // Memory that is used in the order of the stream, also by its next owner after it is freed.
  intrusive_ptr<Storage> allocate(std::size_t bytes) const {
    const StreamScope scope(stream_);
    return Storage::allocate(device(), bytes);
  }

  const Stream stream_;
  intrusive_ptr<Storage> scratch_, divisor_;
};

class DeviceRing final : public DeviceBackend {
 public:
  DeviceRing(std::unique_ptr<DeviceBackend> connections, const Stream& stream)
      : DeviceBackend(connections->rank(), connections->size()),
        stream_(stream),
        arithmetic_(stream),
        connections_(std::move(connections)) {}

  const char* name() const override { return kName; }
  void check() override { connections_->check(); }
  void abort() noexcept override { connections_->abort(); }
  void wake() noexcept override { connections_->wake(); }
  Arithmetic& arithmetic() override { return arithmetic_; }

  void exchange(std::span<const Outgoing> out, std::span<const Incoming> in,
                const Deadline& deadline) override {
    if (++since_event_ >= kMessagesBetweenEvents) pass_event(deadline);
    connections_->exchange(out, in, deadline);
    traffic_ = connections_->traffic();
  }

 private:
  /// Waits for the last event, and records it anew.
  void pass_event(const Deadline& deadline) {
    while (event_ && !event_->done()) {
      connections_->check();
      WEFT_CHECK(!deadline.passed(), Timeout, kName, "the messages before the last ",
                 kMessagesBetweenEvents, " are not through on ", to_string(stream_.device));
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
    if (!event_) event_ = runtime(stream_.device).new_event(stream_.device.index);
    event_->record(stream_);
    since_event_ = 0;
  }

  const Stream stream_;
  std::unique_ptr<Event> event_;  // after a message, one in every kMessagesBetweenEvents
  int since_event_ = 0;
  DeviceArithmetic arithmetic_;
  const std::unique_ptr<DeviceBackend> connections_;  // destroyed before the memory it works on
};

}  // namespace

std::unique_ptr<DeviceBackend> device_ring(std::unique_ptr<DeviceBackend> connections,
                                           const Stream& stream) {
  return std::make_unique<DeviceRing>(std::move(connections), stream);
}

}  // namespace weft::comm
