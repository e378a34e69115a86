// Event files, which TensorBoard shows as curves.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "weft/core/base/compiler.h"

namespace weft::train {

/// A new event file in a folder. TensorBoard reads all files of a folder as one run:
///   train::EventFile events("out/tensorboard");
///   events.scalar("loss", 0.25, 17);            tensorboard --logdir out
///
/// The format is TensorFlow's: records of a u64 length, its checksum, that many bytes, their
/// checksum (u32, masked_crc32c(); all little-endian). The bytes are a protocol buffer of the
/// type tensorflow.Event; the few fields that scalars need are written by hand.
class EventFile {
 public:
  /// Also makes the folder. TensorBoard drops the points in older files of the folder from
  /// `first_step` on: steps that a resumed run repeats, or, at 0, those of another run. Throws Io.
  explicit EventFile(const std::string& folder, std::int64_t first_step = 0);
  /// Writes the remaining events; errors are not reported.
  ~EventFile();
  EventFile(const EventFile&) = delete;
  EventFile& operator=(const EventFile&) = delete;

  /// A point of the curve `tag`, as f32, at the time of the call; in the file after flush().
  void scalar(std::string_view tag, double value, std::int64_t step);
  /// Writes all events. Throws Io; what could not be written stays for the next flush().
  void flush();

  const std::string& path() const { return path_; }

 private:
  void add(std::string_view fields);

  std::string path_;
  std::string buffer_;
  int fd_ = -1;
};

/// CRC-32 with Castagnoli's polynomial: 0xe3069283 for "123456789".
std::uint32_t crc32c(std::string_view bytes);
/// The form of a checksum in the records: rotated right by 15 bits, plus 0xa282ead8. With it,
/// checksums of data that contains checksums stay good.
std::uint32_t masked_crc32c(std::string_view bytes);

}  // namespace weft::train
