// A training step captured once and replayed: on CUDA one launch replaces the step's many.
#pragma once

#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "weft/core/base/dtype.h"
#include "weft/core/base/shape.h"
#include "weft/core/runtime/allocator.h"
#include "weft/core/runtime/rng.h"
#include "weft/core/runtime/runtime.h"
#include "weft/core/runtime/thread_state.h"

namespace weft::graph {

/// A step that graph::capture made. Every call does what one call of the body would do:
///
///   first     runs the body as it is: plans are timed, gradients and optimiser state made
///   second    captures: runs the body again, recording its work, then launches what was recorded
///   later     replay: one launch; the body is not run
///
/// So there is no warm-up beside the steps, and the losses are those of the loop without capture.
/// Not for use by two threads at once. The work is queued on the stream that is current where it is
/// called; calls from different streams must be ordered by the caller.
class Step {
 public:
  Step(Step&&) noexcept;
  Step& operator=(Step&&) noexcept;
  /// Waits for the last replay. Tensors the body made stay valid.
  ~Step();

  /// Throws Unsupported, naming the operation, for work that cannot be captured (below), and
  /// InvalidArgument for a replay that would differ from the capture. After an error of the
  /// capture nothing has run on the device, but the body's host code has.
  void replay();
  void operator()() { replay(); }

  /// Waits for the last replay and gives the captured work and its memory back, but what live
  /// tensors hold. The next call captures again, into new memory: a tensor that an earlier call
  /// made is not written any more. For work that needs the memory in between: a test, a step of
  /// another shape.
  void reset();

 private:
  struct Impl;
  explicit Step(std::unique_ptr<Impl> impl);
  friend Step capture(Device device, std::function<void()> body);

  std::unique_ptr<Impl> impl_;
};

/// Makes a step of `body`, which works on `device` (by default the thread's current device) alone:
///
///   Tensor x = zeros({64, 784}), label = zeros({64}, DType::i64), loss;
///   auto step = graph::capture([&] {
///     sgd.zero_grad();
///     loss = nn::cross_entropy(model(x), label);
///     loss.backward();
///     sgd.step();
///   });
///   for (auto& batch : loader) {
///     x.copy_(batch.x.to(device));          // new values in the same memory
///     label.copy_(batch.label.to(device));
///     step();
///     scheduler.step();                     // the learning rate is read at every call
///   }
///   log(loss.item<float>());
///
/// The memory of the body's tensors belongs to the step: `loss` is the same tensor after every
/// replay; clone() values that must be kept. Tensors that the body reads and writes are kept alive.
/// Those that it makes are tensors of the stream on which it is captured (Storage::record_stream).
///
/// A captured step keeps the memory that the body needs at its peak, and shares it with nothing,
/// nor with another captured step. Before it captures, the device's cached memory goes back to the
/// driver; what is left of it, and what the body itself gives back, becomes the step's.
///
/// Before each replay the learning rates, the optimisers' step counts and the random numbers
/// advance as they would in the body. Everything else that host code decides is fixed by the
/// capture: branches, shapes, numbers passed to operations, which tensors are read. The optimisers
/// and generators must stay at their addresses.
///
/// In the body these throw Unsupported: item(), to_vector() and printing; tensors made from host
/// values (tensor, from_span, randperm) and copies between host and device; waiting for the device,
/// which index_select, gather and operations made of them (nll_loss) do to check their indices, and
/// remainder and floor_divide to check integer divisors; work on another device or stream;
/// set_lr(); a DataLoader's next batch; random numbers inside autograd::checkpoint; another
/// captured step. Algorithms are not timed while capturing: for a shape that the first call has not
/// seen the library chooses.
///
/// On the CPU there is nothing to launch: every call runs the body, checks that it does what was
/// captured, operation by operation and with the same tensors, and refuses what CUDA would refuse.
Step capture(std::function<void()> body);
Step capture(Device device, std::function<void()> body);

/// The capture in progress, for the library's own code: thread_state().capture.
class Capture final : private PoolChoice {
 public:
  explicit Capture(Device device);
  ~Capture();
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;

  Device device() const { return stream_.device; }
  /// Never 0; unique in the process.
  std::uint64_t id() const { return id_; }
  /// Number of the body's run that is being captured or compared: never 0, unique in the process.
  std::uint64_t run() const { return run_; }
  /// An operation is about to be queued on `device`.
  void on_op(const char* op, Device device);
  /// It reads or writes these elements of `storage`.
  void on_use(const intrusive_ptr<Storage>& storage, std::int64_t offset, DType dtype,
              const Shape& shape, const Strides& strides);

  /// 8 bytes on the device for a number that kernels read and the host changes from step to step.
  /// They hold `value` in the captured run; replays that do not run the body call next() for it.
  template <class T>
  const T* number(T value, std::function<T()> next) {
    static_assert(sizeof(T) == 8);
    return static_cast<const T*>(
        add_number(bits(value), [next = std::move(next)] { return bits(next()); }));
  }
  /// The generator's next number, a new one for each replay. If it is the thread's own generator,
  /// replays use the generator of the thread that replays.
  const std::uint64_t* random64(Generator& generator);
  /// A number that is part of the captured work: replays are refused once now() differs.
  void constant(const char* op, const char* what, std::function<std::int64_t()> now);
  /// To be called when the body has set host state, which `name` identifies: each replay that does
  /// not run the body calls `again` to set it. The last call for one name counts.
  void on_host_state(const void* name, std::function<void()> again);
  /// Calls them.
  void set_host_state() const;

 private:
  friend class Step;
  enum class Mode { recording, comparing };

  // One operation, or one of its operands.
  struct Entry {
    const char* op = nullptr;         // null: an operand
    const Storage* memory = nullptr;  // null: of the pool, where addresses may change
    std::int64_t offset = 0;
    DType dtype = DType::f32;
    Shape shape;
    Strides strides;
    friend bool operator==(const Entry&, const Entry&) = default;
  };
  struct Constant {
    const char* op;
    const char* what;
    std::int64_t value;
    std::function<std::int64_t()> now;
  };
  static constexpr std::size_t kNumbersPerBlock = Runtime::kMaxWords;

  template <class T>
  static std::uint64_t bits(T value) {
    std::uint64_t word;
    std::memcpy(&word, &value, sizeof word);
    return word;
  }
  /// Throws Unsupported for a device that is neither the capture's nor the host.
  const MemoryPool* pool_for(Device device) const override;
  const void* add_number(std::uint64_t value, std::function<std::uint64_t()> next);
  std::uint64_t* place_of(std::size_t number) const;
  void note(const Entry& event);
  [[noreturn]] void throw_differs(const Entry& was, const Entry& is) const;

  void run_on_host(const std::function<void()>& body);
  std::unique_ptr<RecordedWork> record(const std::function<void()>& body);
  void check_constants() const;
  /// Asks for the numbers of the next replay.
  void advance();
  /// Queues the numbers' way to the device.
  void write_numbers(const Stream& stream) const;

  const std::uint64_t id_;
  std::uint64_t run_;
  const Stream stream_;  // the step's own, so that its scratch memory is, too
  const bool on_host_;   // replays run the body
  MemoryPool pool_;
  // Numbers are written before the launch, so they may not share memory with what the body had and
  // gave back before it asked for them: a replay writes there again.
  MemoryPool number_pool_;
  const MemoryPool* current_pool_ = &pool_;
  Mode mode_ = Mode::recording;

  std::vector<Entry> entries_;
  std::size_t next_entry_ = 0;
  const char* op_ = "the beginning";

  std::vector<intrusive_ptr<Storage>> number_blocks_;
  std::vector<std::uint64_t> numbers_;
  std::vector<std::function<std::uint64_t()>> next_numbers_;
  std::size_t next_number_ = 0;
  std::vector<Constant> constants_;
  std::vector<std::function<void()>> host_state_;
  std::unordered_map<const void*, std::size_t> host_state_at_;

  std::unordered_set<const Storage*> known_;
  std::vector<intrusive_ptr<Storage>> kept_;
};

}  // namespace weft::graph
