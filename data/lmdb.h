// LMDB data sets: pictures and their labels in one file, found by index.
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

/// Pictures with labels in an LMDB database: a file that is mapped into memory, where a folder of a
/// million files would have to be listed, and each of them opened.
///
///   key    the sample's index, 8 decimal digits: "00000000", "00000001", ... without a gap
///   value  the label, a signed 64-bit little-endian integer; then the bytes of a JPEG or PNG file
///
/// and no other key. LmdbWriter writes such a file, and so does Python's lmdb:
///   with lmdb.open("train.lmdb", subdir=False, lock=False, map_size=1 << 40) as db:
///     with db.begin(write=True) as txn:
///       txn.put(b"%08d" % index, struct.pack("<q", label) + open("cat.jpg", "rb").read())
/// which reads it with
///   with lmdb.open("train.lmdb", subdir=False, lock=False, readonly=True).begin() as txn:
///     value = txn.get(b"%08d" % index)
///     label, = struct.unpack_from("<q", value)
///     picture = PIL.Image.open(io.BytesIO(value[8:]))
///
/// Opened read-only and without LMDB's lock file, so it may lie on a read-only disk, and must not
/// be written while it is read. The environment is opened by the first batch that is fetched, once
/// for all workers of a process and copies of the set (each batch is a read transaction of its
/// own), and again in a process forked later: each rank has its own. Safe to read from several
/// threads.
///
/// LMDB trusts its pages. A file that is no database, or cut off, is an error; bytes changed inside
/// are found where they hit a picture.
class Lmdb {
 public:
  /// x [B,3,H,W], what the transform makes of the pictures; without one they must have the same
  /// size.
  using Batch = ImageBatch;

  /// path: the file, or LMDB's usual folder with a data.mdb in it. Opens it for a moment to see how
  /// many samples there are. Throws Io for a missing file, one that is no LMDB database, is cut off
  /// or has other keys than the layout's; what ImageBatcher throws for the format.
  explicit Lmdb(const std::string& path, const LmdbOptions& options = {});

  std::int64_t size() const { return size_; }

  /// Throws InvalidArgument for no index and for one outside [0, size()), Shape for pictures of
  /// unequal sizes, Io for a sample that is missing or damaged, and as the constructor. The epoch's
  /// seed, for random transforms, is drawn from the thread's generator.
  Batch get_batch(std::span<const std::int64_t> indices) const;
  /// The same into `batch`, in the given memory.
  void get_batch(std::span<const std::int64_t> indices, Batch& batch, const HostMemory& memory,
                 std::uint64_t epoch_seed) const;

 private:
  class Environment;
  struct Opened;
  std::shared_ptr<const Environment> environment() const;

  std::string path_;
  std::int64_t size_;
  io::ImageOptions limits_;
  ImageBatcher batcher_;
  std::shared_ptr<Opened> opened_;
};

/// Writes such a file, sample by sample. It appears, in place of an older one, on commit()
/// (core/file.h).
///   data::LmdbWriter writer("train.lmdb");
///   for (const auto& [label, bytes] : pictures) writer.add(label, bytes);
///   writer.commit();
class LmdbWriter {
 public:
  /// Throws Io when nothing can be written there, or another writer is at it.
  explicit LmdbWriter(const std::string& path);
  ~LmdbWriter();
  LmdbWriter(const LmdbWriter&) = delete;
  LmdbWriter& operator=(const LmdbWriter&) = delete;

  /// The next sample; the bytes of a JPEG or PNG file, which are not looked at. Throws Io; a writer
  /// that threw can only be destroyed. InvalidArgument for more than 10^8 samples.
  void add(std::int64_t label, std::span<const std::byte> picture);
  /// Nothing may be added after it. Throws Io.
  void commit();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace weft::data
