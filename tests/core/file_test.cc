#include "weft/core/file.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "weft/tests/core/expect_error.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

class AtomicFileTest : public ::testing::Test {
 protected:
  AtomicFileTest() {
    std::string name = ::testing::TempDir() + "file_test_XXXXXX";
    folder = mkdtemp(name.data());
    path = folder + "/a.bin";
  }
  ~AtomicFileTest() override { fs::remove_all(folder); }

  static std::string read(const std::string& from) {
    std::ostringstream text;
    text << std::ifstream(from).rdbuf();
    return text.str();
  }
  int files() const { return static_cast<int>(std::distance(fs::directory_iterator(folder), {})); }

  std::string folder;
  std::string path;
};

TEST_F(AtomicFileTest, AppearsOnCommitOnly) {
  write_file_atomically(path, "old");
  AtomicFile file(path);
  file.write("new ");
  file.write("text");
  EXPECT_EQ(read(path), "old");
  file.commit();
  EXPECT_EQ(read(path), "new text");
  EXPECT_EQ(files(), 1);
  EXPECT_WEFT_ERROR(file.write("x"), Internal, "[file] write to " + path + " after commit");
  EXPECT_WEFT_ERROR(file.commit(), Internal, "[file] second commit of " + path);
}

TEST_F(AtomicFileTest, WithoutCommitNothingRemains) {
  write_file_atomically(path, "old");
  {
    AtomicFile(path).write("half");
  }
  EXPECT_EQ(read(path), "old");
  EXPECT_EQ(files(), 1);
}

TEST_F(AtomicFileTest, OverwritesWhatAKilledWriterLeft) {
  std::ofstream(path + ".tmp") << "a long remainder of somebody else";
  write_file_atomically(path, "new");
  EXPECT_EQ(read(path), "new");
  EXPECT_EQ(files(), 1);
}

TEST_F(AtomicFileTest, SecondWriterIsRefused) {
  AtomicFile first(path);
  first.write("first");
  EXPECT_WEFT_ERROR(AtomicFile second(path), Io,
                    "[file] cannot write " + path + ": another writer is at it");
  first.commit();
  EXPECT_EQ(read(path), "first");
  write_file_atomically(path, "second");
  EXPECT_EQ(read(path), "second");
}

TEST_F(AtomicFileTest, FailedWriteLeavesTheOldFile) {
  write_file_atomically(path, "old");
  // A size limit stands in for a full disk: both fail in the middle of a write.
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  auto* const handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{100000, before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  EXPECT_WEFT_ERROR(write_file_atomically(path, std::string(200000, 'x')), Io,
                    "[file] cannot write " + path + ": File too large (errno 27)");
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(read(path), "old");
  EXPECT_EQ(files(), 1);
}

TEST_F(AtomicFileTest, ErrorsNameFileAndReason) {
  EXPECT_WEFT_ERROR(
      AtomicFile(folder + "/no/a.bin"), Io,
      "[file] cannot create " + folder + "/no/a.bin.tmp: No such file or directory (errno 2)");
  EXPECT_WEFT_ERROR(AtomicFile(""), Io, "[file] '' is not a file name");
  EXPECT_WEFT_ERROR(AtomicFile(folder + "/"), Io, "/' is not a file name");
  EXPECT_WEFT_ERROR(AtomicFile{folder}, Io, "it exists and is no regular file");
  EXPECT_WEFT_ERROR(AtomicFile("/dev/null"), Io,
                    "[file] cannot write /dev/null: it exists and is no regular file");
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
}

TEST_F(AtomicFileTest, TemporaryThatIsALinkIsNotFollowed) {
  const std::string victim = folder + "/victim";
  write_file_atomically(victim, "precious");
  fs::create_symlink(victim, path + ".tmp");
  EXPECT_WEFT_ERROR(AtomicFile{path}, Io, "cannot create " + path + ".tmp");
  EXPECT_EQ(read(victim), "precious");
}

TEST_F(AtomicFileTest, RenameFailureIsReportedAndCleanedUp) {
  {
    AtomicFile file(path);
    file.write("x");
    fs::create_directory(path);  // appeared in the meantime
    EXPECT_WEFT_ERROR(file.commit(), Io, "[file] cannot replace " + path + ": Is a directory");
  }
  EXPECT_EQ(files(), 1) << "the folder alone";
}

TEST_F(AtomicFileTest, ModeFollowsTheUmask) {
  const mode_t before = umask(027);
  write_file_atomically(path, "x");
  umask(before);
  struct stat found{};
  ASSERT_EQ(stat(path.c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0777, 0640u);
}

}  // namespace
}  // namespace weft
