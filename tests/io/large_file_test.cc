// Files of PyTorch's beyond 4 GiB: sizes and offsets of 64 bits, and memory by mapping.
#include <filesystem>

#include "weft/io/pickle.h"
#include "weft/tensor/creation.h"
#include "weft/tensor/ops.h"
#include "weft/tests/io/files.h"
#include "weft/tests/io/zip_files.h"

namespace weft::io {
namespace {

using testing::little;

constexpr std::uint64_t kHole = std::uint64_t{5} << 30;

/// CRC-32 of so many zeros: two halves, put together.
std::uint64_t crc_of_zeros(std::uint64_t bytes) {
  if (bytes == 0) return 0;
  if (bytes == 1) return crc32_z(0, reinterpret_cast<const Bytef*>(""), 1);
  const std::uint64_t half = crc_of_zeros(bytes / 2);
  const std::uint64_t even = crc32_combine(half, half, static_cast<z_off_t>(bytes / 2));
  return bytes % 2 == 0 ? even : crc32_combine(even, crc_of_zeros(1), 1);
}

/// A file of torch.save with a storage "0" of kHole zeros, which take no room on the disk, and a
/// storage "1" behind it.
void write_sparse(const std::string& path, const std::string& pickle, const std::string& last) {
  std::ofstream file(path, std::ios::binary);
  std::string directory;
  std::uint64_t at = 0;
  const auto add = [&](const std::string& name, const std::string& data, std::uint64_t hole) {
    const std::uint64_t size = data.size() + hole;
    const std::uint64_t crc =
        hole > 0 ? crc_of_zeros(hole)
                 : crc32_z(0, reinterpret_cast<const Bytef*>(data.data()), data.size());
    const std::string common =
        little(45, 2) + little(0, 8) + little(crc, 4) + little(~0ull, 8) + little(name.size(), 2);
    const std::string sizes = little(size, 8) + little(size, 8);
    const std::uint64_t padding = (64 - (at + 30 + name.size() + 24) % 64) % 64;
    const std::string header = "PK\x03\x04" + common + little(24 + padding, 2) + name +
                               little(1, 2) + little(16, 2) + sizes + little(0x4246, 2) +
                               little(padding, 2) + std::string(padding, '\0');
    directory += "PK\x01\x02" + little(45, 2) + common + little(28, 2) + little(0, 10) +
                 little(~0ull, 4) + name + little(1, 2) + little(24, 2) + sizes + little(at, 8);
    file << header << data;
    file.seekp(static_cast<std::streamoff>(at + header.size() + size));
    at += header.size() + size;
  };
  add("a/data.pkl", pickle, 0);
  add("a/byteorder", "little", 0);
  add("a/data/0", "", kHole);
  add("a/data/1", last, 0);
  add("a/version", "3\n", 0);
  file << directory << "PK\x06\x06" << little(44, 8) << little(45, 2) << little(45, 2)
       << little(0, 8) << little(5, 8) << little(5, 8) << little(directory.size(), 8)
       << little(at, 8) << "PK\x06\x07" << little(0, 4) << little(at + directory.size(), 8)
       << little(1, 4) << "PK\x05\x06" << little(0, 4) << std::string(12, '\xff') << little(0, 2);
}

void expect_values(const PickleValue& value, std::int64_t elements) {
  const Tensor zeros = value.at("zeros").tensor();
  ASSERT_EQ(zeros.shape(), Shape({elements}));
  EXPECT_EQ(raw::slice(zeros, 0, elements - 3, elements).to_vector<double>(),
            (std::vector<double>{0, 0, 0}));
  EXPECT_EQ(value.at("last").tensor().to_vector<double>(), (std::vector<double>{1, 2}));
}

TEST(LargeFile, IsMappedAndWritten) {
  testing::TempFolder folder;
  const std::string path = folder.path("sparse.pth"), copy = folder.path("copy.pth");
  const auto elements = static_cast<std::int64_t>(kHole / 4);
  using testing::pickled_storage;
  using testing::pickled_tensor;
  using testing::pickled_text;
  write_sparse(path,
               testing::pickled("}(" + pickled_text("zeros") +
                                pickled_tensor(pickled_storage("0", elements), {elements}, {1}) +
                                pickled_text("last") +
                                pickled_tensor(pickled_storage("1", 2), {2}, {1}) + "u"),
               little(0x3f800000, 4) + little(0x40000000, 4));
  const long before = testing::status_kb("VmRSS:");
  testing::reset_most_memory();
  {
    const PickleValue value = load_pickle(path, {.map = true});
    expect_values(value, elements);
    const long more = testing::status_kb("VmHWM:") - before;
    std::printf("%.1f GiB in the file, %ld MB more resident at most\n",
                static_cast<double>(kHole) / (1 << 30), more / 1000);
    EXPECT_LT(more, 64'000);
    // Writing to mapped memory makes a copy of its page.
    raw::fill_(raw::slice(value.at("last").tensor(), 0, 0, 2), 9);
    EXPECT_LT(testing::status_kb("VmHWM:") - before, 64'000);
  }
  save_pickle(copy, load_pickle(path, {.map = true}));
  EXPECT_GT(std::filesystem::file_size(copy), kHole);
  expect_values(load_pickle(copy, {.map = true}), elements);
}

}  // namespace
}  // namespace weft::io
