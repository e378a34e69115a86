// Copies between host and CUDA, with a fake CUDA that logs which bytes are copied, on which stream,
// after which events. It has no kernels, so code that needs one on the device would fail here.
#include <cstdlib>
#include <cstring>

#include "weft/core/runtime/allocator.h"
#include "weft/core/runtime/capture.h"
#include "weft/core/runtime/copy_stream.h"
#include "weft/core/runtime/runtime.h"
#include "weft/core/runtime/thread_state.h"
#include "weft/tensor/ops.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/tensor/tensor_util.h"

namespace weft {
namespace {

using testing::reversed_layout;
using testing::some;
using testing::values_of;
using testing::with_gaps;

using Log = std::vector<std::string>;

class RecordingRuntime final : public Runtime {
 public:
  Log log;

  int device_count() override { return 2; }
  void* allocate(int, std::size_t bytes) override { return std::aligned_alloc(512, bytes); }
  void free(int, void* p, std::size_t) noexcept override { std::free(p); }
  void* allocate_pinned(std::size_t bytes) override { return std::aligned_alloc(512, bytes); }
  void free_pinned(void* p) noexcept override { std::free(p); }
  void copy(void* dst, Device to, const void* src, Device from, std::size_t bytes,
            const Stream& stream) override {
    std::memcpy(dst, src, bytes);
    log.push_back("copy " + std::to_string(bytes) + " bytes " + to_string(from) + " to " +
                  to_string(to) + " on " + name(stream));
  }
  void fill_zero(void* dst, std::size_t bytes, const Stream&) override {
    std::memset(dst, 0, bytes);
  }
  Stream default_stream(int device) override { return {Device(DeviceType::cuda, device), nullptr}; }
  Stream new_stream(int device) override {
    return {Device(DeviceType::cuda, device), reinterpret_cast<void*>(++last_stream_)};
  }
  void synchronize(const Stream& stream) override { log.push_back("wait for " + name(stream)); }
  void synchronize_device(int) override {}
  std::unique_ptr<Event> new_event(int) override { return std::make_unique<RecordingEvent>(*this); }

  static std::string name(const Stream& stream) {
    return to_string(stream.device) + "/" +
           std::to_string(reinterpret_cast<std::uintptr_t>(stream.handle));
  }

 private:
  class RecordingEvent final : public Event {
   public:
    explicit RecordingEvent(RecordingRuntime& runtime) : runtime_(runtime) {}
    void record(const Stream& stream) override {
      recorded_ = name(stream);
      runtime_.log.push_back("record " + recorded_);
    }
    void block(const Stream& stream) override {
      runtime_.log.push_back(name(stream) + " waits for " + recorded_);
    }
    bool done() const override { return true; }
    void synchronize() override {}

   private:
    RecordingRuntime& runtime_;
    std::string recorded_;
  };

  std::uintptr_t last_stream_ = 0;
};

class TransferTest : public ::testing::Test {
 protected:
  void SetUp() override {
    static RecordingRuntime runtime;  // it must live as long as its memory is cached
    cuda_ = &runtime;
    register_runtime(DeviceType::cuda, cuda_);
    cuda_->log.clear();
  }
  Log taken() { return std::exchange(cuda_->log, {}); }
  std::string copies_of_first() const { return RecordingRuntime::name(copy_stream(first_)); }

  RecordingRuntime* cuda_ = nullptr;
  const Device host_;
  const Device first_ = Device("cuda:0");
  const Device second_ = Device("cuda:1");
};

TEST_F(TransferTest, ToCudaDoesNotWait) {
  const Tensor x = some({2, 3});
  const Tensor y = raw::to(x, first_);
  EXPECT_EQ(taken(), Log{"copy 24 bytes cpu:0 to cuda:0 on cuda:0/0"});
  EXPECT_EQ(y.device(), first_);
  EXPECT_EQ(y.dtype(), x.dtype());
}

TEST_F(TransferTest, NeitherWayWhileCapturing) {
  const Tensor x = some({2, 3});
  const Tensor there = raw::to(x, first_);
  graph::Capture capture(first_);
  const Scoped scope(&ThreadState::capture, &capture);
  taken();
  EXPECT_WEFT_ERROR(raw::copy_(there, x), Unsupported, "[copy] cannot be captured");
  EXPECT_WEFT_ERROR(raw::to(there, host_), Unsupported, "[copy] cannot be captured");
  EXPECT_EQ(taken(), Log{});
}

TEST_F(TransferTest, ToHostWaits) {
  const Tensor x = some({2, 3});
  const Tensor there = raw::to(x, first_);
  taken();
  const Tensor back = raw::to(there, host_);
  EXPECT_EQ(taken(), (Log{"copy 24 bytes cuda:0 to cpu:0 on cuda:0/0", "wait for cuda:0/0"}));
  EXPECT_EQ(values_of(back), values_of(x));
}

TEST_F(TransferTest, OnTheThreadsStream) {
  const Stream stream = cuda_->new_stream(0);
  const Stream before = set_current_stream(stream);
  const std::string name =
      "cuda:0/" + std::to_string(reinterpret_cast<std::uintptr_t>(stream.handle));
  const Tensor there = raw::to(some({2}), first_);
  raw::to(there, host_);
  set_current_stream(before);
  EXPECT_EQ(taken(), (Log{"copy 8 bytes cpu:0 to cuda:0 on " + name,
                          "copy 8 bytes cuda:0 to cpu:0 on " + name, "wait for " + name}));
}

TEST_F(TransferTest, BetweenDevicesBothStreamsAreOrdered) {
  const Tensor x = some({2, 3});
  const Tensor there = raw::to(x, first_);
  taken();
  const Tensor moved = raw::to(there, second_);
  const std::string copies = copies_of_first();
  EXPECT_EQ(taken(),
            (Log{"record cuda:0/0", copies + " waits for cuda:0/0", "record cuda:1/0",
                 copies + " waits for cuda:1/0", "copy 24 bytes cuda:0 to cuda:1 on " + copies,
                 "record " + copies, "cuda:1/0 waits for " + copies}))
      << "the source's stream goes on";
  EXPECT_EQ(moved.device(), second_);
  EXPECT_EQ(values_of(moved), values_of(x));
}

TEST_F(TransferTest, TheFirstWriteAfterACopyToAnotherDeviceWaitsForIt) {
  const Tensor there = raw::to(some({2, 3}), first_);
  const Tensor moved = raw::to(there, second_);
  taken();
  const Log wait = {"record " + copies_of_first(), "cuda:0/0 waits for " + copies_of_first()};
  raw::zero_(there);
  EXPECT_EQ(taken(), wait);
  raw::zero_(there);
  raw::zero_(moved);
  EXPECT_EQ(taken(), Log{});
  raw::to(there, second_);
  taken();
  raw::copy_(there, moved);
  const Log log = taken();
  EXPECT_EQ(Log(log.begin(), log.begin() + 2), wait) << "before it says that the memory is free";
}

TEST_F(TransferTest, MemoryIsKeptUntilAnotherDeviceHasIt) {
  Tensor there = raw::to(some({2, 3}), first_);
  const Tensor moved = raw::to(there, second_);
  taken();
  there = Tensor();
  EXPECT_EQ(taken(), Log{"record " + copies_of_first()});
}

TEST_F(TransferTest, LentMemoryIsReadBeforeTheSourceGoesOn) {
  const Tensor owner = raw::to(some({2, 3}), first_);
  const Tensor lent =
      as_strided(Storage::borrow(first_, owner.raw_data(), 24), DType::f32, {6}, {1});
  taken();
  raw::to(lent, second_);
  EXPECT_EQ(taken().back(), "cuda:0/0 waits for " + copies_of_first());
}

TEST_F(TransferTest, PinnedMemoryIsKeptUntilItHasBeenRead) {
  {
    auto storage = Storage::allocate_pinned(8);
    const Tensor x = as_strided(storage, DType::f32, {2}, {1});
    raw::fill_(x, 3);
    EXPECT_EQ(values_of(raw::to(x, first_)), (std::vector<double>{3, 3}));
    taken();
    storage.reset();
  }
  EXPECT_EQ(taken(), Log{"record cuda:0/0"}) << "as the memory is let go of";
}

TEST_F(TransferTest, ADenseLayoutCrossesAsItIs) {
  const Tensor x = reversed_layout(some({2, 3, 4}));
  const Tensor there = raw::to(x, first_);
  EXPECT_EQ(there.strides(), x.strides());
  EXPECT_EQ(taken(), Log{"copy 96 bytes cpu:0 to cuda:0 on cuda:0/0"});
  EXPECT_EQ(values_of(raw::to(there, host_)), values_of(x));
}

TEST_F(TransferTest, GapsStayBehind) {
  const Tensor x = with_gaps(some({2, 3}));
  const Tensor there = raw::to(x, first_);
  EXPECT_EQ(taken(), Log{"copy 24 bytes cpu:0 to cuda:0 on cuda:0/0"});
  EXPECT_EQ(values_of(raw::to(there, host_)), values_of(x));
}

TEST_F(TransferTest, CopyIntoExistingMemory) {
  const Tensor x = some({2, 3});
  const Tensor there = zeros({2, 3}, first_);
  const std::uint32_t version = there.storage()->version();
  raw::copy_(there, x);
  EXPECT_EQ(taken(), Log{"copy 24 bytes cpu:0 to cuda:0 on cuda:0/0"});
  EXPECT_EQ(there.storage()->version(), version + 1);
  const Tensor back = with_gaps(zeros({2, 3}));
  raw::copy_(back, there);
  EXPECT_EQ(taken(), (Log{"copy 24 bytes cuda:0 to cpu:0 on cuda:0/0", "wait for cuda:0/0"}));
  EXPECT_EQ(values_of(back), values_of(x));
}

TEST_F(TransferTest, TheNarrowerDtypeCrosses) {
  const Tensor x = some({2, 3});
  const Tensor narrow = zeros({2, 3}, TensorOptions(DType::bf16, first_));
  raw::copy_(narrow, x);
  EXPECT_EQ(taken(), Log{"copy 12 bytes cpu:0 to cuda:0 on cuda:0/0"});
  const Tensor wide = zeros({2, 3}, DType::f64);
  raw::copy_(wide, narrow);
  EXPECT_EQ(taken(), (Log{"copy 12 bytes cuda:0 to cpu:0 on cuda:0/0", "wait for cuda:0/0"}));
  EXPECT_EQ(values_of(wide), values_of(raw::to(x, DType::bf16)));
}

TEST_F(TransferTest, SmallReads) {
  const Tensor x = raw::to(testing::make({1.5, 2.5}, {2}), first_);
  taken();
  EXPECT_EQ(raw::select(x, 0, 1).item<float>(), 2.5f);
  EXPECT_EQ(taken(), (Log{"copy 4 bytes cuda:0 to cpu:0 on cuda:0/0", "wait for cuda:0/0"}));
  EXPECT_EQ(x.to_vector<float>(), (std::vector<float>{1.5f, 2.5f}));
  EXPECT_EQ(taken(), (Log{"copy 8 bytes cuda:0 to cpu:0 on cuda:0/0", "wait for cuda:0/0"}));
}

TEST_F(TransferTest, NothingToCopy) {
  const Tensor there = raw::to(zeros({0, 3}), first_);
  EXPECT_EQ(there.shape(), (Shape{0, 3}));
  EXPECT_EQ(raw::to(there, host_).numel(), 0);
  EXPECT_EQ(taken(), Log{});
}

}  // namespace
}  // namespace weft
