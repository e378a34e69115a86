// The store file: who may own it, what killed writers leave in it, and how large it gets.
#include "weft/comm/store/file_store.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <string>
#include <thread>

#include "weft/tests/core/expect_error.h"
#include "weft/tests/io/files.h"

namespace weft::comm {
namespace {

using std::chrono::milliseconds;

class FileStoreTest : public ::testing::Test {
 protected:
  const testing::TempFolder folder_;
  const std::string path_ = folder_.path("store");
};

TEST_F(FileStoreTest, TheFileIsTheUsersAlone) {
  const mode_t before = ::umask(0);
  FileStore store(path_);
  ::umask(before);
  struct stat found{};
  ASSERT_EQ(::stat(path_.c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0777, 0600u);
  EXPECT_EQ(store.describe(), "file://" + path_);
}

TEST_F(FileStoreTest, WhatWasSetIsThereWhenItIsOpenedAgain) {
  FileStore(path_).set("key", "value");
  FileStore store(path_);
  EXPECT_EQ(store.try_get("key"), "value");
  store.erase("key");
  EXPECT_EQ(FileStore(path_).try_get("key"), std::nullopt);
}

TEST_F(FileStoreTest, RefusesWhatIsNoPlaceForAStore) {
  EXPECT_WEFT_ERROR(FileStore(folder_.path("none/store")), Io, "No such file");
  EXPECT_WEFT_ERROR(FileStore(folder_.root()), Io, "Is a directory");
  ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);
  EXPECT_WEFT_ERROR(FileStore{path_}, Io, "is no regular file");
}

TEST_F(FileStoreTest, FollowsNoLink) {
  testing::write_file(folder_.path("target"), "");
  std::filesystem::create_symlink(folder_.path("target"), path_);
  EXPECT_WEFT_ERROR(FileStore{path_}, Io, "cannot open the store file " + path_);
}

TEST_F(FileStoreTest, RefusesAFileThatOthersMayWrite) {
  testing::write_file(path_, "");
  ASSERT_EQ(::chmod(path_.c_str(), 0620), 0);
  EXPECT_WEFT_ERROR(FileStore{path_}, Io, "has mode 0620");
  EXPECT_WEFT_ERROR(FileStore::open(path_), Io, "has mode 0620");
}

TEST_F(FileStoreTest, RefusesAFileOfAnotherUser) {
  testing::write_file(path_, "");
  ASSERT_EQ(::chmod(path_.c_str(), 0600), 0);
  if (::chown(path_.c_str(), 4711, 4711) != 0) {
    GTEST_SKIP() << "only root can give a file away, and not in a user namespace of its own";
  }
  EXPECT_WEFT_ERROR(FileStore{path_}, Io, "belongs to user 4711");
}

TEST_F(FileStoreTest, LeavesFilesOfOtherKindsAlone) {
  for (const char* text : {"something else", "weft store file 2\n and more of it"}) {
    testing::write_file(path_, text);
    ASSERT_EQ(::chmod(path_.c_str(), 0600), 0);
    FileStore store(path_);
    EXPECT_WEFT_ERROR(store.set("key", "value"), Io, "is no store of this version of weft");
    EXPECT_WEFT_ERROR(store.try_get("key"), Io, "give another path");
    EXPECT_EQ(testing::read_file(path_), text);
  }
}

TEST_F(FileStoreTest, OpensWhatIsThere) {
  EXPECT_EQ(FileStore::open(path_), nullptr);
  FileStore made(path_);
  made.set("key", "value");
  const auto opened = FileStore::open(path_);
  ASSERT_TRUE(opened);
  EXPECT_EQ(opened->get("key"), "value");
}

TEST_F(FileStoreTest, GoesOnForThoseWhoHaveItOpenWhenItIsRemoved) {
  FileStore one(path_), other(path_);
  EXPECT_TRUE(one.in_place());
  one.remove();
  EXPECT_FALSE(std::filesystem::exists(path_));
  EXPECT_FALSE(one.in_place());
  EXPECT_FALSE(other.in_place());
  one.set("key", "value");
  EXPECT_EQ(other.get("key"), "value");
  EXPECT_EQ(other.duplicate()->get("key"), "value");
}

TEST_F(FileStoreTest, RemovesNoFileThatCameLater) {
  FileStore first(path_);
  first.remove();
  FileStore second(path_);
  EXPECT_FALSE(first.in_place());
  first.remove();
  EXPECT_TRUE(second.in_place());
  EXPECT_EQ(second.try_get("key"), std::nullopt);
}

// A killed writer leaves a part of a record, or of the head.
TEST_F(FileStoreTest, WhatAKilledWriterLeftIsNotThere) {
  FileStore(path_).set("first", "1");
  const std::string before = testing::read_file(path_);
  FileStore(path_).set("second", "2");
  const std::string whole = testing::read_file(path_);
  for (std::size_t size = 0; size < whole.size(); ++size) {
    SCOPED_TRACE(size);
    testing::write_file(path_, whole.substr(0, size));
    FileStore reader(path_), writer(path_);
    const bool first = size >= before.size();
    EXPECT_EQ(reader.try_get("second"), std::nullopt);
    EXPECT_EQ(reader.try_get("first").has_value(), first);
    writer.set("third", "3");
    EXPECT_EQ(reader.try_get("third"), "3");
    EXPECT_EQ(reader.try_get("second"), std::nullopt);
    EXPECT_EQ(FileStore(path_).try_get("first").has_value(), first);
    EXPECT_EQ(FileStore(path_).try_get("third"), "3");
  }
}

TEST_F(FileStoreTest, DamageIsAnError) {
  FileStore(path_).set("key", "value");
  const std::string good = testing::read_file(path_);
  testing::write_file(path_, good + std::string(100, '\0'));
  EXPECT_WEFT_ERROR(FileStore(path_).try_get("key"), Io, "is damaged: a record of 0 + 0 bytes");
  testing::write_file(path_, good + std::string(100, '\1'));
  EXPECT_WEFT_ERROR(FileStore(path_).try_get("key"), Io, "is damaged");

  testing::write_file(path_, good);
  FileStore store(path_);
  EXPECT_EQ(store.try_get("key"), "value");
  testing::write_file(path_, good.substr(0, good.size() - 1));
  EXPECT_WEFT_ERROR(store.try_get("key"), Io, "has shrunk");
  testing::write_file(path_, "");
  EXPECT_WEFT_ERROR(store.set("key", "value"), Io, "has been emptied");
}

TEST_F(FileStoreTest, AStoppedProcessWithTheLockIsATimeout) {
  FileStore store(path_);
  store.set("key", "value");
  store.set_timeout(milliseconds(50));
  const int fd = ::open(path_.c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_EQ(::flock(fd, LOCK_EX), 0);
  EXPECT_WEFT_ERROR(store.set("key", "second"), Timeout,
                    "another process keeps the store file " + path_ + " locked");
  EXPECT_WEFT_ERROR(store.try_get("key"), Timeout, "locked");
  EXPECT_WEFT_ERROR(store.get("key"), Timeout, "nobody has set 'key' in file://" + path_);
  EXPECT_EQ(store.wait("key", Deadline(milliseconds(50))), std::nullopt);
  ::close(fd);
  EXPECT_EQ(store.get("key"), "value");
}

TEST_F(FileStoreTest, ReadersDoNotExcludeEachOther) {
  FileStore store(path_);
  store.set("key", "value");
  store.set_timeout(milliseconds(50));
  const int fd = ::open(path_.c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_EQ(::flock(fd, LOCK_SH), 0);
  EXPECT_EQ(store.get("key"), "value");
  EXPECT_WEFT_ERROR(store.set("key", "second"), Timeout, "locked");
  ::close(fd);
}

TEST_F(FileStoreTest, ALongLogIsRewritten) {
  FileStore writer(path_), reader(path_);
  writer.set("first", "1");
  EXPECT_EQ(reader.get("first"), "1");
  const std::string filling(100'000, 'f');
  std::uintmax_t largest = 0;
  for (int i = 0; i < 100; ++i) {
    const std::string number = std::to_string(i);
    writer.set("progress", filling + number);
    largest = std::max(largest, std::filesystem::file_size(path_));
    if (i % 7 == 0) {
      EXPECT_TRUE(reader.get("progress") == filling + number);
    }
  }
  EXPECT_LT(largest, (1u << 20) + 2 * filling.size());
  EXPECT_EQ(reader.get("first"), "1");
  EXPECT_TRUE(FileStore(path_).get("progress") == filling + "99");
}

// Values that are still valid are not rewritten again and again.
TEST_F(FileStoreTest, ALogOfMuchThatIsNeededGrows) {
  FileStore store(path_);
  const std::string filling(100'000, 'f');
  for (int i = 0; i < 30; ++i) store.set("key " + std::to_string(i), filling);
  EXPECT_GT(std::filesystem::file_size(path_), 30 * filling.size());
  EXPECT_EQ(testing::read_file(path_)[18], '\1');  // how many times it has been rewritten
}

TEST_F(FileStoreTest, AFullDiskIsAnErrorAndLosesNothing) {
  FileStore store(path_), other(path_);
  store.set("key", "value");
  const auto before = ::signal(SIGXFSZ, SIG_IGN);
  rlimit limit{};
  ::getrlimit(RLIMIT_FSIZE, &limit);
  const rlimit small{4096, limit.rlim_max};
  ::setrlimit(RLIMIT_FSIZE, &small);
  EXPECT_WEFT_ERROR(store.set("large", std::string(8192, 'x')), Io,
                    "cannot write the store file " + path_);
  ::setrlimit(RLIMIT_FSIZE, &limit);
  ::signal(SIGXFSZ, before);
  EXPECT_EQ(std::filesystem::file_size(path_), 4096u);  // a part of it was written
  EXPECT_EQ(other.try_get("large"), std::nullopt);
  other.set("key", "second");
  EXPECT_EQ(store.get("key"), "second");
}

// Processes add numbers, and one of them is killed again and again: no sum is returned twice, and
// nothing is damaged.
TEST_F(FileStoreTest, KilledProcessesDoNotHarmTheOthers) {
  constexpr int kAdds = 300;
  const auto start = [&](int adds) {
    const pid_t child = ::fork();
    if (child != 0) return child;
    FileStore store(path_);
    for (int i = 0; i < adds; ++i) {
      const std::int64_t sum = store.add("sum", 1);
      if (store.set_once("sum " + std::to_string(sum), std::to_string(::getpid())) !=
          std::to_string(::getpid())) {
        ::_exit(1);
      }
    }
    ::_exit(0);
  };
  const pid_t working[] = {start(kAdds), start(kAdds)};
  for (int i = 0; i < 10; ++i) {
    const pid_t victim = start(1'000'000);
    ASSERT_GT(victim, 0);  // -1 would mean all processes
    std::this_thread::sleep_for(milliseconds(10));
    ::kill(victim, SIGKILL);
    int status = 0;
    ::waitpid(victim, &status, 0);
    EXPECT_TRUE(WIFSIGNALED(status)) << status;
  }
  for (const pid_t child : working) {
    int status = 0;
    ::waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
  }
  EXPECT_GE(FileStore(path_).add("sum", 0), 2 * kAdds);
}

}  // namespace
}  // namespace weft::comm
