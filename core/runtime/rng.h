// Random numbers of the CPU generator, bit for bit those of PyTorch's CPU generator.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "weft/core/base/device.h"
#include "weft/core/runtime/allocator.h"

namespace weft {

/// The 32-bit Mersenne Twister, with the numbers of std::mt19937. Implemented here because the text
/// of its state must not depend on the standard library.
class Mt19937 {
 public:
  static constexpr int kWords = 624;

  explicit Mt19937(std::uint32_t seed = 5489);
  std::uint32_t operator()() {
    if (next_ == kWords) refill();
    return draws_[std::size_t(next_++)];
  }

 private:
  friend class Generator;
  void refill();
  void temper();

  std::array<std::uint32_t, kWords> words_;
  std::array<std::uint32_t, kWords> draws_;  // the words, tempered: what is handed out
  int next_ = kWords;                        // the first that is not yet handed out
};

/// Turns blocks of 16 values in [0, 1) into normal ones by Box-Muller: the first eight give the
/// radius, the others the angle. n is a multiple of 16.
void box_muller(float* x, std::int64_t n, float mean, float std);

/// mt19937 with PyTorch's conversion of its 32-bit draws to values
/// (aten/src/ATen/core/DistributionsHelper.h). Not thread-safe: only one thread at a time may use a
/// generator.
class Generator {
 public:
  static constexpr std::uint64_t kDefaultSeed =
      67280421310721ull;  // PyTorch's default_rng_seed_val

  explicit Generator(std::uint64_t seed = kDefaultSeed) { manual_seed(seed); }

  /// The engine uses the low 32 bits, as in PyTorch. Also drops a cached normal draw.
  void manual_seed(std::uint64_t seed);
  std::uint64_t initial_seed() const { return seed_; }

  std::uint32_t random32() { return engine_(); }
  /// Two draws, high word first.
  std::uint64_t random64();

  /// U[from, to): f32 from 24 bits of one draw, f64 from 53 bits of two; fma(x, to-from, from).
  void uniform(std::span<float> out, double from = 0, double to = 1);
  void uniform(std::span<double> out, double from = 0, double to = 1);
  /// N(mean, std) as PyTorch's normal_: 16 or more values by Box-Muller over blocks of 16, fewer
  /// one by one. Within 2e-6 of PyTorch, which differs by that much between its own CPU levels.
  /// `blocks` does what box_muller does.
  void normal(std::span<float> out, double mean = 0, double std = 1,
              decltype(&box_muller) blocks = box_muller);
  void normal(std::span<double> out, double mean = 0, double std = 1);
  /// 1 with probability p, from one f64 uniform each. Not PyTorch's bits (it uses MKL there).
  void bernoulli(std::span<std::uint8_t> out, double p);
  /// PyTorch's randperm: below 2^32/20 elements a Fisher-Yates shuffle with 32-bit draws, from
  /// there on its inside-out variant with 64-bit draws. Throws InvalidArgument for n < 0, and
  /// OutOfMemory.
  std::vector<std::int64_t> randperm(std::int64_t n);

  /// Everything needed to continue from here: engine, seed, cached normal. Portable text.
  std::string state() const;
  /// Throws InvalidArgument for text that state() did not write; nothing has changed then.
  void set_state(const std::string& state);

 private:
  double next_normal();

  Mt19937 engine_;
  std::uint64_t seed_ = 0;
  bool has_next_normal_ = false;  // Box-Muller gives two values; PyTorch keeps the second
  double next_normal_ = 0;
};

/// The seed of a device's generator: `seed` itself for cpu:0, else one computed from `seed` and the
/// device.
std::uint64_t device_seed(std::uint64_t seed, Device device);

/// States of generators, each saved before its first use, so that the same numbers can be drawn
/// again. A copy takes a few kilobytes; a device whose generator was not used has none.
class GeneratorSnapshot {
 public:
  bool empty() const { return !first_; }

 private:
  friend class GeneratorSet;
  friend class RecordGenerators;
  struct Entry : public RefCounted, public Pooled {
    Device device;
    intrusive_ptr<Storage> bytes;  // of a Generator: too large for the pool of small blocks
    intrusive_ptr<Entry> next;
  };
  const Generator* find(Device device) const;
  void add(Device device, const Generator& generator);

  std::uint64_t seed_ = Generator::kDefaultSeed;
  intrusive_ptr<Entry> first_;
};

/// The generators that operations use by default: one for each device, so threads that work on
/// different devices share nothing, and the numbers of one device do not depend on when the others
/// draw. The generator of cpu:0 is the host's, which also orders samples. The others are seeded
/// from the host's seed and their device (device_seed) when first used.
class GeneratorSet {
 public:
  explicit GeneratorSet(std::uint64_t seed = Generator::kDefaultSeed) : host_(seed) {}
  /// Draws the numbers that were drawn after the snapshot was taken.
  explicit GeneratorSet(const GeneratorSnapshot& snapshot);
  ~GeneratorSet();
  GeneratorSet(const GeneratorSet&) = delete;
  GeneratorSet& operator=(const GeneratorSet&) = delete;

  Generator& host() { return of(Device()); }
  /// Any number of threads may call it at once, each for its own device. The address does not
  /// change.
  Generator& of(Device device);
  /// Seeds all generators.
  void manual_seed(std::uint64_t seed);

  /// The host's state and, in further lines, those of the devices whose generators were used.
  std::string state();
  /// A device without a line in the text gets a newly seeded generator. Throws InvalidArgument for
  /// text that state() did not write (Generator::state() is accepted); nothing has changed then.
  void set_state(const std::string& state);

 private:
  friend class RecordGenerators;
  explicit GeneratorSet(GeneratorSet& recorded, GeneratorSnapshot& into)
      : host_(0), recorded_(&recorded), into_(&into) {}
  std::atomic<Generator*>& slot_of(Device device);
  /// The set that owns the generators: another set while RecordGenerators lives.
  GeneratorSet& root();

  Generator host_;
  std::atomic<Generator*> others_[2][kMaxDevices] = {};
  // While RecordGenerators lives: the owner of these generators, and where their states are saved.
  GeneratorSet* recorded_ = nullptr;
  GeneratorSnapshot* into_ = nullptr;
  std::mutex mutex_;
};

/// The calling thread's set: thread_state().generators, else the thread's own, which starts at
/// kDefaultSeed in every thread.
GeneratorSet& default_generators();
/// The generator for the host in this set.
Generator& default_generator();
/// The generator that operations on `device` use.
Generator& default_generator(Device device);
/// Seeds all generators of the calling thread.
void manual_seed(std::uint64_t seed);

/// While it lives, copies into `snapshot` the state of each generator of the calling thread's set
/// before the generator is first used, by this thread or by workers that run its jobs.
class RecordGenerators {
 public:
  explicit RecordGenerators(GeneratorSnapshot& snapshot);
  ~RecordGenerators();
  RecordGenerators(const RecordGenerators&) = delete;
  RecordGenerators& operator=(const RecordGenerators&) = delete;

 private:
  GeneratorSet* const before_;
  GeneratorSet set_;
};

}  // namespace weft
