// Devices by name: "cpu", "cpu:1", "cuda:0".
#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>
#include <string_view>

#include "weft/core/base/compiler.h"

namespace weft {

enum class DeviceType : std::uint8_t { cpu, cuda };

/// The most devices of one kind, including virtual CPU devices.
inline constexpr int kMaxDevices = 64;

struct Device {
  DeviceType type = DeviceType::cpu;
  int index = 0;

  constexpr Device() = default;
  constexpr Device(DeviceType t, int i = 0) : type(t), index(i) {}
  /// Reads "cpu", "cuda", "cuda:1". Throws InvalidArgument for another text. Whether such a device
  /// exists is only checked when it is used.
  Device(std::string_view text);
  Device(const char* text) : Device(std::string_view(text)) {}
  Device(const std::string& text) : Device(std::string_view(text)) {}

  bool is_cpu() const { return type == DeviceType::cpu; }
  bool is_cuda() const { return type == DeviceType::cuda; }
  friend constexpr bool operator==(Device a, Device b) {
    return a.type == b.type && a.index == b.index;
  }
};

/// "cpu:0", "cuda:1"
std::string to_string(Device device);
std::ostream& operator<<(std::ostream& out, Device device);

/// The CPU's name as reported by the system; "unknown" if it reports none.
const std::string& cpu_model();

/// Number of virtual CPU devices: the last set_host_devices(), else WEFT_HOST_DEVICES, else 1. Each
/// has its own allocator accounting and memory limit, and its share of the cores. Throws
/// InvalidArgument if the variable is not a number from 1 to kMaxDevices.
int host_device_count();
namespace detail {
/// Sets the number to n, unless check() throws; so_far is 0 if the number has not been determined
/// yet.
void change_host_device_count(int n, void (*check)(int so_far, int n));
}  // namespace detail

}  // namespace weft
