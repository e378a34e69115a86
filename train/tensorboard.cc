#include "weft/train/tensorboard.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <exception>
#include <filesystem>
#include <system_error>

#include "weft/core/base/error.h"
#include "weft/core/runtime/file.h"
#include "weft/io/protobuf.h"

namespace weft::train {
namespace {

using io::protobuf::field;

constexpr const char* kOp = "tensorboard";

constexpr auto kCrcTable = [] {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0);
    table[byte] = crc;
  }
  return table;
}();

template <class T>
std::string little_endian(T value) {
  static_assert(std::endian::native == std::endian::little);
  std::string bytes(sizeof value, '\0');
  std::memcpy(bytes.data(), &value, sizeof value);
  return bytes;
}

// Field numbers of tensorflow/core/util/event.proto and framework/summary.proto.
enum Event { kWallTime = 1, kStep = 2, kFileVersion = 3, kSummary = 5, kSessionLog = 7 };
enum Summary { kValue = 1, kTag = 1, kSimpleValue = 2 };
enum SessionLog { kStatus = 1, kStart = 1 };

std::int64_t microseconds() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::microseconds>(now).count();
}

// TensorBoard needs "tfevents" in the name, and reads the files of a folder in order of names.
std::string file_name() {
  std::array<char, 256> host{}, name{};
  if (::gethostname(host.data(), host.size() - 1) != 0) host[0] = '\0';
  const auto now = static_cast<long long>(microseconds());
  std::snprintf(name.data(), name.size(), "events.out.tfevents.%010lld.%06lld.%.64s.%ld",
                now / 1'000'000, now % 1'000'000, host.data(), static_cast<long>(::getpid()));
  return name.data();
}

}  // namespace

std::uint32_t crc32c(std::string_view bytes) {
  std::uint32_t crc = ~0u;
  for (const char c : bytes)
    crc = crc >> 8 ^ kCrcTable[(crc ^ static_cast<unsigned char>(c)) & 255];
  return ~crc;
}

std::uint32_t masked_crc32c(std::string_view bytes) {
  return std::rotr(crc32c(bytes), 15) + 0xa282ead8u;
}

EventFile::EventFile(const std::string& folder, std::int64_t first_step) {
  const std::error_code error = make_folders(folder);
  WEFT_CHECK(!error, Io, kOp, folder, ": cannot make this folder: ", error.message());
  path_ = (std::filesystem::path(folder) / file_name()).string();
  fd_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0666);
  WEFT_CHECK(fd_ >= 0, Io, kOp, path_,
             ": cannot be made: ", std::generic_category().message(errno));
  add(field(kFileVersion, "brain.Event:2"));
  add(field(kStep, first_step) +
      field(kSessionLog, field(kStatus, static_cast<std::int64_t>(kStart))));
}

EventFile::~EventFile() {
  try {
    flush();
  } catch (const std::exception&) {  // nobody is left to report it to
  }
  ::close(fd_);
}

void EventFile::add(std::string_view fields) {
  const std::string event =
      field(kWallTime, static_cast<double>(microseconds()) / 1e6) + std::string(fields);
  const std::string length = little_endian<std::uint64_t>(event.size());
  buffer_ +=
      length + little_endian(masked_crc32c(length)) + event + little_endian(masked_crc32c(event));
}

void EventFile::scalar(std::string_view tag, double value, std::int64_t step) {
  const std::string point = field(kTag, tag) + field(kSimpleValue, static_cast<float>(value));
  add(field(kStep, step) + field(kSummary, field(kValue, point)));
}

void EventFile::flush() {
  while (!buffer_.empty()) {
    const ssize_t n = ::write(fd_, buffer_.data(), buffer_.size());
    if (n < 0 && errno == EINTR) continue;
    WEFT_CHECK(n > 0, Io, kOp, path_,
               ": cannot be written: ", std::generic_category().message(n < 0 ? errno : ENOSPC));
    // Half of a record would make all later ones unreadable: its rest comes first the next time.
    buffer_.erase(0, static_cast<std::size_t>(n));
  }
}

}  // namespace weft::train
