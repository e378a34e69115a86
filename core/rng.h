// Random numbers of the CPU generator, bit for bit those of PyTorch's CPU generator.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace weft {

/// The 32-bit Mersenne Twister, number for number std::mt19937. Written out because its state must
/// be the same text whatever the standard library.
class Mt19937 {
 public:
  static constexpr int kWords = 624;

  explicit Mt19937(std::uint32_t seed = 5489);
  std::uint32_t operator()() {
    if (next_ == kWords) refill();
    std::uint32_t y = words_[next_++];
    y ^= y >> 11;
    y ^= (y << 7) & 0x9d2c5680u;
    y ^= (y << 15) & 0xefc60000u;
    return y ^ (y >> 18);
  }

 private:
  friend class Generator;
  void refill();

  std::array<std::uint32_t, kWords> words_;
  int next_ = kWords;  // first word not yet handed out
};

/// mt19937 with PyTorch's way of turning its 32-bit draws into values
/// (aten/src/ATen/core/DistributionsHelper.h). Not thread-safe: one generator, one thread at a
/// time.
class Generator {
 public:
  static constexpr std::uint64_t kDefaultSeed =
      67280421310721ull;  // PyTorch's default_rng_seed_val

  explicit Generator(std::uint64_t seed = kDefaultSeed) { manual_seed(seed); }

  /// The engine sees the low 32 bits, as in PyTorch. Also drops a cached normal draw.
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
  void normal(std::span<float> out, double mean = 0, double std = 1);
  void normal(std::span<double> out, double mean = 0, double std = 1);
  /// 1 with probability p, from one f64 uniform each. Not PyTorch's bits (it uses MKL there).
  void bernoulli(std::span<std::uint8_t> out, double p);
  /// PyTorch's randperm: a Fisher-Yates shuffle of 32-bit draws below 2^32/20 elements, of 64-bit
  /// draws, inside out, from there on. Throws InvalidArgument for n < 0.
  std::vector<std::int64_t> randperm(std::int64_t n);

  /// Everything needed to go on from here: engine, seed, cached normal. Text, portable.
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

/// The calling thread's generator: thread_state().generator, else one of its own, which starts at
/// kDefaultSeed in every thread.
Generator& default_generator();
/// Seeds the calling thread's generator.
void manual_seed(std::uint64_t seed);

}  // namespace weft
