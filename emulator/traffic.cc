// What a kernel reads and writes. It runs once for all launches that differ only in addresses, on
// memory of zeros in the place of the device's, which has only addresses while work is counted.
// That memory is inaccessible at first; the first read and the first write of each piece of a block
// end in a signal, which is noted.
#include <signal.h>
#include <sys/mman.h>
#include <sys/ucontext.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "emulator/emulator.h"
#include "emulator/prelude.h"

namespace emulator {

namespace {

constexpr std::size_t kPage = 4096;
// Each block is watched in so many pieces at most, each of whole pages.
constexpr std::size_t kPieces = 256;
// Pieces that were written hold real memory. Beyond this much, the first of them are empty again.
constexpr std::size_t kMostWritten = std::size_t{1} << 30;
constexpr std::size_t kAreaBytes = std::size_t{1} << 40;

enum : unsigned char { kRead = 1, kWritten = 2 };

/// Stands for a block that the parameters point into.
struct Replica {
  char* data = nullptr;
  std::size_t bytes = 0, piece_bytes = 0;
  std::vector<unsigned char> seen;  // of each piece

  std::size_t mapped() const { return seen.size() * piece_bytes; }
};

struct Piece {
  Replica* of;
  std::size_t index;
  char* data() const { return of->data + index * of->piece_bytes; }
};

std::size_t round_up(std::size_t n, std::size_t step) { return (n + step - 1) / step * step; }

char* area() {
  static char* const reserved = [] {
    void* const got =
        mmap(nullptr, kAreaBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (got == MAP_FAILED) fault("no address space: %s", std::strerror(errno));
    return static_cast<char*>(got);
  }();
  return reserved;
}

void set_access(const Piece& piece, int protection) {
  if (mprotect(piece.data(), piece.of->piece_bytes, protection) != 0) {
    fault("mprotect: %s", std::strerror(errno));
  }
}

/// The replicas of one launch, by address.
class Replicas {
 public:
  ~Replicas() {
    mmap(area(), used_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  }

  void add(std::size_t bytes) {
    Replica made;
    made.data = area() + used_;
    made.bytes = bytes;
    made.piece_bytes = round_up(std::max<std::size_t>(bytes / kPieces, 1), kPage);
    made.seen.resize(bytes / made.piece_bytes + 1);
    used_ += made.mapped() + kPage;
    if (used_ > kAreaBytes) fault("a kernel's parameters point to %zu bytes", used_);
    all_.push_back(std::move(made));
  }
  char* at(std::size_t i) const { return all_[i].data; }

  /// Called by the signal handler, so it takes no memory. False if the address is in no replica.
  bool note(const void* p, bool is_write) {
    const char* const address = static_cast<const char*>(p);
    for (Replica& replica : all_) {
      if (address < replica.data || address >= replica.data + replica.mapped()) continue;
      const Piece piece{&replica,
                        static_cast<std::size_t>(address - replica.data) / replica.piece_bytes};
      replica.seen[piece.index] |= is_write ? kWritten : kRead;
      set_access(piece, is_write ? PROT_READ | PROT_WRITE : PROT_READ);
      if (is_write) keep(piece);
      return true;
    }
    return false;
  }

  Traffic traffic() const {
    Traffic sum;
    for (const Replica& replica : all_) {
      for (std::size_t i = 0; i < replica.seen.size(); ++i) {
        const std::size_t begin = i * replica.piece_bytes;
        const auto bytes = static_cast<std::int64_t>(
            std::min(replica.piece_bytes, replica.bytes - std::min(replica.bytes, begin)));
        if (replica.seen[i] & kRead) sum.read += bytes;
        if (replica.seen[i] & kWritten) sum.written += bytes;
      }
    }
    return sum;
  }

 private:
  void keep(const Piece& piece) {
    // A ring; the oldest entry makes room for the new one.
    while (written_bytes_ + piece.of->piece_bytes > kMostWritten || count_ == written_.size()) {
      if (count_ == 0) break;
      const Piece& oldest = written_[first_];
      madvise(oldest.data(), oldest.of->piece_bytes, MADV_DONTNEED);
      set_access(oldest, PROT_NONE);
      written_bytes_ -= oldest.of->piece_bytes;
      first_ = (first_ + 1) % written_.size();
      --count_;
    }
    written_[(first_ + count_++) % written_.size()] = piece;
    written_bytes_ += piece.of->piece_bytes;
  }

  std::vector<Replica> all_;
  std::size_t used_ = 0;
  std::vector<Piece> written_{std::size_t{1} << 15};
  std::size_t first_ = 0, count_ = 0, written_bytes_ = 0;
};

Replicas* watched = nullptr;  // of the kernel that runs

/// The parameters of a launch, with replicas in the place of the blocks that they point into.
class Rehearsal {
 public:
  Rehearsal(const Signature& signature, void* const* arguments) {
    std::size_t total = 0;
    for (int i = 0; i < signature.count; ++i) total += round_up(signature.sizes[i], kAligned);
    words_.resize(total / sizeof words_[0]);
    std::size_t to = 0;
    for (int i = 0; i < signature.count; ++i) {
      std::memcpy(&words_[to], arguments[i], signature.sizes[i]);
      starts_.push_back(to);
      to += round_up(signature.sizes[i], kAligned) / sizeof words_[0];
    }
    for (std::size_t w = 0; w < words_.size(); ++w) add(w);
  }

  /// Equal for launches that differ only in addresses.
  std::string key() const {
    std::vector<std::uint64_t> text = words_;
    for (const auto& [word, block, offset] : addresses_) text[word] = block << 48 | offset;
    text.insert(text.end(), bytes_.begin(), bytes_.end());
    return {reinterpret_cast<const char*>(text.data()), text.size() * sizeof text[0]};
  }

  Traffic run(const void* kernel, const Signature& signature, dim3 grid, dim3 block) {
    Replicas replicas;
    for (const std::uint64_t bytes : bytes_) replicas.add(bytes);
    for (const auto& [word, of, offset] : addresses_) {
      words_[word] = reinterpret_cast<std::uintptr_t>(replicas.at(of)) + offset;
    }
    std::vector<void*> arguments;
    for (const std::size_t start : starts_) arguments.push_back(&words_[start]);
    watched = &replicas;
    run_blocks_of(kernel, signature, grid, block, arguments.data());
    watched = nullptr;
    return replicas.traffic();
  }

 private:
  // Of every parameter, as in a launch.
  static constexpr std::size_t kAligned = 16;

  void add(std::size_t word) {
    if (!in_arena(words_[word])) return;
    const auto* const p = reinterpret_cast<const char*>(words_[word]);
    const Rest rest = rest_of(p);
    if (!rest.block) return;
    const auto offset = static_cast<std::uint64_t>(p - static_cast<const char*>(rest.block));
    const auto [block, is_new] = blocks_.try_emplace(rest.block, blocks_.size());
    if (is_new) bytes_.push_back(offset + static_cast<std::uint64_t>(rest.bytes));
    addresses_.push_back({word, block->second, offset});
  }

  struct Address {
    std::size_t word, block;
    std::uint64_t offset;
  };
  std::vector<std::uint64_t> words_;
  std::vector<std::size_t> starts_;            // of the parameters, among the words
  std::map<const void*, std::size_t> blocks_;  // by their beginning: which replica
  std::vector<std::uint64_t> bytes_;           // of each of them
  std::vector<Address> addresses_;
};

}  // namespace

Traffic traffic_of(const void* kernel, const Signature& signature, dim3 grid, dim3 block,
                   void* const* arguments) {
  static auto& known = *new std::map<std::string, Traffic>;
  Rehearsal rehearsal(signature, arguments);
  const std::uint64_t launch[] = {
      reinterpret_cast<std::uintptr_t>(kernel), grid.x, grid.y, grid.z, block.x, block.y, block.z};
  const auto [entry, is_new] = known.try_emplace(
      std::string(reinterpret_cast<const char*>(launch), sizeof launch) + rehearsal.key());
  if (is_new) entry->second = rehearsal.run(kernel, signature, grid, block);
  return entry->second;
}

bool note_access(const void* p, bool is_write) { return watched && watched->note(p, is_write); }

}  // namespace emulator
