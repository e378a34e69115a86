#include "weft/core/base/device.h"

#include <atomic>
#include <charconv>
#include <cstdlib>
#include <fstream>
#include <mutex>
#include <ostream>

#include "weft/core/base/error.h"

namespace weft {
namespace {

// Only digits are accepted, no sign and no blank; -1 for anything else.
int parse_index(std::string_view text) {
  int value = -1;
  if (text.empty() || text.front() < '0' || text.front() > '9') return -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() ? value : -1;
}

constinit std::atomic<int> host_devices{0};  // 0: not determined yet
constinit std::mutex host_devices_mutex;

int host_devices_from_environment() {
  const char* text = std::getenv("WEFT_HOST_DEVICES");
  if (!text) return 1;
  const int n = parse_index(text);
  WEFT_CHECK(n >= 1 && n <= kMaxDevices, InvalidArgument, "host_devices",
             "WEFT_HOST_DEVICES: got '", text, "', expected a whole number from 1 to ",
             kMaxDevices);
  return n;
}

}  // namespace

Device::Device(std::string_view text) {
  const auto colon = text.find(':');
  const std::string_view kind = text.substr(0, colon);
  index = colon == std::string_view::npos ? 0 : parse_index(text.substr(colon + 1));
  type = kind == "cuda" ? DeviceType::cuda : DeviceType::cpu;
  WEFT_CHECK((kind == "cpu" || kind == "cuda") && index >= 0, InvalidArgument, "device", "got '",
             text, "', expected cpu, cpu:N, cuda or cuda:N");
}

std::string to_string(Device device) { return detail::concat(device); }

std::ostream& operator<<(std::ostream& out, Device device) {
  return out << (device.is_cpu() ? "cpu:" : "cuda:") << device.index;
}

// Clouds hide which processor it is behind one name for several: its family and model tell.
const std::string& cpu_model() {
  static const std::string& model = *new std::string([] {
    std::ifstream info("/proc/cpuinfo");
    std::string family, number;
    for (std::string line; std::getline(info, line);) {
      const std::string key = line.substr(0, line.find_first_of("\t:"));
      const auto at = line.find(": ");
      const std::string value = at == std::string::npos ? "" : line.substr(at + 2);
      if (key == "cpu family") family = value;
      if (key == "model") number = value;
      if (key != "model name") continue;
      return family.empty() ? value : value + " (family " + family + ", model " + number + ")";
    }
    return std::string("unknown");
  }());
  return model;
}

int host_device_count() {
  if (const int n = host_devices.load(std::memory_order_acquire)) return n;
  std::lock_guard lock(host_devices_mutex);
  if (host_devices.load() == 0) host_devices = host_devices_from_environment();
  return host_devices;
}

void detail::change_host_device_count(int n, void (*check)(int so_far, int n)) {
  WEFT_CHECK(n >= 1 && n <= kMaxDevices, InvalidArgument, "host_devices", "got ", n,
             ", expected 1 to ", kMaxDevices);
  std::lock_guard lock(host_devices_mutex);
  check(host_devices.load(), n);
  host_devices = n;
}

}  // namespace weft
