// A training step captured once and replayed: on CUDA one launch in place of a hundred.
#pragma once

#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "weft/core/allocator.h"
#include "weft/core/dtype.h"
#include "weft/core/rng.h"
#include "weft/core/runtime.h"
#include "weft/core/shape.h"
#include "weft/core/thread_state.h"

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
/// The body's memory stays the step's own: `loss` is the same tensor after every replay; clone()
/// what is to be kept. What the body reads and writes is kept alive.
///
/// Before each replay the learning rates, the optimisers' step counts and the random numbers are
/// brought forward, as the body would have. Everything else that host code decides is fixed by the
/// capture: branches, shapes, numbers passed to operations, which tensors are read. The optimisers
/// and generators must stay where they are.
///
/// What throws Unsupported in the body: item(), to_vector() and printing; tensors made from host
/// values (tensor, from_span, randperm) and copies between host and device; waiting for the device,
/// which index_select, gather and what is made of them (nll_loss) do to check their indices;
/// work on another device or stream; set_lr(); a DataLoader's next batch; random numbers inside
/// autograd::checkpoint; another captured step. Algorithms are not timed while capturing: a shape
/// the first call has not seen gets the library's own choice.
///
/// On the CPU there is nothing to launch: every call runs the body, checks that it does what was
/// captured, operation by operation and with the same tensors, and refuses what CUDA would.
Step capture(std::function<void()> body);
Step capture(Device device, std::function<void()> body);

/// "[item] cannot be captured: <why>"
[[noreturn]] void refuse(const char* op, const char* why);
inline void check_not_capturing(const char* op, const char* why) {
  if (thread_state().capture) [[unlikely]]
    refuse(op, why);
}

/// What the library's own code sees of the capture in progress, as thread_state().capture.
class Capture {
 public:
  explicit Capture(Device device);
  ~Capture();
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;

  Device device() const { return stream_.device; }
  /// Never 0, and no other capture's of the process.
  std::uint64_t id() const { return id_; }
  /// Of the body's run that is being captured or compared; never 0, and no other's of the process.
  std::uint64_t run() const { return run_; }
  /// Where memory of `device` comes from; null: from anywhere. Throws Unsupported for another
  /// device than the capture's, apart from the host.
  const MemoryPool* pool_for(Device device) const;

  /// An operation is about to be queued on `device`.
  void on_op(const char* op, Device device);
  /// It reads or writes these elements of `storage`.
  void on_use(const intrusive_ptr<Storage>& storage, std::int64_t offset, DType dtype,
              const Shape& shape, const Strides& strides);

  /// A number that kernels read and the host changes from step to step: 8 bytes on the device. They
  /// hold `value` in the captured run; replays that do not run the body ask next() for theirs.
  template <class T>
  const T* number(T value, std::function<T()> next) {
    static_assert(sizeof(T) == 8);
    return static_cast<const T*>(
        add_number(bits(value), [next = std::move(next)] { return bits(next()); }));
  }
  /// The generator's next number, another one for each replay. The thread's own generator stands
  /// for that of whichever thread replays.
  const std::uint64_t* random64(Generator& generator);
  /// A number that is part of the captured work: replays are refused once now() differs.
  void constant(const char* op, const char* what, std::function<std::int64_t()> now);
  /// The body has set host state, named by an address: each replay that does not run the body calls
  /// `again` in its place. The last call for one name counts.
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
