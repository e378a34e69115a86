// Device and pinned memory: each block ends at an inaccessible page, except for its alignment.
// Device memory itself is accessible only to the operation that runs on its device.
//
// A part that the caching allocator cuts out of its segments (a loan) gets a block of its own here,
// at another address, so that its bounds are watched too: also for reads, which a border of known
// bytes could not detect. The allocator's bookkeeping stays the same as on a GPU; nothing reaches
// the segments' memory. Since each loan has another address, it can be filled with NaN at once:
// queued work of the block's last borrower does not reach it.
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <map>

#include "emulator/emulator.h"
#include "emulator/prelude.h"
#include "emulator/streams.h"

namespace emulator {

namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kGranule = 256;  // cudaMalloc's alignment
// The widest vector, and the largest alignment that weft needs. With the allocator's 512 the
// inaccessible page would be too far behind the end to stop a read beyond it.
constexpr std::size_t kLoanGranule = 16;
// Easy to recognise among a kernel's parameters.
constexpr std::uintptr_t kArena = 0x5A5A00000000, kArenaBytes = std::uintptr_t{1} << 40;
// NaN, and no valid index as an integer.
constexpr unsigned char kFresh = 0xFF;
// Loans whose end is queued are really freed when they hold this much.
constexpr std::size_t kMuchMemory = 512 << 20;

struct Block {
  char* map;  // pages between inaccessible ones
  std::size_t map_bytes;
  char* data;
  std::size_t bytes;
  int device;                  // or kPinned
  std::uintptr_t segment = 0;  // of a loan: the segment that the allocator cut it out of
  bool is_replayed = false;    // of a loan: recorded work uses it in every replay
  bool is_lent = false;        // of a segment: parts of it are lent
};

// Never destroyed: storages may outlive static objects.
auto& blocks = *new std::map<std::uintptr_t, Block>;  // by data
struct Loan {
  std::uintptr_t data;
  std::size_t bytes;
};
auto& loans = *new std::map<std::uintptr_t, Loan>;  // by the allocator's address
std::uintptr_t next_address = 0;
std::array<std::size_t, kMostDevices> in_use{}, ending{};
auto& accessible = *new std::set<int>;

std::size_t round_up(std::size_t n, std::size_t step) { return (n + step - 1) / step * step; }
std::uintptr_t address_of(const void* p) { return reinterpret_cast<std::uintptr_t>(p); }

// The bytes around a block: also NaN in every type, but another one.
const char* border() {
  static char made[2 * kPage];
  if (!made[0]) {
    for (std::size_t i = 0; i < sizeof made; ++i) made[i] = static_cast<char>(i % 2 ? 0xFF : 0xF7);
  }
  return made;
}

const Block* find(const void* p) {
  auto it = blocks.upper_bound(address_of(p));
  if (it == blocks.begin()) return nullptr;
  --it;
  const Block& block = it->second;
  return address_of(p) <= it->first + round_up(block.bytes, kGranule) ? &block : nullptr;
}

// Work that is only counted touches no memory except the host's.
bool is_touched(int device) { return device < 0 || !options().counts; }

void set_access(const Block& block, bool on) {
  if (!is_touched(block.device)) return;
  if (mprotect(block.map, block.map_bytes, on ? PROT_READ | PROT_WRITE : PROT_NONE) != 0) {
    fault("mprotect: %s", std::strerror(errno));
  }
}

void discard(const Block& block) {
  mmap(block.map, block.map_bytes, PROT_NONE,
       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}

/// The block ends where its pages end. Null if there is no room.
Block* add_block(std::size_t bytes, std::size_t granule, int device) {
  if (!next_address) {
    void* const got =
        mmap(reinterpret_cast<void*>(kArena), kArenaBytes, PROT_NONE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
    if (got == MAP_FAILED) fault("no address space: %s", std::strerror(errno));
    next_address = kArena + kPage;
  }
  const std::size_t rounded = round_up(std::max<std::size_t>(bytes, 1), granule);
  Block block{};
  block.map_bytes = round_up(rounded, kPage);
  if (next_address + block.map_bytes + kPage > kArena + kArenaBytes) fault("the arena is used up");
  block.map = reinterpret_cast<char*>(next_address);
  block.data = block.map + block.map_bytes - rounded;
  block.bytes = bytes;
  block.device = device;
  const bool touched = is_touched(device);
  if (touched && mprotect(block.map, block.map_bytes, PROT_READ | PROT_WRITE) != 0) return nullptr;
  // Addresses are not used again: an access after the end finds an inaccessible page.
  next_address += block.map_bytes + kPage;
  const std::size_t before = static_cast<std::size_t>(block.data - block.map), end = before + bytes;
  if (touched) {
    std::memcpy(block.map, border(), before);
    std::memset(block.data, kFresh, bytes);
    std::memcpy(block.map + end, border() + end % 2, block.map_bytes - end);
  }
  if (device >= 0 && !accessible.count(device)) set_access(block, false);
  return &(blocks[address_of(block.data)] = block);
}

/// The place next to the block where something was written, or null.
const char* written_beside(const Block& block) {
  const auto differs = [](const char* p, std::size_t bytes) -> const char* {
    const char* const expected = border() + address_of(p) % 2;
    if (std::memcmp(p, expected, bytes) == 0) return nullptr;
    return std::mismatch(p, p + bytes, expected).first;
  };
  const char* const end = block.data + block.bytes;
  const char* const found = differs(block.map, static_cast<std::size_t>(block.data - block.map));
  return found ? found : differs(end, static_cast<std::size_t>(block.map + block.map_bytes - end));
}

void check_border(const Block& block, const void* kernel) {
  if (!is_touched(block.device)) return;
  const char* const at = written_beside(block);
  if (!at) return;
  fault("%s wrote %td bytes from the start of a block of %zu",
        kernel ? name_of(kernel).c_str() : "something", at - block.data, block.bytes);
}

void end_loan(std::uintptr_t data) {
  const auto it = blocks.find(data);
  if (it == blocks.end()) return;  // released with its segment
  check_border(it->second, nullptr);
  discard(it->second);
  blocks.erase(it);
}

}  // namespace

bool in_arena(std::uintptr_t address) {
  return address >= kArena && address < kArena + kArenaBytes;
}

void open_memory(const std::set<int>& devices) {
  if (devices == accessible) return;
  for (const auto& [address, block] : blocks) {
    if (block.device < 0 || block.is_lent) continue;
    const bool was = accessible.count(block.device), is = devices.count(block.device);
    if (was != is) set_access(block, is);
  }
  accessible = devices;
}

void* allocate(std::size_t bytes, int device) {
  const std::size_t charged = round_up(bytes, kPage);
  if (device >= 0 && in_use[device] + charged > options().memory) return nullptr;
  Block* const block = add_block(bytes, kGranule, device);
  if (!block) return nullptr;
  if (device >= 0) {
    in_use[device] += charged;
    statistics().most_bytes =
        std::max(statistics().most_bytes, static_cast<std::int64_t>(in_use[device]));
  }
  return block->data;
}

int allocated_on(const void* p) {
  const auto it = blocks.find(address_of(p));
  return it == blocks.end() || it->second.segment ? kNowhere : it->second.device;
}

void release(void* p) {
  const auto it = blocks.find(address_of(p));
  const Block block = it->second;
  if (block.is_lent) {
    std::erase_if(blocks, [&](const auto& entry) {
      if (entry.second.segment != it->first) return false;
      discard(entry.second);
      return true;
    });
    loans.erase(loans.lower_bound(it->first), loans.lower_bound(it->first + block.bytes));
  } else {
    set_access(block, true);
    check_border(block, nullptr);
    discard(block);
  }
  if (block.device >= 0) in_use[block.device] -= block.map_bytes;
  blocks.erase(address_of(p));
}

void* lend(void* p, std::size_t bytes, int device, cudaStream_t stream) {
  const Guard guard;
  if (options().counts) {
    loans[address_of(p)] = {address_of(p), bytes};
    return p;
  }
  auto segment = blocks.upper_bound(address_of(p));
  Block& whole = (--segment)->second;
  if (!whole.is_lent) {
    whole.is_lent = true;
    discard(whole);
  }
  Block* const block = add_block(bytes, kLoanGranule, whole.device);
  if (!block) fault("no memory for a loan of %zu bytes", bytes);
  block->segment = segment->first;
  block->is_replayed = device >= 0 && stream_of(stream, device)->recording;
  loans[address_of(p)] = {address_of(block->data), bytes};
  return block->data;
}

void take_back(void* p, int device, cudaStream_t handle) {
  const Guard guard;
  const auto loan = loans.find(address_of(p));
  const std::uintptr_t data = loan->second.data;
  loans.erase(loan);
  if (options().counts) return;
  if (device < 0) return end_loan(data);
  Stream* const stream = stream_of(handle, device);
  const Block& block = blocks.at(data);
  if (stream->recording) {
    // This does not end the loan: the next replay uses it again, as fresh memory.
    const auto refill = [data] {
      const auto it = blocks.find(data);
      if (it == blocks.end()) return;
      check_border(it->second, nullptr);
      std::memset(it->second.data, kFresh, it->second.bytes);
    };
    put(stream, {refill, nullptr, nullptr, device, -1});
    return;
  }
  if (block.is_replayed) return;  // it stays until the segment is freed
  const std::size_t bytes = block.map_bytes;
  ending[device] += bytes;
  const auto end = [=] {
    ending[device] -= bytes;
    end_loan(data);
  };
  put(stream, {end, nullptr, nullptr, device, -1});
  if (ending[device] > kMuchMemory) {
    run_device(device);
    close_memory();
  }
}

void check_border(const void* p, const void* kernel) {
  const Block* const block = find(p);
  const bool reached = block && (block->device < 0 || accessible.count(block->device));
  if (reached && !block->is_lent) check_border(*block, kernel);
}

int place_of(const void* p, std::size_t bytes) {
  const Block* const block = find(p);
  if (!block) return in_arena(address_of(p)) ? kNowhere : kOther;
  if (static_cast<const char*>(p) + bytes > block->data + block->bytes || block->is_lent) {
    return kNowhere;
  }
  return block->device;
}

bool is_device_memory(const void* p, std::size_t bytes, int device) {
  const Guard guard;
  return place_of(p, bytes) == device;
}

void for_each_block(int device, const std::function<void(const char*, std::size_t)>& f) {
  for (const auto& [address, block] : blocks) {
    if (block.device == device && !block.is_lent) f(block.data, block.bytes);
  }
}

Rest rest_of(const void* p) {
  const auto rest = [&](std::uintptr_t data, std::size_t bytes) {
    return Rest{reinterpret_cast<const void*>(data),
                static_cast<std::int64_t>(data + bytes - address_of(p))};
  };
  // Loans that are only counted stay where the allocator cut them out.
  if (auto it = loans.upper_bound(address_of(p)); options().counts && it != loans.begin()) {
    --it;
    if (address_of(p) <= it->first + it->second.bytes) return rest(it->first, it->second.bytes);
  }
  const Block* const block = find(p);
  return block ? rest(address_of(block->data), block->bytes) : Rest{};
}

void scribble(void* p, std::size_t bytes) { std::memset(p, 0xFE, bytes); }

}  // namespace emulator
