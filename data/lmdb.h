// LMDB data sets: pictures and their labels in one file, read by index.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "weft/data/image_batch.h"
#include "weft/io/image.h"

namespace weft::data {

struct LmdbOptions {
  ImageFormat format = {};
  io::ImageOptions limits = {};  ///< for each picture
};

/// Pictures with labels in an LMDB database: one file, mapped into memory. A folder of a million
/// files would have to be listed first, and each file opened.
///
///   key    the sample's index, 8 decimal digits: "00000000", "00000001", ... without a gap
///   value  the label, a signed 64-bit little-endian integer; then the bytes of a JPEG or PNG file
///
/// and no other key. LmdbWriter writes such a file. So does Python's lmdb:
///   with lmdb.open("train.lmdb", subdir=False, lock=False, map_size=1 << 40) as db:
///     with db.begin(write=True) as txn:
///       txn.put(b"%08d" % index, struct.pack("<q", label) + open("cat.jpg", "rb").read())
/// Python reads it with
///   with lmdb.open("train.lmdb", subdir=False, lock=False, readonly=True).begin() as txn:
///     value = txn.get(b"%08d" % index)
///     label, = struct.unpack_from("<q", value)
///     picture = PIL.Image.open(io.BytesIO(value[8:]))
///
/// The file is opened read-only and without LMDB's lock file. So it may lie on a read-only disk,
/// but nothing may write to it while it is read. The first batch maps it, once for all workers of
/// a process, all copies of the set, and processes that are forked later. Safe to read from several
/// threads.
///
/// A damaged file gives an error, or other samples: LMDB has no checksums. The pages that lead to a
/// sample are checked where they are followed (data/lmdb_file.h), and a picture that is damaged
/// itself is found when it is decoded, if its format can tell.
class Lmdb {
 public:
  /// x [B,3,H,W]: the pictures after the transform. Without a transform they must all have the same
  /// size.
  using Batch = ImageBatch;

  /// path: the file, or LMDB's usual folder with a data.mdb in it. Opens the file for a moment to
  /// count the samples. Throws Io for a file that is missing, no LMDB database, cut off or damaged,
  /// or whose last key is not the index of the last sample (another wrong key is found when its
  /// sample is read); and what ImageBatcher throws for the format.
  explicit Lmdb(const std::string& path, const LmdbOptions& options = {});

  std::int64_t size() const { return size_; }

  /// Throws InvalidArgument for an empty list of indices and for an index outside [0, size()),
  /// Shape for pictures of unequal sizes, Io for a sample that is missing or damaged, and what the
  /// constructor throws. The epoch's seed, for random transforms, is drawn from the thread's
  /// generator.
  Batch get_batch(std::span<const std::int64_t> indices) const;
  /// The same, but fills `batch`, in memory of the given kind.
  void get_batch(std::span<const std::int64_t> indices, Batch& batch, const HostMemory& memory,
                 std::uint64_t epoch_seed) const;

 private:
  class Table;
  struct Opened;
  std::shared_ptr<const Table> table() const;

  std::string path_;
  std::int64_t size_;
  io::ImageOptions limits_;
  ImageBatcher batcher_;
  std::shared_ptr<Opened> opened_;
};

/// Writes such a file, sample by sample. The file appears, and replaces an older one, on commit()
/// (core/runtime/file.h).
///   data::LmdbWriter writer("train.lmdb");
///   for (const auto& [label, bytes] : pictures) writer.add(label, bytes);
///   writer.commit();
class LmdbWriter {
 public:
  /// Throws Io when the file cannot be written, or while another writer has it open.
  explicit LmdbWriter(const std::string& path);
  ~LmdbWriter();
  LmdbWriter(const LmdbWriter&) = delete;
  LmdbWriter& operator=(const LmdbWriter&) = delete;

  /// Adds a sample; `picture` is a JPEG or PNG file, which is not checked. Throws Io,
  /// InvalidArgument for more than 10^8 samples, and Internal after commit(). After an Io error
  /// destroy the writer: it cannot be used again.
  void add(std::int64_t label, std::span<const std::byte> picture);
  /// Completes the file; nothing may be added afterwards. Throws Io, and Internal for a second
  /// commit.
  void commit();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace weft::data
