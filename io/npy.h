// numpy's files: .npy, one array, and .npz, a zip archive of them.
//
//   0x93 NUMPY | version | length of the dict | dict, in Python | values
//   {'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "weft/io/named_tensors.h"

namespace weft::io {

struct NpyOptions {
  Device device = Device();  ///< of the tensors
};

/// Reads a file of numpy.save, versions 1 to 3 of the format (numpy's
/// doc/neps/nep-0001-npy-format.rst and numpy/lib/format.py). float16 becomes f32; an array in
/// Fortran's order keeps its strides.
///
/// Everything in the header is checked before memory is taken: nothing in the file is run, and the
/// file must be exactly as long as the shape says. Throws Io, naming the file and what is wrong,
/// for one that is damaged. Throws Unsupported for big-endian values, arrays of Python objects
/// (pickles), structs and other dtypes that weft lacks, which it names, and for more than 8
/// dimensions.
Tensor load_npy(const std::string& path, const NpyOptions& options = {});

/// The same for a file in memory; `name` replaces the file's name in messages.
Tensor parse_npy(std::span<const std::byte> bytes, const NpyOptions& options = {},
                 const std::string& name = "npy data");

/// Writes a file that numpy.load reads, through a temporary one (core/runtime/file.h). The tensor
/// may be strided and on any device; bf16, which numpy lacks, is written as f32. Throws
/// InvalidArgument for an undefined tensor, and for an empty one whose other sides multiply to more
/// than load_npy() reads; Io when the file cannot be written.
void save_npy(const std::string& path, const Tensor& x);

/// Reads a file of numpy.savez or savez_compressed: the arrays in the order of the file, without
/// the ".npy" that their names have in the archive. Throws as load_npy(), and Io where a rule of
/// the zip archive or the checksum of an array does not hold.
NamedTensors load_npz(const std::string& path, const NpyOptions& options = {});

/// One array of the file; the others may have dtypes that weft lacks. If none has that name,
/// InvalidArgument lists the names that there are.
///   Tensor x = io::load_npz("mnist.npz", "x_train");
Tensor load_npz(const std::string& path, const std::string& array, const NpyOptions& options = {});

/// load_npz() for a file in memory; `name` replaces the file's name in messages.
NamedTensors parse_npz(std::span<const std::byte> bytes, const NpyOptions& options = {},
                       const std::string& name = "npz data");

/// Writes a file that numpy.load reads, not compressed, as numpy.savez does. Throws as save_npy(),
/// and InvalidArgument for a name that is given twice, empty, too long for load_npz() (4092 bytes),
/// not UTF-8, or with a byte of 0.
void save_npz(const std::string& path, const NamedTensors& tensors);

}  // namespace weft::io
