#include "weft/benchmarks/loader_sets.h"

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>

// After <cstdio>: its declarations need FILE.
#include <jpeglib.h>

#include <algorithm>
#include <memory>

#include "weft/core/base/error.h"
#include "weft/core/runtime/rng.h"

namespace weft::bench {
namespace {

namespace fs = std::filesystem;

void write(const fs::path& path, const std::vector<unsigned char>& bytes) {
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
  WEFT_CHECK(file.good(), Io, "bench", "cannot write ", path.string());
}

/// The header of an IDX file of bytes.
std::vector<unsigned char> idx_header(std::initializer_list<int> dims) {
  std::vector<unsigned char> out = {0, 0, 8, static_cast<unsigned char>(dims.size())};
  for (const int dim : dims) {
    for (int shift = 24; shift >= 0; shift -= 8)
      out.push_back(static_cast<unsigned char>(dim >> shift));
  }
  return out;
}

void append_noise(std::vector<unsigned char>& bytes, std::size_t count, Generator& generator) {
  for (std::size_t i = 0; i < count; ++i)
    bytes.push_back(static_cast<unsigned char>(generator.random32() & 0xff));
}

void write_mnist(const fs::path& folder, int count, Generator& generator) {
  constexpr int kSize = 28;
  std::vector<unsigned char> images = idx_header({count, kSize, kSize});
  append_noise(images, static_cast<std::size_t>(count) * kSize * kSize, generator);
  std::vector<unsigned char> labels = idx_header({count});
  for (int i = 0; i < count; ++i) labels.push_back(static_cast<unsigned char>(i % 10));
  fs::create_directory(folder);
  write(folder / "train-images-idx3-ubyte", images);
  write(folder / "train-labels-idx1-ubyte", labels);
}

void write_cifar(const fs::path& folder, int count, Generator& generator) {
  std::vector<unsigned char> records;
  for (int i = 0; i < count; ++i) {
    records.push_back(static_cast<unsigned char>(i % 10));
    append_noise(records, 3 * 32 * 32, generator);
  }
  fs::create_directory(folder);
  write(folder / "test_batch.bin", records);
}

/// Adds bilinear noise from -amplitude to amplitude to each value of [height,width,3]; its grid has
/// a point every `cell` pixels.
void add_noise(std::vector<float>& image, int height, int width, int cell, float amplitude,
               Generator& generator) {
  const int rows = height / cell + 2, columns = width / cell + 2;
  std::vector<float> grid(static_cast<std::size_t>(rows) * columns * 3);
  generator.uniform(grid, -amplitude, amplitude);
  for (int y = 0; y < height; ++y) {
    const auto down = static_cast<float>(y % cell) / static_cast<float>(cell);
    for (int x = 0; x < width; ++x) {
      const auto right = static_cast<float>(x % cell) / static_cast<float>(cell);
      const float* corner = &grid[(static_cast<std::size_t>(y / cell) * columns + x / cell) * 3];
      const float* below = corner + static_cast<std::ptrdiff_t>(columns) * 3;
      float* out = &image[(static_cast<std::size_t>(y) * width + x) * 3];
      for (int c = 0; c < 3; ++c) {
        const float upper = corner[c] + right * (corner[c + 3] - corner[c]);
        const float lower = below[c] + right * (below[c + 3] - below[c]);
        out[c] += upper + down * (lower - upper);
      }
    }
  }
}

}  // namespace

LoaderSets::LoaderSets(const Counts& counts) {
  Generator generator(0);
  write_mnist(mnist(), counts.mnist, generator);
  write_cifar(cifar(), counts.cifar, generator);
  for (int i = 0; i < counts.pictures; ++i) {
    jpegs_.push_back(encode_picture(static_cast<std::uint64_t>(i)));
    const fs::path label = fs::path(folder()) / (i % 2 ? "odd" : "even");
    fs::create_directories(label);
    write(label / (std::to_string(i) + ".jpg"), jpegs_.back());
  }
}

std::vector<unsigned char> encode_picture(std::uint64_t number) {
  const int height = 224 + 32 * static_cast<int>(number % 3);
  const int width = 224 + 32 * static_cast<int>(number / 3 % 3);
  Generator generator(number);
  std::vector<float> image(static_cast<std::size_t>(height) * width * 3, 128.0F);
  // The amplitude decreases per octave, so that files are as large as those of photographs.
  float amplitude = 60;
  for (int cell = 64; cell >= 1; cell /= 2, amplitude *= 0.65F)
    add_noise(image, height, width, cell, amplitude, generator);
  std::vector<unsigned char> bytes(image.size());
  std::ranges::transform(image, bytes.begin(), [](float value) {
    return static_cast<unsigned char>(std::clamp(value, 0.0F, 255.0F));
  });

  // On an error libjpeg prints a message and ends the program. This is right here, since no input
  // can be wrong.
  jpeg_error_mgr errors;
  jpeg_compress_struct info;
  info.err = jpeg_std_error(&errors);
  jpeg_create_compress(&info);
  unsigned char* out = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&info, &out, &size);
  info.image_width = static_cast<JDIMENSION>(width);
  info.image_height = static_cast<JDIMENSION>(height);
  info.input_components = 3;
  info.in_color_space = JCS_RGB;
  jpeg_set_defaults(&info);
  jpeg_set_quality(&info, 90, TRUE);
  jpeg_start_compress(&info, TRUE);
  while (info.next_scanline < info.image_height) {
    JSAMPROW row = bytes.data() + std::size_t{info.next_scanline} * width * 3;
    jpeg_write_scanlines(&info, &row, 1);
  }
  jpeg_finish_compress(&info);
  jpeg_destroy_compress(&info);
  const std::unique_ptr<unsigned char, decltype(&std::free)> owned(out, &std::free);
  return {out, out + size};
}

void decode_picture(const std::vector<unsigned char>& jpeg, std::vector<unsigned char>& pixels) {
  jpeg_error_mgr errors;
  jpeg_decompress_struct info;
  info.err = jpeg_std_error(&errors);
  jpeg_create_decompress(&info);
  jpeg_mem_src(&info, jpeg.data(), jpeg.size());
  jpeg_read_header(&info, TRUE);
  info.out_color_space = JCS_RGB;
  jpeg_start_decompress(&info);
  const std::size_t stride = std::size_t{info.output_width} * 3;
  pixels.resize(stride * info.output_height);
  while (info.output_scanline < info.output_height) {
    JSAMPROW row = pixels.data() + info.output_scanline * stride;
    jpeg_read_scanlines(&info, &row, 1);
  }
  jpeg_finish_decompress(&info);
  jpeg_destroy_decompress(&info);
}

std::string jpeg_library() {
#define WEFT_TEXT_OF(x) #x
#define WEFT_TEXT(x) WEFT_TEXT_OF(x)
  return "libjpeg-turbo " WEFT_TEXT(LIBJPEG_TURBO_VERSION);
#undef WEFT_TEXT
#undef WEFT_TEXT_OF
}

}  // namespace weft::bench
