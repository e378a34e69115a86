// safetensors: named tensors in a file that Python's package safetensors reads and writes, too.
//
//   u64 header size (little-endian) | header, JSON | data, one tensor after the other
//
//   {"__metadata__": {"key": "value"},
//    "fc.weight": {"dtype": "F32", "shape": [10, 128], "data_offsets": [0, 5120]}, ...}
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "weft/io/metadata.h"
#include "weft/io/named_tensors.h"

namespace weft::io {

struct SafetensorsFile {
  NamedTensors tensors;  ///< in the order of their data
  Metadata metadata;     ///< without weft's checksums
};

/// The "module." that PyTorch's DataParallel and DistributedDataParallel put before every name.
enum class ModulePrefix { keep, strip, add };

struct LoadOptions {
  Device device = Device();  ///< device of the tensors, whichever they were saved from
  ModulePrefix module_prefix = ModulePrefix::keep;
};

struct SaveOptions {
  /// f32 tensors are written as F16, rounded to the nearest; values from 65520 on become infinite.
  bool f16 = false;
};

/// Writes through a temporary file (core/runtime/file.h): after any failure, `path` is the old file
/// or the complete new one. Tensors may be strided and on any device. Tensors with larger elements
/// come first, so that all are aligned; those with elements of the same size keep their order.
///
/// The metadata also gets a CRC-32 per tensor ("weft.crc32.NAME") and one of the header itself
/// ("weft.header_crc32"). Other readers see them as plain metadata; a program that rewrites the
/// file with changed values must drop them. Throws InvalidArgument for a name given twice,
/// reserved, longer than 4096 bytes or not UTF-8, for an undefined tensor, and for metadata or a
/// shape above the limits of load_safetensors(); Io when the file cannot be written.
void save_safetensors(const std::string& path, const NamedTensors& tensors,
                      const Metadata& metadata = {}, const SaveOptions& options = {});

/// Reads a whole file. Every rule of the format is checked before a tensor is allocated: header at
/// most 100 MB and inside the file, a '{' first, valid UTF-8, no deeper than the format, no key
/// twice, no unknown field, known dtypes, shapes whose product fits, offsets that follow each other
/// without gap or overlap up to the very end of the file. F16 becomes f32. weft's own limits: 8
/// dimensions, 262,144 tensors, names of 4096 bytes. Checksums are verified where the file has
/// them. Throws Io naming the file, the rule and the tensor; Unsupported for a dtype of the format
/// that weft lacks; InvalidArgument when stripping the prefix makes two names equal.
SafetensorsFile load_safetensors(const std::string& path, const LoadOptions& options = {});

/// The same for a file in memory; `name` replaces the file's name in messages.
SafetensorsFile parse_safetensors(std::span<const std::byte> bytes, const LoadOptions& options = {},
                                  const std::string& name = "safetensors data");

}  // namespace weft::io
