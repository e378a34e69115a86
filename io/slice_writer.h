// SliceWriter: several processes write safetensors files together, each the values that it has.
//
//   const auto all = gather(io::describe(slices));
//   const io::SliceWriter writer("out/model-10", slices, rank, all, {}, 5'000'000'000);
//   // out/model-10-00001-of-00001.safetensors
//   const auto made = gather(rank == 0 ? writer.make_files() : "")[0];
//   const auto sums = gather(writer.write(made));
//   if (rank == 0) {
//     writer.finish(made, sums);
//     write_file_atomically("out/model.safetensors.index.json", writer.index());
//   }
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "weft/io/metadata.h"
#include "weft/io/tensor_slice.h"

namespace weft::io {

/// A text that tells the other processes about these slices. Throws InvalidArgument for an
/// undefined tensor, and for names that save_safetensors() refuses.
std::string describe(const std::vector<TensorSlice>& slices);

/// Writes what the processes have into common files, in which every tensor is whole. Its values are
/// in the order of the whole tensor, so a box is one range of bytes or several, and each process
/// writes its own ranges. The files depend on the tensors alone, not on how they are dealt out.
class SliceWriter {
 public:
  /// `stem`: the files are STEM-0000k-of-0000N.safetensors; they are filled in order, each up to
  /// most_bytes of data or with one tensor that is larger. `described`: the texts of all processes,
  /// by rank. A box that several processes have is written by the first of them.
  ///
  /// Throws InvalidArgument, on every process the same and before a file is made: for a tensor that
  /// has two dtypes or shapes, for boxes that lie outside, overlap, or do not fill their tensor;
  /// it names the tensor and the ranks.
  SliceWriter(std::string stem, std::vector<TensorSlice> slices, int rank,
              const std::vector<std::string>& described, const Metadata& metadata,
              std::uint64_t most_bytes);

  /// Makes the files in full size, in place of old ones. Returns a text by which the other
  /// processes recognise them. Throws Io, and then leaves none.
  std::string make_files() const;
  /// Writes this process's values to the files `made`, and flushes them to the disk. Returns the
  /// text that finish() needs. Throws Io, also if this process does not see the files.
  std::string write(const std::string& made) const;
  /// Writes the headers, without which nothing can be loaded; `written`: by rank. They have
  /// checksums of blocks of 1 MiB; load_safetensors() and SliceReader verify those that they read.
  void finish(const std::string& made, const std::vector<std::string>& written) const;

  /// The names of the files, without folder.
  std::vector<std::string> files() const;
  /// The text of Hugging Face's model.safetensors.index.json: which tensor is in which file.
  std::string index() const;

  struct File;

 private:
  struct Place {
    std::size_t file = 0, entry = 0;
    std::size_t first_block = 0;  // of 1 MiB; its number among the blocks of all tensors
  };

  std::string ending(std::size_t file) const;

  std::string stem_;
  std::vector<std::pair<TensorSlice, Place>> own_;  // to be written
  Metadata metadata_;
  std::vector<std::shared_ptr<const File>> files_;
};

/// Whether a SliceWriter has made the file, finished or not. False if it cannot be read.
bool is_of_slice_writer(const std::string& path);

}  // namespace weft::io
