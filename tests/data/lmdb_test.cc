// LMDB data sets: they return what was written; when they are opened; errors for bad files.
#include "weft/data/lmdb.h"

#include <lmdb.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <random>

#include "weft/data/dataloader.h"
#include "weft/data/lmdb_file.h"
#include "weft/io/png.h"
#include "weft/tests/core/child.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/io/files.h"

namespace weft::data {
namespace {

using testing::TempFolder;
using testing::write_file;

using Indices = std::vector<std::int64_t>;

class LmdbTest : public ::testing::Test {
 protected:
  /// A PNG file with a single shade.
  std::string picture(int shade, int height = 2, int width = 3) const {
    const std::vector<std::uint8_t> pixels(static_cast<std::size_t>(height * width),
                                           static_cast<std::uint8_t>(shade));
    io::write_png(folder.path("one.png"), io::Image{width, height, 1, pixels});
    return testing::read_file(folder.path("one.png"));
  }
  /// Writes samples: sample i has the shade 5 i and the label 100 + i.
  void write(const std::string& to, int samples) const {
    LmdbWriter writer(to);
    for (int i = 0; i < samples; ++i) writer.add(100 + i, testing::as_bytes(picture(5 * i)));
    writer.commit();
  }
  /// Writes a database with any keys and values.
  static void put(const std::string& to,
                  const std::vector<std::pair<std::string, std::string>>& all) {
    std::filesystem::remove(to);
    MDB_env* environment = nullptr;
    MDB_txn* transaction = nullptr;
    MDB_dbi table = 0;
    ASSERT_EQ(mdb_env_create(&environment), 0);
    ASSERT_EQ(mdb_env_open(environment, to.c_str(), MDB_NOSUBDIR | MDB_NOLOCK, 0600), 0);
    ASSERT_EQ(mdb_txn_begin(environment, nullptr, 0, &transaction), 0);
    ASSERT_EQ(mdb_dbi_open(transaction, nullptr, 0, &table), 0);
    for (auto [key, value] : all) {
      MDB_val k{key.size(), key.data()}, v{value.size(), value.data()};
      ASSERT_EQ(mdb_put(transaction, table, &k, &v, 0), 0);
    }
    ASSERT_EQ(mdb_txn_commit(transaction), 0);
    mdb_env_close(environment);
  }
  static std::string value(std::int64_t label, const std::string& bytes) {
    return std::string(reinterpret_cast<const char*>(&label), sizeof label) + bytes;
  }
  /// How many times the file is mapped into this process.
  int mapped() const {
    std::ifstream maps("/proc/self/maps");
    int count = 0;
    for (std::string line; std::getline(maps, line);) count += line.ends_with(file) ? 1 : 0;
    return count;
  }

  TempFolder folder;
  const std::string file = folder.path("set.lmdb");
};

TEST_F(LmdbTest, WhatIsReadIsWhatWasWritten) {
  write(file, 12);
  std::filesystem::create_directories(folder.path("usual"));
  std::filesystem::copy(file, folder.path("usual/data.mdb"));
  for (const std::string& path : {file, folder.path("usual")}) {
    const Lmdb set(path);
    EXPECT_EQ(set.size(), 12);
    const auto [x, label] = set.get_batch(Indices{11, 0, 3});
    EXPECT_EQ(x.shape(), Shape({3, 3, 2, 3}));
    EXPECT_EQ(label.to_vector<std::int64_t>(), (Indices{111, 100, 103}));
    const auto values = x.to_vector<float>();
    EXPECT_EQ(values.front(), 55.0f / 255.0f);
    EXPECT_EQ(values.back(), 15.0f / 255.0f);
    EXPECT_WEFT_ERROR(set.get_batch(Indices{12}), InvalidArgument,
                      "[lmdb] index 12 is outside the 12 images");
  }
  EXPECT_EQ(folder.files(), 3);  // the picture, the file and the folder: no lock file
}

TEST_F(LmdbTest, LabelsHave64Bits) {
  const Indices labels = {-1, INT64_MAX, INT64_MIN};
  LmdbWriter writer(file);
  for (const std::int64_t label : labels) writer.add(label, testing::as_bytes(picture(0)));
  writer.commit();
  EXPECT_EQ(Lmdb(file).get_batch(Indices{0, 1, 2}).label.to_vector<std::int64_t>(), labels);
}

TEST_F(LmdbTest, AnyNumberOfWorkersGivesTheSame) {
  write(file, 30);
  const auto epoch = [&](int workers) {
    manual_seed(3);
    DataLoader loader(Lmdb(file, {.format = {.transform = RandomCrop(2, 1)}}),
                      {.batch_size = 4, .shuffle = true, .workers = workers});
    std::vector<float> all;
    for (auto& [x, label] : loader) {
      const auto values = x.template to_vector<float>();
      all.insert(all.end(), values.begin(), values.end());
      for (const double l : label.template to_vector<double>()) all.push_back(float(l));
    }
    return all;
  };
  const auto alone = epoch(0);
  EXPECT_EQ(alone.size(), 30u * (3 * 2 * 2 + 1));
  EXPECT_EQ(alone, epoch(1));
  EXPECT_EQ(alone, epoch(3));
}

TEST_F(LmdbTest, MayBeEmptyOrOfOneImage) {
  for (const int samples : {0, 1}) {
    write(file, samples);
    for (const int workers : {0, 1, 3}) {
      DataLoader loader(Lmdb(file), {.batch_size = 4, .workers = workers});
      int seen = 0;
      for (auto& [x, label] : loader) seen += static_cast<int>(x.shape(0));
      EXPECT_EQ(seen, samples) << workers;
    }
    EXPECT_WEFT_ERROR(Lmdb(file).get_batch(Indices{samples}), InvalidArgument, "is outside the ");
  }
}

TEST_F(LmdbTest, OpensWhenItIsReadAndOnceForAll) {
  write(file, 8);
  {
    const Lmdb set(file);
    const Lmdb copy = set;
    EXPECT_EQ(mapped(), 0);
    DataLoader loader(set, {.batch_size = 1, .workers = 3});
    EXPECT_EQ(mapped(), 0);
    for (auto& batch : loader) (void)batch;
    EXPECT_EQ(mapped(), 1);
    copy.get_batch(Indices{0});
    EXPECT_EQ(mapped(), 1);
    const Lmdb another(file);  // LMDB's own limit of one environment applies to its lock file
    another.get_batch(Indices{0});
    EXPECT_EQ(mapped(), 2);
  }
  EXPECT_EQ(mapped(), 0);
}

TEST_F(LmdbTest, AForkedProcessReadsOn) {
  write(file, 2);
  const Lmdb set(file);
  set.get_batch(Indices{0});
  EXPECT_EQ(testing::status_of_child([&] {
              const Lmdb copy = set;
              const auto label = copy.get_batch(Indices{1}).label.to_vector<std::int64_t>();
              return label == Indices{101} && mapped() == 1 ? 0 : 1;
            }),
            0);
  EXPECT_EQ(set.get_batch(Indices{1}).label.to_vector<std::int64_t>(), Indices{101});
}

TEST_F(LmdbTest, SaysWhatIsNoDataSet) {
  EXPECT_WEFT_ERROR(Lmdb{file}, Io, "[lmdb] " + file + ": cannot be opened: No such file");
  EXPECT_WEFT_ERROR(Lmdb{folder.root()}, Io, "/data.mdb: cannot be opened: No such file");
  EXPECT_WEFT_ERROR(Lmdb{"/dev/null"}, Io, "/dev/null: no LMDB database, but no regular file");
  write_file(file, "");
  EXPECT_WEFT_ERROR(Lmdb{file}, Io, file + ": no LMDB database, but an empty file");
  write_file(file, std::string(10000, 'x'));
  EXPECT_WEFT_ERROR(Lmdb{file}, Io,
                    file + ": no LMDB database, or damaged: page 0 is no meta page");

  write(file, 40);
  const auto bytes = std::filesystem::file_size(file);
  std::filesystem::resize_file(file, bytes - 1);
  EXPECT_WEFT_ERROR(Lmdb{file}, Io, file + ": cut off: " + std::to_string(bytes - 1) + " bytes");

  write(file, 40);
  const Lmdb set(file);
  std::filesystem::resize_file(file, bytes / 2);
  EXPECT_WEFT_ERROR(set.get_batch(Indices{0}), Io, ": cut off: ");
}

// Trees of up to three levels, values of any size, and pages that have been reused.
TEST_F(LmdbTest, FindsWhatLiblmdbFinds) {
  std::mt19937 random(1);
  std::map<std::string, std::string> all;
  MDB_env* environment = nullptr;
  ASSERT_EQ(mdb_env_create(&environment), 0);
  ASSERT_EQ(mdb_env_set_mapsize(environment, std::size_t{1} << 30), 0);
  ASSERT_EQ(mdb_env_open(environment, file.c_str(), MDB_NOSUBDIR | MDB_NOLOCK | MDB_NOSYNC, 0600),
            0);
  for (int round = 0; round < 6; ++round) {
    MDB_txn* transaction = nullptr;
    MDB_dbi table = 0;
    ASSERT_EQ(mdb_txn_begin(environment, nullptr, 0, &transaction), 0);
    ASSERT_EQ(mdb_dbi_open(transaction, nullptr, 0, &table), 0);
    for (int i = 0; i < 2000; ++i) {
      std::string key(1 + random() % 200, '\0');
      for (char& c : key) c = static_cast<char>(random());
      std::string value(random() % 20 == 0 ? random() % 20000 : random() % 100, 'v');
      MDB_val k{key.size(), key.data()}, v{value.size(), value.data()};
      ASSERT_EQ(mdb_put(transaction, table, &k, &v, 0), 0);
      all[key] = value;
      if (i % 3 != 0) continue;
      const auto gone = all.lower_bound(key.substr(0, 1));
      MDB_val other{gone->first.size(), const_cast<char*>(gone->first.data())};
      ASSERT_EQ(mdb_del(transaction, table, &other, nullptr), 0);
      all.erase(gone);
    }
    ASSERT_EQ(mdb_txn_commit(transaction), 0);

    const LmdbFile read(file);
    ASSERT_EQ(read.size(), std::ssize(all));
    // LMDB sorts by unsigned bytes, like std::string.
    EXPECT_EQ(read.last_key(), all.rbegin()->first);
    for (const auto& [key, value] : all) {
      const auto found = read.find(key);
      ASSERT_TRUE(found);
      EXPECT_EQ(std::string(reinterpret_cast<const char*>(found->data()), found->size()), value);
      EXPECT_EQ(read.find(key + '\0').has_value(), all.contains(key + '\0'));
    }
    EXPECT_FALSE(read.find(""));
    EXPECT_FALSE(read.find(std::string(300, '\xff')));
  }
  mdb_env_close(environment);
}

// Bytes of the file are flipped or overwritten, in the pages that describe the others or in all
// pages. A child process reads all samples of such a file and must end by itself.
TEST_F(LmdbTest, ADamagedFileEndsInAnErrorOrInOtherSamples) {
  const char* wanted = std::getenv("WEFT_MUTANTS");
  const int mutants = wanted ? std::atoi(wanted) : 300;
  constexpr int kSamples = 300;  // a root and about twelve leaves
  std::mt19937 random(1);
  {
    LmdbWriter writer(file);
    const std::string small = picture(7);
    std::vector<std::uint8_t> noise(5000);
    for (std::uint8_t& value : noise) value = static_cast<std::uint8_t>(random());
    io::write_png(folder.path("noise.png"), io::Image{50, 100, 1, noise});
    const std::string large = testing::read_file(folder.path("noise.png"));  // needs its own pages
    for (int i = 0; i < kSamples; ++i) {
      writer.add(i, testing::as_bytes(i % 50 == 1 ? large : small));
    }
    writer.commit();
  }
  const std::string whole = testing::read_file(file);
  const auto read_all = [&]() -> int {
    ::alarm(60);  // ends a child that follows a circle
    try {
      const Lmdb set(file);
      if (set.size() != kSamples) return 3;
      bool same = true;
      for (std::int64_t i = 0; i < kSamples; ++i) {
        same &= set.get_batch(Indices{i}).label.item<std::int64_t>() == i;
      }
      return same ? 0 : 1;
    } catch (const Error& error) {
      return error.code() == ErrorCode::Io ? 2 : 4;
    }
  };
  ASSERT_EQ(read_all(), 0);
  std::map<std::string, int> ends;
  for (int i = 0; i < mutants; ++i) {
    std::string bytes = whole;
    const std::size_t size = std::size_t{1} << random() % 4;  // 1 to 8 bytes
    // Half of them in the meta pages: 16 bytes of header and 136 of data.
    const std::size_t at = i % 2 == 0 ? random() % 2 * 4096 + random() % (16 + 136 - size)
                                      : random() % (bytes.size() - size);
    std::uint64_t word = 0;
    std::memcpy(&word, &bytes[at], size);
    switch (random() % 4) {
      case 0: word ^= std::uint64_t{1} << random() % (8 * size); break;
      case 1: word = random() | std::uint64_t{random()} << 32; break;
      case 2: word = random() % 64; break;
      default: word = ~std::uint64_t{random() % 4};
    }
    std::memcpy(&bytes[at], &word, size);
    write_file(file, bytes);
    const pid_t child = ::fork();
    if (child == 0) ::_exit(read_all());
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    const bool ended = WIFEXITED(status) && WEXITSTATUS(status) <= 3;
    EXPECT_TRUE(ended) << "mutant " << i << ", at byte " << at << ": status " << status;
    constexpr const char* kEnds[] = {"the same", "other samples", "an error", "another number"};
    ++ends[ended ? kEnds[WEXITSTATUS(status)] : "the process died"];
  }
  for (const auto& [end, count] : ends) std::printf("%d ended in: %s\n", count, end.c_str());
  EXPECT_GT(ends["an error"], mutants / 10);
}

TEST_F(LmdbTest, KeysAreTheIndices) {
  const std::string sample = value(7, picture(1));
  put(file, {{"00000000", sample}, {"00000001", sample}, {"__len__", "2"}});
  EXPECT_WEFT_ERROR(Lmdb{file}, Io,
                    file + ": holds 3 keys, so the last should be \"00000002\", got \"__len__\"");
  put(file, {{"00000001", sample}, {"00000002", sample}});
  EXPECT_WEFT_ERROR(Lmdb{file}, Io, "the last should be \"00000001\", got \"00000002\"");
  put(file, {{"00000000", sample}, {"0000000x", sample}, {"00000002", sample}});
  EXPECT_WEFT_ERROR(Lmdb{file}, Io, "the last should be \"00000002\", got \"0000000x\"");
  put(file, {{"00000000", sample}, {"000000000", sample}, {"00000002", sample}});
  EXPECT_WEFT_ERROR(Lmdb{file}.get_batch(Indices{0, 1}), Io,
                    file + ": has no key \"00000001\", though it holds 3; the keys are");
}

TEST_F(LmdbTest, ABadSampleIsNamedInEveryThread) {
  const std::string good = value(7, picture(1));
  const auto read = [&](int workers, const LmdbOptions& options = {}) {
    DataLoader loader(Lmdb(file, options), {.batch_size = 2, .workers = workers});
    for (auto& batch : loader) (void)batch;
  };
  const std::string name = file + ": sample 00000001";
  for (const int workers : {0, 2}) {
    put(file, {{"00000000", good}, {"00000001", "8 bytes."}});
    EXPECT_WEFT_ERROR(read(workers), Io, name + ": 8 bytes; expected a label of 8 and a picture");
    put(file, {{"00000000", good}, {"00000001", value(7, "GIF89a")}});
    EXPECT_WEFT_ERROR(read(workers), Io, name + ": neither a JPEG nor a PNG file");
    put(file, {{"00000000", good}, {"00000001", good.substr(0, good.size() - 9)}});
    EXPECT_WEFT_ERROR(read(workers), Io, name + ": damaged: ");
    put(file, {{"00000000", good}, {"00000001", value(7, picture(1, 5, 3))}});
    EXPECT_WEFT_ERROR(read(workers), Shape, "image 1 is [3,5,3], the batch is of [3,2,3]");
    EXPECT_NO_THROW(read(workers, {.format = {.transform = Resize(4, 4)}}));
    EXPECT_WEFT_ERROR(read(workers, {.limits = {.max_bytes = 10}}), Io, "over the limit of 10");
  }
}

TEST_F(LmdbTest, AppearsWholeOrNotAtAll) {
  {
    LmdbWriter writer(file);
    writer.add(1, testing::as_bytes("x"));
    EXPECT_WEFT_ERROR(LmdbWriter{file}, Io, "another writer is at it");
  }
  EXPECT_EQ(folder.files(), 0);
  write(file, 3);
  {
    LmdbWriter writer(file);
    writer.add(1, testing::as_bytes("x"));
    EXPECT_EQ(Lmdb(file).size(), 3);
  }
  EXPECT_EQ(Lmdb(file).size(), 3);
  const Lmdb old(file);
  old.get_batch(Indices{0});
  write(file, 2);
  EXPECT_EQ(Lmdb(file).size(), 2);
  EXPECT_EQ(old.get_batch(Indices{2}).label.item<std::int64_t>(), 102);  // the file it opened

  LmdbWriter writer(file);
  writer.commit();
  EXPECT_EQ(Lmdb(file).size(), 0);
  EXPECT_WEFT_ERROR(writer.commit(), Internal, "a second commit");
  EXPECT_WEFT_ERROR(writer.add(1, {}), Internal, "a sample after commit");
  EXPECT_WEFT_ERROR(LmdbWriter(folder.path("none/set")), Io, folder.path("none/set"));
}

TEST_F(LmdbTest, WritesMoreThanItHoldsInMemory) {
  const std::string large(std::size_t{7} << 20, 'x');
  {
    LmdbWriter writer(file);
    for (int i = 0; i < 6; ++i) writer.add(i, testing::as_bytes(large));
    EXPECT_GE(std::filesystem::file_size(file + ".tmp"), 4 * large.size());
    writer.commit();
  }
  const auto bytes = std::filesystem::file_size(file);
  EXPECT_GE(bytes, 6 * large.size());
  EXPECT_LE(bytes, 6 * large.size() + (1 << 20));
  const Lmdb set(file);
  EXPECT_EQ(set.size(), 6);
  EXPECT_WEFT_ERROR(set.get_batch(Indices{5}), Io, "sample 00000005: neither a JPEG nor a PNG");
}

}  // namespace
}  // namespace weft::data
