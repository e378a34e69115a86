// The zip archives of torch.save, and what is none.
#include <string>
#include <vector>

#include "weft/tests/io/files.h"
#include "weft/tests/io/pickles.h"

namespace weft::io {
namespace {

using testing::BadFile;
using testing::Doubles;
using testing::expect_refused;
using testing::kTwoFloats;
using testing::little;
using testing::parse;
using testing::pickled;
using testing::pickled_storage;
using testing::pickled_tensor;
using testing::torch_file;
using testing::torch_parts;
using testing::values;
using testing::zip;
using testing::ZipEnd;
using testing::ZipPart;

TEST(Zip, ReadsZip64AndComments) {
  const std::string pickle = pickled(pickled_tensor(pickled_storage("0", 2), {2}, {1}));
  const std::string data = little(0x3f800000, 4) + little(0x40000000, 4);
  std::vector<ZipPart> parts = torch_parts(pickle, {data});
  for (ZipPart& part : parts) part.in64 = true;
  EXPECT_EQ(values(parse(zip(parts, {.in64 = true}))), (Doubles{1, 2}));
  EXPECT_EQ(values(parse(zip(parts, {.comment = "PK\x05\x06 and more"}))), (Doubles{1, 2}));
}

TEST(Zip, ASecondRootIsNotRead) {
  std::vector<ZipPart> parts = torch_parts(pickled("K\x01"));
  parts.push_back({"b/data.pkl", pickled("K\x02")});
  parts.push_back({"b/version", "3"});
  EXPECT_EQ(parse(zip(parts)).integer(), 1);
}

TEST(Zip, RecordsThatAreNotUsedMayBeCompressed) {
  std::vector<ZipPart> parts = torch_parts(pickled("K\x01"));
  parts.push_back({.name = "a/notes", .data = "xx", .method = 8});
  EXPECT_EQ(parse(zip(parts)).integer(), 1);
}

std::vector<BadFile> bad_zips() {
  const std::string pickle = pickled(pickled_tensor(kTwoFloats, {2}, {1}));
  const std::string data(8, '\x01');
  const auto with = [&](std::size_t part, auto change) {
    std::vector<ZipPart> parts = torch_parts(pickle, {data});
    change(parts[part]);
    return zip(parts);
  };
  const auto ending = [&](const ZipEnd& end) { return zip(torch_parts(pickle, {data}), end); };
  const auto parts_of = [&](std::vector<ZipPart> parts) { return zip(parts); };
  const std::string good = torch_file(pickle, {data});
  std::string long_name(5000, 'n');
  return {
      {"Empty", "", "Io", "does not begin like a file of torch.save"},
      {"Text", "hello, world, this is no archive", "Io", "does not begin like"},
      {"StartAlone", "PK\x03\x04", "Io", "4 bytes are too few for a zip archive"},
      {"CutOff", good.substr(0, good.size() - 30), "Io", "no zip directory at its end"},
      {"ZerosAtTheEnd", good + std::string(100'000, '\0'), "Io", "no zip directory at its end"},
      {"NoPickle", parts_of({{"a/version", "3\n"}}), "Io", "record \"a/data.pkl\" is missing"},
      {"PickleInTheRoot", parts_of({{"data.pkl", pickle}, {"version", "3"}}), "Io",
       "a zip archive without folders"},
      {"NoVersion", parts_of({{"a/data.pkl", pickle}}), "Io", "record \"a/version\" is missing"},
      {"TorchScript",
       parts_of({{"a/data.pkl", pickle}, {"a/version", "3"}, {"a/constants.pkl", ""}}),
       "Unsupported", "a TorchScript program"},
      {"EscapesInANames", parts_of({{"a/\x1b[2J", ""}, {"a/\x1b[2J", ""}}), "Io",
       "called \"a/?[2J\""},
      {"TwoRoots", parts_of({{"b/version", "3"}, {"a/data.pkl", pickle}, {"a/version", "3"}}), "Io",
       "record \"b/data.pkl\" is missing"},
      {"BigEndian", parts_of({{"a/data.pkl", pickle}, {"a/version", "3"}, {"a/byteorder", "big"}}),
       "Unsupported", "written by a big-endian machine"},
      {"RecordTwice", parts_of({{"a/data.pkl", pickle}, {"a/data.pkl", pickle}}), "Io",
       "two zip records are called \"a/data.pkl\""},
      {"Encrypted", with(0, [](ZipPart& p) { p.flags = 1; }), "Unsupported",
       "record \"a/data.pkl\" is encrypted"},
      {"Compressed", with(2, [](ZipPart& p) { p.method = 8; }), "Unsupported",
       "record \"a/data/0\" is compressed"},
      {"PickleCrc", with(0, [](ZipPart& p) { p.crc_change = 1; }), "Io",
       "checksum of record \"a/data.pkl\" does not match"},
      {"StorageCrc", with(2, [](ZipPart& p) { p.crc_change = 1; }), "Io",
       "checksum of record \"a/data/0\" does not match"},
      {"LocalName", with(2, [](ZipPart& p) { p.local_name = "a/data/1"; }), "Io",
       "is not \"a/data/0\""},
      {"LongName", with(2, [&](ZipPart& p) { p.name = long_name; }), "Io",
       "a zip record has a name of 5000 bytes"},
      {"SizePastTheEnd", with(3, [](ZipPart& p) { p.size_change = 100; }), "Io",
       "reaches outside the archive's data"},
      {"SizeOverTheNext", with(2, [](ZipPart& p) { p.size_change = 4; }), "Io", "overlap"},
      {"SizeHuge",
       with(2, [](ZipPart& p) { p.in64 = true, p.size_change = std::uint64_t{1} << 62; }), "Io",
       "of 4611686018427387912 bytes"},
      {"OffsetPastTheEnd", with(2, [](ZipPart& p) { p.offset_change = 1 << 20; }), "Io",
       "outside the archive's data"},
      {"OffsetHuge", with(2, [](ZipPart& p) { p.in64 = true, p.offset_change = ~0ull << 8; }), "Io",
       "outside the archive's data"},
      {"OffsetBeside", with(2, [](ZipPart& p) { p.offset_change = 1; }), "Io",
       "no record \"a/data/0\" at"},
      {"DirectoryPastTheEnd", ending({.begin_change = 1000}), "Io", "is not inside the file"},
      {"DirectoryTooLong", ending({.bytes_change = 1000}), "Io", "is not inside the file"},
      {"DirectoryBeside", ending({.bytes_change = ~0ull, .begin_change = 1}), "Io",
       "no zip entry where the directory has one"},
      {"EntryMissing", ending({.entries_change = ~0ull}), "Io",
       "the directory is longer than its entries"},
      {"EntryTooMany", ending({.entries_change = 1}), "Io", "zip entr"},
      {"MoreEntriesThanBytes", ending({.entries_change = 60000}), "Io", "zip entries in"},
      {"Locator", ending({.in64 = true, .locator_change = 4}), "Io", "is not inside the file"},
      {"LocatorBack", ending({.in64 = true, .locator_change = ~0ull - 3}), "Io",
       "no 64-bit end of the zip directory where it should be"},
      {"Entries64", ending({.entries_change = std::uint64_t{1} << 60, .in64 = true}), "Io",
       "zip entries in"},
      {"Directory64", ending({.bytes_change = std::uint64_t{1} << 63, .in64 = true}), "Io",
       "is not inside the file"},
  };
}

class BadZipTest : public ::testing::TestWithParam<BadFile> {};

TEST_P(BadZipTest, IsRefused) { expect_refused(GetParam().text, GetParam()); }

INSTANTIATE_TEST_SUITE_P(Each, BadZipTest, ::testing::ValuesIn(bad_zips()),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace weft::io
