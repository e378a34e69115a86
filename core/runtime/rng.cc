#include "weft/core/runtime/rng.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstring>
#include <exception>
#include <memory>
#include <numbers>
#include <type_traits>
#include <utility>

#include "weft/core/base/error.h"
#include "weft/core/base/simd_level.h"
#include "weft/core/runtime/thread_local.h"
#include "weft/core/runtime/thread_state.h"

namespace weft {
namespace {

// One value in [0, 1) with as many random bits as the mantissa has.
template <class T>
T unit(Generator& g);
template <>
float unit<float>(Generator& g) {
  return static_cast<float>(g.random32() & 0xffffffu) * 0x1p-24f;
}
template <>
double unit<double>(Generator& g) {
  return static_cast<double>(g.random64() & 0x1fffffffffffffull) * 0x1p-53;
}

// One rounding, as in PyTorch's kernels on every CPU with fused multiply-add; two roundings give
// another value half of the time. The variant is chosen by hand: an ifunc, which the loader
// resolves, crashes under ThreadSanitizer.
#if defined(__x86_64__)
#define WEFT_FMA __attribute__((target("fma")))
#else
#define WEFT_FMA
#endif

template <class T>
WEFT_FMA void scale_fma(std::span<T> x, T factor, T offset) {
  for (T& v : x) v = __builtin_fma(v, factor, offset);
}
template <>
WEFT_FMA void scale_fma<float>(std::span<float> x, float factor, float offset) {
  for (float& v : x) v = __builtin_fmaf(v, factor, offset);
}

template <class T>
void fill_uniform(Generator& g, std::span<T> out, double from, double to) {
  const T low = static_cast<T>(from);
  const T width = static_cast<T>(to) - low;
  for (T& v : out) v = unit<T>(g);
  if (simd_level() >= SimdLevel::avx2) {
    scale_fma<T>(out, width, low);
  } else {
    for (T& v : out) v = std::fma(v, width, low);
  }
}

template <class T>
void normal_blocks(T* x, std::int64_t n, T mean, T std) {
  for (std::int64_t i = 0; i < n; i += 16, x += 16) {
    for (int j = 0; j < 8; ++j) {
      const T u1 = 1 - x[j];  // (0, 1], so that the logarithm is finite
      const T u2 = x[j + 8];
      // In f64, then rounded: within one bit of kernels/cpu/loops/random.cc, which computes so,
      // too, by polynomials.
      const T radius = std::sqrt(-2 * static_cast<T>(std::log(static_cast<double>(u1))));
      const double angle = T(2 * std::numbers::pi) * u2;
      x[j] = radius * static_cast<T>(std::cos(angle)) * std + mean;
      x[j + 8] = radius * static_cast<T>(std::sin(angle)) * std + mean;
    }
  }
}

template <class T, class Blocks>
void fill_normal_blocks(Generator& g, std::span<T> out, double mean, double std,
                        const Blocks& blocks) {
  const T m = static_cast<T>(mean);
  const T s = static_cast<T>(std);
  constexpr std::size_t kInCache = 2048;
  const std::size_t whole = out.size() / 16 * 16;
  for (std::size_t i = 0; i < whole; i += kInCache) {
    const std::span<T> here = out.subspan(i, std::min(kInCache, whole - i));
    for (T& v : here) v = unit<T>(g);
    blocks(here.data(), std::ssize(here), m, s);
  }
  if (whole == out.size()) return;
  for (std::size_t i = whole; i < out.size(); ++i) unit<T>(g);
  // The rest is not a block of its own: PyTorch draws the last 16 values again.
  const std::span<T> last = out.last(16);
  for (T& v : last) v = unit<T>(g);
  blocks(last.data(), 16, m, s);
}

// For n below this PyTorch keeps the order of its first releases.
constexpr std::int64_t kSmallPermutation = 0xffffffffu / 20;

constexpr std::string_view kStateHeader = "weft-mt19937-1";

// Reads the words of a state text, separated by single blanks.
class StateReader {
 public:
  explicit StateReader(std::string_view text) : rest_(text) {}

  std::string_view word() {
    const auto end = std::min(rest_.find(' '), rest_.size());
    const std::string_view found = rest_.substr(0, end);
    rest_.remove_prefix(std::min(end + 1, rest_.size()));
    return found;
  }
  std::uint64_t number(std::uint64_t most) {
    const std::string_view text = word();
    std::uint64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    WEFT_CHECK(error == std::errc() && end == text.data() + text.size() && value <= most,
               InvalidArgument, "generator", "bad state: got '", text.substr(0, 40),
               "', expected a whole number up to ", most);
    return value;
  }
  bool done() const { return rest_.empty(); }

 private:
  std::string_view rest_;
};

}  // namespace

Mt19937::Mt19937(std::uint32_t seed) {
  words_[0] = seed;
  for (int i = 1; i < kWords; ++i) {
    words_[i] = 1812433253u * (words_[i - 1] ^ (words_[i - 1] >> 30)) + static_cast<unsigned>(i);
  }
}

// The numbers of iterations are constants and multiples of 4: without an option, gcc vectorises
// only such loops.
void Mt19937::refill() {
  constexpr int kShift = 397;
  const auto mix = [this](int i, int next, int far) {
    const std::uint32_t y = (words_[i] & 0x80000000u) | (words_[next] & 0x7fffffffu);
    words_[i] = words_[far] ^ (y >> 1) ^ (-(y & 1u) & 0x9908b0dfu);
  };
  constexpr int kFirst = kWords - kShift, kWhole = kFirst / 4 * 4;
  for (int i = 0; i < kWhole; ++i) mix(i, i + 1, i + kShift);
  for (int i = kWhole; i < kFirst; ++i) mix(i, i + 1, i + kShift);
  for (int i = kFirst; i < kWords - 1; ++i) mix(i, i + 1, i + kShift - kWords);
  mix(kWords - 1, 0, kShift - 1);
  temper();
  next_ = 0;
}

void Mt19937::temper() {
  for (int i = 0; i < kWords; ++i) {
    std::uint32_t y = words_[i];
    y ^= y >> 11;
    y ^= (y << 7) & 0x9d2c5680u;
    y ^= (y << 15) & 0xefc60000u;
    draws_[i] = y ^ (y >> 18);
  }
}

void Generator::manual_seed(std::uint64_t seed) {
  engine_ = Mt19937(static_cast<std::uint32_t>(seed));
  seed_ = seed;
  has_next_normal_ = false;
}

std::uint64_t Generator::random64() {
  const std::uint64_t high = random32();
  return high << 32 | random32();
}

void Generator::uniform(std::span<float> out, double from, double to) {
  fill_uniform(*this, out, from, to);
}

void Generator::uniform(std::span<double> out, double from, double to) {
  fill_uniform(*this, out, from, to);
}

double Generator::next_normal() {
  if (std::exchange(has_next_normal_, false)) return next_normal_;
  const double u1 = unit<double>(*this);
  const double u2 = unit<double>(*this);
  const double radius = std::sqrt(-2 * std::log1p(-u2));
  const double angle = 2 * std::numbers::pi * u1;
  next_normal_ = radius * std::sin(angle);
  has_next_normal_ = true;
  return radius * std::cos(angle);
}

void box_muller(float* x, std::int64_t n, float mean, float std) { normal_blocks(x, n, mean, std); }

void Generator::normal(std::span<float> out, double mean, double std,
                       decltype(&box_muller) blocks) {
  if (out.size() >= 16) return fill_normal_blocks(*this, out, mean, std, blocks);
  for (float& v : out) v = static_cast<float>(next_normal() * std + mean);
}

void Generator::normal(std::span<double> out, double mean, double std) {
  if (out.size() >= 16) return fill_normal_blocks(*this, out, mean, std, normal_blocks<double>);
  for (double& v : out) v = next_normal() * std + mean;
}

void Generator::bernoulli(std::span<std::uint8_t> out, double p) {
  WEFT_CHECK(p >= 0 && p <= 1, InvalidArgument, "bernoulli", "probability: got ", p,
             ", expected 0 to 1");
  for (std::uint8_t& v : out) v = unit<double>(*this) < p;
}

std::vector<std::int64_t> Generator::randperm(std::int64_t n) {
  WEFT_CHECK(n >= 0, InvalidArgument, "randperm", "got ", n, ", expected 0 or more");
  std::vector<std::int64_t> r;
  try {
    r.resize(static_cast<std::size_t>(n));
  } catch (const std::exception&) {  // bad_alloc or length_error
    WEFT_THROW(OutOfMemory, "randperm", "no memory for a permutation of ", n);
  }
  if (n < kSmallPermutation) {
    for (std::int64_t i = 0; i < n; ++i) r[i] = i;
    for (std::int64_t i = 0; i < n - 1; ++i) {
      std::swap(r[i], r[i + random32() % static_cast<std::uint32_t>(n - i)]);
    }
    return r;
  }
  for (std::int64_t i = 0; i < n; ++i) {
    const auto z = static_cast<std::int64_t>(random64() % static_cast<std::uint64_t>(i + 1));
    r[i] = i;
    std::swap(r[i], r[z]);
  }
  return r;
}

std::string Generator::state() const {
  std::string text = detail::concat(kStateHeader, ' ', seed_, ' ', has_next_normal_ ? 1 : 0, ' ',
                                    std::bit_cast<std::uint64_t>(next_normal_), ' ', engine_.next_);
  for (std::uint32_t word : engine_.words_) text.append(" ").append(std::to_string(word));
  return text;
}

void Generator::set_state(const std::string& state) {
  StateReader reader(state);
  WEFT_CHECK(reader.word() == kStateHeader, InvalidArgument, "generator",
             "bad state: expected text that begins with '", kStateHeader, "'");
  Generator read;
  read.seed_ = reader.number(~std::uint64_t{0});
  read.has_next_normal_ = reader.number(1);
  read.next_normal_ = std::bit_cast<double>(reader.number(~std::uint64_t{0}));
  read.engine_.next_ = static_cast<int>(reader.number(Mt19937::kWords));
  for (std::uint32_t& word : read.engine_.words_) {
    word = static_cast<std::uint32_t>(reader.number(0xffffffffu));
  }
  WEFT_CHECK(reader.done(), InvalidArgument, "generator", "bad state: text after the last number");
  read.engine_.temper();
  *this = read;
}

// --- One generator per device --------------------------------------------------------------------

std::uint64_t device_seed(std::uint64_t seed, Device device) {
  if (device == Device()) return seed;
  // SplitMix64's finaliser: the engine uses only the low 32 bits, so these must differ between
  // devices.
  const auto number =
      static_cast<std::uint64_t>(static_cast<int>(device.type) * kMaxDevices + device.index);
  std::uint64_t z = seed + number * 0x9e3779b97f4a7c15ull;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

static_assert(std::is_trivially_copyable_v<Generator>);

const Generator* GeneratorSnapshot::find(Device device) const {
  for (const Entry* e = first_.get(); e; e = e->next.get()) {
    if (e->device == device) return static_cast<const Generator*>(e->bytes->data());
  }
  return nullptr;
}

void GeneratorSnapshot::add(Device device, const Generator& generator) {
  auto entry = make_intrusive<Entry>();
  entry->device = device;
  entry->bytes = Storage::allocate(Device(), sizeof generator);
  std::memcpy(entry->bytes->data(), &generator, sizeof generator);
  entry->next = std::move(first_);
  first_ = std::move(entry);
}

GeneratorSet::GeneratorSet(const GeneratorSnapshot& snapshot) : host_(snapshot.seed_) {
  for (const auto* e = snapshot.first_.get(); e; e = e->next.get()) {
    std::memcpy(&of(e->device), e->bytes->data(), sizeof(Generator));
  }
}

GeneratorSet::~GeneratorSet() {
  for (auto& of_type : others_) {
    // Static objects may draw after the first thread's own set has been destroyed.
    for (std::atomic<Generator*>& other : of_type) delete other.exchange(nullptr);
  }
}

std::atomic<Generator*>& GeneratorSet::slot_of(Device device) {
  return others_[static_cast<int>(device.type)][device.index];
}

Generator& GeneratorSet::of(Device device) {
  if (recorded_) {
    Generator& found = recorded_->of(device);
    const std::lock_guard lock(mutex_);
    if (!into_->find(device)) into_->add(device, found);
    return found;
  }
  if (device == Device()) return host_;
  std::atomic<Generator*>& slot = slot_of(device);
  Generator* found = slot.load(std::memory_order_acquire);
  if (!found) {
    auto fresh = std::make_unique<Generator>(device_seed(host_.initial_seed(), device));
    if (slot.compare_exchange_strong(found, fresh.get(), std::memory_order_acq_rel)) {
      found = fresh.release();
    }
  }
  return *found;
}

GeneratorSet& GeneratorSet::root() {
  GeneratorSet* set = this;
  while (set->recorded_) set = set->recorded_;
  return *set;
}

void GeneratorSet::manual_seed(std::uint64_t seed) {
  host().manual_seed(seed);
  GeneratorSet& real = root();
  for (int type = 0; type < 2; ++type) {
    for (int i = 0; i < kMaxDevices; ++i) {
      const Device device(static_cast<DeviceType>(type), i);
      if (!real.slot_of(device).load(std::memory_order_acquire)) continue;
      of(device).manual_seed(device_seed(seed, device));
    }
  }
}

std::string GeneratorSet::state() {
  if (recorded_) return recorded_->state();
  std::string text = host_.state();
  for (int type = 0; type < 2; ++type) {
    for (int i = 0; i < kMaxDevices; ++i) {
      const Device device(static_cast<DeviceType>(type), i);
      const Generator* const other = slot_of(device).load(std::memory_order_acquire);
      if (other) text += detail::concat('\n', device, ' ', other->state());
    }
  }
  return text;
}

void GeneratorSet::set_state(const std::string& state) {
  if (recorded_) return recorded_->set_state(state);
  const auto line_end = [&](std::size_t begin) {
    return std::min(state.find('\n', begin), state.size());
  };
  std::size_t at = line_end(0);
  Generator host;
  host.set_state(state.substr(0, at));
  std::vector<std::pair<Device, Generator>> others;
  while (at < state.size()) {
    const std::size_t end = line_end(at + 1);
    const std::string line = state.substr(at + 1, end - at - 1);
    const std::size_t blank = std::min(line.find(' '), line.size());
    const Device device(line.substr(0, blank));
    WEFT_CHECK(device.index < kMaxDevices && !(device == Device()), InvalidArgument, "generator",
               "bad state: a line of ", device);
    others.emplace_back(device, Generator());
    others.back().second.set_state(line.substr(std::min(blank + 1, line.size())));
    at = end;
  }
  manual_seed(host.initial_seed());
  host_ = host;
  for (const auto& [device, other] : others) of(device) = other;
}

RecordGenerators::RecordGenerators(GeneratorSnapshot& snapshot)
    : before_(thread_state().generators), set_(default_generators(), snapshot) {
  snapshot.seed_ = set_.root().host_.initial_seed();
  thread_state().generators = &set_;
}

RecordGenerators::~RecordGenerators() { thread_state().generators = before_; }

namespace {
constinit ThreadLocal<GeneratorSet> own_generators;
}  // namespace

GeneratorSet& default_generators() {
  if (GeneratorSet* set = thread_state().generators) return *set;
  return *own_generators;
}

Generator& default_generator() { return default_generators().host(); }
Generator& default_generator(Device device) { return default_generators().of(device); }

void manual_seed(std::uint64_t seed) { default_generators().manual_seed(seed); }

}  // namespace weft
