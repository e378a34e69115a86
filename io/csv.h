// CSV: numbers in lines and columns, as RFC 4180 and spreadsheets write them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "weft/tensor/tensor.h"

namespace weft::io {

struct CsvOptions {
  bool header = true;  ///< the first line has the names of the columns
  char separator = ',';
};

struct CsvTable {
  std::vector<std::string> columns;  ///< their names; empty without a header
  Tensor values;                     ///< f64 [rows, columns], on the CPU
  std::vector<std::int64_t> lines;   ///< where each row begins in the file, from 1 on
};

/// Reads a file of numbers. Lines end with LF or CRLF; blank lines and a byte-order mark at the
/// start are skipped. A field may be in quotes, where a quote is written twice, and a number may
/// have spaces around it. Numbers are decimal, with a point, or inf or nan.
///
/// Throws Io, naming the file, line and column, for a field that is no number, for an empty field,
/// for a line with another number of fields than the first, and for a quoted field that does not
/// end or goes on after its quote; Io for an empty file, too. A file may consist of the header
/// only. Throws InvalidArgument for a separator that a number, a quote or an end of line may
/// contain.
CsvTable read_csv(const std::string& path, const CsvOptions& options = {});

/// The same for a file in memory; `name` replaces the file's name in messages.
CsvTable parse_csv(std::span<const std::byte> bytes, const CsvOptions& options = {},
                   const std::string& name = "CSV data");

}  // namespace weft::io
