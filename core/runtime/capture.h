// A training step that is captured once and replayed: on CUDA one launch replaces the step's many.
#pragma once

#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
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

/// A step made by graph::capture. Every call has the effect of one call of the body:
///
///   first     runs the body as usual: plans are timed, gradients and optimiser state are made
///   second    captures: runs the body again and records its work, then launches the recording
///   later     replay: one launch; the body is not run
///
/// So there are no extra warm-up steps, and the losses are those of the loop without capture. A
/// step may not be used by two threads at once. The work is queued on the stream that is current at
/// the call; the caller must order calls from different streams.
class Step {
 public:
  Step(Step&&) noexcept;
  Step& operator=(Step&&) noexcept;
  /// Waits for the last replay. Tensors the body made stay valid.
  ~Step();

  /// Throws Unsupported, naming the operation, for work that cannot be captured (below), and
  /// InvalidArgument for a replay that would differ from the capture. A library that fails in a
  /// capture throws what it throws elsewhere; the end of the text names the operation. If the
  /// capture fails, nothing has run on the device, but the body's host code has run.
  void replay();
  void operator()() { replay(); }

  /// Waits for the last replay and gives back the captured work and its memory, except memory of
  /// live tensors. The next call captures again, into new memory: tensors that an earlier call made
  /// are no longer written. Use it when other work needs the memory in between: a test, a step of
  /// another shape.
  void reset();

 private:
  struct Impl;
  explicit Step(std::unique_ptr<Impl> impl);
  friend Step capture(Device device, std::function<void()> body);

  std::unique_ptr<Impl> impl_;
};

/// Makes a step of `body`, which works only on `device` (by default the thread's current device):
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
/// replay, so clone() values that must be kept. Tensors that the body reads and writes are kept
/// alive. Tensors that it makes belong to the stream on which it is captured
/// (Storage::record_stream).
///
/// A captured step keeps the memory that the body needs at its peak, and shares it with nothing,
/// not even with another captured step. Before the capture, the device's cached memory goes back to
/// the driver. The step then uses what is left of it and what the body itself frees.
/// Before each replay the learning rates, the optimisers' step counts and the random numbers
/// advance as they would in the body. The capture fixes everything else that host code decides:
/// branches, shapes, numbers passed to operations, and which tensors are read. The optimisers and
/// generators must stay at their addresses.
///
/// In the body these throw Unsupported: item(), to_vector() and printing; tensors made from host
/// values (tensor, from_span, randperm) and copies between host and device; waiting for the device,
/// which remainder and floor_divide do to check integer divisors; work on another device or stream;
/// set_lr(); a DataLoader's next batch; random numbers inside autograd::checkpoint; another
/// captured step. An index out of range is found in each replay: on CUDA the next call that waits
/// throws, of the thread that replayed. Algorithms are not timed while capturing: the library
/// chooses one for a shape that the first call has not seen.
///
/// On the CPU there is nothing to launch. Every call runs the body, checks that it does the
/// captured operations in order and with the same tensors, and refuses what CUDA would refuse.
Step capture(std::function<void()> body);
Step capture(Device device, std::function<void()> body);

/// Runs `body` as it is and returns why graph::capture would refuse it, as "item: it waits for the
/// value; call it after the step": the first reason, or an empty text. A first run may have reasons
/// of its own, an optimiser's new state or the choice of a kernel, so try the second one. It does
/// not see work on another device if the body has no backward, nor that a body does other work each
/// time, nor what the GPU's libraries cannot record. Throws what the body throws.
std::string why_not_capturable(const std::function<void()>& body);

/// Such a run, for the library's own code: thread_state().trial.
struct Trial {
  std::thread::id thread;
  std::string why_not;
};

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
  /// Number of the run of the body that is being captured or compared: never 0, unique in the
  /// process.
  std::uint64_t run() const { return run_; }
  /// Called before an operation is queued on `device`.
  void on_op(const char* op, Device device);
  /// Called for each operand: these elements of `storage` are read or written.
  void on_use(const intrusive_ptr<Storage>& storage, std::int64_t offset, DType dtype,
              const Shape& shape, const Strides& strides);

  /// 8 bytes on the device for a number that kernels read and that the host changes from step to
  /// step. They contain `value` in the captured run; replays that do not run the body call next()
  /// for a new one.
  template <class T>
  const T* number(T value, std::function<T()> next) {
    static_assert(sizeof(T) == 8);
    return static_cast<const T*>(
        add_number(bits(value), [next = std::move(next)] { return bits(next()); }));
  }
  /// The generator's next number; each replay gets a new one. If it is the thread's own generator,
  /// a replay uses the generator of the thread that replays.
  const std::uint64_t* random64(Generator& generator);
  /// A number that the captured work contains: a replay is refused if now() has changed.
  void constant(const char* op, const char* what, std::function<std::int64_t()> now);
  /// Must be called when the body has set host state, which `name` identifies: each replay that
  /// does not run the body calls `again` to set it. Only the last call for a name counts.
  void on_host_state(const void* name, std::function<void()> again);
  /// Calls all of these.
  void set_host_state() const;

 private:
  friend class Step;
  enum class Mode { recording, comparing };

  // An operation, or one of its operands.
  struct Entry {
    const char* op = nullptr;         // null: an operand
    const Storage* memory = nullptr;  // null: in the pool, where addresses may change
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
  /// Computes the numbers for the next replay.
  void advance();
  /// Queues the copy of the numbers to the device.
  void write_numbers(const Stream& stream) const;

  const std::uint64_t id_;
  std::uint64_t run_;
  const Stream stream_;  // the step's own, so that its scratch memory is its own, too
  const bool on_host_;   // replays run the body
  MemoryPool pool_;
  // The numbers are written before the launch. So they may not share memory with what the body
  // freed before it asked for them: a replay writes there again.
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
