// Handmade files: IDX, gzip, safetensors, CIFAR; and a limit for the cost of reading a bad one.
#pragma once

#include <gtest/gtest.h>
#include <zlib.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "weft/tests/core/sanitized.h"

namespace weft::testing {

/// A separate folder for each test, removed with the object.
class TempFolder {
 public:
  TempFolder() {
    std::string name = ::testing::TempDir() + "weft_XXXXXX";
    path_ = mkdtemp(name.data());
  }
  ~TempFolder() { std::filesystem::remove_all(path_); }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  std::string path(const std::string& name) const { return path_ + "/" + name; }
  const std::string& root() const { return path_; }
  int files() const {
    return static_cast<int>(std::distance(std::filesystem::directory_iterator(path_), {}));
  }

 private:
  std::string path_;
};

inline std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline void write_file(const std::string& path, std::string_view bytes) {
  std::ofstream(path, std::ios::binary)
      .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

inline std::span<const std::byte> as_bytes(std::string_view text) {
  return std::as_bytes(std::span(text));
}

/// An IDX header: two zeros, type, number of dimensions, dimensions as big-endian u32.
inline std::string idx_header(std::initializer_list<std::uint32_t> dims, char type = 8) {
  std::string text = {'\0', '\0', type, static_cast<char>(dims.size())};
  for (const std::uint32_t dim : dims) {
    for (int shift = 24; shift >= 0; shift -= 8) text += static_cast<char>(dim >> shift & 0xff);
  }
  return text;
}

inline std::string gzip(std::string_view text, int level = 6) {
  z_stream zlib = {};
  deflateInit2(&zlib, level, Z_DEFLATED, 16 + 15, 8, Z_DEFAULT_STRATEGY);
  std::string out(deflateBound(&zlib, text.size()) + 64, '\0');
  zlib.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  zlib.avail_in = static_cast<uInt>(text.size());
  zlib.next_out = reinterpret_cast<Bytef*>(out.data());
  zlib.avail_out = static_cast<uInt>(out.size());
  deflate(&zlib, Z_FINISH);
  out.resize(zlib.total_out);
  deflateEnd(&zlib);
  return out;
}

/// gzip of `text` followed by `zeros` zero bytes, made without storing them.
inline std::string gzip_bomb(std::string_view text, std::uint64_t zeros) {
  z_stream zlib = {};
  deflateInit2(&zlib, 1, Z_DEFLATED, 16 + 15, 9, Z_DEFAULT_STRATEGY);
  std::string out;
  const std::string chunk(1 << 20, '\0');
  std::string buffer(1 << 16, '\0');
  const auto feed = [&](std::string_view in, int flush) {
    zlib.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(in.data()));
    zlib.avail_in = static_cast<uInt>(in.size());
    do {
      zlib.next_out = reinterpret_cast<Bytef*>(buffer.data());
      zlib.avail_out = static_cast<uInt>(buffer.size());
      deflate(&zlib, flush);
      out.append(buffer.data(), buffer.size() - zlib.avail_out);
    } while (zlib.avail_out == 0);
  };
  feed(text, Z_NO_FLUSH);
  for (std::uint64_t left = zeros; left > 0;) {
    const std::uint64_t n = std::min<std::uint64_t>(left, chunk.size());
    feed(std::string_view(chunk).substr(0, n), Z_NO_FLUSH);
    left -= n;
  }
  feed({}, Z_FINISH);
  deflateEnd(&zlib);
  return out;
}

/// A safetensors file: the header's length, the header, `data_bytes` bytes of data.
inline std::string safetensors(std::string_view header, std::size_t data_bytes = 0) {
  std::string file(8, '\0');
  const std::uint64_t length = header.size();
  std::memcpy(file.data(), &length, 8);
  file += header;
  file.append(data_bytes, '\x01');
  return file;
}

/// MNIST's four files, unzipped, with generated pixels.
inline void write_mnist(const std::filesystem::path& folder, unsigned train, unsigned test) {
  std::filesystem::create_directories(folder);
  for (const auto& [part, count] : {std::pair("train", train), std::pair("t10k", test)}) {
    std::string pixels, labels;
    for (unsigned i = 0; i < count * 28 * 28; ++i) pixels += static_cast<char>(i * 37 % 251);
    for (unsigned i = 0; i < count; ++i) labels += static_cast<char>(i % 10);
    write_file(folder / (std::string(part) + "-images-idx3-ubyte"),
               idx_header({count, 28, 28}) + pixels);
    write_file(folder / (std::string(part) + "-labels-idx1-ubyte"), idx_header({count}) + labels);
  }
}

/// CIFAR-10's binary files with images of noise: data_batch_1.bin to data_batch_5.bin with `train`
/// images each, test_batch.bin with `test`.
inline void write_cifar10(const std::filesystem::path& folder, int train, int test) {
  std::filesystem::create_directories(folder);
  std::mt19937 random(1);
  const auto write = [&](const std::string& name, int count) {
    std::string bytes;
    for (int i = 0; i < count; ++i) {
      bytes += static_cast<char>(random() % 10);
      for (int j = 0; j < 3 * 32 * 32; ++j) bytes += static_cast<char>(random());
    }
    write_file(folder / name, bytes);
  };
  for (int i = 1; i <= 5; ++i) write("data_batch_" + std::to_string(i) + ".bin", train);
  write("test_batch.bin", test);
}

/// An entry of /proc/self/status in kB: "VmRSS:", what is resident, "VmHWM:", the most of it.
inline long status_kb(const std::string& key) {
  std::ifstream status("/proc/self/status");
  std::string word;
  while (status >> word) {
    long kb = 0;
    if (word == key && status >> kb) return kb;
  }
  return 0;
}

/// From here on "VmHWM:" counts anew.
inline void reset_most_memory() { std::ofstream("/proc/self/clear_refs") << "5"; }

/// While it lives, at most five seconds of computing and 256 MB more than before are allowed: one
/// second was not enough on a busy machine, and what is to be refused would take minutes or
/// gigabytes. Not under sanitizers, which are slower and keep freed memory.
class CheapScope {
 public:
  CheapScope() : before_kb_(status_kb("VmRSS:")), start_(cpu_seconds()) { reset_most_memory(); }
  ~CheapScope() {
    if (kSanitized) return;
    EXPECT_LT(cpu_seconds() - start_, 5.0);
    EXPECT_LT(status_kb("VmHWM:") - before_kb_, 256 * 1000);
  }

 private:
  // Not wall-clock time: tests share the machine.
  static double cpu_seconds() {
    timespec now = {};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
  }

  long before_kb_;
  double start_;
};

}  // namespace weft::testing
