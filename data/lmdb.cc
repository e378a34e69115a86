#include "weft/data/lmdb.h"

#include <lmdb.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <string_view>
#include <system_error>
#include <utility>

#include "weft/core/error.h"
#include "weft/core/file.h"

namespace weft::data {
namespace {

constexpr const char* kOp = "lmdb";
constexpr std::size_t kLabelBytes = sizeof(std::int64_t);
constexpr std::int64_t kMostSamples = 100'000'000;

struct Close {
  void operator()(MDB_env* environment) const { mdb_env_close(environment); }
  void operator()(MDB_txn* transaction) const { mdb_txn_abort(transaction); }
};
using EnvironmentHandle = std::unique_ptr<MDB_env, Close>;
using Transaction = std::unique_ptr<MDB_txn, Close>;

void check(int status, const std::string& path, const char* action) {
  WEFT_CHECK(status == MDB_SUCCESS, Io, kOp, path, ": cannot ", action, ": ", mdb_strerror(status));
}

/// map_bytes: of address space; a file of more is mapped as a whole for reading all the same.
EnvironmentHandle open(const std::string& file, unsigned flags, std::size_t map_bytes,
                       const std::string& path) {
  MDB_env* made = nullptr;
  check(mdb_env_create(&made), path, "begin");
  EnvironmentHandle environment(made);
  check(mdb_env_set_mapsize(made, map_bytes), path, "set its size");
  check(mdb_env_open(made, file.c_str(), flags | MDB_NOSUBDIR | MDB_NOLOCK, 0666), path, "open it");
  return environment;
}

Transaction begin(MDB_env* environment, unsigned flags, const std::string& path) {
  MDB_txn* transaction = nullptr;
  check(mdb_txn_begin(environment, nullptr, flags, &transaction), path, "begin a transaction");
  return Transaction(transaction);
}

MDB_dbi open_table(MDB_txn* transaction, const std::string& path) {
  MDB_dbi table = 0;
  check(mdb_dbi_open(transaction, nullptr, 0, &table), path, "open its table");
  return table;
}

struct Key {
  explicit Key(std::int64_t index) {
    std::snprintf(text, sizeof text, "%08lld", static_cast<long long>(index));
  }
  MDB_val value() { return {std::strlen(text), text}; }
  char text[24];
};

}  // namespace

class Lmdb::Environment {
 public:
  explicit Environment(const std::string& path) : path_(path) {
    std::string file = path;
    struct stat found{};
    if (::stat(file.c_str(), &found) == 0 && S_ISDIR(found.st_mode)) file += "/data.mdb";
    const int status = ::stat(file.c_str(), &found);
    WEFT_CHECK(status == 0, Io, kOp, file,
               ": cannot be opened: ", std::generic_category().message(errno));
    WEFT_CHECK(S_ISREG(found.st_mode) && found.st_size > 0, Io, kOp, file,
               ": no LMDB database, but ",
               S_ISREG(found.st_mode) ? "an empty file" : "no regular file");
    // Not the size that its writer reserved, which may be terabytes.
    handle_ = open(file, MDB_RDONLY, 1, path_);
    const Transaction transaction = read();
    table_ = open_table(transaction.get(), path_);
    MDB_envinfo info{};
    MDB_stat tree{};
    check(mdb_env_info(handle_.get(), &info), path_, "describe it");
    check(mdb_stat(transaction.get(), table_, &tree), path_, "count its samples");
    // A page beyond the end of the file would be a SIGBUS.
    const auto bytes = (std::uint64_t{info.me_last_pgno} + 1) * tree.ms_psize;
    WEFT_CHECK(static_cast<std::uint64_t>(found.st_size) >= bytes, Io, kOp, file,
               ": cut off: ", found.st_size, " bytes, its pages end at ", bytes,
               "; copy the whole file, or compact it where it is whole (mdb_copy -c)");
    size_ = static_cast<std::int64_t>(tree.ms_entries);
    check_last_key(transaction.get());
  }
  ~Environment() {
    // LMDB forbids to touch in a forked process what its parent opened.
    if (process_ != ::getpid()) (void)handle_.release();
  }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

  pid_t process() const { return process_; }
  std::int64_t size() const { return size_; }
  Transaction read() const { return begin(handle_.get(), MDB_RDONLY, path_); }

  /// What a sample holds, for the life of the transaction.
  std::span<const std::byte> value(MDB_txn* transaction, std::int64_t index) const {
    Key name(index);
    MDB_val key = name.value(), value{};
    const int status = mdb_get(transaction, table_, &key, &value);
    WEFT_CHECK(status != MDB_NOTFOUND, Io, kOp, path_, ": has no key \"", name.text,
               "\", though it holds ", size_, "; the keys are the indices (data/lmdb.h)");
    check(status, path_, "read a sample");
    return {static_cast<const std::byte*>(value.mv_data), value.mv_size};
  }

 private:
  // Keys are in order and differ, so where one is missing the last one is another.
  void check_last_key(MDB_txn* transaction) const {
    if (size_ == 0) return;
    MDB_cursor* cursor = nullptr;
    check(mdb_cursor_open(transaction, table_, &cursor), path_, "read its keys");
    MDB_val key{}, value{};
    const int status = mdb_cursor_get(cursor, &key, &value, MDB_LAST);
    mdb_cursor_close(cursor);
    check(status, path_, "read its keys");
    const std::string_view last(static_cast<const char*>(key.mv_data), key.mv_size);
    const Key expected(size_ - 1);
    WEFT_CHECK(last == expected.text, Io, kOp, path_, ": holds ", size_,
               " keys, so the last should be \"", expected.text, "\", got \"", last,
               "\"; the keys are the indices of the samples (data/lmdb.h)");
  }

  std::string path_;
  EnvironmentHandle handle_;
  MDB_dbi table_ = 0;
  std::int64_t size_ = 0;
  pid_t process_ = ::getpid();
};

struct Lmdb::Opened {
  std::mutex mutex;
  std::shared_ptr<const Environment> environment;
};

Lmdb::Lmdb(const std::string& path, const LmdbOptions& options)
    : path_(path),
      size_(Environment(path).size()),
      limits_(options.limits),
      batcher_(kOp, options.format, 3),
      opened_(std::make_shared<Opened>()) {}

std::shared_ptr<const Lmdb::Environment> Lmdb::environment() const {
  const std::lock_guard lock(opened_->mutex);
  auto& environment = opened_->environment;
  if (!environment || environment->process() != ::getpid()) {
    environment = std::make_shared<const Environment>(path_);
  }
  return environment;
}

Lmdb::Batch Lmdb::get_batch(std::span<const std::int64_t> indices) const {
  Batch batch;
  get_batch(indices, batch, HostMemory(), default_generator().random64());
  return batch;
}

void Lmdb::get_batch(std::span<const std::int64_t> indices, Batch& batch, const HostMemory& memory,
                     std::uint64_t epoch_seed) const {
  const std::shared_ptr<const Environment> environment = this->environment();
  const Transaction transaction = environment->read();
  const auto load = [&](std::int64_t index, Picture& picture) {
    const std::span<const std::byte> value = environment->value(transaction.get(), index);
    const std::string name = detail::concat(path_, ": sample ", Key(index).text);
    WEFT_CHECK(value.size() > kLabelBytes, Io, kOp, name, ": ", value.size(),
               " bytes; expected a label of 8 and a picture");
    WEFT_CHECK(value.size() - kLabelBytes <= limits_.max_bytes, Io, kOp, name, ": ", value.size(),
               " bytes are over the limit of ", limits_.max_bytes);
    std::int64_t label = 0;
    std::memcpy(&label, value.data(), kLabelBytes);
    io::Image image = io::parse_image(value.subspan(kLabelBytes), limits_, name);
    picture.swap(image);
    return label;
  };
  batcher_.fill(indices, size_, load, batch, memory, epoch_seed);
}

struct LmdbWriter::Impl {
  // Address space, neither memory nor disk: what the file may grow to.
  static constexpr std::size_t kMapBytes = std::size_t{1} << 40;
  // LMDB holds what a transaction wrote in memory.
  static constexpr std::size_t kBytesAtOnce = std::size_t{16} << 20;

  explicit Impl(const std::string& path)
      : file(path),
        // Beside the lock and the flush to disk of AtomicFile it needs neither.
        environment(open(path + ".tmp", MDB_NOSYNC, kMapBytes, path)),
        transaction(begin(environment.get(), 0, path)),
        table(open_table(transaction.get(), path)) {}

  void end_transaction() {
    check(mdb_txn_commit(transaction.release()), file.path(), "write");
    bytes = 0;
  }

  AtomicFile file;
  EnvironmentHandle environment;
  Transaction transaction;
  MDB_dbi table;
  std::int64_t count = 0;
  std::size_t bytes = 0;  // of this transaction
};

LmdbWriter::LmdbWriter(const std::string& path) : impl_(std::make_unique<Impl>(path)) {}
LmdbWriter::~LmdbWriter() = default;

void LmdbWriter::add(std::int64_t label, std::span<const std::byte> picture) {
  Impl& to = *impl_;
  const std::string& path = to.file.path();
  WEFT_CHECK(to.count < kMostSamples, InvalidArgument, kOp, path, ": more than ", kMostSamples,
             " samples; use several files");
  WEFT_CHECK(to.transaction, Internal, kOp, path, ": a sample after commit, or after an error");
  Key name(to.count);
  MDB_val key = name.value(), value{kLabelBytes + picture.size(), nullptr};
  check(mdb_put(to.transaction.get(), to.table, &key, &value, MDB_RESERVE | MDB_APPEND), path,
        "write a sample");
  std::memcpy(value.mv_data, &label, kLabelBytes);
  std::memcpy(static_cast<std::byte*>(value.mv_data) + kLabelBytes, picture.data(), picture.size());
  ++to.count;
  to.bytes += value.mv_size;
  if (to.bytes < Impl::kBytesAtOnce) return;
  to.end_transaction();
  to.transaction = begin(to.environment.get(), 0, path);
}

void LmdbWriter::commit() {
  WEFT_CHECK(impl_->transaction, Internal, kOp, impl_->file.path(), ": a second commit");
  impl_->end_transaction();
  impl_->environment.reset();
  impl_->file.commit();
}

}  // namespace weft::data
