#include "weft/core/runtime/file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>
#include <vector>

#include "weft/tests/core/expect_error.h"
#include "weft/tests/io/faults.h"

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

TEST_F(AtomicFileTest, ReplacesWhatAKilledWriterLeft) {
  std::ofstream(path + ".tmp") << "a long remainder of somebody else";
  std::ifstream reader(path + ".tmp");  // this one must not be changed
  write_file_atomically(path, "new");
  EXPECT_EQ(read(path), "new");
  EXPECT_EQ(files(), 1);
  std::ostringstream held;
  held << reader.rdbuf();
  EXPECT_EQ(held.str(), "a long remainder of somebody else");
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
  // A size limit replaces a full disk: both fail in the middle of a write.
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

// A file that has the temporary's name but cannot come from a killed writer is neither written nor
// removed.
TEST_F(AtomicFileTest, LeavesAloneWhatIsNoWriters) {
  const std::string temporary = path + ".tmp", victim = folder + "/victim";
  const std::string there =
      "[file] cannot write " + path + ": " + temporary + " is there already and ";
  write_file_atomically(victim, "precious");

  fs::create_symlink(victim, temporary);
  EXPECT_WEFT_ERROR(AtomicFile{path}, Io, there + "is a symbolic link; remove it");
  EXPECT_TRUE(fs::is_symlink(temporary));
  fs::remove(temporary);

  fs::create_hard_link(victim, temporary);
  EXPECT_WEFT_ERROR(AtomicFile{path}, Io, there + "has another name, too");
  EXPECT_EQ(fs::hard_link_count(victim), 2u);
  fs::remove(temporary);

  ASSERT_EQ(mkfifo(temporary.c_str(), 0666), 0);
  EXPECT_WEFT_ERROR(AtomicFile{path}, Io, there + "is no regular file");
  EXPECT_TRUE(fs::is_fifo(temporary));
  fs::remove(temporary);

  fs::create_directory(temporary);
  EXPECT_WEFT_ERROR(AtomicFile{path}, Io, there + "is no regular file");
  fs::remove(temporary);

  EXPECT_EQ(read(victim), "precious");
  EXPECT_FALSE(fs::exists(path));
  write_file_atomically(path, "x");
  EXPECT_EQ(read(path), "x");
}

TEST_F(AtomicFileTest, LeavesAloneAnotherUsersFile) {
  std::ofstream(path + ".tmp") << "theirs";
  fs::permissions(path + ".tmp", fs::perms::all);
  if (chown((path + ".tmp").c_str(), 65534, static_cast<gid_t>(-1)) != 0) {
    GTEST_SKIP() << "only root can give a file to another user";
  }
  EXPECT_WEFT_ERROR(AtomicFile{path}, Io, path + ".tmp is there already and belongs to user 65534");
  EXPECT_EQ(read(path + ".tmp"), "theirs");
  EXPECT_FALSE(fs::exists(path));
}

TEST_F(AtomicFileTest, FindsThatItsTemporaryWasReplaced) {
  write_file_atomically(path, "old");
  {
    AtomicFile file(path);
    file.write("ours");
    fs::rename(path + ".tmp", folder + "/taken");
    std::ofstream(path + ".tmp") << "theirs";
    EXPECT_WEFT_ERROR(file.commit(), Io, "somebody has removed or replaced " + path + ".tmp");
  }
  EXPECT_EQ(read(path), "old");
  EXPECT_EQ(read(path + ".tmp"), "theirs");
}

// Many writers at the same time, some after a killed one: each writes everything or is refused.
TEST_F(AtomicFileTest, WritersInARaceAreOneAfterTheOther) {
  std::atomic<int> written = 0, refused = 0;
  const auto write_often = [&](char mark) {
    for (int i = 0; i < 200; ++i) {
      try {
        AtomicFile file(path);
        file.write(std::string(100, mark));
        file.write(std::string(100, mark));
        file.commit();
        ++written;
      } catch (const Error& error) {
        EXPECT_HAS(std::string(error.what()), "another writer is at it") << error.what();
        ++refused;
      }
      if (i % 8 == 0) {  // left by a killed writer, unless a writer uses it
        close(open((path + ".tmp").c_str(), O_WRONLY | O_CREAT | O_EXCL, 0666));
      }
    }
  };
  {
    std::vector<std::jthread> threads;
    for (const char mark : {'a', 'b', 'c', 'd'}) threads.emplace_back(write_often, mark);
  }
  EXPECT_EQ(written + refused, 800);
  EXPECT_GT(written, 0);
  const std::string text = read(path);
  ASSERT_EQ(text.size(), 200u);
  EXPECT_EQ(text, std::string(200, text[0]));
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

TEST_F(AtomicFileTest, RenamesAndFlushesTheFolder) {
  std::ofstream(path) << "new";
  const std::string to = folder + "/to";
  std::ofstream(to) << "old";
  {
    const testing::FaultScope calls({});
    rename_durably(path, to);
    EXPECT_EQ(calls.faults().renames, 1);
    EXPECT_EQ(calls.faults().fsyncs, 1);
  }
  EXPECT_EQ(read(to), "new");
  EXPECT_EQ(files(), 1);
  EXPECT_WEFT_ERROR(rename_durably(path, to), Io, "[file] cannot replace " + to + ": No such file");
  const testing::FaultScope scope({.fail_fsync = 1, .error = EIO});
  EXPECT_WEFT_ERROR(rename_durably(to, path), Io, "[file] cannot flush the folder " + folder);
}

TEST_F(AtomicFileTest, MakesFolders) {
  EXPECT_FALSE(make_folders(folder + "/x/y//z/"));
  EXPECT_TRUE(fs::is_directory(folder + "/x/y/z"));
  EXPECT_FALSE(make_folders(folder + "/x/y"));
  EXPECT_FALSE(make_folders(folder + "/x/../w"));
  EXPECT_TRUE(fs::is_directory(folder + "/w"));
  fs::create_directory_symlink("x", folder + "/link");
  EXPECT_FALSE(make_folders(folder + "/link/v"));
  EXPECT_TRUE(fs::is_directory(folder + "/x/v"));
  EXPECT_FALSE(make_folders(""));
  std::ofstream(path) << "a file";
  EXPECT_EQ(make_folders(path), std::errc::not_a_directory);
  EXPECT_EQ(make_folders(path + "/x"), std::errc::not_a_directory);
  EXPECT_EQ(make_folders("/proc/x"), std::errc::no_such_file_or_directory);
}

TEST_F(AtomicFileTest, FlushesTheFoldersItMakes) {
  {
    const testing::FaultScope calls({});
    EXPECT_FALSE(make_folders(folder + "/x/y"));
    EXPECT_EQ(calls.faults().fsyncs, 4) << "each of the two, and where it was made";
    EXPECT_FALSE(make_folders(folder + "/x/y"));
    EXPECT_EQ(calls.faults().fsyncs, 4);
  }
  for (const int failing : {1, 2}) {
    const testing::FaultScope scope({.fail_fsync = failing, .error = EIO});
    EXPECT_EQ(make_folders(folder + "/z" + std::to_string(failing)), std::errc::io_error);
  }
}

TEST_F(AtomicFileTest, TheTemporaryFolderIsTmpdirs) {
  const char* const set = std::getenv("TMPDIR");
  const std::string before = set ? set : "";
  setenv("TMPDIR", folder.c_str(), 1);
  EXPECT_EQ(temporary_folder(), folder);
  const std::string named = "cannot make temporary files in " + folder +
                            "/none, which the environment variable TMPDIR names: ";
  setenv("TMPDIR", (folder + "/none").c_str(), 1);
  EXPECT_WEFT_ERROR(temporary_folder(), Io, "[file] " + named + "No such file or directory");
  std::ofstream(folder + "/none") << "a file";
  EXPECT_WEFT_ERROR(temporary_folder(), Io, named + "Not a directory");
  setenv("TMPDIR", "/proc", 1);
  if (geteuid() != 0) EXPECT_WEFT_ERROR(temporary_folder(), Io, "in /proc, which");
  setenv("TMPDIR", "", 1);
  EXPECT_EQ(temporary_folder(), "/tmp");
  unsetenv("TMPDIR");
  EXPECT_EQ(temporary_folder(), "/tmp");
  if (set) setenv("TMPDIR", before.c_str(), 1);
}

// Like a program whose stdout is on a full disk; runs in a child.
TEST(FlushStdout, SaysThatOutputIsLost) {
  for (const bool buffered : {true, false}) {
    EXPECT_EXIT(
        {
          std::fflush(stdout);
          dup2(open("/dev/full", O_WRONLY), STDOUT_FILENO);
          std::setvbuf(stdout, nullptr, buffered ? _IOFBF : _IONBF, buffered ? 4096 : 0);
          std::printf("a line\n");
          try {
            flush_stdout();
          } catch (const Error& error) {
            std::fputs(error.what(), stderr);
            std::_Exit(error.code() == ErrorCode::Io ? 3 : 4);
          }
          std::_Exit(0);
        },
        ::testing::ExitedWithCode(3), "\\[stdout\\] some of the output is lost");
  }
  EXPECT_NO_THROW(flush_stdout());
}

}  // namespace
}  // namespace weft
