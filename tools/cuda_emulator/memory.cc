// Device and pinned memory: each block ends, up to cudaMalloc's granule, where an inaccessible page
// begins. Device memory is inaccessible itself but to the operation that runs on its device.
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <map>

#include "tools/cuda_emulator/emulator.h"

namespace emulator {

namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kGranule = 256;  // cudaMalloc's alignment
// Recognisable among a kernel's parameters.
constexpr std::uintptr_t kArena = 0x5A5A00000000, kArenaBytes = std::uintptr_t{1} << 38;
// NaN, and integers that are no index.
constexpr unsigned char kFresh = 0xFF;
constexpr unsigned char kSlack = 0xCB;

std::size_t round_up(std::size_t n, std::size_t step) { return (n + step - 1) / step * step; }

struct Block {
  char* map;  // pages between inaccessible ones
  std::size_t map_bytes;
  char* data;
  std::size_t bytes;
  int device;  // or kPinned
};

std::map<std::uintptr_t, Block> blocks;  // by data
std::uintptr_t next_address = 0;
std::array<std::size_t, kMostDevices> in_use{};
std::set<int> accessible;

const Block* find(const void* p) {
  const auto address = reinterpret_cast<std::uintptr_t>(p);
  auto it = blocks.upper_bound(address);
  if (it == blocks.begin()) return nullptr;
  --it;
  const Block& block = it->second;
  return address <= it->first + round_up(block.bytes, kGranule) ? &block : nullptr;
}

void set_access(const Block& block, bool on) {
  if (mprotect(block.map, block.map_bytes, on ? PROT_READ | PROT_WRITE : PROT_NONE) != 0) {
    fault("mprotect: %s", std::strerror(errno));
  }
}

}  // namespace

bool in_arena(std::uintptr_t address) {
  return address >= kArena && address < kArena + kArenaBytes;
}

void open_memory(const std::set<int>& devices) {
  if (devices == accessible) return;
  for (const auto& [address, block] : blocks) {
    if (block.device < 0) continue;
    const bool was = accessible.count(block.device), is = devices.count(block.device);
    if (was != is) set_access(block, is);
  }
  accessible = devices;
}

void* allocate(std::size_t bytes, int device) {
  if (!next_address) {
    void* const got =
        mmap(reinterpret_cast<void*>(kArena), kArenaBytes, PROT_NONE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
    if (got == MAP_FAILED) fault("no address space: %s", std::strerror(errno));
    next_address = kArena + kPage;
  }
  const std::size_t rounded = round_up(std::max<std::size_t>(bytes, 1), kGranule);
  Block block;
  block.map_bytes = round_up(rounded, kPage);
  if (device >= 0 && in_use[device] + block.map_bytes > options().memory) return nullptr;
  if (next_address + block.map_bytes + kPage > kArena + kArenaBytes) fault("the arena is used up");
  block.map = reinterpret_cast<char*>(next_address);
  block.data = block.map + block.map_bytes - rounded;
  block.bytes = bytes;
  block.device = device;
  if (mprotect(block.map, block.map_bytes, PROT_READ | PROT_WRITE) != 0) return nullptr;
  // Addresses are never used again: who keeps one after the end finds an inaccessible page.
  next_address += block.map_bytes + kPage;
  std::memset(block.map, kSlack, block.map_bytes);
  std::memset(block.data, kFresh, bytes);
  if (device >= 0) {
    in_use[device] += block.map_bytes;
    if (!accessible.count(device)) set_access(block, false);
  }
  blocks[reinterpret_cast<std::uintptr_t>(block.data)] = block;
  return block.data;
}

bool release(void* p) {
  const auto it = blocks.find(reinterpret_cast<std::uintptr_t>(p));
  if (it == blocks.end()) return false;
  const Block block = it->second;
  set_access(block, true);
  const char* const end = block.map + block.map_bytes;
  const auto touched = [](char c) { return static_cast<unsigned char>(c) != kSlack; };
  const char* at = std::find_if<const char*>(block.map, block.data, touched);
  if (at == block.data) at = std::find_if<const char*>(block.data + block.bytes, end, touched);
  if (at != end) {
    fault("something wrote %td bytes from the start of a block of %zu", at - block.data,
          block.bytes);
  }
  if (block.device >= 0) in_use[block.device] -= block.map_bytes;
  blocks.erase(it);
  mmap(block.map, block.map_bytes, PROT_NONE,
       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  return true;
}

int place_of(const void* p, std::size_t bytes) {
  const Block* const block = find(p);
  if (!block) return in_arena(reinterpret_cast<std::uintptr_t>(p)) ? kNowhere : kOther;
  if (static_cast<const char*>(p) + bytes > block->data + block->bytes) return kNowhere;
  return block->device;
}

bool is_device_memory(const void* p, std::size_t bytes, int device) {
  const Guard guard;
  return place_of(p, bytes) == device;
}

void for_each_block(int device, const std::function<void(const char*, std::size_t)>& f) {
  for (const auto& [address, block] : blocks) {
    if (block.device == device) f(block.data, block.bytes);
  }
}

void scribble(void* p, std::size_t bytes) { std::memset(p, 0xFE, bytes); }

}  // namespace emulator
